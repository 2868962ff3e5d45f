"""Arrays of safetensors files, mapped into memory: only what is touched is read. Pure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

DTYPES = {
    f"{kind.upper()}{8 * size}": np.dtype(f"<{kind}{size}")
    for kind, sizes in (("i", (1, 2, 4, 8)), ("u", (1, 2, 4, 8)), ("f", (2, 4, 8)))
    for size in sizes
}
"""The dtypes that parameters have, by their names in the files."""


def mapped_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by their names, mapped into memory and read-only.

    Nobody may shorten the file as long as they are used: that ends the process.

    Raises
    ------
    OSError, SafetensorError, ValueError
        If it is no such file, or has an array of another dtype.
    """
    with safe_open(path, framework="numpy"):
        pass  # it raises unless the arrays that the header tells of fill the file
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {name: _mapped(path, name, 8 + size, form) for name, form in header.items()}


def _mapped(path: Path, name: str, start: int, form: dict[str, Any]) -> np.ndarray:
    dtype, shape = DTYPES.get(form["dtype"]), tuple(form["shape"])
    if dtype is None:
        raise ValueError(f"array {name!r:.80} has dtype {form['dtype']}")
    try:
        if not math.prod(shape):
            return np.empty(shape, dtype)
        whole = np.memmap(path, dtype, "r", start + form["data_offsets"][0], shape)
    except OverflowError as error:
        raise ValueError(f"array {name!r:.80} has shape {shape}") from error
    return whole.view(np.ndarray)
