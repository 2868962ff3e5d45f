"""A file of each format, and what is in it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from psnb._src.data.formats.criteo import Criteo
from psnb._src.data.formats.csv import Csv
from psnb._src.data.formats.fixed_length import FixedLengthRecords
from psnb._src.data.formats.multi_slot import MultiSlot, Slot
from psnb._src.data.formats.parquet import Parquet
from psnb._src.data.formats.records import Chunk
from psnb._src.data.formats.text import TextLines
from psnb._src.data.formats.tf_example import (
    Columns,
    Feature,
    FixedLen,
    VarLen,
    check_features,
    encode_example,
    parse_parts,
)
from psnb._src.data.formats.tfrecord import TFRecords, TFRecordWriter
from psnb._src.data.ragged import Ragged
from psnb.errors import DatasetError

ROWS = 9000
"""More than two chunks."""


@dataclass
class Sample:
    """A format, a file's content, and what each of its records is read as."""

    format: Any
    content: bytes
    expected: list[Any]


def plain(columns: Any) -> list[Any]:
    """Return columns as a list of one Python object a record."""
    if isinstance(columns, dict):
        parts = [plain(column) for column in columns.values()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*parts, strict=True)]
    if isinstance(columns, Ragged):
        return [row.tolist() for row in columns]
    return columns.tolist()


def records(chunks: Any) -> list[Any]:
    """Return all records of some chunks, of which each must be as long as it says."""
    found = []
    for chunk in chunks:
        assert isinstance(chunk, Chunk)
        rows = plain(chunk.columns)
        assert len(rows) == chunk.count > 0
        found += rows
    return found


def text() -> Sample:
    lines = [f"line {i} é" if i % 3 else "" for i in range(ROWS)]
    return Sample(TextLines(), "\n".join(lines).encode() + b"\r\n", lines)


def fixed() -> Sample:
    rows = np.arange(ROWS * 3).reshape(ROWS, 3).astype(np.uint8)
    return Sample(FixedLengthRecords(3, 2, 1), b"ab" + rows.tobytes() + b"c", [*map(bytes, rows)])


def tfrecord_bytes(records: list[bytes]) -> bytes:
    import fsspec

    with TFRecordWriter("memory://sample.tfrecord") as writer:
        for record in records:
            writer.write(record)
    return fsspec.filesystem("memory").cat_file("/sample.tfrecord")


def tfrecords() -> Sample:
    rows = [bytes([i % 251]) * (i % 5) for i in range(ROWS)]
    return Sample(TFRecords(), tfrecord_bytes(rows), rows)


def examples() -> Sample:
    rows = [{"id": [i, -i], "tags": [float(j) for j in range(i % 3)]} for i in range(ROWS)]
    features = {"id": FixedLen(2, "int64"), "tags": VarLen("float32")}
    content = tfrecord_bytes([encode_example(row) for row in rows])
    return Sample(TFRecords(features), content, rows)


def csv() -> Sample:
    rows = [{"a": i, "b": f'x,\n"{i}"', "c": i / 2} for i in range(ROWS)]
    lines = ["a,b,c"] + [f'{i},"x,\n""{i}""",{i / 2}' for i in range(ROWS)]
    return Sample(Csv(), "\n".join(lines).encode(), rows)


def parquet() -> Sample:
    rows = [{"a": i, "b": list(range(i % 3))} for i in range(ROWS)]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, row_group_size=6000)
    return Sample(Parquet(), out.getvalue(), rows)


def criteo() -> Sample:
    rows, lines = [], []
    for i in range(ROWS):
        dense, sparse = [float(i - j) for j in range(13)], [i << j for j in range(16)] + [7] * 10
        rows.append({"label": float(i % 2), "dense": dense, "sparse": sparse})
        fields = [str(i % 2), *(f"{value:.0f}" for value in dense), *(f"{v:x}" for v in sparse)]
        lines.append("\t".join(fields) + "\n")
    return Sample(Criteo(), "".join(lines).encode(), rows)


def multi_slot() -> Sample:
    rows, lines = [], []
    for i in range(ROWS):
        ids, dense = [2**64 - 1 - j for j in range(i % 4)], [i / 4, -i / 8]
        rows.append({"ids": ids, "dense": dense})
        lines.append(f"{len(ids)} {' '.join(map(str, ids))} 2 {dense[0]} {dense[1]}\n")
    slots = [Slot("ids"), Slot("dense", "float32", (2,))]
    return Sample(MultiSlot(slots), "".join(lines).encode(), rows)


ALL = [text, fixed, tfrecords, examples, csv, parquet, criteo, multi_slot]
LINES = [text, criteo, multi_slot]


def write(folder: Path, content: bytes, name: str = "part") -> str:
    """Write a file; return its path."""
    path = folder / name
    path.write_bytes(content)
    return str(path)


def open_files() -> set[str]:
    """Return what this process has open: paths, and pipes and sockets by their numbers."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them, and those of other threads
            found.add(str(descriptor.readlink()))
    return found


def parse_examples(records: Ragged, features: Mapping[str, Feature]) -> Columns:
    """Parse ``tf.train.Example`` messages; raise what is wrong with the first bad one."""
    check_features(features)
    values = np.ascontiguousarray(records.values, np.uint8)
    columns, good, problem = parse_parts(
        values, records.offsets[:-1], records.offsets[1:], features
    )
    if problem is not None:
        raise DatasetError(f"record {good}: {problem}") from problem
    return columns
