"""Datasets on the workers: per-worker values, leases, and datasets in the workers' memory."""

from psnb._src.coordinator.datasets.dataset_services import DatasetServices
from psnb._src.coordinator.datasets.epoch import run_epoch
from psnb._src.coordinator.datasets.lease_registry import LeaseRegistry
from psnb._src.coordinator.datasets.leased import LeasedDataset, LeasedIterator
from psnb._src.coordinator.datasets.leases import Progress
from psnb._src.coordinator.datasets.make_dataset import make_dataset_of
from psnb._src.coordinator.datasets.partitioned import PartitionedDataset
from psnb._src.coordinator.datasets.per_worker import (
    PerWorkerDataset,
    PerWorkerValues,
    ResourceRegistry,
)
from psnb._src.coordinator.datasets.per_worker_fetch import fetch_per_worker

__all__ = [
    "DatasetServices",
    "LeaseRegistry",
    "LeasedDataset",
    "LeasedIterator",
    "PartitionedDataset",
    "PerWorkerDataset",
    "PerWorkerValues",
    "Progress",
    "ResourceRegistry",
    "fetch_per_worker",
    "make_dataset_of",
    "run_epoch",
]
