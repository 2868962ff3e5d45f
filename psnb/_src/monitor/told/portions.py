"""Portions: splits an update that is too large for one message into several. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from psnb._src.monitor.told.protocol import Update

MOST_BYTES = 4 << 20
"""Bytes of JSON that the hub accepts in one post."""

_APPENDED = ("metrics", "timeline", "failures", "events", "workers")
"""Lists of rows that may be split over updates: views append them, or replace rows by name."""


def portions(update: Update, most_bytes: int = MOST_BYTES * 3 // 4) -> Iterator[Update]:
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
    portion: dict[str, Any] = {**update}
    rows = [(part, row) for part in _APPENDED for row in portion.get(part, [])]
    # A full update has every part.
    portion |= {part: [] for part in _APPENDED if part in portion}
    size = len(json.dumps(portion))
    for part, row in rows:
        more = len(json.dumps(row)) + 2
        if size + more > most_bytes:
            yield Update(**portion)  # type: ignore[typeddict-item]
            portion = {key: update[key] for key in _ALWAYS}  # type: ignore[literal-required]
            portion["full"] = False
            size = len(json.dumps(portion)) + 100  # for the lists' names
        portion.setdefault(part, []).append(row)
        size += more
    yield Update(**portion)  # type: ignore[typeddict-item]


_ALWAYS = ("type", "version", "coordinator", "sequence", "full", "summary")
