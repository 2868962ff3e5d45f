"""Dataset: a description of elements and how to make them; nothing runs before iteration."""

from __future__ import annotations

import dataclasses
import html
import operator
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from psnb._src.data.block import Block, block_of, copied, read_only
from psnb._src.data.formats.csv import Csv
from psnb._src.data.formats.files import INFER, MAX_COLUMNS, MAX_RECORD_BYTES, list_files
from psnb._src.data.formats.multi_slot import MultiSlot, Slot
from psnb._src.data.formats.parquet import Parquet
from psnb._src.data.formats.tables import columns_of, with_columns
from psnb._src.data.formats.text import Criteo, FixedLengthRecords, TextLines
from psnb._src.data.formats.tf_example import FixedLen, VarLen
from psnb._src.data.formats.tfrecord import TFRecords
from psnb._src.data.node import AUTOTUNE, INFINITE, UNKNOWN, Node, Options
from psnb._src.data.nodes.batching import Batch, Buckets, PaddedBatch, RaggedBatch, Unbatch, Window
from psnb._src.data.nodes.cache import Cache, SavedPart, saved_parts, write_elements
from psnb._src.data.nodes.combine import Concatenate, FlatMap, Interleave, MergeBy, Sample, Zip
from psnb._src.data.nodes.parallel import Prefetch
from psnb._src.data.nodes.partitions import partitions_of_dask
from psnb._src.data.nodes.shuffle import Shuffle
from psnb._src.data.nodes.sources import (
    FileNames,
    Files,
    FileShares,
    Format,
    Generator,
    Npy,
    Range,
    Slices,
    Table,
    Tensors,
    file_names,
    file_ranges,
)
from psnb._src.data.nodes.transforms import (
    Enumerate,
    EveryNth,
    Filter,
    IgnoreErrors,
    Map,
    Repeat,
    Scan,
    Skip,
    Take,
    TakeWhile,
    Unique,
    WithOptions,
    next_state,
)
from psnb._src.data.reader import DatasetIterator
from psnb._src.data.spec import Spec, as_leaf, flatten, map_leaves, unflatten
from psnb._src.utils.checks import integer, integers, path_text
from psnb._src.utils.foreign_names import FixedAttributes, NamedClass
from psnb._src.utils.text import error_text, shown
from psnb.errors import ConfigurationError, DatasetError

# Datasets from files: the methods of `Dataset` that read a format.

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Paths or addresses, with patterns; what fsspec opens: local, ``s3://``, ``http://``, …"""


