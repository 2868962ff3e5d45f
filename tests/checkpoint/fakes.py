"""A strategy without Dask, for tests of managers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from psnb._src.client.dense_shards import DenseShard, DenseShards
from psnb._src.client.requests import Request
from psnb._src.placement.layout import ShardId
from psnb._src.server.operations import OnShard
from psnb._src.server.tables.operations import OnTables, PutSegment, TableOperation
from tests.checkpoint.saved import InHand

HALF = 50
SIZE = 2 * HALF


class Servers:
    """Servers with one variable, who read no files and call a function before they load something.

    Without those of `tests.client.in_process`: processes that save by the dozen import this.
    """

    def __init__(self) -> None:
        self.values = np.zeros(SIZE)
        self.when_loaded: Callable[[], object] = lambda: None

    def server_of(self, to: ShardId) -> None:
        """Return None: nobody reads for them."""

    def call(self, requests: Sequence[Request]) -> list[Any]:
        return self.attempt(requests)

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        return [
            self._run(each.operation.shard, each.operation.operation.operation)
            if isinstance(each.operation, OnShard)
            and isinstance(each.operation.operation, OnTables)
            else ()  # no commits are known
            for each in requests
        ]

    def _run(self, shard: int, operation: TableOperation) -> int:
        if isinstance(operation, PutSegment):
            self.when_loaded()
            start = shard * HALF + int(operation.segment["start"][0])
            part = operation.segment["values"]
            self.values[start : start + part.size] = part
        return 0  # no row is too many


class Parameter:
    """A variable in two shards, all of whose values are the same."""

    def __init__(self, name: str) -> None:
        self.servers = Servers()
        placed = [DenseShard(ShardId("s", i), name, i * HALF, (i + 1) * HALF) for i in range(2)]
        client: Any = self.servers
        self.shards = DenseShards(name, (SIZE,), np.dtype(np.float64), None, placed, client)
        self.when_saved: Callable[[], object] = lambda: None

    @property
    def value(self) -> int:
        (found,) = {*self.servers.values.tolist()}
        return int(found)

    @value.setter
    def value(self, value: int) -> None:
        self.servers.values[:] = value

    def states(self) -> list[dict[str, np.ndarray]]:
        parts = self.servers.values.copy().reshape(2, HALF)
        return [{"values": part, "step": np.array([0])} for part in parts]


class Strategy:
    """Some parameters, and what was noted."""

    def __init__(self) -> None:
        self.made = {name: Parameter(name) for name in "abc"}
        self.noted: list[Path] = []
        self.taken: list[InHand] = []
        self.when_prepared: Callable[[], object] = lambda: None
        self.when_taken: Callable[[], object] = lambda: None
        self.settles: Callable[[], bool] = lambda: False

    def parameters(self) -> Mapping[str, Any]:
        return {name: each.shards for name, each in self.made.items()}

    def prepare_snapshots(self) -> None:
        self.when_prepared()

    def snapshots(self, since: object = None) -> InHand:
        def meanwhile() -> None:
            for each in self.made.values():
                each.when_saved()

        self.when_taken()
        taken = [(n, p.shards.describe(), None, p.states()) for n, p in self.made.items()]
        self.taken.append(InHand(taken, meanwhile))
        return self.taken[-1]

    def moment(self) -> AbstractContextManager[None]:
        return nullcontext()

    def settled(self) -> bool:
        return self.settles()

    def note_checkpoint(self, path: Path) -> None:
        self.noted.append(path)

    @property
    def values(self) -> list[int]:
        return [parameter.value for parameter in self.made.values()]

    def assign(self, value: int) -> None:
        for parameter in self.made.values():
            parameter.value = value
