"""Curves: what a run has reported, thinned out, as its checkpoints keep it. Pure.

They are of one moment and never change. A run that goes on from a checkpoint continues the curves
that were saved there: `joined`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from psnb._src.monitor.branches import Cut, cuts
from psnb._src.monitor.history import MOST_REWINDS, POINT, History, Rewind
from psnb._src.utils.sealed_json import require

MOST_POINTS = 1_000
"""Points of a metric that are saved, 54 bytes each."""

_MOST_IN_ALL = 100_000
"""Points of all metrics that are saved: of very many, each has fewer."""

_FEWEST = 20


@dataclass(frozen=True, eq=False)
class Curve:
    """One metric.

    Attributes
    ----------
    count : int
        How many values were reported.
    points : numpy.ndarray
        Of dtype `POINT`, the newest last; one at least.
    """

    count: int
    points: np.ndarray


@dataclass(frozen=True, eq=False)
class Curves:
    """All metrics of a run, by name, the examples that were reported, and where it went back."""

    named: Mapping[str, Curve] = field(default_factory=dict)
    examples: float = 0.0
    rewinds: tuple[Rewind, ...] = ()

    @property
    def steps(self) -> int:
        """The step that the run has reached."""
        ends = ((each.count, int(each.points["step"].max())) for each in self.named.values())
        return max((max(pair) for pair in ends), default=0)

    @property
    def cuts(self) -> list[Cut]:
        """Where its curves are cut."""
        return cuts(self.rewinds)


class SavedCurve(Struct, frozen=True, forbid_unknown_fields=True):
    """A `Curve` as JSON can hold it: the points are base64, which has NaN, too."""

    count: Annotated[int, Meta(ge=1, lt=1 << 53)]
    points: str


class SavedCurves(Struct, frozen=True, forbid_unknown_fields=True):
    """`Curves` as JSON can hold them."""

    named: Mapping[str, SavedCurve] = {}
    examples: Annotated[float, Meta(ge=0)] = 0.0
    rewinds: tuple[Rewind, ...] = ()


def curves_of(history: History) -> Curves:
    """Return the curves of what was reported until now."""
    named = {}
    for name, metric in history.metrics().items():
        points = history.points(name).points
        if len(points):
            named[name] = Curve(metric.count, points)
    newest = [float(curve.points["examples"].max()) for curve in named.values()]
    return Curves(named, max(newest, default=0.0), history.rewinds())


def joined(earlier: Curves, later: Curves) -> Curves:
    """Return the curves of a run that went on: its later points count on from the earlier ones."""
    named, steps = dict(earlier.named), earlier.steps
    for name, curve in later.named.items():
        points = curve.points.copy()
        points["examples"] += earlier.examples
        points["step"] += steps
        before = earlier.named.get(name)
        if before is None:
            named[name] = Curve(curve.count, points)
        else:
            both = np.concatenate([before.points, points])
            named[name] = Curve(before.count + curve.count, both)
    went_back = (
        *earlier.rewinds,
        *(
            each._replace(step=each.step + steps, examples=each.examples + earlier.examples)
            for each in later.rewinds
        ),
    )
    return Curves(named, earlier.examples + later.examples, went_back[-MOST_REWINDS:])


def saved_curves(curves: Curves) -> SavedCurves:
    """Return what is saved of curves: of long ones, evenly spaced points, the last among them."""
    most = max(_FEWEST, min(MOST_POINTS, _MOST_IN_ALL // max(1, len(curves.named))))
    named = {
        name: SavedCurve(
            curve.count, base64.b64encode(_thinned(curve.points, most).tobytes()).decode()
        )
        for name, curve in curves.named.items()
    }
    return SavedCurves(named, curves.examples, curves.rewinds)


def _thinned(points: np.ndarray, most: int) -> np.ndarray:
    if len(points) <= most:
        return points
    return points[np.linspace(len(points) - 1, 0, most).astype(int)[::-1]]


def loaded_curves(saved: SavedCurves) -> Curves:
    """Return the curves that were saved.

    Raises
    ------
    ValueError
        If they are none.
    """
    named = {}
    for name, curve in saved.named.items():
        data = base64.b64decode(curve.points, validate=True)
        whole = len(data) and len(data) % POINT.itemsize == 0
        require(bool(whole), f"the points of {name!r:.80} are cut")
        points = np.frombuffer(data, POINT)
        steps, where = points["step"], (points["time"], points["examples"])
        # 1 << 53: two runs are joined, and steps are drawn as floats.
        inside = steps.min() >= 0 and steps.max() < 1 << 53 and np.isfinite(where).all()
        require(bool(inside), f"the points of {name!r:.80} are nowhere")
        named[name] = Curve(curve.count, points)
    before = -math.inf
    for step, time, examples, back in saved.rewinds:
        placed = 0 <= step < 1 << 53 and before <= time < math.inf and back <= time
        inside = placed and math.isfinite(examples)
        require(inside, "where it went back is nowhere")
        before = time
    return Curves(named, saved.examples, saved.rewinds)
