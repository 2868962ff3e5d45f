"""Static HTML of a coordinator's state, for pages without scripts. Pure.

It is shown in saved notebooks, in the output of nbconvert and on code hosting pages. It needs no
script and no style sheet, and inherits its colours, so it is readable on light and dark pages.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from psnb._src.monitor.history import VALIDATION
from psnb._src.monitor.html import chart
from psnb._src.monitor.html.tables import TEMPLATES
from psnb._src.monitor.protocol import Metric, Number, ServerRow, Update, WorkerRow
from psnb._src.monitor.states import Tone
from psnb._src.utils.phases import PHASES
from psnb._src.utils.text import counted, size_text

MOST_FAILURES = 10
"""The number of failures shown; the latest ones."""

_COLOURS: dict[Tone, str] = {
    "good": "#2e9d4e",
    "busy": "#2f81d0",
    "waiting": "#c98a00",
    "bad": "#d03a3a",
    "quiet": "#808080",
}


def render(update: Update, note: str = "") -> str:
    """Return an HTML fragment that shows a coordinator as it was.

    Parameters
    ----------
    update : Update
        A full one.
    note : str
        A line of text for the top.

    Returns
    -------
    str
        One ``div``. Every name in it is escaped.
    """
    return TEMPLATES.get_template("summary.html").render(
        update=update,
        note=note,
        charts=_with_validation(update.get("metrics", [])),
        workers=[_worker(row) for row in update.get("workers", [])],
        servers=[_server(row) for row in update.get("servers", [])],
        failures=update.get("failures", [])[-MOST_FAILURES:],
    )


def moment(seconds: float) -> str:
    """Return a time (seconds since the epoch) with its zone: it may be read in another one."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))


def _with_validation(metrics: Sequence[Metric]) -> list[list[Metric]]:
    """Return what is in each chart: a metric, and what validation gave of it."""
    found = {metric["name"]: [metric] for metric in metrics}
    for name in list(found):
        if VALIDATION + name in found and name in found:
            found[name] += found.pop(VALIDATION + name)
    return list(found.values())


def _worker(row: WorkerRow) -> tuple[str, ...]:
    return (
        *(row["name"], row["host"], row["state"]),
        *(_figure(row["in_flight"], ""), _figure(row["completed"]), _figure(row["failed"])),
        *(_figure(row["closures_per_second"], ",.4g"), _figure(row["busy"], ".0%")),
        *("" if row["memory"] is None else size_text(row["memory"]), row["last_error"]),
    )


def _server(row: ServerRow) -> tuple[str, ...]:
    return (
        *(row["name"], row["state"], str(row["shards"]), size_text(row["bytes"])),
        *(_figure(row["pulls_per_second"], ",.4g"), _figure(row["pushes_per_second"], ",.4g")),
        # NaN means that there was no update.
        "" if row["staleness"] == "nan" else _figure(row["staleness"], ",.4g"),
    )


def _figure(value: Number, form: str = ",") -> str:
    return value if isinstance(value, str) else format(value, form)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


TEMPLATES.filters |= {
    "counted": counted,
    "duration": _duration,
    "figure": _figure,
    "moment": moment,
}
TEMPLATES.globals |= {"chart": chart, "phases": PHASES, "tones": _COLOURS}
