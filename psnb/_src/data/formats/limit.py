"""Limits on the size of a record: no memory is allocated for a longer one."""

from __future__ import annotations

import numpy as np

from psnb._src.checks import integer
from psnb._src.data.formats.file_position import FilePosition
from psnb.errors import DatasetError

MAX_RECORD_BYTES = 1 << 26
"""How many bytes a record may have, unless a reader is told otherwise."""

MAX_COLUMNS = 1 << 14
"""How many columns a CSV file may have, unless its reader is told otherwise."""

LONGEST = 1 << 30
"""The largest limit that can be set."""


def checked_limit(limit: int) -> int:
    """Return a limit as an int, or raise `ConfigurationError` if it cannot be one."""
    return integer("max_record_bytes", limit, 1, LONGEST)


def too_long(place: FilePosition, noun: str, number: int, byte: int, limit: int) -> DatasetError:
    """Return the error for a record over the limit; parameters as for `FilePosition.error`."""
    return place.error(
        noun,
        number,
        byte,
        f"it is longer than max_record_bytes={limit}; give the reader more, unless the file is of "
        "another format, or compressed",
    )


def within(lengths: np.ndarray, limit: int) -> int:
    """Return how many records come before the first that is too long."""
    longer = lengths > limit
    return int(longer.argmax()) if longer.any() else len(lengths)
