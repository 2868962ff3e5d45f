"""The coordinated queue, its gates, and how closures are settled whose worker was lost."""

from psnb._src.coordinator.queue.flush_gate import FlushGate
from psnb._src.coordinator.queue.gate import ApplyRound, Gate, Step
from psnb._src.coordinator.queue.halfway import finish_halfway
from psnb._src.coordinator.queue.pinned import PinnedCalls
from psnb._src.coordinator.queue.queue import ClosureQueue
from psnb._src.coordinator.queue.queue_statistics import QueueStatistics
from psnb._src.coordinator.queue.resolver import Resolver, lost_exchange
from psnb._src.coordinator.queue.round_gate import RoundGate
from psnb._src.coordinator.queue.staleness_gate import StalenessGate

__all__ = [
    "ApplyRound",
    "ClosureQueue",
    "FlushGate",
    "Gate",
    "PinnedCalls",
    "QueueStatistics",
    "Resolver",
    "RoundGate",
    "StalenessGate",
    "Step",
    "finish_halfway",
    "lost_exchange",
]
