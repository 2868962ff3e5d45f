"""Embedding: a table of rows by id that lives on parameter servers.

Like `Variable`, a handle is a description that pickles into closures; it keeps no state.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.parameters.bags import Bags, Combiner, make_bags
from psnb._src.parameters.gradients import must_skip, split_finite
from psnb._src.parameters.ids import SeenIds
from psnb._src.parameters.parameter_arguments import checked_array, checked_ids, require_optimizer
from psnb._src.parameters.sparse_shards import share
from psnb._src.parameters.updates import PendingRead, TableWrite, read_request
from psnb._src.parameters.upkeep import Upkeep
from psnb._src.server import distinct, norm
from psnb.errors import GradientError


class Embedding(Upkeep):
    """Rows of floats by id on the parameter servers; made by `ParameterServerStrategy.embedding`.

    Thread-safe; usable in the notebook, in closures and in Dask tasks. A lookup or push is atomic
    for each shard. A push is made on all shards or none, and in a closure held back until its end
    and applied exactly once, as with `Variable`.

    Attributes
    ----------
    name : str
        Unique within the strategy.
    dim : int
        Floats a row.
    rows : int or None
        Ids are ``0 <= id < rows``; with None any int64 or uint64 is an id, and a row is made when
        its id is first looked up or pushed. (A negative int64 is the uint64 of the same 64 bits.)
    dtype : numpy.dtype
        float32 or float64.
    padding_idx : int or None
        The id that gives zeros, takes no gradient and is left out of bags.
    admission : Admission
        Which ids get a row, if `rows` is None.
    accessor : CtrAccessor or None
        How the use of rows is remembered, if it is.
    """

    def __repr__(self) -> str:
        rows = "any id" if self.rows is None else f"{self.rows} rows"
        return f"<psnb.Embedding {self.name!r} {rows} of {self.dtype}[{self.dim}]>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Embedding, (
            self.name,
            self.dim,
            self.rows,
            self.dtype,
            self._made,
            self._shards,
            None,
            self._nonfinite,
            self.padding_idx,
            self.admission,
            self.accessor,
        )

    def lookup(self, ids: ArrayLike, *, training: bool = True) -> np.ndarray:
        """Fetch the rows of some ids.

        Parameters
        ----------
        ids : array_like of int
            Any shape; ids may repeat.
        training : bool
            Where ids get their rows when they are seen (``rows=None``), False looks without being
            seen, for evaluation and serving: no row is made and no sighting counted. An id without
            a row then gives what its row would start with, and zeros if it is not admitted at once.

        Returns
        -------
        numpy.ndarray
            ``ids.shape + (dim,)`` of `dtype`, a copy of its own.

        Raises
        ------
        IdOutOfRangeError
            If an id is outside `rows`.
        GradientError
            If the ids are not integers.
        ServerLostError
            If a server is gone.
        """
        return self.reading(ids, training=training).fetch()

    def reading(
        self, ids: ArrayLike, *, training: bool = True, seen: SeenIds | None = None
    ) -> PendingRead:
        """Return how the rows of some ids are read; for `psnb.pull`."""
        own = (seen or SeenIds()).get(ids, self.name, self.rows, self.padding_idx)
        asked = own.asked
        parts = self._split(asked)

        def value(answers: list[np.ndarray]) -> np.ndarray:
            if len(parts) == 1:
                return own.spread(answers[0])
            out = np.empty((asked.size, self.dim), self.dtype)
            for (_, at), rows in zip(parts, answers, strict=True):
                out[at] = rows
            return own.spread(out)

        more = {} if training else {"training": False}
        requests = [
            read_request(shard, self.name, ("lookup", {"ids": share(asked, at), **more}))
            for shard, at in parts
        ]
        return PendingRead(self.transport, requests, value)

    def lookup_bags(
        self,
        values: ArrayLike,
        offsets: ArrayLike,
        combiner: str = "mean",
        weights: ArrayLike | None = None,
        *,
        training: bool = True,
    ) -> np.ndarray:
        """Fetch the rows of bags of ids, each combined into one.

        As PyTorch's ``EmbeddingBag`` and TensorFlow's ``safe_embedding_lookup_sparse``: a bag
        without ids gives zeros, and `padding_idx` counts as not there.

        Parameters
        ----------
        values : array_like of int
            The ids of all bags one after the other, ``(n,)``; ids may repeat.
        offsets : array_like of int
            Where each bag starts, ``(bags,)``: 0 first, never falling. The last one ends with
            ``values``.
        combiner : {"mean", "sum", "sqrtn", "max"}
            ``sum`` adds the rows, each times its weight; ``mean`` divides that by the sum of the
            weights, ``sqrtn`` by the root of the sum of their squares, as in TensorFlow (where the
            divisor is 0, the bag gives zeros). ``max`` takes the largest of each column and no
            weights.
        weights : array_like, optional
            One for each of ``values``, of `dtype`; 1 by default.
        training : bool
            False looks without being seen, as in `lookup`.

        Returns
        -------
        numpy.ndarray
            ``(bags, dim)`` of `dtype`.

        Raises
        ------
        GradientError
            If shapes do not fit each other, or offsets or weights cannot be used so.
        ConfigurationError
            If there is no such combiner.
        IdOutOfRangeError
            If an id is outside `rows`.
        ServerLostError
            If a server is gone.
        """
        bags = self._bags(values, offsets, combiner, weights)
        return bags.combine(self.lookup(bags.ids, training=training))

    def push_bags(
        self,
        values: ArrayLike,
        offsets: ArrayLike,
        gradients: ArrayLike,
        combiner: str = "mean",
        weights: ArrayLike | None = None,
        shows: ArrayLike | None = None,
        clicks: ArrayLike | None = None,
        *,
        immediate: bool = False,
    ) -> None:
        """Let the optimizer apply the gradients of what `lookup_bags` returned.

        Each id gets its share, summed over the bags that it is in. With ``max``, a column's
        gradient goes to the row that is the largest there, the first of equals, and the other rows
        of the bag get zeros; to know which, the rows are looked up once more (which does not count
        for admission), so it is the largest at the time of the push.

        Parameters
        ----------
        values, offsets, combiner, weights
            As for `lookup_bags`.
        gradients : array_like
            ``(bags, dim)``; an array must have `dtype`.
        shows, clicks : array_like, optional
            How often each bag was shown and clicked, ``(bags,)``: counts for each of its ids; for
            tables with an `accessor`, where 1 and 0 are the default.
        immediate : bool
            In a closure: write now, not at its end; at least once then.

        Raises
        ------
        GradientError, ConfigurationError, IdOutOfRangeError, ServerLostError
            As for `lookup_bags` and `push`; nothing was changed.
        """
        require_optimizer(self._made, self.name)
        bags = self._bags(values, offsets, combiner, weights)
        what = f"gradients for bags of embedding {self.name!r}"
        array = checked_array(gradients, self.dtype, what)
        if array.shape != (bags.count, self.dim):
            raise GradientError(
                f"{what}: expected shape {(bags.count, self.dim)}, found {array.shape}"
            )
        must_skip(array, self._nonfinite, what)  # named by bag; what is to be skipped, `push` finds
        looked_up = None
        if bags.combiner is Combiner.MAX:
            looked_up = self.lookup(bags.ids, training=False)  # seen they are by the push
        use: list[Any] = [None, None]
        if self.accessor is not None or shows is not None or clicks is not None:
            of_bags = self._use((bags.count,), shows, clicks)
            use = [bags.total(each) for each in of_bags]
        self.push(bags.ids, bags.spread(array, looked_up), *use, immediate=immediate)

    def push(
        self,
        ids: ArrayLike,
        gradients: ArrayLike,
        shows: ArrayLike | None = None,
        clicks: ArrayLike | None = None,
        *,
        immediate: bool = False,
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
            How often each was shown and clicked, of the shape of ``ids``; for tables with an
            `accessor`, where 1 and 0 are the default, as in Paddle. Ids without a row (not
            admitted) lose them.
        immediate : bool
            In a closure: write now, not at its end; at least once then.

        Raises
        ------
        GradientError
            If shape or dtype of the gradients differ, or if a number is not finite and the table
            was not made with ``nonfinite="skip"`` (which leaves out the rows of such ids) or
            ``"allow"``; nothing was changed.
        IdOutOfRangeError
            If an id is outside `rows`; nothing was changed.
        ConfigurationError
            If the table was made without an optimizer, or without an accessor if there are shows or
            clicks.
        ServerLostError
            If a server is gone.
        """
        self.send(self.pushing(ids, gradients, shows, clicks), immediate)

    def pushing(
        self,
        ids: ArrayLike,
        gradients: ArrayLike,
        shows: ArrayLike | None = None,
        clicks: ArrayLike | None = None,
        *,
        seen: SeenIds | None = None,
    ) -> list[TableWrite]:
        """Return what a push writes where; for `psnb.push`."""
        require_optimizer(self._made, self.name)
        own = (seen or SeenIds()).get(ids, self.name, self.rows, self.padding_idx)
        what = f"gradients for embedding {self.name!r}"
        array = checked_array(gradients, self.dtype, what)
        if array.shape != (*own.shape, self.dim):
            raise GradientError(
                f"{what}: expected shape {(*own.shape, self.dim)} for ids of shape {own.shape}, "
                f"found {array.shape}"
            )
        rows, use = array.reshape(-1, self.dim), self._use(own.shape, shows, clicks)
        if own.real is not None:
            rows, use = rows[own.real], use[:, own.real]
        bad = own.flat[:0]
        found, position = own.distinct
        sums, finite = self._summed(found, position, rows)
        if not finite and must_skip(rows, self._nonfinite, what):
            flat, rows, bad = split_finite(own.flat, rows)
            found, position = distinct(flat)
            sums, _ = self._summed(found, position, rows)
        more: dict[str, Any] = {"distinct": True}
        if self._sends_norm:
            more["norm"] = norm(sums)
        writes: list[TableWrite] = [
            (shard, self.name, ("push", {"ids": ids, "gradients": gradients, **more}))
            for shard, ids, gradients in self._dealt(found, sums)
        ]
        writes += [
            (shard, self.name, ("skip", {"count": bad[at].size})) for shard, at in self._split(bad)
        ]
        if self.accessor is not None:
            writes += [
                (
                    shard,
                    self.name,
                    ("record", {"ids": own.flat[at], "shows": use[0, at], "clicks": use[1, at]}),
                )
                for shard, at in self._split(own.flat)
            ]
        return writes

    def _use(
        self, shape: tuple[int, ...], shows: ArrayLike | None, clicks: ArrayLike | None
    ) -> np.ndarray:
        """Return shows and clicks, float32 ``(2, n)``; empty if the table keeps none."""
        if self.accessor is None:
            if shows is not None or clicks is not None:
                self.require_accessor()
            return np.empty((0, math.prod(shape)), np.float32)
        use = np.empty((2, *shape), np.float32)
        for i, (what, given, default) in enumerate([("shows", shows, 1), ("clicks", clicks, 0)]):
            array = np.asarray(default if given is None else given)
            if given is not None and array.shape != shape:
                raise GradientError(
                    f"{what} for embedding {self.name!r}: expected shape {shape}, found "
                    f"{array.shape}"
                )
            if array.dtype.kind not in "biuf" or not (np.isfinite(array) & (array >= 0)).all():
                raise GradientError(
                    f"{what} for embedding {self.name!r}: expected finite numbers not below 0"
                )
            use[i] = array
        return use.reshape(2, -1)

    def _bags(
        self, values: ArrayLike, offsets: ArrayLike, combiner: str, weights: ArrayLike | None
    ) -> Bags:
        what = f"bags for embedding {self.name!r}"
        ids = checked_ids(values, self.name, self.rows)
        factors = (
            None if weights is None else checked_array(weights, self.dtype, f"weights of {what}")
        )
        return make_bags(ids, offsets, combiner, factors, self.padding_idx, self.dtype, what)
