"""ReportedStates: the states of metrics that one closure reports, and how they travel. Pure.

They travel in front of the closure's pickled result, and never without it: servers remember them
beside its commit, and the notebook takes both or none. So a closure that ran twice counts once, as
its writes do, whichever of its results arrives.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping

from psnb._src.metrics import MetricState
from psnb._src.runtime.packing import PROTOCOL, dumps

_MARK = b"M"  # a pickle begins with another byte; an outcome without states is sent as it is
_LENGTH = 4


class ReportedStates:
    """What one closure has reported so far; for all threads that it uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the dict: two threads may merge under one name
        self._states: dict[str, MetricState] = {}

    def add(self, states: Mapping[str, MetricState]) -> None:
        """Merge states into those of the same names: all, or none.

        Raises
        ------
        ConfigurationError
            If one of another metric was reported under the same name.
        """
        with self._lock:
            merged = {
                name: self._states[name] + state if name in self._states else state
                for name, state in states.items()
            }
            self._states |= merged

    def merged(self) -> dict[str, MetricState]:
        """Return the states by name."""
        with self._lock:
            return dict(self._states)

    def attach(self, packed: bytes) -> bytes:
        """Return a packed result with the states in front of it, if there are any."""
        with self._lock:
            states = self._states
        if not states:
            return packed
        try:
            front = pickle.dumps(states, PROTOCOL)
        except (pickle.PicklingError, AttributeError):
            front = dumps(states, "the reported metrics")  # by value: a metric of the user's own
        return b"".join((_MARK, len(front).to_bytes(_LENGTH, "little"), front, packed))


def split_outcome(outcome: bytes) -> tuple[bytes, bytes]:
    """Return the packed result, and the packed states that `attach` put in front; empty if none."""
    if not outcome.startswith(_MARK):
        return outcome, b""
    start = len(_MARK) + _LENGTH
    end = start + int.from_bytes(outcome[len(_MARK) : start], "little")
    return outcome[end:], outcome[start:end]
