"""Table: what happened in each phase, as rows that can be added up and printed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields


@dataclass
class Row:
    """What happened in a phase.

    ``stall`` is the longest time in which no closure ended, or in which a small read waited for a
    large table; ``recoveries`` counts documented losses, after which a checkpoint was loaded.
    """

    phase: str
    seconds: float = 0.0
    closures: int = 0
    workers_killed: int = 0
    servers_killed: int = 0
    freezes: int = 0
    cuts: int = 0
    failovers: int = 0
    rebalances: int = 0
    saves: int = 0
    restores: int = 0
    recoveries: int = 0
    stall: float = 0.0
    violations: list[str] = field(default_factory=list)
    note: str = ""

    def add(self, other: Row) -> None:
        """Take in what happened in another run of the phase, or in a part of it."""
        for each in fields(self):
            mine, its = getattr(self, each.name), getattr(other, each.name)
            if each.name == "stall":
                self.stall = max(mine, its)
            elif each.name == "note":
                self.note = its or mine
            elif each.name != "phase":
                setattr(self, each.name, mine + its)


_HEAD = (
    *("phase", "seconds", "closures", "workers killed", "servers killed", "freezes", "links cut"),
    *("failovers", "rebalances", "saves", "restores", "recoveries", "longest stall", "violations"),
)


def printed(rows: Iterable[Row]) -> str:
    """Return a table in Markdown, with the notes below."""
    rows = list(rows)
    lines = [_HEAD, ("---",) * len(_HEAD)]
    for row in rows:
        numbers = (
            *(f"{row.seconds:.0f}", f"{row.closures:,}", row.workers_killed, row.servers_killed),
            *(row.freezes, row.cuts, row.failovers, row.rebalances, row.saves, row.restores),
            *(row.recoveries, f"{row.stall:.1f} s", len(row.violations)),
        )
        lines.append((row.phase, *map(str, numbers)))
    text = [f"| {' | '.join(line)} |" for line in lines]
    notes = [f"{row.phase}: {row.note}" for row in rows if row.note]
    return "\n".join([*text, *(["", *notes] if notes else [])])
