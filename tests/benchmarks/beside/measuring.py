"""Rounds of psnb and a peer in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.beside import environments
from tests.benchmarks.beside.cores import Cores
from tests.benchmarks.beside.plan import Pair, Peer
from tests.benchmarks.beside.talking import Answer, PeerError, Process

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Spread:
    """The median of some figures, the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        """Return that of figures."""
        return cls(statistics.median(figures), min(figures), max(figures))


@dataclass(frozen=True)
class Row:
    """What a pair has reached: rates, ratios of rounds, losses after as many steps or so, cores."""

    work: str
    peer: str
    ours: Spread
    theirs: Spread
    ratio: Spread
    losses: tuple[float, float]
    cores: tuple[Cores, Cores]


@dataclass
class Run:
    """What was found: rows, versions by name, and who was left out and why."""

    rows: list[Row] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def measure(
    peers: Sequence[Peer], rounds: int, seconds: float, logs: Path, tell: Tell = print
) -> Run:
    """Return what psnb and each peer do, one peer after the other."""
    run = Run()
    psnb = Process("psnb", environments.python("psnb", ()), logs / "psnb.log")
    run.versions["psnb"] = psnb.version
    try:
        for peer in peers:
            begin = time.monotonic()
            try:
                _beside(psnb, peer, run, rounds, seconds, logs, tell)
            except PeerError as error:
                run.left_out[peer.name] = str(error)
                tell(f"{peer.name} is left out: {error}")
            tell(f"{peer.name}: {time.monotonic() - begin:.0f} s")
    finally:
        psnb.close()
    return run


def _beside(
    psnb: Process, peer: Peer, run: Run, rounds: int, seconds: float, logs: Path, tell: Tell
) -> None:
    python = environments.python(peer.module, peer.packages)
    other = Process(peer.module, python, logs / f"{peer.module}.log", peer.threads)
    try:
        run.versions[peer.name] = other.version
        for pair in peer.pairs:
            row = _row(psnb, other, pair, pair.label or peer.name, rounds, seconds)
            run.rows.append(row)
            tell(
                f"{row.work}/s: {row.ours.median:,.0f}; {row.peer} {row.theirs.median:,.0f}: "
                f"{row.ratio.median:.2f} ({row.ratio.least:.2f} to {row.ratio.most:.2f})"
            )
    finally:
        other.close()


def _row(psnb: Process, other: Process, pair: Pair, name: str, rounds: int, seconds: float) -> Row:
    answers: list[tuple[Answer, Answer]] = []
    for number in range(rounds):
        # Who is first changes, for what a round leaves behind slows down who comes next.
        sides = [(psnb, pair.ours), (other, pair.theirs)]
        found = {}
        for process, work in sides if number % 2 == 0 else sides[::-1]:
            try:
                found[process] = process.ask(work, seconds)
            except PeerError as error:
                if process is psnb:
                    raise RuntimeError(f"psnb, {pair.work}: {error}") from error
                raise
        answers.append((found[psnb], found[other]))
    ours, theirs = zip(*answers, strict=True)
    return Row(
        pair.work,
        name,
        Spread.of([each.rate for each in ours]),
        Spread.of([each.rate for each in theirs]),
        Spread.of([one.rate / another.rate for one, another in answers]),
        (ours[-1].loss, theirs[-1].loss),
        (_mean(each.cores for each in ours), _mean(each.cores for each in theirs)),
    )


def _mean(rounds: Iterable[Cores]) -> Cores:
    together = list(rounds)
    return {
        role: [
            statistics.fmean(each) for each in zip(*(one[role] for one in together), strict=True)
        ]
        for role in together[0]
    }
