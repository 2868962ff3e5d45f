"""ReservedWrite: a write of a commit, and the memory for it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psnb._src.server.table import Table
from psnb._src.server.table_operations import OnTable


@dataclass(slots=True, eq=False)
class ReservedWrite:
    """A write that will not fail for want of memory.

    It has the memory as long as it is there, so nobody must give that back: not when a commit is
    given up, nor when its writer ends. It goes to another process without memory: what is copied
    must be reserved anew.

    Attributes
    ----------
    write : OnTable
        The write.
    table : Table or None
        The table for which it was reserved. A table of that name which is another one is not
        changed.
    make : callable or None
        Makes the write; None if it waits for the end of a round.
    share : object
        The memory that it needs at the end of the round.
    """

    write: OnTable
    table: Table | None = None
    make: Callable[[], None] | None = None
    share: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ReservedWrite, (self.write,)
