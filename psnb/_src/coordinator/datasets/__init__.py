"""Datasets on the workers: per-worker values, leases, and datasets in the workers' memory."""

from psnb._src.coordinator.datasets.dataset_services import DatasetServices
from psnb._src.coordinator.datasets.epoch import EpochServices, run_epoch
from psnb._src.coordinator.datasets.lease_registry import LeaseRegistry
from psnb._src.coordinator.datasets.leased import Epochs, LeasedDataset, LeasedIterator
from psnb._src.coordinator.datasets.leases import Progress
from psnb._src.coordinator.datasets.make_dataset import make_dataset_of
from psnb._src.coordinator.datasets.partitioned import PartitionedDataset
from psnb._src.coordinator.datasets.per_worker import (
    PerWorkerDataset,
    PerWorkerIterator,
    PerWorkerValues,
    ResourceRegistry,
)
from psnb._src.coordinator.datasets.per_worker_fetch import fetch_per_worker
from psnb._src.coordinator.datasets.whole_splits import WholeSplits, map_splits

__all__ = [
    "DatasetServices",
    "EpochServices",
    "Epochs",
    "LeaseRegistry",
    "LeasedDataset",
    "LeasedIterator",
    "PartitionedDataset",
    "PerWorkerDataset",
    "PerWorkerIterator",
    "PerWorkerValues",
    "Progress",
    "ResourceRegistry",
    "WholeSplits",
    "fetch_per_worker",
    "make_dataset_of",
    "map_splits",
    "run_epoch",
]
