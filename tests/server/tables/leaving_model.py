"""LeavingModel: what a table of which rows leave must hold, by plain dicts, one id at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

FIRST = 1.0
"""The value with which rows begin."""


@dataclass
class Row:
    """One id's row."""

    value: float = FIRST
    last: int = 0
    uses: int = 0
    minute: int = 0


@dataclass
class LeavingModel:
    """The rows, and who leaves next."""

    bound: int
    evict: str
    more: int  # how many are chosen beside those that are needed
    row_of: Callable[[int], int]  # the number of an id's row in the table
    count: int = 1  # occurrences for a row
    rows: dict[int, Row] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    queue: list[int] = field(default_factory=list)
    leave: set[int] = field(default_factory=set)  # of the queue, those not used since
    first: int = 0  # the row whose turn it is, of equal ones
    step: int = 0
    minute: int = 0
    evicted: int = 0
    removed: set[int] = field(default_factory=set)

    def ensure(self, size: int, held: int = 0) -> bool:
        """Have others leave next if need be; return whether there may be so many."""
        needed = size + held - max(0, self.bound - len(self.rows))
        if len(self.leave) >= needed:
            return True
        first = min(self.first, len(self.rows) - 1)
        turns = {each: (self.row_of(each) - first) % len(self.rows) for each in self.rows}
        self.queue = sorted(self.rows, key=lambda each: (*self._order(each), turns[each]))
        del self.queue[needed + self.more :]
        self.first = (first + max(turns[each] for each in self.queue) + 1) % len(self.rows)
        self.leave = {*self.queue}
        return needed <= len(self.rows)

    def give(self, ids: list[int], counting: bool = True, inserted: bool = False) -> None:
        for each in ids:
            self.leave.discard(each)
        for each in dict.fromkeys(ids):
            if each not in self.rows:
                self._make(each, counting or self.count == 1, inserted)
            if (row := self.rows.get(each)) is not None:
                row.last, row.minute = self.step, self.minute
                row.uses += 1

    def forget(self, each: int) -> None:
        del self.rows[each]
        self.leave.discard(each)
        self.removed.add(each)

    def expire(self, updates: int | None, minutes: int | None) -> None:
        for each, row in [*self.rows.items()]:
            old = updates is not None and self.step - row.last >= updates
            if old or (minutes is not None and self.minute - row.minute > minutes):
                self.forget(each)
        self.minute += 1

    def _make(self, each: int, counting: bool, inserted: bool) -> None:
        if not counting and not inserted:
            return
        seen = self.waiting.get(each, 0) + 1
        if seen < self.count and not inserted:
            self.waiting[each] = seen
            return
        self.waiting.pop(each, None)
        if len(self.rows) >= self.bound:
            while self.queue[0] not in self.leave:
                self.queue.pop(0)
            self.forget(self.queue.pop(0))
            self.evicted += 1
        self.rows[each] = Row()

    def _order(self, each: int) -> tuple[int, ...]:
        row = self.rows[each]
        uses = (row.uses,) if self.evict != "lru" else ()
        return (*uses, row.last)
