"""The safetensors file of a snapshot, made piece by piece in the order of its bytes. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from psnb._src.mapped_arrays import DTYPES
from psnb._src.server.snapshot import Snapshot

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Piece(NamedTuple):
    """Some rows of an array."""

    name: str
    start: int
    stop: int


class TableFile:
    """What a file of a snapshot consists of.

    Parameters
    ----------
    taken : Snapshot
        The snapshot.

    Attributes
    ----------
    head : bytes
        The beginning of the file, which tells where each array is.
    """

    def __init__(self, taken: Snapshot) -> None:
        self._taken = taken
        forms = {name: (taken.form[name].dtype, shape) for name, shape in taken.shapes.items()}
        forms |= {name: (array.dtype, array.shape) for name, array in taken.tail.items()}
        # The largest numbers first: so each array begins at a multiple of its numbers' size.
        self._forms = dict(sorted(forms.items(), key=lambda each: (-each[1][0].itemsize, each[0])))
        header, end = {}, 0
        for name, (dtype, shape) in self._forms.items():
            start, end = end, end + dtype.itemsize * math.prod(shape)
            header[name] = {
                "dtype": _NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [start, end],
            }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.head = len(text).to_bytes(8, "little") + text

    def pieces(self, nbytes: int) -> Iterator[Piece]:
        """Yield what follows the head, in order: pieces of at most so many bytes, or of a row."""
        for name in self._forms:
            if name in self._taken.tail:
                yield Piece(name, 0, 0)
                continue
            form = self._taken.form[name]
            step = max(1, nbytes // max(1, form.itemsize * math.prod(form.shape[1:])))
            for start in range(0, self._taken.rows, step):
                yield Piece(name, start, min(start + step, self._taken.rows))

    def content(self, piece: Piece) -> np.ndarray:
        """Return a piece, which nobody else changes; to be called where the table is changed."""
        if piece.name in self._taken.tail:
            return self._taken.tail[piece.name]
        return self._taken.column(*piece)
