"""Plain: converts messages to valid JSON values, whatever numbers and texts they contain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


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
        Python keeps for bytes of file names that are no text.
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
