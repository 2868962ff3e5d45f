"""Static HTML of a coordinator's state, for pages without scripts. Pure.

It is shown in saved notebooks, in the output of nbconvert and on code hosting pages. It needs no
script and no style sheet, and inherits its colours, so it is readable on light and dark pages.
"""

from __future__ import annotations

import time
from html import escape

from psnb._src.monitor.history import VALIDATION
from psnb._src.monitor.html.chart import COLOURS, WIDTH, sparkline
from psnb._src.monitor.html.tables import MOST_ROWS, html_table, left_out
from psnb._src.monitor.protocol import (
    CheckpointRow,
    FailureRow,
    Metric,
    Number,
    ServerRow,
    Summary,
    Update,
    WorkerRow,
)
from psnb._src.monitor.states import Tone
from psnb._src.utils.profiling import PHASES
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
    summary = update["summary"]
    parts = [
        _header(update),
        *(_paragraph(text) for text in (note, update.get("notice", "")) if text),
        _counters(summary),
        _phases(summary, update.get("starved", "")),
        _checkpoint(update["checkpoint"]) if "checkpoint" in update else "",
        _metrics(update.get("metrics", [])),
        _workers(update.get("workers", [])),
        _servers(update.get("servers", [])),
        _failures(update.get("failures", [])),
    ]
    return (
        '<div class="psnb-summary" style="font-size:13px;line-height:1.5;overflow-x:auto">'
        + "".join(parts)
        + "</div>"
    )


