"""The workers of a coordinator: who is here, a connection to each, and how much each has to do."""

from psnb._src.coordinator.workers.membership import Membership
from psnb._src.coordinator.workers.services import Services
from psnb._src.coordinator.workers.start_delay import StartDelay
from psnb._src.coordinator.workers.timeouts import DRAIN, HEARTBEAT, Timeouts

__all__ = [
    "DRAIN",
    "HEARTBEAT",
    "Membership",
    "Services",
    "StartDelay",
    "Timeouts",
]
