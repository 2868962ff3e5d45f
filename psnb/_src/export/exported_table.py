"""ExportedTable: what is known of a table beside its rows, from the servers to a prediction."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from psnb._src.first_rows import Admission, Initializer


@dataclass(frozen=True)
class ExportedTable:
    """A table, wherever its rows are.

    Attributes
    ----------
    name : str
        Its name.
    dim : int
        Floats a row.
    rows : int or None
        As `psnb.Embedding.rows`.
    dtype : numpy.dtype
        Of the rows, also where they are stored in another one.
    padding_idx : int or None
        The id that gives zeros.
    initializer, admission, seed
        How rows of ids begin that have none, and which ids get one.
    """

    name: str
    dim: int
    rows: int | None
    dtype: np.dtype
    padding_idx: int | None
    initializer: Initializer
    admission: Admission
    seed: int

    def known(self) -> dict[str, Any]:
        """Return these by name, for another one of the same table."""
        return {each.name: getattr(self, each.name) for each in fields(ExportedTable)}
