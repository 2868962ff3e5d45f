"""Embedding: a table of rows by id that lives on parameter servers.

Like a `Variable`, it is a description that pickles into closures; it keeps no values itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.client.arguments import checked_array, checked_ids
from psnb._src.client.bags.combining import Bags, Combiner, make_bags
from psnb._src.client.bags.pooling import fetch_bags, pushing_bags
from psnb._src.client.dask_frame import frame_of_rows
from psnb._src.client.fused import pushing_rows, reading_rows
from psnb._src.client.parameter_shards import LiveOptimizer
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.tables.description import TableDescription, describe_table
from psnb._src.client.tables.scan import find_nearest, read_items
from psnb._src.client.updates import weigh, write
from psnb._src.data.ragged import Ragged
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import Admission
from psnb._src.server.tables.looking import MOST_USED
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.utils.arrays import integers_of
from psnb._src.utils.checks import integer
from psnb._src.utils.foreign_names import FixedAttributes
from psnb._src.utils.phases import PULL, PUSH, counted_as
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, InvalidArrayError


@dataclass(frozen=True, slots=True)
class EmbeddingStatistics:
    """An embedding's rows, and what they take, over all servers.

    Attributes
    ----------
    rows : int
        Rows that exist: of admitted ids, or all rows of a table with fixed rows.
    waiting : int
        Ids that were sighted, but not often enough to be admitted.
    nbytes : int
        Bytes of memory: parameters, optimizer state, use of rows and index.
    index_nbytes : int
        Those of the hash maps from ids to rows.
    disk_nbytes : int
        Bytes in files: parameters, optimizer state and use of rows, with ``storage="disk"``.
    evicted, expired : int
        Rows that have left since the table was made: for others, with ``max_rows``, and because
        their ``time_to_live`` was over.
    missed : int
        How many of the pushed ids had no row, with the table full: that was another id's by then.
        These began anew. An event says so if it is more than 1 % of them.
    pushed : int
        How many ids were pushed, of a table with ``max_rows`` or ``time_to_live``.

    Copies of a shard have the same counts, so a failover does not change them. Those of a shard
    that is lost with all copies, and recovered, begin anew.
    """

    rows: int
    waiting: int
    nbytes: int
    index_nbytes: int
    disk_nbytes: int
    evicted: int = 0
    expired: int = 0
    missed: int = 0
    pushed: int = 0


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


class Embedding(FixedAttributes):
    """Rows of floats by id on the parameter servers; made by `ParameterServerStrategy.embedding`.

    Thread-safe; usable in the notebook, in closures and in Dask tasks. A lookup or push is atomic
    for each shard. A push is made on all shards or none. In a closure it is held back until the
    closure ends and applied exactly once, as with `Variable`.
    """

    def __init__(self, shards: SparseShards) -> None:
        self._shards = shards

    def __repr__(self) -> str:
        rows = "any id" if self.rows is None else f"{self.rows} rows"
        return f"<psnb.Embedding {self.name!r} {rows} of {self.stored_dtype}[{self.dim}]>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Embedding, (self._shards,)

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        raise ConfigurationError(
            f"embedding {self.name!r} is a table on servers, and no array: fetch rows of it with "
            "lookup(ids)"
        )

    @property
    def name(self) -> str:
        """Its name; unique within the strategy."""
        return self._shards.name

    @property
    def dim(self) -> int:
        """Floats a row."""
        return self._shards.dim

    @property
    def rows(self) -> int | None:
        """Ids are ``0 <= id < rows``; with None any int64 or uint64 is an id.

        Then a row is made when its id is first looked up or pushed. (A negative int64 is the uint64
        with the same 64 bits.)
        """
        return self._shards.rows

    @property
    def dtype(self) -> np.dtype:
        """That of rows as they are looked up and of gradients, float32 or float64."""
        return self._shards.dtype

    @property
    def stored_dtype(self) -> np.dtype:
        """That in which servers hold rows: `dtype`, or bfloat16 or float16 for float32."""
        return self._shards.spec.dtype

    @property
    def padding_idx(self) -> int | None:
        """The id that gives zeros, takes no gradient and is left out of bags."""
        return self._shards.padding_idx

    @property
    def admission(self) -> Admission:
        """Which ids get a row, if `rows` is None."""
        return self._shards.admission

    @property
    def accessor(self) -> CtrAccessor | None:
        """How the use of rows is recorded, if it is recorded."""
        return self._shards.accessor

    @property
    def optimizer(self) -> LiveOptimizer | None:
        """What the servers do with pushed gradients; its hyperparameters can be set live."""
        return self._shards.optimizer

    @counted_as(PULL)
    def lookup(self, ids: ArrayLike, *, training: bool = True) -> np.ndarray:
        """Fetch the rows of some ids.

        Parameters
        ----------
        ids : array_like of int
            Any shape; ids may repeat.
        training : bool
            False is for evaluation and serving, and matters where ids get rows when they are first
            seen (``rows=None``): no row is made and no occurrence is counted. An id without a row
            then gives the initial values that its row would have, or zeros if it would not be
            admitted at once.

        Returns
        -------
        numpy.ndarray
            ``ids.shape + (dim,)`` of `dtype`, a copy of its own.

        Raises
        ------
        IdOutOfRangeError
            If an id is outside `rows`.
        InvalidArrayError
            If the ids are not integers.
        ServerLostError
            If a server is gone.
        """
        ((_, reading),) = reading_rows([(self._shards, ids)], training=training)
        (rows,) = reading.fetch()
        return rows

    @counted_as(PULL)
    def to_dask(self, ids: ArrayLike | None = None, *, partition_rows: int = 65_536) -> Any:
        """Return rows as a Dask DataFrame, by id: for evaluation with the tools that it has.

        Nothing is read yet. Each partition is read when it is computed, as it is then: drain the
        coordinator first if all must be of one moment. Servers make no rows for it.

        Parameters
        ----------
        ids : array_like, optional
            Whose rows, integers ``(n,)``. By default all of a table with fixed ``rows``; one of any
            ids needs them.
        partition_rows : int
            Rows a partition.

        Returns
        -------
        dask.dataframe.DataFrame
            Indexed by ``id``, in the order of the ids, with columns ``"0"`` to ``str(dim - 1)``.

        Raises
        ------
        ConfigurationError
            If ids are needed or no integers, or without dask[dataframe].
        IdOutOfRangeError
            When it is computed: if an id is outside the rows.
        """
        size = integer("to_dask: partition_rows", partition_rows, 1)
        if ids is None:
            if self.rows is None:
                raise ConfigurationError(
                    f"to_dask: table {self.name!r} has any ids, so say which: to_dask(ids)"
                )
            return frame_of_rows(self, range(self.rows), size)
        wanted = integers_of(ids, f"to_dask: ids of table {self.name!r}")
        if wanted.ndim != 1:
            raise ConfigurationError(f"to_dask: ids are integers (n,), found {shown(wanted)}")
        return frame_of_rows(self, wanted, size)

    @counted_as(PULL)
    def lookup_bags(
        self,
        values: ArrayLike | Ragged,
        offsets: ArrayLike | None = None,
        combiner: str = "mean",
        weights: ArrayLike | None = None,
        *,
        include_last_offset: bool = False,
        training: bool = True,
    ) -> np.ndarray:
        """Fetch the rows of bags of ids, each combined into one.

        As PyTorch's ``EmbeddingBag`` and TensorFlow's ``safe_embedding_lookup_sparse``: a bag
        without ids gives zeros, and `padding_idx` counts as not there. Where that is fewer bytes,
        the servers sum the rows that they have, and send a row a bag instead of one an id.

        Parameters
        ----------
        values : array_like of int, or psnb.data.Ragged
            The ids of all bags one after the other, ``(n,)``; ids may repeat. Of a `Ragged`, each
            row is a bag; it has offsets.
        offsets : array_like of int
            Where each bag starts, ``(bags,)``: the first is 0, and they never decrease. The last
            bag ends with ``values``. Offsets whose last number is ``n`` need
            ``include_last_offset=True``; None for a `Ragged`.
        combiner : {"mean", "sum", "sqrtn", "max"}
            ``sum`` adds the rows, each times its weight; ``mean`` divides that by the sum of the
            weights, ``sqrtn`` by the root of the sum of their squares, as in TensorFlow (where the
            divisor is 0, the bag gives zeros). ``max`` takes the largest number of each column, and
            takes no weights.
        weights : array_like, optional
            One for each of ``values``, of `dtype`; 1 by default.
        include_last_offset : bool
            Whether ``offsets`` have one more number, ``n``, where the last bag ends: as in PyTorch.
        training : bool
            False for evaluation and serving, as in `lookup`.

        Returns
        -------
        numpy.ndarray
            ``(bags, dim)`` of `dtype`.

        Raises
        ------
        InvalidArrayError
            If the shapes do not fit each other, or offsets or weights are invalid.
        ConfigurationError
            If there is no such combiner.
        IdOutOfRangeError
            If an id is outside `rows`.
        ServerLostError
            If a server is gone.
        """
        bags = self._bags(values, offsets, include_last_offset, combiner, weights)
        return fetch_bags(self._shards, bags, training=training)

    @counted_as(PUSH)
    def push_bags(
        self,
        values: ArrayLike | Ragged,
        offsets: ArrayLike | None,
        gradients: ArrayLike,
        combiner: str = "mean",
        weights: ArrayLike | None = None,
        shows: ArrayLike | None = None,
        clicks: ArrayLike | None = None,
        *,
        include_last_offset: bool = False,
        immediate: bool = False,
    ) -> None:
        """Let the optimizer apply gradients for the result of `lookup_bags`.

        Each id gets its share, summed over the bags that it is in: on the servers, where that is
        fewer bytes. With ``max``, a column's gradient goes to the row with the largest number in
        it, the first of equals; the other rows of the bag get zeros. To find that row, the rows are
        looked up once more (which does not count for admission), so it is the largest at the time
        of the push.

        Parameters
        ----------
        values, offsets, combiner, weights, include_last_offset
            As for `lookup_bags`.
        gradients : array_like
            ``(bags, dim)``; an array must have `dtype`.
        shows, clicks : array_like, optional
            How often each bag was shown and clicked, ``(bags,)``; each of its ids gets these
            counts. Only for tables with an `accessor`; the defaults are 1 and 0.
        immediate : bool
            In a closure: write now, not at its end. Such a write happens at least once.

        Raises
        ------
        InvalidArrayError, ConfigurationError, IdOutOfRangeError, ServerLostError
            As for `lookup_bags` and `push`; nothing was changed.
        """
        self._shards.require_optimizer()
        bags = self._bags(values, offsets, include_last_offset, combiner, weights)
        what = f"gradients for bags of embedding {self.name!r}"
        array = checked_array(gradients, self.dtype, what, (bags.count, self.dim))
        self._shards.must_skip(array, what)  # the error names the bag
        looked_up = None
        if bags.combiner is Combiner.MAX:
            looked_up = self.lookup(bags.ids, training=False)  # the push counts as the occurrence
        of_bags = self._shards.use((bags.count,), shows, clicks)  # empty without an accessor
        use = np.array([bags.total(each) for each in of_bags], np.float32)
        writes = pushing_bags(self._shards, bags, array, use, looked_up)
        write(self._shards.server_client, writes, immediate=immediate)

    @counted_as(PUSH)
    def push(
        self,
        ids: ArrayLike,
        gradients: ArrayLike,
        shows: ArrayLike | None = None,
        clicks: ArrayLike | None = None,
        *,
        immediate: bool = False,
        weight: float | None = None,
    ) -> None:
        """Let the optimizer on the servers apply gradients to the rows of some ids.

        Gradients of equal ids are summed first, so an id counts as one step of the optimizer.

        Parameters
        ----------
        ids : array_like of int
            Any shape; ids may repeat.
        gradients : array_like
            ``ids.shape + (dim,)``; an array must have `dtype`.
        shows, clicks : array_like, optional
            How often each was shown and clicked, of the shape of ``ids``. Only for tables with an
            `accessor`; the defaults are 1 and 0, as in Paddle. For ids without a row (not admitted)
            they are dropped.
        immediate : bool
            In a closure: write now, not at its end. Such a write happens at least once.
        weight : float, optional
            In mode `Sync`, what the closure's batch counts in its round, such as its number of
            examples, where ``gradients`` are of a mean over it; see there.

        Raises
        ------
        InvalidArrayError
            If shape or dtype of the gradients differ, or if a number is not finite and the table
            was not made with ``nonfinite="skip"`` (which leaves out the rows of such ids) or
            ``"allow"``; nothing was changed.
        IdOutOfRangeError
            If an id is outside `rows`; nothing was changed.
        ConfigurationError
            If the table was made without an optimizer, or if shows or clicks are given and it was
            made without an accessor.
        ServerLostError
            If a server is gone.
        """
        writes = pushing_rows([(self._shards, ids, gradients, shows, clicks)])
        if weight is not None:
            weigh(weight)
        write(self._shards.server_client, writes, immediate=immediate)

    @counted_as(PUSH)
    def assign(self, ids: ArrayLike, values: ArrayLike) -> None:
        """Replace the rows of some ids; optimizer state stays as it is.

        It happens immediately, also in a closure (and then at least once), on all servers or on
        none. An id without a row gets one, admitted or not.

        Parameters
        ----------
        ids : array_like of int
            Any shape. If an id is repeated, its last value counts.
        values : array_like
            ``ids.shape + (dim,)``; an array must have `dtype`.

        Raises
        ------
        InvalidArrayError
            If shape or dtype of the values differ; nothing was changed.
        IdOutOfRangeError
            If an id is outside `rows`; nothing was changed.
        ServerLostError
            If a server is gone.
        """
        writes = self._shards.assigning(ids, values)
        write(self._shards.server_client, writes, immediate=True)

    def end_day(self) -> None:
        """End a day: shows and clicks decay, and every row counts one more day unseen.

        It happens immediately, also in a closure; call it from the notebook, once a day. A push
        sets a row's days unseen to 0. In Paddle, ``shrink`` does the decay and ``save`` counts the
        days.

        Raises
        ------
        ConfigurationError
            If the table has no `accessor`.
        ServerLostError
            If a server is gone; then no server has done it. After a `ServerUnresponsiveError`, some
            may have.
        """
        self._shards.require_accessor()
        end = ops.on_table(self.name, ops.EndDay())
        writes = [(shard, end) for shard in self._shards.shard_ids]
        write(self._shards.server_client, writes, immediate=True)

    def shrink(
        self,
        delete_threshold: float | None = None,
        delete_after_unseen_days: float | None = None,
        *,
        forget_waiting: bool = False,
    ) -> int:
        """Remove the rows that are hardly used, and free their memory.

        A row is removed if its score is below the threshold, or if it was not pushed for more days
        than the limit. If its id is seen again, it starts as if it had never been seen. This
        happens immediately, also in a closure.

        Parameters
        ----------
        delete_threshold, delete_after_unseen_days : float, optional
            By default those of the `accessor` (0.8 and 30, as in Paddle).
        forget_waiting : bool
            Also forget the occurrences of ids that `CountFilter` has not admitted.

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
        shrink = ops.ShrinkTable(
            accessor.delete_threshold if threshold is None else float(threshold),
            accessor.delete_after_unseen_days if days is None else float(days),
            bool(forget_waiting),
        )
        return sum(self._shards.ask_all(shrink))

    def row_use(self, ids: ArrayLike) -> RowStatistics:
        """Return how the rows of some ids were used; makes no rows and counts as no occurrence.

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
        parts = self._shards.ask_all(ops.DescribeRows())
        return EmbeddingStatistics(**{key: sum(part[key] for part in parts) for key in parts[0]})

    def describe(self, *, most_used: int = 10) -> TableDescription:
        """Return what the rows are like: how many, their norms, how long unseen, the most used.

        Servers read all rows for it, in pieces of a few milliseconds, between other requests; a
        million rows of 16 take some 70 ms of their time. Each row is as it was
        when its piece was read. In a closure, what that has pushed is not seen yet.

        Parameters
        ----------
        most_used : int
            How many of the most used ids, 1 to 100; they are known with an `accessor`.

        Raises
        ------
        ConfigurationError
            If ``most_used`` is no such number.
        ServerLostError
            If a server is gone, or if rows of a shard were removed five times meanwhile.

        Examples
        --------
        >>> import numpy as np
        >>> import psnb
        >>> client = psnb.local_cluster(workers=1, servers=1, processes=False)
        >>> strategy = psnb.ParameterServerStrategy(client)
        >>> items = strategy.embedding("items", dim=2)
        >>> items.assign([7, 8, 9], np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]], np.float32))
        >>> described = items.describe()
        >>> described.rows, described.norms.most, described.norms.zeros
        (3, 5.0, 1)
        >>> strategy.close()
        >>> client.close()
        """
        most = integer(f"describe of embedding {self.name!r}: most_used", most_used, 1, MOST_USED)
        return describe_table(self._shards, most)

    @counted_as(PULL)
    def nearest(
        self, query: ArrayLike, k: int = 10, *, metric: str = "cosine"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the nearest neighbours of ids or vectors, found where the rows are.

        Exact: servers compare all rows, in pieces of a few milliseconds, between other requests.
        Each row is as it was when its piece was read, so while they change, two rows may be of
        different moments; in a closure, what that has pushed is not seen yet. Makes no rows, and
        counts as no occurrence.

        Parameters
        ----------
        query : array_like
            Integers are ids, one or ``(n,)``, whose rows are compared; they are not neighbours of
            themselves. Floats are a vector, ``(dim,)``, or several, ``(n, dim)``.
        k : int
            How many neighbours of each.
        metric : {"cosine", "dot", "l2"}
            What is compared: cosines (that of a row of zeros is 0) or products, the largest first,
            or Euclidean distances, the smallest first. They are computed in float64.

        Returns
        -------
        ids : numpy.ndarray
            uint64, ``(k,)`` for one id or vector, else ``(n, k)``; fewer if there are fewer rows.
            Of equally near ones, smaller ids come first. Rows with numbers that are not finite are
            left out, and so is `padding_idx`.
        scores : numpy.ndarray
            float64, of the same shape.

        Raises
        ------
        ConfigurationError
            If an id has no row, there is no such metric, or ``k`` is not 1 to 262,142.
        InvalidArrayError
            If these are no ids or vectors; if a number is not finite, or all of a vector are zeros,
            which has no cosine.
        IdOutOfRangeError
            If an id is outside `rows`.
        ServerLostError
            If a server is gone, or if rows of a shard were removed five times meanwhile.

        Examples
        --------
        >>> import numpy as np
        >>> import psnb
        >>> client = psnb.local_cluster(workers=1, servers=1, processes=False)
        >>> strategy = psnb.ParameterServerStrategy(client)
        >>> items = strategy.embedding("items", dim=2)
        >>> items.assign([7, 8, 9], np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], np.float32))
        >>> items.nearest(7, k=2)[0].tolist()
        [8, 9]
        >>> ids, scores = items.nearest([[0.0, 2.0], [3.0, 0.0]], k=1, metric="l2")
        >>> ids.tolist(), scores.tolist()
        ([[9], [7]], [[1.0], [2.0]])
        >>> strategy.close()
        >>> client.close()
        """
        count = integer(f"nearest in embedding {self.name!r}: k", k, 1)
        return find_nearest(self._shards, query, count, metric)

    def items(self, *, chunk: int = 65_536) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Return an iterator over all ids and their rows, in chunks.

        An id that has a row all the time comes exactly once, whatever happens to servers and to
        other rows; one that comes or goes meanwhile, once or not at all. A row is as it was when
        its chunk was read: drain the coordinator first if all must be of one moment. This process
        holds a chunk, and up to 64 MB of ids. Nothing is kept on servers, so the iteration may be
        left at any time. Makes no rows, and counts as no occurrence.

        Parameters
        ----------
        chunk : int
            Rows in a chunk; some have fewer.

        Yields
        ------
        ids : numpy.ndarray
            uint64 ``(n,)``; those of a table with fixed `rows` ascend.
        rows : numpy.ndarray
            ``(n, dim)`` of `dtype`, a copy of its own.

        Raises
        ------
        ConfigurationError
            At once, if ``chunk`` is no such number.
        ServerLostError
            If a server is gone, or if rows of a shard were removed five times while ids were read.

        Examples
        --------
        >>> import psnb
        >>> client = psnb.local_cluster(workers=1, servers=1, processes=False)
        >>> strategy = psnb.ParameterServerStrategy(client)
        >>> items = strategy.embedding("items", dim=2, rows=5)
        >>> [ids.tolist() for ids, rows in items.items(chunk=2)]
        [[0, 1], [2, 3], [4]]
        >>> strategy.close()
        >>> client.close()
        """
        size = integer(f"items of embedding {self.name!r}: chunk", chunk, 1)
        return read_items(self._shards, size)

    def skipped(self) -> int:
        """Return how many rows were left out of updates as not finite; asks the servers.

        Counted with ``nonfinite="skip"``, since the table was made. A closure's pushes count when
        the closure has ended.
        """
        return sum(self._shards.ask_all(ops.CountSkipped()))

    def _bags(
        self,
        values: ArrayLike | Ragged,
        offsets: ArrayLike | None,
        include_last_offset: bool,
        combiner: str,
        weights: ArrayLike | None,
    ) -> Bags:
        what = f"bags for embedding {self.name!r}"
        if isinstance(values, Ragged):
            if offsets is not None:
                raise InvalidArrayError(f"{what}: a Ragged has offsets; pass None for them")
            offsets, include_last_offset = values.offsets, True
            values = values.values
        elif offsets is None:
            raise InvalidArrayError(f"{what}: values that are not Ragged need offsets")
        ids = checked_ids(values, self.name, self.rows)
        factors: np.ndarray | None = None
        if weights is not None:
            factors = checked_array(weights, self.dtype, f"weights of {what}", ids.shape)
        return make_bags(
            ids, offsets, include_last_offset, combiner, factors, self.padding_idx, self.dtype, what
        )
