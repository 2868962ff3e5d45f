"""The wire contract: updates of a coordinator to its views, and commands back."""

from psnb._src.monitor.told import protocol
from psnb._src.monitor.told.backlog import Backlog, Extract, Extracts
from psnb._src.monitor.told.commands import execute
from psnb._src.monitor.told.feed import Feed
from psnb._src.monitor.told.outline import outline
from psnb._src.monitor.told.portions import portions
from psnb._src.monitor.told.protocol import (
    VERSION,
    CheckpointRow,
    CommandName,
    CommandReply,
    FailureRow,
    HubPost,
    Identity,
    Metric,
    Number,
    Packed,
    ServerRow,
    Summary,
    Training,
    Update,
    WorkerRow,
)
from psnb._src.monitor.told.publisher import INTERVAL, Publisher
from psnb._src.monitor.told.viewed import OptimizerState, Viewed

__all__ = [
    "INTERVAL",
    "VERSION",
    "Backlog",
    "CheckpointRow",
    "CommandName",
    "CommandReply",
    "Extract",
    "Extracts",
    "FailureRow",
    "Feed",
    "HubPost",
    "Identity",
    "Metric",
    "Number",
    "OptimizerState",
    "Packed",
    "Publisher",
    "ServerRow",
    "Summary",
    "Training",
    "Update",
    "Viewed",
    "WorkerRow",
    "execute",
    "outline",
    "portions",
    "protocol",
]
