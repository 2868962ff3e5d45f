"""SparseShards: how an embedding is spread over servers and saved.

What `Embedding` is made of; it keeps no state, so any number of threads may use one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from psnb.parameters.gradients import NonFinite
from psnb.parameters.live_optimizer import LiveOptimizer
from psnb.parameters.partition import shard_of_ids
from psnb.parameters.transport import Request, ServerAddress, Transport, process_transport
from psnb.parameters.updates import TableWrite, write_requests
from psnb.server import Admission, Always, CtrAccessor, Optimizer, RowUse, add_up

_ALWAYS = Always()


class SparseShards:
    """A description of an embedding, and the way to its shards."""

    def __init__(
        self,
        name: str,
        dim: int,
        rows: int | None,
        dtype: np.dtype,
        optimizer: Optimizer | None,
        servers: Sequence[ServerAddress],
        transport: Transport | None,
        nonfinite: NonFinite = NonFinite.REFUSE,
        padding_idx: int | None = None,
        admission: Admission = _ALWAYS,
        accessor: CtrAccessor | None = None,
    ) -> None:
        self.name, self.dim, self.rows, self.dtype = name, dim, rows, dtype
        self._made, self._nonfinite = optimizer, nonfinite
        self.padding_idx, self.admission, self.accessor = padding_idx, admission, accessor
        self._servers = tuple(servers)
        self._transport = transport

    @property
    def optimizer(self) -> LiveOptimizer | None:
        """What the servers do with pushed gradients; its hyperparameters can be set live."""
        if self._made is None:
            return None
        tables = [(server, self.name) for server in self._servers]
        return LiveOptimizer(self._made, self.name, tables, self._transport)

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint must have to be loaded, as JSON holds it."""
        return {
            "kind": "embedding",
            "dim": self.dim,
            "rows": self.rows,
            "dtype": self.dtype.name,
            "slots": list(self._made.slots if self._made else ()),
        }

    def state_keys(self) -> frozenset[str]:
        """Return the names of the arrays in a shard's state."""
        slots = self._made.slots if self._made else ()
        names = {"ids", "values", "step", *(f"slot.{name}" for name in slots)}
        if self.accessor is not None:
            names |= {*RowUse.NAMES}
        if self.admission.sightings > 1:
            names |= {"waiting.ids", "waiting.sightings"}
        return frozenset(names)

    def shard_states(self) -> list[dict[str, np.ndarray]]:
        """Return ids, values and optimizer state of every shard, for checkpoints."""
        requests = [Request(server, self.name, "state", {}) for server in self._servers]
        return self.transport.call(requests)

    def load_states(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        """Replace all rows by what `shard_states` returned, from however many shards it came.

        Shards count their steps on their own; all go on from the highest count.
        """
        step = max(state["step"] for state in states)
        keys = states[0].keys() - {"step"}
        whole = {key: np.concatenate([state[key] for state in states]) for key in keys}
        waiting = {key: whole.pop(key) for key in keys if key.startswith("waiting.")}
        parts: list[dict[str, Any]] = [{"step": step} for _ in self._servers]
        for ids, arrays in (("ids", whole), ("waiting.ids", waiting)):
            if arrays:
                owners = self._owners(arrays[ids])
                for shard, part in enumerate(parts):
                    part |= {key: array[owners == shard] for key, array in arrays.items()}
        self.transport.call(
            [
                Request(server, self.name, "load", {"state": part})
                for server, part in zip(self._servers, parts, strict=True)
            ]
        )

    def _owners(self, flat: np.ndarray) -> np.ndarray:
        return shard_of_ids(flat, len(self._servers), growing=self.rows is None)

    def _split(self, flat: np.ndarray) -> list[tuple[ServerAddress, Any]]:
        """Return each server that is asked, with the positions of its ids."""
        if flat.size == 0:
            return []
        if len(self._servers) == 1:
            return [(self._servers[0], slice(None))]
        owners = self._owners(flat)
        split = [(server, np.flatnonzero(owners == i)) for i, server in enumerate(self._servers)]
        return [(server, at) for server, at in split if at.size]

    def _summed(
        self, ids: np.ndarray, position: np.ndarray, gradients: np.ndarray
    ) -> tuple[np.ndarray, bool]:
        """Return the sum of each id's gradients, and whether all are finite."""
        shape, sums = (ids.size, self.dim), None
        if len(self._servers) == 1:
            sums = self.transport.lend(self._servers[0], shape, self.dtype)
        if sums is None:
            sums = np.empty(shape, self.dtype)
        return sums, add_up(gradients, position, sums)

    def _dealt(
        self, ids: np.ndarray, gradients: np.ndarray
    ) -> Iterator[tuple[ServerAddress, np.ndarray, np.ndarray]]:
        """Yield what each server gets, in arrays of its own that do not change any more."""
        for server, at in self._split(ids):
            if isinstance(at, slice):
                part = gradients
            else:
                own = self.transport.lend(server, (at.size, self.dim), self.dtype)
                part = gradients.take(at, axis=0, out=own, mode="clip")
            part.flags.writeable = False
            yield server, share(ids, at), part

    def send(self, writes: Sequence[TableWrite], immediate: bool) -> None:
        """Make writes of this parameter, or of others too that share its transport."""
        if requests := write_requests(writes, immediate=immediate):
            self.transport.call(requests)

    @property
    def transport(self) -> Transport:
        """The way to the servers."""
        return self._transport or process_transport()


def share(ids: np.ndarray, at: Any) -> np.ndarray:
    """Return a server's share: the very array, if it is all of them, so it is sent but once."""
    return ids if isinstance(at, slice) else ids[at]
