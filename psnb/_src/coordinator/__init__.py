"""The notebook's side of scheduling: coordinator, queue, connections, membership, remote values."""

from psnb._src.coordinator.checkpoint_manager import CheckpointManager
from psnb._src.coordinator.closures import ClosureStatus, RemoteValue, as_completed
from psnb._src.coordinator.coordinator import ClusterCoordinator
from psnb._src.coordinator.datasets import PerWorkerValues

__all__ = [
    "CheckpointManager",
    "ClosureStatus",
    "ClusterCoordinator",
    "PerWorkerValues",
    "RemoteValue",
    "as_completed",
]
