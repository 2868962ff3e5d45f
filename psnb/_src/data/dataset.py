"""Dataset: a description of elements and how to make them; nothing runs before iteration."""

from __future__ import annotations

import html
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, Self

from psnb._src.data.block import copied
from psnb._src.data.dataset_sources import DatasetSources
from psnb._src.data.file_sources import Paths, replaced_files
from psnb._src.data.formats.files import list_files
from psnb._src.data.iterator import DatasetIterator
from psnb._src.data.nesting import as_leaf, flatten, map_leaves, unflatten
from psnb._src.data.node import AUTOTUNE, INFINITE, UNKNOWN, Options
from psnb._src.data.nodes.batching import Batch, PaddedBatch, RaggedBatch, Unbatch, Window
from psnb._src.data.nodes.buckets import Buckets
from psnb._src.data.nodes.cache import Cache
from psnb._src.data.nodes.combine import Concatenate, FlatMap, Interleave
from psnb._src.data.nodes.functions import Filter, Map, Scan, TakeWhile, next_state
from psnb._src.data.nodes.merge_by import MergeBy
from psnb._src.data.nodes.prefetch import Prefetch
from psnb._src.data.nodes.saved import write_elements
from psnb._src.data.nodes.selection import (
    Enumerate,
    EveryNth,
    IgnoreErrors,
    Repeat,
    Skip,
    Take,
    Unique,
    WithOptions,
)
from psnb._src.data.nodes.shuffle import Shuffle
from psnb._src.data.random import as_seed
from psnb._src.data.spec import Spec
from psnb._src.utils.checks import integer, integers, path_text
from psnb._src.utils.foreign_names import FixedAttributes, NamedClass
from psnb._src.utils.text import error_text, shown
from psnb.errors import ConfigurationError, DatasetError


