"""The states of a connection to a worker and the transitions between them. Pure."""

from __future__ import annotations

import enum

from psnb.errors import InternalError


class ConnectionState(enum.Enum):
    """The state of a connection."""

    CONNECTING = "connecting"
    """The worker has not answered yet."""
    READY = "ready"
    """The worker gets closures."""
    DRAINING = "draining"
    """The worker leaves: it gets no new closures and finishes those that it has."""
    RETIRED = "retired"
    """The worker has finished its closures and left; the connection has ended."""
    LOST = "lost"
    """The worker has died, or left before it had finished; the connection has ended."""

    @property
    def ended(self) -> bool:
        """Whether the connection has ended."""
        return self in (ConnectionState.RETIRED, ConnectionState.LOST)


_TRANSITIONS = {
    ConnectionState.CONNECTING: {ConnectionState.READY, ConnectionState.LOST},
    ConnectionState.READY: {ConnectionState.DRAINING, ConnectionState.LOST},
    ConnectionState.DRAINING: {ConnectionState.RETIRED, ConnectionState.LOST},
    ConnectionState.RETIRED: set(),
    ConnectionState.LOST: set(),
}


def check_connection_transition(old: ConnectionState, new: ConnectionState) -> None:
    """Raise InternalError unless a connection may go from ``old`` to ``new``."""
    if new not in _TRANSITIONS[old]:
        raise InternalError(f"a connection cannot go from {old.value} to {new.value}")
