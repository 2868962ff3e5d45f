"""The two kinds of datasets in memory under one hand: in this process, and on the workers."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import psnb
from psnb.data import InMemoryDataset

PARTITIONS = 8


class InMemory(Protocol):
    """What both have."""

    def load_into_memory(self) -> None: ...
    def preload_into_memory(self) -> None: ...
    def wait_preload_done(self) -> None: ...
    def local_shuffle(self, seed: int | None = None) -> None: ...
    def global_shuffle(self, seed: int | None = None) -> None: ...
    def slots_shuffle(self, slots: Sequence[str], seed: int | None = None) -> None: ...
    def release_memory(self) -> None: ...
    def statistics(self) -> Any: ...
    def iterator(self, state: Any = None) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...


class Kind(Protocol):
    """How to make one, and how to go through it."""

    def make(self, dataset: InMemoryDataset) -> InMemory: ...
    def batches(self, made: InMemory, iterator: Any = None) -> list[Any]: ...
    def some(self, iterator: Any, number: int) -> list[Any]: ...


class Local:
    """In this process."""

    def make(self, dataset: InMemoryDataset) -> InMemory:
        return dataset

    def batches(self, made: InMemory, iterator: Any = None) -> list[Any]:
        return list(made if iterator is None else iterator)

    def some(self, iterator: Any, number: int) -> list[Any]:
        return [next(iterator) for _ in range(number)]


class OnWorkers:
    """On the workers of a coordinator; what closures take comes back through files."""

    def __init__(self, coordinator: psnb.ClusterCoordinator, folder: Path) -> None:
        self._coordinator, self._folder, self._numbers = coordinator, folder, count()

    def make(self, dataset: InMemoryDataset) -> Any:
        return self._coordinator.create_per_worker_dataset(dataset, splits=PARTITIONS)

    def batches(self, made: InMemory, iterator: Any = None) -> list[Any]:
        iterator = iter(made) if iterator is None else iterator
        return self._taken(lambda step: self._coordinator.run_epoch(step, iterator))

    def some(self, iterator: Any, number: int) -> list[Any]:
        def run(step: Callable[[Any], None]) -> None:
            for _ in range(number):
                self._coordinator.schedule(step, (iterator,))
            self._coordinator.join()

        return self._taken(run)

    def _taken(self, run: Callable[[Callable[[Any], None]], object]) -> list[Any]:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()

        def step(iterator: Any) -> None:
            (folder / uuid.uuid4().hex).write_bytes(pickle.dumps(next(iterator)))

        run(step)
        return [pickle.loads(path.read_bytes()) for path in folder.iterdir()]
