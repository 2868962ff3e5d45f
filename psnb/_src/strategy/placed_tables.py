"""PlacedTables: which tables a strategy has placed on which shards. Pure.

It remembers how each table was made, so that it can be made again when a shard was lost, and how
many bytes each shard was given, so that the next table goes where there are fewest. Not
thread-safe; `TableFactory` locks it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from psnb._src.server import CreateDense, CreateTable, Optimizer

Creation = tuple[int, CreateTable]
"""The number of a shard, and the operation that makes a table there."""


class PlacedTables:
    """The tables of all shards.

    Parameters
    ----------
    shards : int
        How many shards there are.
    """

    def __init__(self, shards: int) -> None:
        # What growing tables will take is not known.
        self._bytes = [0] * shards
        self._made: dict[str, list[Creation]] = {}

    def choose(self, nbytes: int, servers: Sequence[object]) -> int:
        """Return the shard for a table of a given size, and count the bytes there.

        The table goes to the server with the fewest bytes, and there to the shard with the fewest.

        Parameters
        ----------
        nbytes : int
            The size.
        servers : sequence
            The server of each shard.
        """
        load: dict[object, int] = {}
        for server, held in zip(servers, self._bytes, strict=True):
            load[server] = load.get(server, 0) + held
        index = min(
            range(len(self._bytes)), key=lambda shard: (load[servers[shard]], self._bytes[shard])
        )
        self._bytes[index] += nbytes
        return index

    def count(self, index: int, nbytes: int) -> None:
        """Count bytes that a shard was given."""
        self._bytes[index] += nbytes

    def remember(self, parameter: str, made: Sequence[Creation]) -> None:
        """Note how the tables of a parameter were made, without their values."""
        self._made[parameter] = [(shard, _without_values(creation)) for shard, creation in made]

    def made_on(self, index: int) -> list[Creation]:
        """Return how all tables of a shard were made; those of variables hold zeros."""
        return [each for made in self._made.values() for each in made if each[0] == index]


def copies(optimizer: Optimizer | None) -> int:
    """Return how many arrays of a parameter's size a server holds for it."""
    return 1 + len(optimizer.slots if optimizer else ())


def _without_values(creation: CreateTable) -> CreateTable:
    if not isinstance(creation, CreateDense):
        return creation
    # One zero, seen as an array of the shape.
    zero = np.zeros((), creation.values.dtype)
    return msgspec.structs.replace(creation, values=np.broadcast_to(zero, creation.values.shape))
