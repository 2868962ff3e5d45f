"""Portions: cuts an update that is too large for one message into several. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from psnb._src.monitor.told.protocol import Update

MOST_BYTES = 4 << 20
"""Bytes of JSON that the hub takes at once."""

_APPENDED = ("metrics", "timeline", "failures", "events", "workers")
"""Lists of rows that may come one after the other: views append them, or replace rows by name."""


def portions(update: Update, most_bytes: int = MOST_BYTES * 3 // 4) -> Iterator[Update]:
    """Yield updates that together say what one says, each small enough; not yet renumbered.

    Parameters
    ----------
    update : Update
        Of any size. Only its lists are cut, so a single row, and what is always whole, must fit.
    most_bytes : int
        Size of the JSON text that a list may bring an update to.
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
