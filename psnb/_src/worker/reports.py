"""ReportedStates: the metrics that one closure reports, and how they travel. Pure.

They travel in front of the closure's pickled result, and never without it: servers remember them
with its commit, and the notebook takes both or none. So a closure that ran twice counts once, as
its writes do, whichever of its results arrives. Of numbers, weighted sums travel so; besides, each
is sent immediately, for charts.
"""

from __future__ import annotations

import math
import pickle
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence

from psnb._src.metrics.metric import MetricState
from psnb._src.protocol.messages import Taken
from psnb._src.protocol.packing import PROTOCOL, dumps
from psnb.errors import ConfigurationError

EXAMPLES = "examples"
"""The number that counts training examples: ``psnb.report(examples=len(batch))``."""


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
            If one of another metric, or a number, was reported under the same name.
        """
        with self._lock:
            _require_one_kind(states, self._numbers)
            merged = {
                name: self._states[name] + state if name in self._states else state
                for name, state in states.items()
            }
            self._states |= merged

    def add_numbers(self, values: Mapping[str, float]) -> None:
        """Add numbers, each weighted by the examples that are among them; by 1 without.

        Raises
        ------
        ConfigurationError
            If a state was reported under the same name.
        """
        with self._lock:
            _require_one_kind(values, self._states)
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

    def packed(self) -> bytes:
        """Return numbers and states, pickled; empty if there are none."""
        with self._lock:
            reported = self._numbers, self._states
        if not any(reported):
            return b""
        try:
            return pickle.dumps(reported, PROTOCOL)
        except (pickle.PicklingError, AttributeError):
            return dumps(reported, "the reported metrics")  # by value: a metric of the user's own


def _require_one_kind(names: Iterable[str], others: Mapping[str, object]) -> None:
    if name := next((each for each in names if each in others), ""):
        raise ConfigurationError(
            f"report({name}=...): a name has numbers or states of a metric, not both: give each a "
            "name of its own"
        )


_WEIGHT = b"W"  # a pickle begins with another byte


_FLOAT = struct.Struct("<d")


def with_weight(reported: bytes, weight: float | None) -> bytes:
    """Return what stands in front of a result, with what it counts in its round, if it says so."""
    return reported if weight is None else b"".join((_WEIGHT, _FLOAT.pack(weight), reported))


def split_front(front: bytes) -> tuple[bytes, float | None]:
    """Return the packed metrics, empty if none, and what it counts in its round."""
    if not front.startswith(_WEIGHT):
        return front, None
    start = len(_WEIGHT) + _FLOAT.size
    return front[start:], _FLOAT.unpack(front[len(_WEIGHT) : start])[0]


def remembered(used: Sequence[Taken], front: bytes, value: bytes) -> bytes:
    """Return an outcome as servers remember it, with what the closure has taken."""
    if not (used or front or value):
        return b""
    return pickle.dumps(([tuple(each) for each in used], front, value), PROTOCOL)


def split_remembered(outcome: bytes) -> tuple[list[Taken], bytes, bytes]:
    """Return the parts of an outcome that servers have remembered."""
    used, front, value = pickle.loads(outcome) if outcome else ((), b"", b"")
    return [Taken(*each) for each in used], front, value
