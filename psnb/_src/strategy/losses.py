"""Losses: a text about the parameters that were lost with servers, and what can be done.

Any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.handles import Handle, shards_of
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.variable import Variable
from psnb._src.placement.layout import ServerAddress
from psnb._src.strategy.servers import Servers
from psnb._src.strategy.tables import TableFactory
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import NAME, size_text, truncate

_MOST_NAMED = 10
"""Parameters that are named; others are only counted."""


class Losses:
    """What was lost of a strategy.

    Parameters
    ----------
    servers : Servers
        Know where the shards are.
    tables : TableFactory
        The parameters; knows which initial values are kept.

    Attributes
    ----------
    checkpoint : Path, RemotePath or None
        The one that was saved or restored last.
    """

    def __init__(self, servers: Servers, tables: TableFactory) -> None:
        self._servers, self._tables = servers, tables
        self.checkpoint: AnyPath | None = None

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return self._servers.name

    def advice(self, shard: int | None = None, server: ServerAddress | None = None) -> str:
        """Return what is lost and can be done; see `psnb._src.protocol.lost_shards.Adviser`.

        Empty if the shard is not lost; without one, if nothing is.
        """
        numbers = self.lost(server)
        if not numbers or shard not in (None, *numbers):
            return ""
        if self.checkpoint is not None:
            more = "All parameters go back to it, or with consistent=False only what was lost"
        else:
            more = (
                "All parameters start over, or with consistent=False only what was lost; handles "
                "stay. A psnb.CheckpointManager, or replicas=1, keeps it next time"
            )
        return f"{self.way()}. Lost: {self.names(numbers)}. {more}"

    def lost(self, server: ServerAddress | None = None) -> list[int]:
        """Return the shards that no server has; a lost ``server`` may be in the layout still."""
        return [
            number
            for number, placement in enumerate(self._servers.layout.placements)
            if (placement.primary is None and placement.successor is None)
            or (server is not None and placement.servers == (server,))
        ]

    def summary(self, numbers: Collection[int]) -> str:
        """Return what was lost with some shards and can be done, in the length of an event."""
        return f"{self.names(numbers)}; {self.way()}"

    def way(self) -> str:
        """Return the shortest advice."""
        if self.checkpoint is None:
            return f"there is no checkpoint: {self.beginning()} starts over in place"
        return f"strategy.recover() goes back to the checkpoint {str(self.checkpoint)!r}"

    def beginning(self) -> str:
        """Return the call by which all parameters start over."""
        every = range(len(self._servers.layout.placements))
        return begin_call(self._tables.all(), self._tables.unkept(every))

    def names(self, numbers: Collection[int]) -> str:
        """Return which parameters lie on some shards, and how much of each."""
        found = [
            text
            for handle in self._tables.all().values()
            if (text := _part_of(shards_of(handle), numbers))
        ]
        more = f" and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
        return (", ".join(found[:_MOST_NAMED]) or "no parameter") + more


def begin_call(parameters: Mapping[str, Handle], unkept: Sequence[str]) -> str:
    """Return the call by which parameters start over, with the variables that need values."""
    if not unkept:
        return "strategy.recover(initialize=True)"
    values = [
        f"{truncate(repr(name), NAME)}: array of shape {each.shape}"
        for name in unkept[:_MOST_NAMED]
        if isinstance(each := parameters[name], Variable)
    ]
    more = ["..."] if len(unkept) > _MOST_NAMED else []
    return f"strategy.recover(initialize={{{', '.join([*values, *more])}}})"


def _part_of(parameter: DenseShards | SparseShards, numbers: Collection[int]) -> str:
    """Return how much of a parameter lies on some shards; empty if nothing does."""
    name = truncate(repr(parameter.name), NAME)
    if isinstance(parameter, SparseShards):
        count = len(parameter.shard_ids)
        mine = [shard.number for shard in parameter.shard_ids if shard.number in numbers]
        if not mine:
            return ""
        if parameter.rows is None:
            return f"{len(mine)} of {count} shards of table {name}"
        rows = sum(len(range(number, parameter.rows, count)) for number in mine)
        size = size_text(rows * parameter.dim * parameter.spec.dtype.itemsize)
        return f"{rows:,} of {parameter.rows:,} rows of table {name} ({size})"
    parts = [part for part in parameter.parts if part.shard.number in numbers]
    if not parts:
        return ""
    size = size_text(sum(parameter.part_nbytes(part) for part in parts))
    if len(parts) == len(parameter.parts):
        return f"variable {name} ({size})"
    rows = sum(part.stop - part.start for part in parts)
    return f"{rows:,} of {parameter.shape[0]:,} rows of variable {name} ({size})"
