"""Ids: the ids of one lookup or push, checked once however many tables they are for. Pure."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.aligned import aligned
from psnb._src.parameters.parameter_arguments import checked_ids
from psnb._src.server import distinct, often_repeated


class Ids:
    """Ids of any shape, without the padding, each once.

    Parameters
    ----------
    given : array_like of int
        As the caller gave them.
    name : str
        The embedding's, for messages.
    rows, padding_idx : int or None
        Those of the embedding.

    Attributes
    ----------
    shape : tuple of int
        Of all ids.
    real : numpy.ndarray or None
        Which of the ids, flattened, are not padding; None for all.
    flat : numpy.ndarray
        Those ids, uint64 ``(n,)``.

    Raises
    ------
    GradientError, IdOutOfRangeError
        As `checked_ids`.
    """

    def __init__(
        self, given: ArrayLike, name: str, rows: int | None, padding_idx: int | None
    ) -> None:
        checked = checked_ids(given, name, rows)
        self.shape, self.flat = checked.shape, checked.reshape(-1)
        self.real: np.ndarray | None = None
        if padding_idx is not None:
            self.real = self.flat != np.uint64(padding_idx)
            self.flat = self.flat[self.real]

    @cached_property
    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct ids, and the position of each of ``flat`` among them; read-only."""
        found, position = distinct(self.flat)
        found.flags.writeable = False
        return found, position

    @cached_property
    def asked(self) -> np.ndarray:
        """The ids to ask the servers for: the distinct ids if that saves work, else ``flat``."""
        return self.distinct[0] if self._repeated else self.flat

    @cached_property
    def _repeated(self) -> bool:
        return often_repeated(self.flat)

    def spread(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of all ids, ``shape + (dim,)``, from those of ``asked``."""
        if self._repeated:
            out = aligned((self.flat.size, *rows.shape[1:]), rows.dtype)
            # No position is out of range, so numpy need not check.
            rows = rows.take(self.distinct[1], axis=0, out=out, mode="clip")
        if self.real is not None and self.flat.size < self.real.size:
            real, rows = rows, np.zeros((self.real.size, rows.shape[1]), rows.dtype)
            rows[self.real] = real
        return rows.reshape(*self.shape, rows.shape[1])


class DistinctIds(Ids):
    """Ids of which none is repeated, known from elsewhere: nothing is searched for again.

    Parameters
    ----------
    given : numpy.ndarray
        Distinct ids ``(n,)``, uint64; not changed from now on.
    name : str
        The embedding's, for messages.
    rows, padding_idx : int or None
        Those of the embedding.
    """

    @cached_property
    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids, and their own positions; read-only."""
        found = self.flat.view()
        found.flags.writeable = False
        return found, np.arange(self.flat.size)

    @cached_property
    def _repeated(self) -> bool:
        return False


class SeenIds:
    """The ids of one `pull` or `push`, which often are the same for several embeddings."""

    def __init__(self) -> None:
        # Keeps the object itself, so that no other object can get its ``id()``.
        self._seen: dict[tuple[int, int | None, int | None], tuple[ArrayLike, Ids]] = {}

    def get(
        self, given: ArrayLike | DistinctIds, name: str, rows: int | None, padding_idx: int | None
    ) -> Ids:
        """Return the `Ids`; the same for the same object, which must not change meanwhile."""
        if isinstance(given, DistinctIds):
            return given
        key = id(given), rows, padding_idx
        if key not in self._seen:
            self._seen[key] = given, Ids(given, name, rows, padding_idx)
        return self._seen[key][1]
