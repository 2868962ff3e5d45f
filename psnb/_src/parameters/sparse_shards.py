"""SparseShards: how an embedding is spread over servers and saved.

What `Embedding` is made of; it keeps no state, so any number of threads may use one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from psnb._src.parameters.gradients import NonFinite
from psnb._src.parameters.handle import Handle
from psnb._src.parameters.partition import shard_of_ids
from psnb._src.parameters.server_client import ServerClient
from psnb._src.parameters.states import read_states, write_states
from psnb._src.placement import ShardId
from psnb._src.server import (
    Admission,
    Always,
    CtrAccessor,
    ExpectedRows,
    Optimizer,
    SavedShard,
    add_up,
)
from psnb.errors import GradientError

_ALWAYS = Always()
_NO_IDS = np.empty(0, np.uint64)


class SparseShards(Handle):
    """A description of an embedding, and the way to its shards."""

    def __init__(
        self,
        name: str,
        dim: int,
        rows: int | None,
        dtype: np.dtype,
        optimizer: Optimizer | None,
        shards: Sequence[ShardId],
        transport: ServerClient | None,
        nonfinite: NonFinite = NonFinite.REFUSE,
        padding_idx: int | None = None,
        admission: Admission = _ALWAYS,
        accessor: CtrAccessor | None = None,
    ) -> None:
        tables = [(shard, name) for shard in shards]
        super().__init__(name, optimizer, tables, transport, nonfinite)
        self.dim, self.rows, self.dtype = dim, rows, dtype
        self.padding_idx, self.admission, self.accessor = padding_idx, admission, accessor
        self._shards = tuple(shards)

    def _knows_norm(self) -> bool:
        return self._server_sees_all or self._sends_norm

    @property
    def _server_sees_all(self) -> bool:
        """Whether a push comes to one shard whole, which can take its norm itself."""
        return len(self._shards) == 1 and isinstance(self.admission, Always)

    @property
    def _sends_norm(self) -> bool:
        """Whether pushes are summed by id and sent with their norm; that costs time."""
        made = self._made
        return made is not None and made.clipnorm is not None and not self._server_sees_all

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint must have to be loaded, as JSON holds it."""
        return {
            "kind": "embedding",
            "dim": self.dim,
            "rows": self.rows,
            "dtype": self.dtype.name,
            "slots": list(self._made.slots if self._made else ()),
        }

    def check_state(self, saved: SavedShard) -> None:
        """Raise ConfigurationError unless what was saved of a shard can be loaded.

        Each id must be in the shard where it was dealt to. So none is in two of them, and each can
        be looked at alone.
        """
        expected = ExpectedRows(
            self.name,
            self.dtype,
            self._made.slots if self._made else (),
            self.dim,
            None if self.rows is None else (self.rows, saved.number, saved.shards),
            uses=self.accessor is not None,
            waits=self.admission.sightings > 1,
        )
        expected.check_names(saved.forms)
        arrays = {name: saved.read(name) for name in expected.read}
        expected.check_state(saved.forms, arrays)
        if self.rows is not None:
            rows = len(range(saved.number, self.rows, saved.shards))
            if arrays["ids"].size != rows:
                raise GradientError(f"expected {rows} rows, found {arrays['ids'].size}")
            return
        for name in ("ids", "waiting.ids"):
            ids = arrays.get(name, _NO_IDS)
            foreign = shard_of_ids(ids, saved.shards, growing=True) != saved.number
            if foreign.any():
                raise GradientError(
                    f"{name} of {self.name!r}: {ids[foreign][0]} is none of shard {saved.number} "
                    f"of {saved.shards}"
                )

    def shard_states(self) -> list[dict[str, np.ndarray]]:
        """Return ids, values and optimizer state of every shard, for checkpoints."""
        return read_states(self.transport, self._tables)

    def load_states(
        self, states: Sequence[dict[str, np.ndarray]], only: frozenset[int] | None = None
    ) -> None:
        """Replace all rows by what `shard_states` returned, from however many shards it came.

        On all shards, or only on some of them. Shards count their steps on their own; all go on
        from the highest count.
        """
        step = max(state["step"] for state in states)
        keys = states[0].keys() - {"step"}
        whole = {key: _joined([state[key] for state in states]) for key in keys}
        waiting = {key: whole.pop(key) for key in keys if key.startswith("waiting.")}
        rows: list[dict[str, Any]] = [{} for _ in self._shards]
        tails: list[dict[str, Any]] = [{"step": step} for _ in self._shards]
        for ids, arrays, parts in (("ids", whole, rows), ("waiting.ids", waiting, tails)):
            if len(parts) == 1:
                parts[0] |= arrays
            elif arrays:
                owners = self._owners(arrays[ids])
                for owner, part in enumerate(parts):
                    part |= {key: array[owners == owner] for key, array in arrays.items()}
        write_states(
            self.transport,
            [
                (table, rows[i], tails[i])
                for i, table in enumerate(self._tables)
                if only is None or table[0].number in only
            ],
        )

    def _owners(self, flat: np.ndarray) -> np.ndarray:
        return shard_of_ids(flat, len(self._shards), growing=self.rows is None)

    def _split(self, flat: np.ndarray) -> list[tuple[ShardId, Any]]:
        """Return each shard that is asked, with the positions of its ids."""
        if flat.size == 0:
            return []
        if len(self._shards) == 1:
            return [(self._shards[0], slice(None))]
        owners = self._owners(flat)
        split = [(shard, np.flatnonzero(owners == i)) for i, shard in enumerate(self._shards)]
        return [(shard, at) for shard, at in split if at.size]

    def _summed(
        self, ids: np.ndarray, position: np.ndarray, gradients: np.ndarray
    ) -> tuple[np.ndarray, bool]:
        """Return the sum of each id's gradients, and whether all are finite."""
        shape, sums = (ids.size, self.dim), None
        if len(self._shards) == 1:
            sums = self.transport.lend(self._shards[0], shape, self.dtype)
        if sums is None:
            sums = np.empty(shape, self.dtype)
        return sums, add_up(gradients, position, sums)

    def _dealt(
        self, ids: np.ndarray, gradients: np.ndarray
    ) -> Iterator[tuple[ShardId, np.ndarray, np.ndarray]]:
        """Yield what each shard gets, in arrays of its own that do not change any more."""
        for shard, at in self._split(ids):
            if isinstance(at, slice):
                part = gradients
            else:
                own = self.transport.lend(shard, (at.size, self.dim), self.dtype)
                part = gradients.take(at, axis=0, out=own, mode="clip")
            part.flags.writeable = False
            yield shard, share(ids, at), part


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def share(ids: np.ndarray, at: Any) -> np.ndarray:
    """Return a shard's share: the very array, if it is all of them, so it is sent but once."""
    return ids if isinstance(at, slice) else ids[at]
