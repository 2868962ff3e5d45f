"""Embedding: a table of rows by id that lives on parameter servers.

Like a `Variable`, it is a description that pickles into closures; it keeps no values itself.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.data import Ragged
from psnb._src.foreign_names import SaysWhatToUse
from psnb._src.parameters.bags import Bags, Combiner, make_bags
from psnb._src.parameters.live_optimizer import LiveOptimizer
from psnb._src.parameters.parameter_arguments import checked_array, checked_ids
from psnb._src.parameters.upkeep import Upkeep
from psnb._src.phases import PULL, PUSH, counted_as
from psnb._src.server import Admission, CtrAccessor
from psnb.errors import ConfigurationError, GradientError


class Embedding(Upkeep, SaysWhatToUse):
    """Rows of floats by id on the parameter servers; made by `ParameterServerStrategy.embedding`.

    Thread-safe; usable in the notebook, in closures and in Dask tasks. A lookup or push is atomic
    for each shard. A push is made on all shards or none. In a closure it is held back until the
    closure ends and applied exactly once, as with `Variable`.
    """

    def __repr__(self) -> str:
        rows = "any id" if self.rows is None else f"{self.rows} rows"
        return f"<psnb.Embedding {self.name!r} {rows} of {self.dtype}[{self.dim}]>"

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
        """float32 or float64."""
        return self._shards.dtype

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
            seen (``rows=None``): no row is made and no sighting is counted. An id without a row
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
        GradientError
            If the ids are not integers.
        ServerLostError
            If a server is gone.
        """
        return self._shards.reading(ids, training=training).fetch()

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
        without ids gives zeros, and `padding_idx` counts as not there.

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
        GradientError
            If the shapes do not fit each other, or offsets or weights are invalid.
        ConfigurationError
            If there is no such combiner.
        IdOutOfRangeError
            If an id is outside `rows`.
        ServerLostError
            If a server is gone.
        """
        bags = self._bags(values, offsets, include_last_offset, combiner, weights)
        return bags.combine(self.lookup(bags.ids, training=training))

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
        """Let the optimizer apply the gradients of what `lookup_bags` returned.

        Each id gets its share, summed over the bags that it is in. With ``max``, a column's
        gradient goes to the row with the largest number in it, the first of equals; the other rows
        of the bag get zeros. To find that row, the rows are looked up once more (which does not
        count for admission), so it is the largest at the time of the push.

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
        GradientError, ConfigurationError, IdOutOfRangeError, ServerLostError
            As for `lookup_bags` and `push`; nothing was changed.
        """
        self._shards.require_optimizer()
        bags = self._bags(values, offsets, include_last_offset, combiner, weights)
        what = f"gradients for bags of embedding {self.name!r}"
        array = checked_array(gradients, self.dtype, what)
        if array.shape != (bags.count, self.dim):
            raise GradientError(
                f"{what}: expected shape {(bags.count, self.dim)}, found {array.shape}"
            )
        self._shards.must_skip(array, what)  # the error names the bag
        looked_up = None
        if bags.combiner is Combiner.MAX:
            looked_up = self.lookup(bags.ids, training=False)  # the push counts as the sighting
        use: list[Any] = [None, None]
        if self.accessor is not None or shows is not None or clicks is not None:
            of_bags = self._shards.use((bags.count,), shows, clicks)
            use = [bags.total(each) for each in of_bags]
        self.push(bags.ids, bags.spread(array, looked_up), *use, immediate=immediate)

    @counted_as(PUSH)
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
            How often each was shown and clicked, of the shape of ``ids``. Only for tables with an
            `accessor`; the defaults are 1 and 0, as in Paddle. For ids without a row (not admitted)
            they are dropped.
        immediate : bool
            In a closure: write now, not at its end. Such a write happens at least once.

        Raises
        ------
        GradientError
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
        self._shards.send(self._shards.pushing(ids, gradients, shows, clicks), immediate)

    @counted_as(PUSH)
    def assign(self, ids: ArrayLike, values: ArrayLike) -> None:
        """Replace the rows of some ids; optimizer state stays as it is.

        It happens at once, also in a closure (and then at least once), on all servers or on none.
        An id without a row gets one, admitted or not.

        Parameters
        ----------
        ids : array_like of int
            Any shape. If an id is repeated, its last value counts.
        values : array_like
            ``ids.shape + (dim,)``; an array must have `dtype`.

        Raises
        ------
        GradientError
            If shape or dtype of the values differ; nothing was changed.
        IdOutOfRangeError
            If an id is outside `rows`; nothing was changed.
        ServerLostError
            If a server is gone.
        """
        self._shards.assign(ids, values)

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
                raise GradientError(f"{what}: a Ragged has offsets; pass None for them")
            offsets, include_last_offset = values.offsets, True
            values = values.values
        elif offsets is None:
            raise GradientError(f"{what}: values that are no Ragged need offsets")
        ids = checked_ids(values, self.name, self.rows)
        factors = (
            None if weights is None else checked_array(weights, self.dtype, f"weights of {what}")
        )
        return make_bags(
            ids, offsets, include_last_offset, combiner, factors, self.padding_idx, self.dtype, what
        )
