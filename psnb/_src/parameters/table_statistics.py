"""Statistics of an embedding: plain values. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class EmbeddingStatistics:
    """An embedding's rows and memory, over all servers.

    Attributes
    ----------
    rows : int
        Rows that exist: those of admitted ids, or all rows of a table with fixed rows.
    waiting : int
        Ids that were sighted, but not often enough to be admitted.
    nbytes : int
        Bytes in total: parameters, optimizer state, use of rows and index.
    index_nbytes : int
        Bytes of the hash maps from ids to rows.
    """

    rows: int
    waiting: int
    nbytes: int
    index_nbytes: int


@dataclass(frozen=True, slots=True)
class RowStatistics:
    """How rows were used; see `CtrAccessor`.

    Attributes
    ----------
    show, click : numpy.ndarray
        Decayed counts, float32.
    unseen_days : numpy.ndarray
        Days ended since the last push, float32.
    score : numpy.ndarray
        The score by which `Embedding.shrink` decides.
    """

    show: np.ndarray
    click: np.ndarray
    unseen_days: np.ndarray
    score: np.ndarray
