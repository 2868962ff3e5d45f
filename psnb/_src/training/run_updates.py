"""update_of: a saved run as the update by which views show a coordinator. Pure."""

from __future__ import annotations

import hashlib
import math
from typing import Any, cast

from psnb._src.monitor import protocol
from psnb._src.monitor.charts.curves import Curve
from psnb._src.monitor.feed import COLUMNS, pack, rewind_marks
from psnb._src.monitor.history import EXAMPLES
from psnb._src.monitor.updates import plain
from psnb._src.training.runs import Run
from psnb._src.utils.phases import PHASES
from psnb._src.utils.text import NAME, truncate

_MEANING = "A run as its newest checkpoint, or its saved history, has it."


def update_of(run: Run) -> protocol.Update:
    """Return a full update with a run's name, times and curves.

    Its coordinator is made of the run's path, so the same run is shown once.
    """
    path = str(run.path)
    began, saved = (0.0 if math.isnan(each) else each for each in (run.began, run.saved))
    counts = "queued in_flight completed failed cancelled retried workers_lost servers_lost"
    summary: dict[str, Any] = {
        **dict.fromkeys([*counts.split(), "staleness_max"], 0),
        **dict.fromkeys(["eta", "examples_per_second", "training"]),
        "time": saved,
        "state": "saved",
        "tone": "quiet",
        "meaning": _MEANING,
        "elapsed": max(0.0, saved - began),
        "examples": run.curves.examples,
        "closures_per_second": 0.0,
        "staleness_mean": math.nan,
        "phases": [0.0] * len(PHASES),
    }
    identity = dict.fromkeys(["kernel", "host", "cluster", "cluster_id", "dashboard"], "")
    lists = "depth workers servers slices epochs timeline failures events optimizers tables"
    update = {
        "type": "update",
        "version": protocol.VERSION,
        "coordinator": f"run-{hashlib.blake2s(path.encode(), digest_size=8).hexdigest()}",
        "sequence": 0,
        "full": True,
        "summary": summary,
        "notice": "",
        "starved": "",
        "identity": {
            **identity,
            "name": truncate(run.name, NAME),
            "process": 0,
            "cluster_started": 0.0,
            "started": began,
        },
        **{name: [] for name in lists.split()},
        "metrics": [
            _metric(name, curve) for name, curve in run.curves.named.items() if name != EXAMPLES
        ],
        "rewinds": rewind_marks(run.curves.cuts),
        "checkpoint": {"state": "saved", "path": path, "share": 1.0, "error": "", "held": 0.0},
        "controls": {},
    }
    return cast(protocol.Update, plain(update))


def _metric(name: str, curve: Curve) -> dict[str, Any]:
    points = curve.points
    return {
        "name": truncate(name, NAME),
        "count": curve.count,
        "last": points["value"][-1],
        "smoothed": points["smoothed"][-1],
        "start": 0,
        **{part: pack(points[field]) for part, field in COLUMNS.items()},
    }
