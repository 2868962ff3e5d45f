"""The notebook's side of scheduling: coordinator, queue, connections, membership, remote values."""

from psnb._src.coordinator.attaching import Attached, attach
from psnb._src.coordinator.checkpoint_manager import CheckpointManager
from psnb._src.coordinator.closures import ClosureStatus, RemoteValue, as_completed
from psnb._src.coordinator.coordinator import (
    ClusterCoordinator,
    closures_of_epoch,
    filling,
    go_on_from,
    map_whole_splits,
)
from psnb._src.coordinator.datasets import (
    Epochs,
    LeasedIterator,
    PartitionedDataset,
    PerWorkerValues,
)
from psnb._src.coordinator.resumed import Resumed, resume
from psnb._src.coordinator.shown_epochs import (
    clock_shown,
    epoch_metrics_shown,
    epoch_shown,
    training_shown,
)

__all__ = [
    "Attached",
    "CheckpointManager",
    "ClosureStatus",
    "ClusterCoordinator",
    "Epochs",
    "LeasedIterator",
    "PartitionedDataset",
    "PerWorkerValues",
    "RemoteValue",
    "Resumed",
    "as_completed",
    "attach",
    "clock_shown",
    "closures_of_epoch",
    "epoch_metrics_shown",
    "epoch_shown",
    "filling",
    "go_on_from",
    "map_whole_splits",
    "resume",
    "training_shown",
]
