"""ReportedStates: the metrics that one closure reports, and how they travel. Pure.

They travel in front of the closure's pickled result, and never without it: servers remember them
beside its commit, and the notebook takes both or none. So a closure that ran twice counts once, as
its writes do, whichever of its results arrives. Of numbers, weighted sums travel so; besides, each
is sent immediately, for charts.
"""

from __future__ import annotations

import math
import pickle
import struct
import threading
from collections.abc import Mapping, Sequence

from psnb._src.metrics.metric import MetricState
from psnb._src.protocol.messages import Taken
from psnb._src.protocol.packing import PROTOCOL, dumps

EXAMPLES = "examples"
"""The number that counts training examples: ``psnb.report(examples=len(batch))``."""


_MARK = b"M"  # a pickle begins with another byte; an outcome without states is sent as it is


_LENGTH = 4


class ReportedStates:
    """What one closure has reported so far; for all threads that it uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the dicts: two threads may merge under one name
        self._states: dict[str, MetricState] = {}
        # By name: the sum of the finite ones, each times its weight; all weights; and how many are
        # not finite.
        self._numbers: dict[str, tuple[float, float, int]] = {}

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

    def add_numbers(self, values: Mapping[str, float]) -> None:
        """Add numbers, each weighted by the examples that are among them; by 1 without."""
        with self._lock:
            for name, value in values.items():
                weight = 1.0 if name == EXAMPLES else values.get(EXAMPLES, 1.0)
                total, weights, not_finite = self._numbers.get(name, (0.0, 0.0, 0))
                if math.isfinite(value):
                    total += value * weight
                else:
                    not_finite += 1
                self._numbers[name] = total, weights + weight, not_finite

    def absorb(self, other: ReportedStates) -> None:
        """Add what another closure has reported; raises if states do not fit, and adds nothing."""
        self.add(other.merged())
        with self._lock:
            for name, added in other._numbers.items():
                before = self._numbers.get(name, (0.0, 0.0, 0))
                total, weights, not_finite = (a + b for a, b in zip(before, added, strict=True))
                self._numbers[name] = total, weights, int(not_finite)

    def merged(self) -> dict[str, MetricState]:
        """Return the states by name."""
        with self._lock:
            return dict(self._states)

    def attach(self, packed: bytes) -> bytes:
        """Return a packed result with numbers and states in front of it, if there are any."""
        with self._lock:
            reported = self._numbers, self._states
        if not any(reported):
            return packed
        try:
            front = pickle.dumps(reported, PROTOCOL)
        except (pickle.PicklingError, AttributeError):
            front = dumps(reported, "the reported metrics")  # by value: a metric of the user's own
        return b"".join((_MARK, len(front).to_bytes(_LENGTH, "little"), front, packed))


def split_outcome(outcome: bytes) -> tuple[bytes, bytes]:
    """Return the packed result, and the packed metrics that were put in front; empty if none."""
    if not outcome.startswith(_MARK):
        return outcome, b""
    start = len(_MARK) + _LENGTH
    end = start + int.from_bytes(outcome[len(_MARK) : start], "little")
    return outcome[end:], outcome[start:end]


_WEIGHT = b"W"


_FLOAT = struct.Struct("<d")


def with_weight(front: bytes, weight: float | None) -> bytes:
    """Return what stands in front of a result, with what it counts in its round, if it says so."""
    return front if weight is None else b"".join((_WEIGHT, _FLOAT.pack(weight), front))


def split_front(front: bytes) -> tuple[bytes, float | None]:
    """Return the packed metrics, empty if none, and what it counts in its round."""
    weight = None
    if front.startswith(_WEIGHT):
        (weight,) = _FLOAT.unpack_from(front, len(_WEIGHT))
        front = front[len(_WEIGHT) + _FLOAT.size :]
    return split_outcome(front)[1], weight


def split_value(outcome: bytes) -> tuple[bytes, bytes]:
    """Return what stands in front of a result, and the packed result."""
    start = len(_WEIGHT) + _FLOAT.size if outcome.startswith(_WEIGHT) else 0
    value, _ = split_outcome(outcome[start:])
    return outcome[: len(outcome) - len(value)], value


_TAKEN = b"T"


def with_taken(packed: bytes, used: Sequence[Taken]) -> bytes:
    """Return an outcome as servers remember it: with what the closure has taken in front of it."""
    if not used:
        return packed
    front = pickle.dumps([tuple(each) for each in used], PROTOCOL)
    return b"".join((_TAKEN, len(front).to_bytes(_LENGTH, "little"), front, packed))


def split_taken(remembered: bytes) -> tuple[bytes, list[Taken]]:
    """Return the outcome, and what was in front of it."""
    if not remembered.startswith(_TAKEN):
        return remembered, []
    start = len(_TAKEN) + _LENGTH
    end = start + int.from_bytes(remembered[len(_TAKEN) : start], "little")
    return remembered[end:], [Taken(*each) for each in pickle.loads(remembered[start:end])]