class FileSources:
    """Base of `Dataset`; reads files, one after another.

    Files may be compressed; the suffix says how. Every method raises `DatasetError` if no file
    matches a pattern. Errors in a file are raised when it is read, with file, record and byte. A
    file without a record is passed over and counted (`DatasetIterator.empty_files`); if all are
    such, that is an error.
    """

    node: Node

    def __init__(self, node: Node) -> None:
        self.node = node

    @classmethod
    def from_files(cls, format: Format, files: Any) -> Self:  # noqa: A002
        """Return the records of files, one file after another.

        Parameters
        ----------
        format : Format
            Reads them.
        files : path, FileRange or sequence of them
            The files to read. For several at a time: ``list_files(…).interleave(…)``.
        """
        return cls(Files(format, file_ranges(files)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the elements that `save` has written, in order.

        Parameters
        ----------
        path : path
            The folder. Workers must see it, too.

        Raises
        ------
        DatasetError
            If there is no saved dataset.
        """
        return cls.from_files(SavedPart(), saved_parts(path))

    @classmethod
    def text_lines(
        cls,
        files: Paths,
        encoding: str | None = "utf-8",
        max_record_bytes: int = MAX_RECORD_BYTES,
        *,
        compression: str | None = INFER,
    ) -> Self:
        """Return the lines of text files, without line ends.

        Parameters
        ----------
        files : path or sequence of paths
            The files to read.
        encoding : str or None
            None gives bytes.
        max_record_bytes : int
            Limit of a line in bytes; longer ones are refused before memory is allocated for them.
        compression : str or None
            "gzip", "zlib", "bz2" and others of fsspec; "infer": as the file's suffix says.
        """
        form = TextLines(encoding, compression, max_record_bytes)
        return cls.from_files(form, list_files(files))

    @classmethod
    def fixed_length_records(
        cls,
        files: Paths,
        record_bytes: int,
        header_bytes: int = 0,
        footer_bytes: int = 0,
        *,
        compression: str | None = INFER,
    ) -> Self:
        """Return records of ``record_bytes`` bytes each, as bytes.

        Parameters
        ----------
        files : path or sequence of paths
            The files to read.
        record_bytes, header_bytes, footer_bytes : int
            The length of a record, and the bytes to skip at a file's beginning and end.
        compression : str or None
            "gzip", "zlib", "bz2" and others of fsspec; "infer": as the file's suffix says.
        """
        form = FixedLengthRecords(record_bytes, header_bytes, footer_bytes, compression)
        return cls.from_files(form, list_files(files))

    @classmethod
    def tfrecords(
        cls,
        files: Paths,
        features: Mapping[str, FixedLen | VarLen] | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        *,
        compression: str | None = INFER,
    ) -> Self:
        """Return the records of TFRecord files, whose checksums are checked.

        Parameters
        ----------
        files : path or sequence of paths
            The files to read.
        features : mapping of str to FixedLen or VarLen, optional
            The features of ``tf.train.Example`` messages, which are parsed into dicts; by default
            records are bytes.
        max_record_bytes : int
            Limit of a record in bytes; longer ones are refused before memory is allocated for them.
        compression : str or None
            "gzip", "zlib", "bz2" and others of fsspec; "infer": as the file's suffix says.
        """
        form = TFRecords(features, compression, max_record_bytes)
        return cls.from_files(form, list_files(files))

    @classmethod
    def csv(
        cls,
        files: Paths,
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        header: bool = True,
        names: Sequence[str] | None = None,
        delimiter: str = ",",
        max_columns: int = MAX_COLUMNS,
        max_record_bytes: int = MAX_RECORD_BYTES,
        *,
        compression: str | None = INFER,
    ) -> Self:
        """Return the rows of CSV files, as dicts by column; needs pyarrow.

        Parameters
        ----------
        files : path or sequence of paths
            The files to read.
        columns : sequence of str, optional
            Which columns; all by default.
        dtypes : mapping, optional
            The dtypes of columns for which they should not be guessed.
        header : bool
            Whether the first line has the names.
        names : sequence of str, optional
            The names, if the first line does not have them.
        delimiter : str
            What separates fields.
        max_columns : int
            Limit of the number of columns; each takes memory, however short its fields are.
        max_record_bytes : int
            Limit of a row in bytes; longer ones are refused before memory is allocated for them.
        compression : str or None
            "gzip", "zlib", "bz2" and others of fsspec; "infer": as the file's suffix says.
        """
        form = Csv(
            *(columns, dtypes, header, names, delimiter, compression),
            max_columns=max_columns,
            max_record_bytes=max_record_bytes,
        )
        return cls.from_files(form, list_files(files))

    @classmethod
    def parquet(
        cls,
        files: Paths,
        columns: Sequence[str] | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> Self:
        """Return the rows of Parquet files, as dicts by column; needs pyarrow.

        Parameters
        ----------
        files : path or sequence of paths
            The files to read.
        columns : sequence of str, optional
            Which; all by default.
        max_record_bytes : int
            What the rows read at a time may take, at most 2**30 bytes. What unpacks to more than
            this, and to more than 256 times its size in the file, is refused.
        """
        return cls.from_files(Parquet(columns, max_record_bytes), list_files(files))

    @classmethod
    def criteo(
        cls,
        files: Paths,
        max_record_bytes: int = MAX_RECORD_BYTES,
        *,
        compression: str | None = INFER,
    ) -> Self:
        """Return the rows of Criteo's click logs: of the Kaggle challenge, and of a terabyte.

        They are dicts: ``label``, float32, shape (examples,); ``dense``, float32, shape
        (examples, 13), NaN where empty; ``sparse``, uint64, shape (examples, 26). The same category
        means something else in each column: for one table of all, make ids with
        ``sparse + (numpy.arange(26, dtype="uint64") << 33)``.

        Parameters
        ----------
        files : path or sequence of paths
            The files to read.
        max_record_bytes : int
            Limit of a line in bytes; longer ones are refused before memory is allocated for them.
        compression : str or None
            "gzip", "zlib", "bz2" and others of fsspec; "infer": as the file's suffix says.
        """
        return cls.from_files(Criteo(compression, max_record_bytes), list_files(files))

    @classmethod
    def multi_slot(
        cls,
        files: Paths,
        slots: Sequence[Slot],
        batch_size: int,
        threads: int = 1,
        pipe_command: str | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        queue_size: int | None = None,
        *,
        compression: str | None = INFER,
    ) -> Self:
        """Return batches from files in Paddle's MultiSlot text, as dicts by slot.

        Parameters
        ----------
        files : path or sequence of paths
            The files to read.
        slots : sequence of Slot
            The slots of a line, in order. Dense ones become arrays, sparse ones `Ragged`.
        batch_size : int
            Lines per batch, also of several files. The last one of each thread may have fewer; on a
            cluster that is in each split.
        threads : int
            How many threads read at the same time, each its share of the files.
        pipe_command : str, optional
            A shell command that each file is piped through. If a part of a pipeline in it fails,
            that is an error; a file of which it makes nothing counts as empty.
        max_record_bytes : int
            Limit of a line in bytes; longer ones are refused before memory is allocated for them.
        queue_size : int, optional
            How many batches are read ahead, by a thread of its own, or by each of several; by
            default 2 with several, else none. Paddle's queue holds 100.
        compression : str or None
            "gzip", "zlib", "bz2" and others of fsspec; "infer": as the file's suffix says.
        """
        threads = integer("threads", threads, 1)
        batch_size = integer("batch_size", batch_size, 1)
        if queue_size is not None:
            queue_size = integer("queue_size", queue_size, 1)
        form = MultiSlot(slots, pipe_command, compression, max_record_bytes)
        paths = list_files(files)
        if threads == 1:
            batches: Any = cls.from_files(form, paths).ragged_batch(batch_size)  # type: ignore[attr-defined]
            return batches if queue_size is None else batches.prefetch(queue_size)
        # Each thread reads its share of the files, so a batch goes on with the next one of them.
        one = partial(_read_ahead, cls, form, batch_size, queue_size or 2)
        shares: Any = cls(FileShares(tuple(paths), threads))
        return shares.interleave(one, cycle_length=threads)


def _read_ahead(cls: Any, form: MultiSlot, batch_size: int, queue_size: int, paths: Any) -> Any:
    return cls.from_files(form, paths).ragged_batch(batch_size).prefetch(queue_size)


class DatasetSources(FileSources):
    """Base of `Dataset`, with the methods that make one."""

    @classmethod
    def range(cls, *args: int) -> Self:
        """Return the numbers of Python's ``range``, as int64: ``range([start,] stop[, step])``."""
        try:
            numbers = range(*(integer("Dataset.range", each, None) for each in args))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"Dataset.range: {error}") from error
        return cls(Range(numbers.start, numbers.stop, numbers.step))

    @classmethod
    def from_tensors(cls, tensors: Any) -> Self:
        """Return a dataset of one element.

        Parameters
        ----------
        tensors : structure of array_like
            The element.
        """
        leaves, nesting = flatten(tensors)
        columns = []
        for leaf in leaves:
            found = as_leaf(leaf)
            plain = isinstance(found, (np.ndarray, np.generic)) and not isinstance(found, str)
            columns.append(np.asarray(found)[None] if plain else _alone(found))
        block = read_only(Block(nesting, tuple(columns), 1))
        return cls(Tensors(block))

    @classmethod
    def from_tensor_slices(cls, tensors: Any) -> Self:
        """Return a dataset of the rows of arrays.

        The arrays are not copied; do not change them. Elements are views of them that cannot be
        written to.

        Parameters
        ----------
        tensors : structure of array_like, Ragged or table
            Arrays with the same number of rows. A table (see `from_table`) counts as a dict of its
            columns; but the rows of a structured array stay as they are.

        Raises
        ------
        DatasetError
            If their numbers of rows differ, or there is no array; or if a column of a table has
            mixed types, or lacks integers or booleans.
        """
        return cls(Slices(read_only(block_of(with_columns(tensors)))))

    @classmethod
    def from_table(cls, table: Any, columns: Sequence[str] | None = None) -> Self:
        """Return the rows of a table in memory, as dicts by column.

        The table is not copied where its columns have dtypes of NumPy; do not change it. The rules
        are those of `csv` and `parquet`: missing floats are NaN, missing times NaT, missing texts
        None; categories become their values. Workers get the table once.

        Parameters
        ----------
        table : table
            A data frame of pandas, without its index, or of polars; a ``pyarrow.Table``; a
            ``datasets.Dataset`` of Hugging Face; a NumPy array with named fields; or a sparse
            matrix of scipy, whose rows are ``indices`` and ``values`` of their entries: batch them
            with `ragged_batch`.
        columns : sequence of str, optional
            Which, in this order; all by default.

        Raises
        ------
        ConfigurationError
            If it is no table, or has no such column.
        DatasetError
            If two columns have one name; or if a column has mixed types, or lacks integers or
            booleans.
        """
        return cls(Table(read_only(block_of(columns_of(table, columns)))))

    @classmethod
    def from_dask(cls, collection: Any, columns: Sequence[str] | None = None) -> Self:
        """Return the rows of a Dask collection, which stay where Dask has them.

        On a cluster, pass it to ``create_per_worker_dataset(..., sharding="dynamic")``: workers
        read the partitions that they hold, and another's only while that one is busy; how many
        bytes that moves is in ``coordinator.stages()``. A collection that is not persisted is
        computed by Dask once an epoch, a few partitions ahead, on workers rather than servers. What
        is lost with its worker is computed again by Dask: it must have the same rows then.

        Parameters
        ----------
        collection : object
            A DataFrame or Series, an Array or a Bag of Dask, or delayed objects or futures. Rows of
            a frame are dicts by column, with the rules of `from_table`; of a series values;
            of an array those along its first axis; of a bag its elements. A delayed object or a
            future, or a list of them, is a partition each: a table, an array, or a list of
            elements. Persisted by the client of the strategy, or not persisted.
        columns : sequence of str, optional
            Which columns of tables, in this order; all by default.

        Raises
        ------
        ConfigurationError
            If it is no such collection, has no such column, or is an array that is cut along other
            axes, too.
        """
        return cls(partitions_of_dask(collection, columns))

    @classmethod
    def from_generator(
        cls,
        generator: Callable[..., Iterable[Any]],
        *,
        output_signature: Spec = None,
        args: Sequence[Any] = (),
    ) -> Self:
        """Return the elements that a function yields; it is called again for each iteration.

        A state is the number of elements taken so far: to resume, the function is called again and
        as many are skipped. So it should yield the same elements each time.

        Parameters
        ----------
        generator : callable
            Returns an iterable.
        output_signature : structure of ArraySpec, optional
            The form of the elements; by default the first one decides.
        args : sequence
            The arguments of the function.
        """
        if not callable(generator):
            raise ConfigurationError(
                "from_generator needs a function that returns an iterable, found a "
                f"{type(generator).__name__}: pass the function, not what it returns"
            )
        return cls(Generator(generator, output_signature, tuple(args)))

    @classmethod
    def npy(cls, paths: Any) -> Self:
        """Return the rows of ``.npy`` files, mapped into memory rather than read.

        Parameters
        ----------
        paths : structure of paths, or of lists of paths
            For each leaf its file, or its files, one after another. Patterns are expanded. Do not
            shorten a mapped file: that ends the processes that map it.
        """
        leaves, nesting = flatten(paths)
        files = tuple(tuple(list_files(leaf)) for leaf in leaves)
        return cls(Npy(files, nesting))

    @classmethod
    def list_files(
        cls,
        file_pattern: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        shuffle: bool = False,
        seed: int | None = None,
    ) -> Self:
        """Return the paths of the files that patterns name, as str, sorted for each pattern.

        Unlike in TensorFlow, they are absolute, as workers have other working directories, and not
        shuffled by default.

        Raises
        ------
        DatasetError
            If no file matches a pattern.
        """
        found = list_files(file_pattern)
        dataset = cls(file_names(found))
        return cls(Shuffle(dataset.node, len(found), seed)) if shuffle else dataset

    @classmethod
    def zip(cls, *datasets: Any) -> Self:
        """Combine the elements of several datasets; ends with the shortest.

        Parameters
        ----------
        *datasets : Dataset, or one structure of them
            ``zip(a, b)`` and ``zip((a, b))`` give pairs, ``zip({"x": a})`` dicts.
        """
        leaves, nesting = flatten(datasets[0] if len(datasets) == 1 else datasets)
        if not leaves:
            raise ConfigurationError("Dataset.zip needs at least one dataset")
        return cls(Zip(tuple(_node(each) for each in leaves), nesting))

    @classmethod
    def sample_from_datasets(
        cls,
        datasets: Sequence[Any],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
    ) -> Self:
        """Draw elements at random from several datasets.

        Parameters
        ----------
        datasets : sequence of Dataset
            With elements of one kind.
        weights : sequence of float, optional
            Relative probabilities of the datasets; equal by default.
        seed : int, optional
            Makes the draws the same each time.
        stop_on_empty_dataset : bool
            End when the first dataset ends; by default the others go on.
        """
        chosen = [1.0] * len(datasets) if weights is None else [float(each) for each in weights]
        if not datasets or len(chosen) != len(datasets):
            raise ConfigurationError(
                f"sample_from_datasets: {len(datasets)} datasets and {len(chosen)} weights"
            )
        if min(chosen) < 0 or not 0 < sum(chosen) < float("inf"):
            raise ConfigurationError(
                f"sample_from_datasets: weights must not be negative, nor all 0; found {chosen}"
            )
        several = tuple(_node(each) for each in datasets)
        return cls(Sample(several, tuple(chosen), seed, stop_on_empty_dataset))


def _alone(leaf: Any) -> np.ndarray:
    column = np.empty(1, object)
    column[0] = leaf
    return column


def _node(dataset: Any) -> Node:
    if not isinstance(dataset, DatasetSources):
        raise ConfigurationError(f"expected a Dataset, found a {type(dataset).__name__}")
    return dataset.node


def replaced_files(node: Node, files: Sequence[str]) -> Node:
    """Return a chain that reads other files, in place of all that it reads.

    Raises
    ------
    ConfigurationError
        If it reads no files, or has several sources of files.
    """
    sources = _sources(node)
    if len(sources) != 1:
        found = "has no source that is files" if not sources else "has several sources of files"
        raise ConfigurationError(
            f"with_files replaces the files of a dataset that has one source, and this one {found}"
            ":\n" + "\n".join(node.lines())
        )
    return _replaced(node, files)


def _sources(node: Node) -> list[Node]:
    if isinstance(node, Files | FileNames | FileShares):
        return [node]
    return [source for each in node.inputs for source in _sources(each)]


def _replaced(node: Node, files: Sequence[str]) -> Node:
    if isinstance(node, Files):
        return dataclasses.replace(node, files=file_ranges(files))
    if isinstance(node, FileNames | FileShares):
        return node.over(files)

    def of(value: Any) -> Any:
        if isinstance(value, Node):
            return _replaced(value, files)
        if isinstance(value, tuple) and any(isinstance(each, Node) for each in value):
            return tuple(map(of, value))
        return value

    assert dataclasses.is_dataclass(node)
    own = {each.name: getattr(node, each.name) for each in dataclasses.fields(node) if each.init}
    return dataclasses.replace(node, **{name: of(value) for name, value in own.items()})


class Dataset(DatasetSources, FixedAttributes, metaclass=NamedClass):
    """Elements: arrays, `Ragged`, numbers, str or bytes, nested in tuples, dicts or dataclasses.

    Immutable: each method returns another dataset. It may be iterated over any number of times, and
    by several threads, which have an iterator each or share one. Methods with a name from tf.data
    behave as its documentation says, except where a docstring here says otherwise. Functions get
    an element as their argument; a tuple's items are separate arguments. What they return is
    copied at once: they may refill one array for each element.

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
        """Return an iterator; with a state, it goes on where the state was taken.

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
        """Return the same chain over other files: those of another day, for example.

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
            The function gets many elements at once, stacked (a `Ragged` if they differ in length),
            and must return as many. psnb chooses how many, and may make more than are used. If the
            function fails, all of those are lost. TensorFlow has no such option.
        """
        _check_callable("map", function)
        if num_parallel_calls not in (None, AUTOTUNE):
            num_parallel_calls = integer("map: num_parallel_calls", num_parallel_calls, 1)
        node = Map(self.node, function, num_parallel_calls, deterministic, batched)
        return type(self)(node)

    def filter(self, predicate: Callable[..., Any], batched: bool = False) -> Self:
        """Leave out the elements for which a predicate is false.

        With ``batched`` the predicate gets many elements at once, stacked, and returns a bool for
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
        if seed is not None:
            seed = integer("shuffle: seed", seed, None)
        if seed is None and not reshuffle_each_iteration:
            seed = secrets.randbits(63)
        return type(self)(Shuffle(self.node, size, seed, reshuffle_each_iteration))

    def repeat(self, count: int | None = None) -> Self:
        """Repeat all elements ``count`` times; None or -1: for ever."""
        if count in (None, -1):
            return type(self)(Repeat(self.node))
        return type(self)(Repeat(self.node, integer("repeat: count", count, 0)))

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
        """Return these elements, then those of another dataset."""
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

        A batch comes when its bucket is full; what is left at the end comes from the shortest to
        the longest.

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
