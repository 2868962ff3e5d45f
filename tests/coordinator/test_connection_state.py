"""The states of a connection."""

from __future__ import annotations

import itertools

import pytest

from psnb._src.coordinator.scheduling.states import ConnectionState, check_connection_transition
from psnb.errors import InternalError

ALLOWED = {
    (ConnectionState.CONNECTING, ConnectionState.READY),
    (ConnectionState.CONNECTING, ConnectionState.LOST),
    (ConnectionState.READY, ConnectionState.DRAINING),
    (ConnectionState.READY, ConnectionState.LOST),
    (ConnectionState.DRAINING, ConnectionState.RETIRED),
    (ConnectionState.DRAINING, ConnectionState.LOST),
}


@pytest.mark.parametrize(("old", "new"), [*itertools.product(ConnectionState, ConnectionState)])
def test_only_these_transitions_are_allowed(old: ConnectionState, new: ConnectionState) -> None:
    if (old, new) in ALLOWED:
        check_connection_transition(old, new)
    else:
        with pytest.raises(InternalError, match=f"from {old.value} to {new.value}"):
            check_connection_transition(old, new)