class Dataset(DatasetSources, FixedAttributes, metaclass=NamedClass):
    """Elements: arrays, `Ragged`, numbers, str or bytes, nested in tuples, dicts or dataclasses.

    Immutable: each method returns another dataset. It may be iterated over any number of times, and
    by several threads, which have an iterator each or share one. Methods with a name from tf.data
    behave as its documentation says, except where a docstring here says otherwise. Functions get
    an element as their argument; a tuple's items are separate arguments. Their results are copied
    immediately: they may refill one array for each element.

    It pickles, including lambdas and functions of a notebook (by cloudpickle), without running
    anything.

    Every error is a `DatasetError` that names the part of the chain, the number of the element
    (from 0) and, if it comes from a file, the place there; an exception of a function is its cause.
    """

    _spec: Spec = None

    # What it is

    @property
    def element_spec(self) -> Spec:
        """Shapes and dtypes of the elements, in the same nested structure.

        If a user's function decides that (`map`, `scan`, `flat_map`, `from_generator` without a
        signature), it is run once, for the first element, whose shapes are returned.

        Raises
        ------
        DatasetError
            If there is no first element, or making it fails.
        """
        if self._spec is None:
            self._spec = self.node.spec(run=True)
        return self._spec

    def cardinality(self) -> int | None:
        """Return how many elements there are; -1 if infinitely many, None if unknown."""
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
        """Return an iterator; with a state, it continues where the state was taken.

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

    def as_numpy_iterator(self) -> DatasetIterator:
        """Return an iterator, as ``iter`` does: elements are NumPy's in any case; text is str."""
        return DatasetIterator(self.node)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Carry a state through all elements, here and now, and return the last one.

        Parameters
        ----------
        initial_state : structure of array_like
            The first state.
        reduce_func : callable
            ``reduce_func(state, element)`` returns the next state, nested in the same way.

        Raises
        ------
        ConfigurationError
            If there are infinitely many elements.
        DatasetError
            If the function fails, or an element cannot be made.
        """
        _check_callable("reduce", reduce_func)
        if self.node.cardinality() == INFINITE:
            raise ConfigurationError("reduce never ends over infinitely many elements: take some")
        # The function may change the arrays that it gets.
        state = map_leaves(lambda leaf: copied(as_leaf(leaf)), initial_state)
        leaves, nesting = flatten(state)
        with self.iterator() as elements:
            for number, element in enumerate(elements):
                try:
                    leaves = next_state(nesting, leaves, reduce_func(state, element), element)
                    state = unflatten(nesting, iter(leaves))
                except Exception as error:  # the user's function may raise anything
                    problem = f"reduce, element {number}: {error_text(error)}"
                    raise DatasetError(problem) from error
        return state

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all elements into a folder, here and now; `load` makes a dataset of it.

        It is there when everything is written, and replaces what `save` has written there before.

        Parameters
        ----------
        path : path
            The folder. Workers that load it must see it, too.

        Raises
        ------
        DatasetError
            If the folder holds something else or cannot be written, or elements are not arrays,
            `Ragged` or text in tuples and dicts.
        ConfigurationError
            If there are infinitely many elements.
        """
        if self.node.cardinality() == INFINITE:
            raise ConfigurationError("save never ends over infinitely many elements: take some")
        write_elements(self.node, path)

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

    def with_files(self, files: Paths) -> Self:
        """Return the same chain over other files, of another day for example.

        Parameters
        ----------
        files : path or sequence of paths
            In place of all that it reads, with patterns.

        Raises
        ------
        DatasetError
            If no file matches a pattern.
        ConfigurationError
            If its source is not made of files, or it has several sources of files.
        """
        return type(self)(replaced_files(self.node, list_files(files)))

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
            Returns the new element. A StopIteration that it raises is an error like any other, and
            does not end the dataset, whose length is that of its input: as in TensorFlow 2.
        num_parallel_calls : int, optional
            How many threads call it; with `AUTOTUNE`, as many as there are processors.
        deterministic : bool, optional
            Whether elements keep their order if there are several threads. By default the `Options`
            decide, whose default is yes.
        batched : bool
            The function gets many elements together, stacked (a `Ragged` if they differ in length),
            and must return as many. psnb chooses how many, and may make more than are used. If the
            function fails, all of them are lost. TensorFlow has no such option.
        """
        _check_callable("map", function)
        if num_parallel_calls not in (None, AUTOTUNE):
            num_parallel_calls = integer("map: num_parallel_calls", num_parallel_calls, 1)
        node = Map(self.node, function, num_parallel_calls, deterministic, batched)
        return type(self)(node)

    def filter(self, predicate: Callable[..., Any], batched: bool = False) -> Self:
        """Leave out the elements for which a predicate is false.

        With ``batched`` the predicate gets many elements together, stacked, and returns a bool for
        each, ``(n,)``.
        """
        _check_callable("filter", predicate)
        return type(self)(Filter(self.node, predicate, batched))

    def flat_map(self, function: Callable[..., Dataset]) -> Self:
        """Make a dataset from each element; return the elements of one dataset after another."""
        _check_callable("flat_map", function)
        return type(self)(FlatMap(self.node, function))

    def interleave(
        self,
        function: Callable[..., Dataset],
        cycle_length: int = 4,
        block_length: int = 1,
    ) -> Self:
        """Make a dataset from each element, and take elements from several datasets in turn.

        Unlike TensorFlow, psnb does not choose the cycle length by the machine. To read ahead in
        all datasets of the cycle, end each with `prefetch`.

        Parameters
        ----------
        function : callable
            Returns a `Dataset`.
        cycle_length : int
            How many datasets at a time.
        block_length : int
            How many consecutive elements to take from one.
        """
        _check_callable("interleave", function)
        cycle = integer("interleave: cycle_length", cycle_length, 1)
        block = integer("interleave: block_length", block_length, 1)
        return type(self)(Interleave(self.node, function, cycle, block))

    def scan(self, initial_state: Any, scan_func: Callable[..., Any]) -> Self:
        """Apply a function with a state.

        Parameters
        ----------
        initial_state : structure of array_like
            The first state.
        scan_func : callable
            ``scan_func(state, element)`` returns the next state and an element. It must not modify
            the state that it gets, which is part of the iterator's own state.
        """
        _check_callable("scan", scan_func)
        return type(self)(Scan(self.node, initial_state, scan_func))

    # Which elements, in which order

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
    ) -> Self:
        """Draw each next element at random from the ``buffer_size`` oldest ones.

        Over arrays in memory or memory maps, only indices are shuffled, whatever the buffer's size.
        With a buffer as large as the dataset, all orders are equally likely.

        Parameters
        ----------
        buffer_size : int
            At least 1, which does not shuffle.
        seed : int, optional
            Makes the order the same in each iteration over the dataset; with `repeat`, each epoch
            has another order. (In TensorFlow, each further iteration in a process has another order
            too.)
        reshuffle_each_iteration : bool
            False: the same order in each epoch; without a seed, also in each iteration of a
            dataset.
        """
        size = integer("shuffle: buffer_size", buffer_size, 1)
        if seed is not None or not reshuffle_each_iteration:
            seed = as_seed("shuffle", seed)
        return type(self)(Shuffle(self.node, size, seed, reshuffle_each_iteration))

    def repeat(self, count: int | None = None) -> Self:
        """Repeat all elements ``count`` times; None or -1: for ever."""
        times = None if count in (None, -1) else integer("repeat: count", count, 0)
        return type(self)(Repeat(self.node, times))

    def take(self, count: int) -> Self:
        """Return the first ``count`` elements; -1: all."""
        if count == -1:
            return self
        return type(self)(Take(self.node, integer("take: count", count, 0)))

    def take_while(self, predicate: Callable[..., Any]) -> Self:
        """Return the elements before the first one for which a predicate is false."""
        _check_callable("take_while", predicate)
        return type(self)(TakeWhile(self.node, predicate))

    def unique(self) -> Self:
        """Leave out elements that were there before: of equal ones the first stays.

        Elements are integers, booleans or texts, one each, and all that differ are kept in memory.
        A state has none of them: to resume, what was read is read again.
        """
        return type(self)(Unique(self.node))

    def skip(self, count: int) -> Self:
        """Return all but the first ``count`` elements; -1: none."""
        if count == -1:
            return self.take(0)
        return type(self)(Skip(self.node, integer("skip: count", count, 0)))

    def shard(self, num_shards: int, index: int) -> Self:
        """Return the elements whose number modulo ``num_shards`` is ``index``."""
        count = integer("shard: num_shards", num_shards, 1)
        place = integer("shard: index", index, 0)
        if place >= count:
            raise ConfigurationError(f"shard: index is {place}, but there are {count} shards")
        return type(self)(EveryNth(self.node, count, place))

    def concatenate(self, dataset: Dataset) -> Self:
        """Return these elements, then another dataset's."""
        if not isinstance(dataset, Dataset):
            raise ConfigurationError(
                f"concatenate: expected a Dataset, found a {type(dataset).__name__}"
            )
        return type(self)(Concatenate((self.node, dataset.node)))

    def enumerate(self, start: int = 0) -> Self:
        """Return pairs of a number, from ``start`` on, and an element."""
        return type(self)(Enumerate(self.node, operator.index(start)))

    # Several as one

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Self:
        """Stack consecutive elements; their arrays are copies, which can be written to.

        Elements of different shapes cannot be stacked: see `padded_batch` and `ragged_batch`.
        """
        size = integer("batch: batch_size", batch_size, 1)
        return type(self)(Batch(self.node, size, drop_remainder))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Self:
        """Stack consecutive elements, padded to one shape.

        Parameters
        ----------
        batch_size : int
            How many.
        padded_shapes : structure of shapes, optional
            Nested like elements: lists or tuples of int, in which None (or -1) stands for the
            largest size in the batch; None instead of a shape stands for that on all axes.
        padding_values : structure of scalars, optional
            Nested like elements, or one for all; by default zeros, and empty str.
        drop_remainder : bool
            Leave out a last batch with fewer elements.
        """
        size = integer("padded_batch: batch_size", batch_size, 1)
        node = PaddedBatch(self.node, size, drop_remainder, padded_shapes, padding_values)
        return type(self)(node)

    def ragged_batch(self, batch_size: int, drop_remainder: bool = False) -> Self:
        """Put consecutive elements into a `Ragged`.

        Scalars are stacked, and so are arrays that have one shape according to their source: rows
        of an array, features of fixed length in a file, results of a batched `map` that are arrays.
        All others become a `Ragged`, even if they happen to have equal lengths.
        """
        size = integer("ragged_batch: batch_size", batch_size, 1)
        return type(self)(RaggedBatch(self.node, size, drop_remainder))

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Self:
        """Batch elements of similar length, so that little is padded.

        A batch comes when its bucket is full; remaining elements come at the end from the shortest
        to the longest.

        Parameters
        ----------
        element_length_func : callable
            Returns the length of an element, an integer. A tuple's items are separate arguments.
        bucket_boundaries : sequence of int
            Increasing. Bucket i has the lengths from boundary i - 1 on that are below boundary i.
        bucket_batch_sizes : sequence of int
            How many elements a batch of each bucket has; one more than there are boundaries.
        padded_shapes, padding_values
            As for `padded_batch`.
        pad_to_bucket_boundary : bool
            Pad to the boundary less 1 instead of to the largest in the batch. No length may reach
            the last boundary then.
        no_padding : bool
            Stack without padding: all in a batch must have one shape.
        drop_remainder : bool
            Leave out batches that are not full.
        """
        name = "bucket_by_sequence_length"
        _check_callable(name, element_length_func)
        boundaries = integers(f"{name}: bucket_boundaries", bucket_boundaries, None)
        sizes = integers(f"{name}: bucket_batch_sizes", bucket_batch_sizes, 1)
        if not boundaries or tuple(sorted(set(boundaries))) != boundaries:
            raise ConfigurationError(
                f"{name}: bucket_boundaries must be increasing, found {shown(list(boundaries))}"
            )
        if len(sizes) != len(boundaries) + 1:
            raise ConfigurationError(
                f"{name}: {len(boundaries)} boundaries make {len(boundaries) + 1} buckets, and "
                f"bucket_batch_sizes has {len(sizes)}"
            )
        padding = padded_shapes, padding_values, pad_to_bucket_boundary, no_padding, drop_remainder
        return type(self)(Buckets(self.node, element_length_func, boundaries, sizes, *padding))

    def unbatch(self) -> Self:
        """Return the rows of each element's arrays as elements."""
        return type(self)(Unbatch(self.node))

    def window(
        self,
        size: int,
        shift: int | None = None,
        stride: int = 1,
        drop_remainder: bool = False,
    ) -> Self:
        """Return windows of consecutive elements: for each leaf of an element, one dataset.

        Parameters
        ----------
        size : int
            How many elements each has; the last may have fewer.
        shift : int, optional
            How many elements later the next window begins; ``size`` by default.
        stride : int
            The distance, in the input, between two elements of a window.
        drop_remainder : bool
            Leave out windows with fewer elements.
        """
        size = integer("window: size", size, 1)
        shift = size if shift is None else integer("window: shift", shift, 1)
        stride = integer("window: stride", stride, 1)
        return type(self)(Window(self.node, size, shift, stride, drop_remainder, type(self)))

    # How it runs

    def cache(self, filename: str = "") -> Self:
        """Keep the elements after the first complete iteration.

        In memory they stay as long as this dataset object exists, for all its iterators in this
        process; a copy in another process keeps its own. An iteration that lacks an element because
        of an error is not kept. If a state is restored where nothing is kept, the input is read
        again.

        Parameters
        ----------
        filename : str
            A folder to keep them in instead, which other processes may use as well. It is made when
            all elements are read. Arrays and text only, in tuples and dicts. A change of a function
            is not noticed: delete the folder then.
        """
        return type(self)(Cache(self.node, path_text("cache: filename", filename) or None))

    def prefetch(self, buffer_size: int) -> Self:
        """Read elements ahead, in a thread.

        Where workers lease a dataset whose chain does not end with this, they read one element
        ahead if most take 2 ms or more.

        Parameters
        ----------
        buffer_size : int
            How many at most; with 0 none is read ahead. `AUTOTUNE`: begins with 1, and doubles each
            time that the buffer is found empty after it was full.
        """
        if buffer_size != AUTOTUNE:
            buffer_size = integer("prefetch: buffer_size", buffer_size, 0)
        return type(self)(Prefetch(self.node, buffer_size))

    def merge_by(
        self,
        key: str,
        min_merge_size: int = 2,
        keep_unmerged: bool = True,
        erase_duplicates: bool = True,
    ) -> Self:
        """Join the elements of one instance, which have the same key: Paddle's ``merge_by_insid``.

        Elements are dicts. Arrays whose first axis may differ in length between elements are
        joined, in the order of the elements; all else must be equal: an instance whose elements
        differ there is left out, with a warning. (After a function of yours, that is so of every
        array that is not a scalar.)
        Everything is read, and kept in memory, before the first element comes. So such a chain
        cannot be cut: elements of one instance could be anywhere.

        Parameters
        ----------
        key : str
            The column that identifies an instance, such as ``Slot("id", "bytes", ())``.
        min_merge_size : int
            Fewer elements than this are not merged.
        keep_unmerged : bool
            Whether elements that are not merged are kept, each as it is, or left out.
        erase_duplicates : bool
            Whether an integer that occurs again in a row that was joined is left out.

        Raises
        ------
        DatasetError
            From the iterator, if elements are not dicts with the key.
        """
        size = integer("merge_by: min_merge_size", min_merge_size, 1)
        return type(self)(MergeBy(self.node, key, size, keep_unmerged, erase_duplicates))

    def ignore_errors(self) -> Self:
        """Leave out elements that raise an error.

        They are counted (`DatasetIterator.errors_ignored`), and the first is logged as a warning.
        After an error in a file, the rest of the file is left out. In TensorFlow, a failing element
        also loses the elements that a `batch` before this has collected; here they come in the next
        batch.
        """
        return type(self)(IgnoreErrors(self.node))

    def with_options(self, options: Options) -> Self:
        """Set options for all parts of the chain before this."""
        if not isinstance(options, Options):
            raise ConfigurationError(
                f"with_options: expected psnb.data.Options, found a {type(options).__name__}"
            )
        return type(self)(WithOptions(self.node, options))


def _check_callable(method: str, function: Any) -> None:
    if not callable(function):
        raise ConfigurationError(
            f"{method}: expected a function, found a {type(function).__name__}"
        )