def moment(seconds: float) -> str:
    """Return a time (seconds since the epoch) with its zone: it may be read in another one."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))


def _header(update: Update) -> str:
    summary = update["summary"]
    name = update["identity"]["name"] if "identity" in update else ""
    state, colour = summary["state"], _COLOURS[summary["tone"]]
    return (
        f"<div><strong>psnb {escape(name)}</strong> "
        f'<strong style="color:{colour}" title="{escape(summary["meaning"])}">{escape(state)}'
        "</strong> "
        f"after {_seconds(summary['elapsed'])}, as of {moment(summary['time'])}"
        f"{_training(summary)}</div>"
    )


def _training(summary: Summary) -> str:
    training, left = summary["training"], summary["eta"]
    parts = []
    if training is not None:
        if training["epoch"] is not None:
            parts.append(f"epoch {_of(training['epoch'], training['epochs'])}")
        parts.append(f"batch {_of(training['batch'], training['batches'])}")
    if isinstance(left, float | int):
        parts.append(f"{_seconds(left)} left")
    return f"<div>{' · '.join(parts)}</div>" if parts else ""


def _of(count: int, of: int | None) -> str:
    return f"{count:,}" if of is None else f"{count:,} of {of:,}"


def _paragraph(text: str) -> str:
    return f'<div style="font-style:italic">{escape(text)}</div>'


def _counters(summary: Summary) -> str:
    figures = {
        "completed": f"{summary['completed']:,}",
        "failed": f"{summary['failed']:,}",
        "retried": f"{summary['retried']:,}",
        "cancelled": f"{summary['cancelled']:,}",
        "queued": f"{summary['queued']:,}",
        "in flight": f"{summary['in_flight']:,}",
    }
    if summary["workers_lost"]:
        figures["workers lost"] = f"{summary['workers_lost']:,}"
    if summary["servers_lost"]:
        figures["servers lost"] = f"{summary['servers_lost']:,}"
    if summary["examples"] is not None:
        examples = summary["examples"]
        figures["examples"] = examples if isinstance(examples, str) else f"{examples:,.0f}"
    if summary["examples_per_second"]:
        figures["examples/s"] = _number(summary["examples_per_second"])
    if summary["closures_per_second"]:
        figures["closures/s"] = _number(summary["closures_per_second"])
    return "<div>" + " · ".join(f"{label} {value}" for label, value in figures.items()) + "</div>"


def _phases(summary: Summary, starved: str) -> str:
    if not any(summary["phases"]):
        return ""
    figures = [
        f"{phase} {share:.0%}" for phase, share in zip(PHASES, summary["phases"], strict=True)
    ]
    text = f"time of closures: {' · '.join(figures)}"
    return f"<div>{text}{escape(f'; {starved}' if starved else '')}</div>"


def _checkpoint(checkpoint: CheckpointRow) -> str:
    if checkpoint["state"] == "none":
        return ""
    detail = checkpoint["path"] or checkpoint["error"]
    return f"<div>checkpoint {escape(checkpoint['state'])} {escape(detail)}</div>"


def _metrics(metrics: list[Metric]) -> str:
    """Return the charts; validation is in that of its metric."""
    by_name = {metric["name"]: metric for metric in metrics}
    beside = {name: by_name.get(VALIDATION + name) for name in by_name}
    within = {VALIDATION + name for name, found in beside.items() if found is not None}
    alone = [metric for metric in metrics if metric["name"] not in within]
    charts = []
    for metric in alone[:MOST_ROWS]:
        validation = beside[metric["name"]]
        lines = [metric] if validation is None else [metric, validation]
        style = f"display:inline-block;vertical-align:bottom;width:{WIDTH}px;max-width:100%"
        figures = "".join(map(_figures, lines, COLOURS))
        charts.append(f'<div style="{style};margin:6px 16px 0 0">{figures}{sparkline(lines)}</div>')
    return "<div>" + "".join(charts) + "</div>" + left_out(len(alone), "metrics") if charts else ""


def _figures(metric: Metric, colour: str) -> str:
    last, average = metric["last"], metric["smoothed"]
    # Of a value that is of all examples so far, there is none.
    figures = [] if last == average else [f"avg {_number(average)}"]
    figures.append(counted(metric["count"], "value"))
    return (
        '<div style="overflow:hidden;text-overflow:ellipsis;white-space:nowrap">'
        f'<span style="color:{colour}">■</span> {escape(metric["name"])} '
        f"<strong>{_number(last)}</strong> ({', '.join(figures)})</div>"
    )


def _workers(workers: list[WorkerRow]) -> str:
    return html_table(
        "workers",
        (
            *("worker", "host", "state", "in flight", "completed", "failed"),
            *("closures/s", "busy", "memory", "last error"),
        ),
        [
            (
                *(row["name"], row["host"], row["state"]),
                *(str(row["in_flight"]), f"{row['completed']:,}", f"{row['failed']:,}"),
                *(_number(row["closures_per_second"]), _share(row["busy"])),
                *(_bytes(row["memory"]), row["last_error"]),
            )
            for row in workers
        ],
    )


def _servers(servers: list[ServerRow]) -> str:
    return html_table(
        "servers",
        ("server", "state", "shards", "parameters", "pulls/s", "pushes/s", "staleness"),
        [
            (
                *(row["name"], row["state"], str(row["shards"]), _bytes(row["bytes"])),
                *(_number(row["pulls_per_second"]), _number(row["pushes_per_second"])),
                # NaN means that there was no update.
                "" if row["staleness"] == "nan" else _number(row["staleness"]),
            )
            for row in servers
        ],
    )


def _failures(failures: list[FailureRow]) -> str:
    shown = [
        f"<details><summary>{escape(row['error'])}: {escape(row['closure'])} on "
        f"{escape(row['worker'])}</summary>"
        f'<pre style="overflow-x:auto">{escape(row["traceback"])}</pre></details>'
        for row in failures[-MOST_FAILURES:]
    ]
    many = "failure" if len(shown) == 1 else f"{len(shown)} failures"
    head = f'<div style="margin-top:8px"><strong>The last {many}</strong></div>'
    return head + "".join(shown) if shown else ""


def _number(value: Number | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:,.4g}"


def _share(value: Number) -> str:
    return value if isinstance(value, str) else f"{value:.0%}"


def _bytes(count: int | None) -> str:
    return "" if count is None else size_text(count)


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
