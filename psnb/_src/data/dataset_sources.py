"""The methods of `Dataset` that make one from values in memory, or from other datasets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np

from psnb._src.data.block import Block, block_of, read_only, stack
from psnb._src.data.file_sources import FileSources
from psnb._src.data.formats.files import list_files
from psnb._src.data.formats.tables import columns_of, with_columns
from psnb._src.data.nesting import as_leaf, flatten
from psnb._src.data.node import Node
from psnb._src.data.nodes.combine import Sample, Zip
from psnb._src.data.nodes.files import file_names
from psnb._src.data.nodes.partitions import partitions_of_dask
from psnb._src.data.nodes.shuffle import Shuffle
from psnb._src.data.nodes.sources import Generator, Npy, Range, Slices, TableRows, Tensors
from psnb._src.data.spec import Spec
from psnb._src.utils.checks import column_names, integer
from psnb.errors import ConfigurationError


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
        found = map(as_leaf, leaves)
        columns = (leaf[None] if isinstance(leaf, np.ndarray) else stack([leaf]) for leaf in found)
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
        are as for `csv` and `parquet`: missing floats are NaN, missing times NaT, missing texts
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
        return cls(
            TableRows(read_only(block_of(columns_of(table, column_names("from_table", columns)))))
        )

    @classmethod
    def from_dask(cls, collection: Any, columns: Sequence[str] | None = None) -> Self:
        """Return the rows of a Dask collection, which stay where Dask has them.

        On a cluster, pass it to ``create_per_worker_dataset(..., sharding="dynamic")``: workers
        read the partitions that they hold, and another's only while that one is busy; how many
        bytes that moves is in ``coordinator.stages()``. A collection that is not persisted is
        computed by Dask once an epoch, a few partitions ahead, on workers rather than servers.
        Partitions that are lost with their worker are computed again by Dask: they must have the
        same rows then.

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
        return cls(partitions_of_dask(collection, column_names("from_dask", columns)))

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
            End when the first dataset ends; by default the others continue.
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


def _node(dataset: Any) -> Node:
    if not isinstance(dataset, DatasetSources):
        raise ConfigurationError(f"expected a Dataset, found a {type(dataset).__name__}")
    return dataset.node
