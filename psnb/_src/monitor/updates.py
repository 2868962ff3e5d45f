"""Updates on their way to views: as plain values, as an outline for all, and in small chunks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from psnb._src.monitor.protocol import WATCH_ONLY, Update


def plain(value: Any) -> Any:
    """Return a message with only values that JSON has.

    Parameters
    ----------
    value : object
        Made of dicts, lists, tuples, texts, numbers and None.

    Returns
    -------
    object
        The same, with lists for tuples, Python's numbers for numpy's, ``"nan"``, ``"inf"`` and
        ``"-inf"`` for floats that are not finite, and ``?`` for halves of surrogate pairs, which
        Python keeps for bytes of file names that are not text.
    """
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        case dict():
            return {plain(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case np.integer() | np.bool_():
            return value.item()
        case np.floating():
            return plain(float(value))
        case float() if not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        case _:
            return value


IN_NOTEBOOK = "shown in the notebook only: coordinator.failures()"

_AS_IT_IS = (
    *("type", "version", "coordinator", "sequence", "full", "summary", "identity", "depth"),
    *("servers", "metrics", "epochs", "timeline", "optimizers", "tables"),
)


def outline(update: Update) -> Update:
    """Return an update without arguments, tracebacks and texts of errors, and without controls.

    Errors keep their type, events their kind and worker. A part that is not known to be harmless is
    left out.
    """
    whole = cast(dict[str, Any], update)
    shown = {part: whole[part] for part in _AS_IT_IS if part in whole}
    for part, change in _CHANGED.items():
        if part in whole:
            shown[part] = [{**row, **change(row)} for row in whole[part]]
    if "notice" in update:
        shown["notice"] = "No longer updated." if update["notice"] else ""
    if "checkpoint" in update:
        error = "shown in the notebook only" if update["checkpoint"]["error"] else ""
        shown["checkpoint"] = {**update["checkpoint"], "error": error}
    if "controls" in update:
        shown["controls"] = dict.fromkeys(update["controls"], WATCH_ONLY)
    return cast(Update, shown)


def _type(error: str) -> str:
    name = error.partition(":")[0]
    return name if name.isidentifier() else ""


_CHANGED: dict[str, Any] = {
    "workers": lambda row: {"last_error": _type(row["last_error"])},
    "failures": lambda row: {"error": _type(row["error"]), "traceback": IN_NOTEBOOK},
    "events": lambda row: {"message": f"{row['kind']} {row['worker']}".rstrip()},
}

MOST_BYTES = 4 << 20
"""Bytes of JSON that the hub accepts in one post."""

_APPENDED = ("metrics", "timeline", "failures", "events", "workers")
"""Lists of rows that may be split over updates: views append them, or replace rows by name."""


def chunks(update: Update, most_bytes: int = MOST_BYTES * 3 // 4) -> Iterator[Update]:
    """Yield small updates that together equal one; they are not renumbered yet.

    Parameters
    ----------
    update : Update
        Of any size. Only its lists are split, so a single row, and all other parts, must fit.
    most_bytes : int
        Size of the JSON text up to which rows are added to an update.
    """
    if len(json.dumps(update)) <= most_bytes:
        yield update
        return
    chunk: dict[str, Any] = {**update}
    rows = [(part, row) for part in _APPENDED for row in chunk.get(part, [])]
    # A full update has every part.
    chunk |= {part: [] for part in _APPENDED if part in chunk}
    size = len(json.dumps(chunk))
    for part, row in rows:
        more = len(json.dumps(row)) + 2
        if size + more > most_bytes:
            yield Update(**chunk)  # type: ignore[typeddict-item]
            chunk = {**bare(update)}
            size = len(json.dumps(chunk)) + 100  # for the lists' names
        chunk.setdefault(part, []).append(row)
        size += more
    yield Update(**chunk)  # type: ignore[typeddict-item]


_ALWAYS = ("type", "version", "coordinator", "sequence", "summary")


def bare(update: Update) -> Update:
    """Return an update with the summary of another one, and nothing else that has changed."""
    kept = {key: update[key] for key in _ALWAYS}  # type: ignore[literal-required]
    return cast(Update, {**kept, "full": False})
