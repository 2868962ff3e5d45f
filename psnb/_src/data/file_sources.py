"""Datasets from files: the methods of `Dataset` that read a format."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

from psnb._src.data.formats.criteo import Criteo
from psnb._src.data.formats.csv import Csv
from psnb._src.data.formats.files import INFER, list_files
from psnb._src.data.formats.fixed_length import FixedLengthRecords
from psnb._src.data.formats.multi_slot import MultiSlot, Slot
from psnb._src.data.formats.parquet import Parquet
from psnb._src.data.formats.records import MAX_COLUMNS, MAX_RECORD_BYTES
from psnb._src.data.formats.text import TextLines
from psnb._src.data.formats.tf_example import FixedLen, VarLen
from psnb._src.data.formats.tfrecord import TFRecords
from psnb._src.data.node import Node
from psnb._src.data.nodes.files import FileNames, Files, FileShares, Format, file_ranges
from psnb._src.data.nodes.saved import SavedPart, saved_parts
from psnb._src.utils.checks import column_names, integer
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Paths or addresses, with patterns, that fsspec opens: local, ``s3://``, ``http://``, …"""


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
        return cls.from_files(TextLines(encoding, compression, max_record_bytes), list_files(files))

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
            As for `text_lines`.
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
            As for `text_lines`.
        """
        return cls.from_files(TFRecords(features, compression, max_record_bytes), list_files(files))

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
            As for `text_lines`.
        """
        if not isinstance(dtypes, Mapping | None):
            raise ConfigurationError(
                "csv: dtypes must be a dict, as in dtypes={'hour': 'float32'}, found "
                + shown(dtypes)
            )
        form = Csv(
            *(column_names("csv", columns), dtypes, header, names, delimiter, compression),
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
            How many bytes the rows read at a time may take, at most 2**30. Data that unpacks to
            more than this, and to more than 256 times its size in the file, is refused.
        """
        return cls.from_files(
            Parquet(column_names("parquet", columns), max_record_bytes), list_files(files)
        )

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
            As for `text_lines`.
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
            As for `text_lines`.
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
        # Each thread reads its share of the files, so a batch continues into the next one of them.
        one = partial(_read_ahead, cls, form, batch_size, queue_size or 2)
        shares: Any = cls(FileShares(tuple(paths), threads))
        return shares.interleave(one, cycle_length=threads)


def _read_ahead(cls: Any, form: MultiSlot, batch_size: int, queue_size: int, paths: Any) -> Any:
    return cls.from_files(form, paths).ragged_batch(batch_size).prefetch(queue_size)


def replaced_files(node: Node, files: Sequence[str]) -> Node:
    """Return a chain that reads other files, in place of all that it reads.

    Raises
    ------
    ConfigurationError
        If it reads no files, or has several sources of files.
    """
    count = sum(isinstance(each, Files | FileNames | FileShares) for each in node.walk())
    if count != 1:
        found = "has no source that is files" if not count else "has several sources of files"
        raise ConfigurationError(
            f"with_files replaces the files of a dataset that has one source, and this one {found}"
            ":\n" + "\n".join(node.lines())
        )
    return _replaced(node, files)


def _replaced(node: Node, files: Sequence[str]) -> Node:
    if isinstance(node, Files):
        return dataclasses.replace(node, files=file_ranges(files))
    if isinstance(node, FileNames | FileShares):
        return node.over(files)
    inputs: dict[str, Any] = {}
    for each in dataclasses.fields(node):  # type: ignore[arg-type]
        value = getattr(node, each.name)
        if isinstance(value, Node):
            inputs[each.name] = _replaced(value, files)
        elif isinstance(value, tuple) and any(isinstance(each, Node) for each in value):
            inputs[each.name] = tuple(_replaced(each, files) for each in value)
    return dataclasses.replace(node, **inputs)  # type: ignore[type-var]
