"""make_dataset_of: makes the right kind of dataset on the workers from a user's argument."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psnb._src.checks import choice
from psnb._src.coordinator.datasets.dataset_services import DatasetServices
from psnb._src.coordinator.datasets.leased import LeasedDataset
from psnb._src.coordinator.datasets.partitioned import PartitionedDataset
from psnb._src.coordinator.datasets.per_worker import PerWorkerDataset
from psnb._src.data import Dataset, InMemoryDataset, QueueDataset, sharded
from psnb._src.data import splits as cut
from psnb._src.excerpt import shown
from psnb._src.runtime import InputContext, make_dataset
from psnb.errors import ConfigurationError

_SPLITS = 8
"""Splits for each worker, by default."""


def make_dataset_of(
    source: Any, sharding: str, splits: int | None, workers: int, place: DatasetServices
) -> PerWorkerDataset | LeasedDataset | PartitionedDataset:
    """Make a dataset on the workers; see `ClusterCoordinator.create_per_worker_dataset`."""
    choice("sharding", sharding, ("none", "static", "dynamic"))
    wanted = _SPLITS * max(1, workers) if splits is None else splits
    if isinstance(source, QueueDataset):
        source = source.dataset
    if isinstance(source, InMemoryDataset):
        if sharding == "static":
            raise ConfigurationError(
                "an InMemoryDataset is shared by the workers as they load and shuffle it: leave "
                "sharding out"
            )
        if source.shuffled_slots:
            raise ConfigurationError(
                "the slots of this dataset are shuffled in this process only: workers load it "
                "anew. Call slots_shuffle of what create_per_worker_dataset returns, after its "
                "global_shuffle"
            )
        return PartitionedDataset(source, wanted, place)
    if sharding != "none":
        if not isinstance(source, Dataset):
            raise ConfigurationError(
                f"sharding={shown(sharding)} takes a psnb.data.Dataset, found {shown(source)}"
            )
        if sharding == "dynamic":
            return LeasedDataset(place.registry, place.leases, cut(source, wanted), wanted)
        sharded(source, 2, 0)  # raises here rather than on the workers
        whole = source

        def share(context: InputContext) -> Dataset:
            return sharded(whole, context.num_workers, context.worker_index)

        source = share
    if not callable(source) and not isinstance(source, Iterable):
        raise ConfigurationError(
            "create_per_worker_dataset takes an iterable or a function that makes one, found "
            f"{source!r}"
        )
    return PerWorkerDataset(place.registry, make_dataset, (source,))
