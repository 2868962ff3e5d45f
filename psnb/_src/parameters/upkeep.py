"""Upkeep: operations on all rows of an embedding: their cost, their use, their removal.

The base class of `Embedding`; it keeps no state, so any number of threads may use one.
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from psnb._src.parameters.sparse_shards import SparseShards
from psnb._src.parameters.table_statistics import EmbeddingStatistics, RowStatistics
from psnb._src.server import CountSkipped, DescribeRows, ShrinkTable


class Upkeep:
    """Operations on all rows of an embedding, on all servers.

    Parameters
    ----------
    shards : SparseShards
        Where they are.
    """

    def __init__(self, shards: SparseShards) -> None:
        self._shards = shards

    def end_day(self) -> None:
        """End a day: shows and clicks decay, and every row counts one more day unseen.

        It happens at once, also in a closure; call it from the notebook, once a day. A push sets a
        row's days unseen to 0. In Paddle, ``shrink`` does the decay and ``save`` counts the days.

        Raises
        ------
        ConfigurationError
            If the table has no `accessor`.
        ServerLostError
            If a server is gone; then no server has done it. After a `ServerSilentError`, some may
            have.
        """
        self._shards.require_accessor()
        self._shards.end_day()

    def shrink(
        self,
        delete_threshold: float | None = None,
        delete_after_unseen_days: float | None = None,
        *,
        forget_waiting: bool = False,
    ) -> int:
        """Remove the rows that are hardly used, and free their memory.

        A row is removed if its score is below the threshold, or if it was not pushed for more days
        than the limit. If its id is seen again, it starts as if it had never been seen. It happens
        at once, also in a closure.

        Parameters
        ----------
        delete_threshold, delete_after_unseen_days : float, optional
            By default those of the `accessor` (0.8 and 30, as in Paddle).
        forget_waiting : bool
            Also forget the sightings of ids that `CountFilter` has not admitted.

        Returns
        -------
        int
            How many rows were removed.

        Raises
        ------
        ConfigurationError
            If the table has no `accessor`.
        ServerLostError
            If a server is gone; the others may have done it.
        """
        accessor = self._shards.require_accessor()
        threshold, days = delete_threshold, delete_after_unseen_days
        shrink = ShrinkTable(
            accessor.delete_threshold if threshold is None else float(threshold),
            accessor.delete_after_unseen_days if days is None else float(days),
            bool(forget_waiting),
        )
        return sum(self._shards.ask_all(shrink))

    def row_use(self, ids: ArrayLike) -> RowStatistics:
        """Return how the rows of some ids were used; makes no rows and counts as no sighting.

        Parameters
        ----------
        ids : array_like of int
            Any shape.

        Returns
        -------
        RowStatistics
            Arrays of the shape of ``ids``; zeros for ids without a row.

        Raises
        ------
        ConfigurationError
            If the table has no `accessor`.
        ServerLostError
            If a server is gone.
        """
        accessor = self._shards.require_accessor()
        show, click, unseen = self._shards.row_use(ids)
        return RowStatistics(show, click, unseen, accessor.score(show, click))

    def statistics(self) -> EmbeddingStatistics:
        """Return how many rows there are and what they cost; asks the servers.

        Raises
        ------
        ServerLostError
            If a server is gone.
        """
        parts = self._shards.ask_all(DescribeRows())
        return EmbeddingStatistics(**{key: sum(part[key] for part in parts) for key in parts[0]})

    def skipped(self) -> int:
        """Return how many rows were left out of updates as not finite; asks the servers.

        Counted with ``nonfinite="skip"``, since the table was made. What a closure pushes counts
        when the closure has ended.
        """
        return sum(self._shards.ask_all(CountSkipped()))
