"""What an embedding tells about itself: plain values. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class EmbeddingStatistics:
    """An embedding's rows and memory, over all servers.

    Attributes
    ----------
    rows : int
        Rows that there are: admitted ids, or all of a table of fixed rows.
    waiting : int
        Ids that were sighted, but not often enough to be admitted.
    nbytes : int
        Bytes of all: parameters, optimizer state, use of rows and index.
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
        What `Embedding.shrink` goes by.
    """

    show: np.ndarray
    click: np.ndarray
    unseen_days: np.ndarray
    score: np.ndarray
