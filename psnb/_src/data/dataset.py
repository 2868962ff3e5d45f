"""A description of elements and how they are made, which nothing runs until it is iterated over."""

from __future__ import annotations

import html
import operator
import secrets
from collections.abc import Callable
from typing import Any, Self

from psnb._src.checks import integer
from psnb._src.data import nodes
from psnb._src.data.dataset_sources import DatasetSources
from psnb._src.data.iteration_context import AUTOTUNE, Options
from psnb._src.data.iterator import DatasetIterator
from psnb._src.data.node import INFINITE, UNKNOWN
from psnb._src.data.spec import Spec
from psnb.errors import ConfigurationError


class Dataset(DatasetSources):
    """Elements: arrays, `Ragged`, numbers, str or bytes, nested in tuples, dicts or dataclasses.

    Immutable: each method returns another dataset. It may be iterated over as often as wished, and
    by several threads with an iterator each. What tf.data calls so behaves as its documentation
    says, except where a docstring here says otherwise. Functions are given elements; those that are
    tuples, item by item.

    It pickles, with lambdas and functions of a notebook through cloudpickle; nothing runs for that.

    Anything that goes wrong is a `DatasetError` that names the part of the chain, the number of the
    element (from 0) and, if it comes from a file, where; what a function raised is its cause.
    """

    _spec: Spec = None

    # What it is

    @property
    def element_spec(self) -> Spec:
        """Shapes and dtypes of the elements, nested as they are.

        Where a function of the user's decides that (`map`, `scan`, `flat_map`, `from_generator`
        without a signature), it is run for the first element, once, and shapes are that one's.

        Raises
        ------
        DatasetError
            If there is no first element, or making it fails.
        """
        if self._spec is None:
            self._spec = self.node.spec(run=True)
        return self._spec

    def cardinality(self) -> int | None:
        """Return how many elements there are, -1 for endlessly many, None if nobody knows."""
        count = self.node.cardinality()
        return {UNKNOWN: None, INFINITE: -1}.get(count, count)

    def __len__(self) -> int:
        count = self.cardinality()
        if count is None or count < 0:
            what = "is not known" if count is None else "is infinite"
            raise TypeError(f"the number of elements {what}")
        return count

    def __bool__(self) -> bool:
        return True

    def iterator(self, state: dict[str, Any] | None = None) -> DatasetIterator:
        """Return an iterator, one that goes on where a state was taken.

        Parameters
        ----------
        state : dict, optional
            From `DatasetIterator.state`.

        Raises
        ------
        DatasetError
            If it belongs to another chain.
        """
        return DatasetIterator(self.node, state)

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self.node)

    def __repr__(self) -> str:
        return "\n".join(self.node.lines())

    def _repr_html_(self) -> str:
        lines = []
        for line in self.node.lines():
            text = line.lstrip()
            indent = (len(line) - len(text)) * 10
            name, _, parameters = html.escape(text).partition("(")
            lines.append(
                f'<div style="margin-left:{indent}px;padding:1px 8px;border-left:3px solid #888;'
                f'font-family:monospace"><b>{name}</b>({parameters}</div>'
            )
        return '<div class="psnb-dataset">' + "".join(lines) + "</div>"

    def __getstate__(self) -> dict[str, Any]:
        return {"node": self.node}

    # Functions

    def map(
        self,
        function: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        batched: bool = False,
    ) -> Self:
        """Apply a function to each element.

        Parameters
        ----------
        function : callable
            Returns the new element.
        num_parallel_calls : int, optional
            How many threads call it; `AUTOTUNE`: as many as there are processors.
        deterministic : bool, optional
            Whether elements keep their order if there are several threads; the options decide by
            default, which say yes.
        batched : bool
            Give it many elements at once, stacked (a `Ragged` where they differ in length), and
            take as many back. How many is up to psnb, and more may be made than are asked for. If
            it fails, all of those are lost. TensorFlow has no such thing.
        """
        _check_callable("map", function)
        if num_parallel_calls not in (None, AUTOTUNE):
            num_parallel_calls = integer("map: num_parallel_calls", num_parallel_calls, 1)
        node = nodes.Map(self.node, function, num_parallel_calls, deterministic, batched)
        return type(self)(node)

    def filter(self, predicate: Callable[..., Any], batched: bool = False) -> Self:
        """Leave out the elements that a predicate is false for.

        With ``batched`` it is given many at once, stacked, and returns a bool for each ``(n,)``.
        """
        _check_callable("filter", predicate)
        return type(self)(nodes.Filter(self.node, predicate, batched))

    def flat_map(self, function: Callable[..., Dataset]) -> Self:
        """Make a dataset of each element, and return the elements of one after another."""
        _check_callable("flat_map", function)
        return type(self)(nodes.FlatMap(self.node, function))

    def interleave(
        self,
        function: Callable[..., Dataset],
        cycle_length: int = 4,
        block_length: int = 1,
    ) -> Self:
        """Make a dataset of each element, and take elements of several in turn.

        Unlike TensorFlow, psnb does not choose the cycle length by the machine. To read ahead in
        all of them, end the function's datasets with `prefetch`.

        Parameters
        ----------
        function : callable
            Returns a `Dataset`.
        cycle_length : int
            How many datasets at a time.
        block_length : int
            How many elements of one before it is the next one's turn.
        """
        _check_callable("interleave", function)
        cycle = integer("interleave: cycle_length", cycle_length, 1)
        block = integer("interleave: block_length", block_length, 1)
        return type(self)(nodes.Interleave(self.node, function, cycle, block))

    def scan(self, initial_state: Any, scan_func: Callable[..., Any]) -> Self:
        """Apply a function that remembers.

        Parameters
        ----------
        initial_state : structure of array_like
            What it is given first.
        scan_func : callable
            ``scan_func(state, element)`` returns the next state and an element. It must not change
            the state that it is given, which is part of the iterator's own.
        """
        _check_callable("scan", scan_func)
        return type(self)(nodes.Scan(self.node, initial_state, scan_func))

    # Which elements, in which order

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
    ) -> Self:
        """Return each next element at random out of the ``buffer_size`` oldest.

        Over arrays in memory or memory maps only numbers are shuffled, whatever the buffer's size,
        and with one that is as large as the dataset all orders are equally likely.

        Parameters
        ----------
        buffer_size : int
            From 1 (as it is) on.
        seed : int, optional
            Makes the order the same each time that the dataset is iterated over; with `repeat`, it
            is another in each epoch. (TensorFlow counts iterations of a process as well.)
        reshuffle_each_iteration : bool
            False: the same order in each epoch; without a seed, in each iteration of a dataset too.
        """
        size = integer("shuffle: buffer_size", buffer_size, 1)
        if seed is not None:
            seed = integer("shuffle: seed", seed, None)
        if seed is None and not reshuffle_each_iteration:
            seed = secrets.randbits(63)
        return type(self)(nodes.Shuffle(self.node, size, seed, reshuffle_each_iteration))

    def repeat(self, count: int | None = None) -> Self:
        """Return all elements so many times; None or -1: for ever."""
        if count in (None, -1):
            return type(self)(nodes.Repeat(self.node))
        return type(self)(nodes.Repeat(self.node, integer("repeat: count", count, 0)))

    def take(self, count: int) -> Self:
        """Return the first ``count`` elements; -1: all."""
        if count == -1:
            return self
        return type(self)(nodes.Take(self.node, integer("take: count", count, 0)))

    def skip(self, count: int) -> Self:
        """Return all but the first ``count`` elements; -1: none."""
        if count == -1:
            return self.take(0)
        return type(self)(nodes.Skip(self.node, integer("skip: count", count, 0)))

    def shard(self, num_shards: int, index: int) -> Self:
        """Return the elements whose number, divided by ``num_shards``, leaves ``index``."""
        count = integer("shard: num_shards", num_shards, 1)
        place = integer("shard: index", index, 0)
        if place >= count:
            raise ConfigurationError(f"shard: index is {place}, but there are {count} shards")
        return type(self)(nodes.EveryNth(self.node, count, place))

    def concatenate(self, dataset: Dataset) -> Self:
        """Return these elements, then those of another dataset."""
        if not isinstance(dataset, Dataset):
            raise ConfigurationError(
                f"concatenate: expected a Dataset, found a {type(dataset).__name__}"
            )
        return type(self)(nodes.Concatenate((self.node, dataset.node)))

    def enumerate(self, start: int = 0) -> Self:
        """Return pairs of a number, counted from ``start``, and an element."""
        return type(self)(nodes.Enumerate(self.node, operator.index(start)))

    # Several as one

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Self:
        """Stack consecutive elements; their arrays are copies, which can be written to.

        Elements of different shapes cannot be stacked: see `padded_batch` and `ragged_batch`.
        """
        size = integer("batch: batch_size", batch_size, 1)
        return type(self)(nodes.Batch(self.node, size, drop_remainder))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Self:
        """Stack consecutive elements, filled up to one shape.

        Parameters
        ----------
        batch_size : int
            How many.
        padded_shapes : structure of shapes, optional
            Nested as elements are: lists or tuples of int, in which None (or -1) stands for the
            largest of the batch; None instead of a shape: for all axes.
        padding_values : structure of scalars, optional
            Nested as elements are, or one for all; zeros, and empty str, by default.
        drop_remainder : bool
            Leave out a last batch of fewer elements.
        """
        size = integer("padded_batch: batch_size", batch_size, 1)
        node = nodes.PaddedBatch(self.node, size, drop_remainder, padded_shapes, padding_values)
        return type(self)(node)

    def ragged_batch(self, batch_size: int, drop_remainder: bool = False) -> Self:
        """Put consecutive elements into a `Ragged`.

        Scalars are stacked, and so are arrays that their source says are of one shape: rows of an
        array, features of fixed length in a file, what a batched `map` returns as an array. All
        others become a `Ragged`, also those that happen to be equally long.
        """
        size = integer("ragged_batch: batch_size", batch_size, 1)
        return type(self)(nodes.RaggedBatch(self.node, size, drop_remainder))

    def unbatch(self) -> Self:
        """Return the rows of each element's arrays as elements."""
        return type(self)(nodes.Unbatch(self.node))

    def window(
        self,
        size: int,
        shift: int | None = None,
        stride: int = 1,
        drop_remainder: bool = False,
    ) -> Self:
        """Return datasets of some consecutive elements each, one dataset a leaf.

        Parameters
        ----------
        size : int
            How many elements each has; the last may have fewer.
        shift : int, optional
            How many elements the next one begins later; ``size`` by default.
        stride : int
            How many elements of the input lie between two of a window, and one more.
        drop_remainder : bool
            Leave out windows of fewer elements.
        """
        size = integer("window: size", size, 1)
        shift = size if shift is None else integer("window: shift", shift, 1)
        stride = integer("window: stride", stride, 1)
        return type(self)(nodes.Window(self.node, size, shift, stride, drop_remainder, type(self)))

    # How it runs

    def cache(self, filename: str = "") -> Self:
        """Keep the elements when they are all read for the first time.

        In memory they stay for as long as this very dataset does, for all its iterators in this
        process; a copy that is sent elsewhere keeps its own. What lacks an element because of an
        error is not kept. A state that was taken in the midst reads the input again if nothing is
        kept where it is restored.

        Parameters
        ----------
        filename : str
            A folder to keep them in instead, which other processes may use as well. It is made
            when all are read. Arrays and text only, in tuples and dicts. That a function does
            something else now is not noticed: delete the folder then.
        """
        return type(self)(nodes.Cache(self.node, filename or None))

    def prefetch(self, buffer_size: int) -> Self:
        """Read elements ahead, in a thread.

        Parameters
        ----------
        buffer_size : int
            How many at most. `AUTOTUNE`: as many as it takes, doubled from 1 each time that none
            is left after it was full.
        """
        if buffer_size != AUTOTUNE:
            buffer_size = integer("prefetch: buffer_size", buffer_size, 0)
        return type(self)(nodes.Prefetch(self.node, buffer_size))

    def ignore_errors(self) -> Self:
        """Leave out elements that cannot be had.

        They are counted (`DatasetIterator.errors_ignored`), and the first is logged as a warning.
        After an error in a file the rest of it is left out. In TensorFlow a failing element takes
        those with it that a `batch` before this has collected; here they come in the next batch.
        """
        return type(self)(nodes.IgnoreErrors(self.node))

    def with_options(self, options: Options) -> Self:
        """Set how all that comes before this runs."""
        if not isinstance(options, Options):
            raise ConfigurationError(
                f"with_options: expected psnb.data.Options, found a {type(options).__name__}"
            )
        return type(self)(nodes.WithOptions(self.node, options))


def _check_callable(method: str, function: Any) -> None:
    if not callable(function):
        raise ConfigurationError(
            f"{method}: expected a function, found a {type(function).__name__}"
        )
