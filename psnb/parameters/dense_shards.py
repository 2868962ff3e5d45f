"""DenseShards: how a variable is spread over servers, sent and saved.

What `Variable` is made of; it keeps no state, so any number of threads may use one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb.parameters.gradients import NonFinite
from psnb.parameters.live_optimizer import LiveOptimizer
from psnb.parameters.transport import Request, ServerAddress, Transport, process_transport
from psnb.parameters.updates import TableWrite, write_requests
from psnb.server import Optimizer


@dataclass(frozen=True, slots=True)
class DenseShard:
    """Rows ``start`` to ``stop`` of a variable, and which table of which server holds them."""

    server: ServerAddress
    table: str
    start: int
    stop: int


class DenseShards:
    """A description of a variable, and the way to its shards."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
        optimizer: Optimizer | None,
        shards: Sequence[DenseShard],
        transport: Transport | None,
        nonfinite: NonFinite = NonFinite.REFUSE,
    ) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self._made, self._nonfinite = optimizer, nonfinite
        self._shards = tuple(shards)
        self._transport = transport

    @property
    def optimizer(self) -> LiveOptimizer | None:
        """What the servers do with a pushed gradient; its hyperparameters can be set live."""
        if self._made is None:
            return None
        tables = [(shard.server, shard.table) for shard in self._shards]
        return LiveOptimizer(self._made, self.name, tables, self._transport)

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint must have to be loaded, as JSON holds it."""
        return {
            "kind": "variable",
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "slots": list(self._made.slots if self._made else ()),
        }

    def state_keys(self) -> frozenset[str]:
        """Return the names of the arrays in a shard's state."""
        slots = self._made.slots if self._made else ()
        return frozenset({"values", "step", *(f"slot.{name}" for name in slots)})

    def shard_states(self) -> list[dict[str, np.ndarray]]:
        """Return values and optimizer state of every shard, for checkpoints."""
        requests = [Request(s.server, s.table, "state", {}) for s in self._shards]
        return self.transport.call(requests)

    def load_states(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        """Take over what `shard_states` returned, from however many shards it came."""
        # Each shard counted its own steps, and all have had the same pushes.
        step = max(state["step"] for state in states)
        keys = states[0].keys() - {"step"}
        whole = {key: self._joined([state[key] for state in states]) for key in keys}
        parts = [self._split(key, array) for key, array in whole.items()]
        merged = [
            {"step": step, **{k: v for part in parts for k, v in part[i].items()}}
            for i in range(len(self._shards))
        ]
        self.transport.call(
            [
                Request(shard.server, shard.table, "load", {"state": state})
                for shard, state in zip(self._shards, merged, strict=True)
            ]
        )

    def _split(self, key: str, array: np.ndarray) -> list[dict[str, Any]]:
        return [{key: part} for part in self._parts(array)]

    def _parts(self, array: np.ndarray) -> list[np.ndarray]:
        if len(self._shards) == 1:
            return [array]
        return [array[shard.start : shard.stop] for shard in self._shards]

    def _joined(self, parts: list[np.ndarray]) -> np.ndarray:
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _split_rows(self, flat: np.ndarray) -> list[tuple[DenseShard, Any]]:
        """Return each shard that has some of the rows, with their positions."""
        if flat.size == 0:
            return []
        if len(self._shards) == 1:
            return [(self._shards[0], slice(None))]
        stops = np.array([shard.stop for shard in self._shards])
        owners = np.searchsorted(stops, flat, side="right")
        split = [(shard, np.flatnonzero(owners == i)) for i, shard in enumerate(self._shards)]
        return [(shard, at) for shard, at in split if at.size]

    def send(self, writes: Sequence[TableWrite], immediate: bool) -> None:
        """Make writes of this parameter, or of others too that share its transport."""
        if requests := write_requests(writes, immediate=immediate):
            self.transport.call(requests)

    @property
    def transport(self) -> Transport:
        """The way to the servers."""
        return self._transport or process_transport()
