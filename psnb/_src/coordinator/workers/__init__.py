"""The workers of a coordinator: which there are, a connection to each, and how busy each is."""

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
