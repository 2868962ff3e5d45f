"""PlacedTables: which tables a strategy has placed on which shards. Pure.

It remembers how each table was made, so that it can be made again when a shard was lost, and how
many bytes each shard was given, so that the next table goes where there are fewest. Of the initial
values of variables it keeps what takes little memory: those with which one can begin anew without a
checkpoint. (On the servers they would be lost with them; in a file the notebook's disk would hold
every large model once more.) Not thread-safe; `TableFactory` locks it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from psnb._src.server import CreateDense, CreateTable, Optimizer

Creation = tuple[int, CreateTable]
"""The number of a shard, and the operation that makes a table there."""

MOST_KEPT = 256 << 20
"""Bytes of initial values that are kept; values that are all equal take none."""


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
        self._unkept: set[str] = set()  # variables whose initial values are not known
        self._kept = 0  # bytes of those that are

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

    def remember(self, parameter: str, made: Sequence[Creation], *, known: bool = True) -> None:
        """Note how the tables of a parameter were made, and its initial values if they are known.

        All of the values are kept, or none: zeros stand for those that are not.
        """
        size = sum(_size(creation) for _, creation in made)
        known = known and self._kept + size <= MOST_KEPT
        if known:
            self._kept += size
        elif any(isinstance(creation, CreateDense) for _, creation in made):
            self._unkept.add(parameter)
        self._made[parameter] = [(shard, _held(creation, known)) for shard, creation in made]

    def forget_values(self, parameter: str) -> None:
        """Note that the values that a parameter was made with only hold the place of others."""
        made = self._made[parameter]
        if parameter not in self._unkept:
            self._kept -= sum(_size(creation) for _, creation in made)
        self.remember(parameter, made, known=False)

    def unkept(self, numbers: Collection[int]) -> list[str]:
        """Return the variables on some shards whose initial values are not kept."""
        return [
            name
            for name, made in self._made.items()
            if name in self._unkept and any(shard in numbers for shard, _ in made)
        ]

    def made_on(
        self,
        numbers: Collection[int],
        optimizers: Mapping[str, Optimizer | None],
        values: Mapping[tuple[int, str], np.ndarray],
    ) -> list[Creation]:
        """Return how all tables of some shards are made again; see `TableFactory.make_again`."""
        found = []
        for parameter, made in self._made.items():
            for shard, creation in made:
                changed: dict[str, Any] = {"optimizer": optimizers[parameter]}
                if (shard, creation.name) in values:
                    changed["values"] = values[shard, creation.name]
                if shard in numbers:
                    found.append((shard, msgspec.structs.replace(creation, **changed)))
        return found


def copies(optimizer: Optimizer | None) -> int:
    """Return how many arrays of a parameter's size a server holds for it."""
    return 1 + len(optimizer.slots if optimizer else ())


def _size(creation: CreateTable) -> int:
    """Return the memory that initial values take here."""
    if not isinstance(creation, CreateDense) or _is_constant(creation.values):
        return 0
    return creation.values.nbytes


def _held(creation: CreateTable, known: bool) -> CreateTable:
    if not isinstance(creation, CreateDense):
        return creation
    values = creation.values
    if not known or _is_constant(values):
        # One number, seen as an array of the shape.
        one = values.flat[0] if known and values.size else np.zeros((), values.dtype)
        values = np.broadcast_to(one, values.shape)
    else:
        values = values.copy()  # it may be the user's, who may change it
    return msgspec.structs.replace(creation, values=values)


def _is_constant(values: np.ndarray) -> bool:
    """Return whether all values are the same, bit for bit: 0.0 is not -0.0, and NaN may be."""
    if not values.size:
        return True
    bits = np.ascontiguousarray(values).reshape(-1).view(f"u{values.itemsize}")
    return bool(bits[0] == bits[-1] and bits.min() == bits.max())  # of most, two numbers say it
