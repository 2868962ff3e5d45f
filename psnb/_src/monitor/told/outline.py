"""Outline: the part of an update that everybody may read. Pure.

The scheduler serves it to anyone who can open Dask's dashboard, without a password and over plain
HTTP, even on a cluster with TLS. Arguments of closures, their exceptions and messages about them
may contain secrets: they stay in the notebook and behind the Jupyter server's login.
"""

from __future__ import annotations

from typing import Any, cast

from psnb._src.monitor.told.protocol import Update

WATCH_ONLY = "attached schedulers are for watching: give commands where the coordinator runs"

IN_NOTEBOOK = "told in the notebook only: coordinator.failures()"

_AS_IT_IS = (
    *("type", "version", "coordinator", "sequence", "full", "summary", "identity", "depth"),
    *("servers", "metrics", "timeline", "optimizers"),
)


def outline(update: Update) -> Update:
    """Return an update without arguments, tracebacks and texts of errors, and without controls.

    Errors keep their type, events their kind and worker. A part that is not known to be harmless is
    left out.
    """
    whole = cast(dict[str, Any], update)
    told = {part: whole[part] for part in _AS_IT_IS if part in whole}
    for part, change in _CHANGED.items():
        if part in whole:
            told[part] = [{**row, **change(row)} for row in whole[part]]
    if "notice" in update:
        told["notice"] = "No longer updated." if update["notice"] else ""
    if "checkpoint" in update:
        error = "told in the notebook only" if update["checkpoint"]["error"] else ""
        told["checkpoint"] = {**update["checkpoint"], "error": error}
    if "controls" in update:
        told["controls"] = dict.fromkeys(update["controls"], WATCH_ONLY)
    return cast(Update, told)


def _type(error: str) -> str:
    """Return the type in ``"Type: message"``."""
    name = error.partition(":")[0]
    return name if name.isidentifier() else ""


_CHANGED: dict[str, Any] = {
    "workers": lambda row: {"last_error": _type(row["last_error"])},
    "failures": lambda row: {"error": _type(row["error"]), "traceback": IN_NOTEBOOK},
    "events": lambda row: {"message": f"{row['kind']} {row['worker']}".rstrip()},
}
