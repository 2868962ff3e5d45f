"""DenseShards: how a variable is spread over servers, sent and saved.

What `Variable` is made of; it keeps no state, so any number of threads may use one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.parameters.gradients import NonFinite
from psnb._src.parameters.handle import Handle
from psnb._src.parameters.partition import row_ranges
from psnb._src.parameters.server_client import ServerClient
from psnb._src.parameters.states import read_states, write_states
from psnb._src.placement import ShardId
from psnb._src.server import Expected, Optimizer, SavedShard
from psnb.errors import GradientError


@dataclass(frozen=True, slots=True)
class DenseShard:
    """Rows ``start`` to ``stop`` of a variable, and which table of which shard holds them."""

    shard: ShardId
    table: str
    start: int
    stop: int


class DenseShards(Handle):
    """A description of a variable, and the way to its shards."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
        optimizer: Optimizer | None,
        shards: Sequence[DenseShard],
        transport: ServerClient | None,
        nonfinite: NonFinite = NonFinite.REFUSE,
    ) -> None:
        tables = [(each.shard, each.table) for each in shards]
        super().__init__(name, optimizer, tables, transport, nonfinite)
        self.shape, self.dtype = shape, dtype
        self._shards = tuple(shards)

    @property
    def clips_by_norm(self) -> bool:
        # Of one that is divided it may be switched on live.
        divided = self._made is not None and len(self._shards) > 1
        return divided or super().clips_by_norm

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint must have to be loaded, as JSON holds it."""
        return {
            "kind": "variable",
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "slots": list(self._made.slots if self._made else ()),
        }

    def check_state(self, saved: SavedShard) -> None:
        """Raise ConfigurationError unless what was saved of a shard can be loaded."""
        expected = Expected(self.name, self.dtype, self._made.slots if self._made else ())
        expected.check_names(saved.forms)
        if saved.shards > max((1, *self.shape[:1])):
            raise GradientError(f"{self.name!r} cannot be in {saved.shards} shards")
        shape = self.shape
        if saved.shards > 1:
            start, stop = row_ranges(shape[0], saved.shards)[saved.number]
            shape = (stop - start, *shape[1:])
        expected.check_numbers(saved.forms, shape)
        expected.check_tail(saved.forms, {"step": saved.read("step")})

    def shard_states(self) -> list[dict[str, np.ndarray]]:
        """Return values and optimizer state of every shard, for checkpoints."""
        states = read_states(self.transport, self._tables)
        for shard, state in zip(self._shards, states, strict=True):
            rows = (
                self.shape
                if len(self._shards) == 1
                else (shard.stop - shard.start, *self.shape[1:])
            )
            state |= {key: state[key].reshape(rows) for key in state.keys() - {"step"}}
        return states

    def load_states(
        self, states: Sequence[dict[str, np.ndarray]], only: frozenset[int] | None = None
    ) -> None:
        """Take over what `shard_states` returned, from however many shards it came.

        On all shards, or only on some of them.
        """
        # Each shard counted its own steps, and all have had the same pushes.
        step = max(state["step"] for state in states)
        keys = states[0].keys() - {"step"}
        whole = {key: self._joined([state[key] for state in states]) for key in keys}
        parts = [self._split(key, array) for key, array in whole.items()]
        write_states(
            self.transport,
            [
                (
                    (shard.shard, shard.table),
                    {k: v.reshape(-1) for part in parts for k, v in part[i].items()},
                    {"step": step},
                )
                for i, shard in enumerate(self._shards)
                if only is None or shard.shard.number in only
            ],
            numbered=True,
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
