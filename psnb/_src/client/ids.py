"""Ids: the ids of one lookup or push, checked once however many tables they are for. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.client.arguments import checked_ids
from psnb._src.server.hashing import distinct_of_parts
from psnb._src.utils.memory import aligned

_SAMPLE, _FEW, _REPEATED = 1024, 64, 0.75
"""How many ids are looked at, how many are too few to number, and the share of distinct ids below
which that saves work."""


class Ids:
    """Ids of any shape, without the padding, each once.

    Parameters
    ----------
    ids : numpy.ndarray
        What `checked_ids` returned.
    padding_idx : int or None
        That of the embedding.
    distinct : bool
        Whether it is known that none is repeated, and that the array will not change.

    Attributes
    ----------
    shape : tuple of int
        Of all ids.
    real : numpy.ndarray or None
        Which of the ids, flattened, are not padding; None for all.
    flat : numpy.ndarray
        Those ids, uint64 ``(n,)``.
    plain : bool
        Whether the ids that are asked for are all of them, each once, along one axis.
    """

    def __init__(self, ids: np.ndarray, padding_idx: int | None, *, distinct: bool = False) -> None:
        # A view: the caller may write to the ids.
        self.shape, self.flat = ids.shape, ids if ids.ndim == 1 else ids.reshape(-1)
        self.real: np.ndarray | None = None
        if padding_idx is not None:
            self.real = self.flat != np.uint64(padding_idx)
            self.flat = self.flat[self.real]
        self._distinct: tuple[np.ndarray, np.ndarray | None] | None = None
        self._repeated: bool | None = None if self.flat.size >= _FEW else False
        if distinct:
            self.flat.flags.writeable = False
            self._distinct, self._repeated = (self.flat, None), False
        self.plain = distinct and self.real is None and ids.ndim == 1

    @property
    def distinct(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The distinct ids, read-only, and the position of each of ``flat`` among them.

        The positions are None where each id is at its own.
        """
        if self._distinct is None:
            number_together([self])
        assert self._distinct is not None
        return self._distinct

    @property
    def asked(self) -> np.ndarray:
        """The ids to ask the servers for: the distinct ids if that saves work, else ``flat``."""
        if self._repeated is None:
            sample_together([self])
        return self.distinct[0] if self._repeated else self.flat

    def spread(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of all ids, ``shape + (dim,)``, from the rows of ``asked``."""
        if self._repeated:
            out = aligned((self.flat.size, *rows.shape[1:]), rows.dtype)
            _, position = self.distinct
            assert position is not None  # what is repeated was searched
            # No position is out of range, so numpy need not check.
            rows = rows.take(position, axis=0, out=out, mode="clip")
        if self.real is not None and self.flat.size < self.real.size:
            real, rows = rows, np.zeros((self.real.size, rows.shape[1]), rows.dtype)
            rows[self.real] = real
        return rows.reshape(*self.shape, rows.shape[1])


def number_together(several: Iterable[Ids]) -> None:
    """Find the distinct ids of each, in one call."""
    new = [*{each: None for each in several if each._distinct is None}]
    numbered = distinct_of_parts([each.flat for each in new])
    for each, (found, position) in zip(new, numbered, strict=True):
        each._distinct = found, None if found.size == position.size else position


def sample_together(several: Iterable[Ids]) -> None:
    """Estimate from the first ids of each whether they repeat, and number those that do."""
    new = [*{each: None for each in several if each._repeated is None}]
    numbered = distinct_of_parts([each.flat[:_SAMPLE] for each in new])
    for each, (found, position) in zip(new, numbered, strict=True):
        each._repeated = found.size < _REPEATED * position.size
        if each._repeated and position.size == each.flat.size:  # the sample is all of them
            each._distinct = found, position
    number_together([each for each in new if each._repeated])


class SeenIds:
    """The ids of one `pull` or `push`, which often are the same for several embeddings."""

    def __init__(self) -> None:
        # Keeps the object itself, so that no other object can get its ``id()``.
        self._seen: dict[tuple[int, int | None, int | None], tuple[ArrayLike, Ids]] = {}

    def get(
        self, given: ArrayLike | Ids, name: str, rows: int | None, padding_idx: int | None
    ) -> Ids:
        """Return the `Ids`; the same for the same object, which must not change meanwhile.

        Raises
        ------
        InvalidArrayError, IdOutOfRangeError
            As `checked_ids`.
        """
        if isinstance(given, Ids):
            return given
        key = id(given), rows, padding_idx
        if key not in self._seen:
            self._seen[key] = given, Ids(checked_ids(given, name, rows), padding_idx)
        return self._seen[key][1]
