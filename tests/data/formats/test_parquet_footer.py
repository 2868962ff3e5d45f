"""Footers of Parquet files, read without pyarrow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.data.formats.parquet import Parquet
from psnb._src.data.formats.parquet_footer import ColumnChunk, find_columns, read_footer
from psnb.errors import DatasetError
from tests.data.formats.growth import growth
from tests.data.formats.samples import write

CODECS = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4": 7}


def content(columns: int = 3, **options: Any) -> bytes:
    """Return a file of several row groups; every other column is of lists."""
    kinds = [list(range(9)), [["x", "y"], None, []] * 3]
    table = pa.table({f"c{i}": kinds[i % 2] for i in range(columns)})
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=4, **options)
    return out.getvalue()


@pytest.mark.parametrize("columns", [0, 1, 2, 200])
@pytest.mark.parametrize("codec", CODECS)
def test_it_is_understood_as_pyarrow_understands_it(codec: str, columns: int) -> None:
    file = io.BytesIO(content(columns, compression=codec))
    metadata = pq.ParquetFile(file).metadata
    groups = read_footer(file, "x.parquet")
    assert len(groups) == metadata.num_row_groups
    for number, group in enumerate(groups):
        expected = metadata.row_group(number)
        assert (group.size, group.rows) == (expected.total_byte_size, expected.num_rows)
        assert group.chunks() == [
            ColumnChunk(
                CODECS[codec],
                each.num_values,
                each.data_page_offset,
                each.dictionary_page_offset or 0,
            )
            for each in map(expected.column, range(columns))
        ]


VALID = content()
HISTOGRAM, SHORT = b"\x19\x46\x00\x02\x00\x06", b"\x19\x36\x00\x02\x86\x00"
"""Of the definition levels of three lists, 0, 1, 0, 3; one of three, in as many bytes."""


def test_what_pyarrow_has_no_error_for_is_an_error_and_ends_no_process(tmp_path: Path) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"c": [[1], [], [2, 3]]}), out)
    assert out.getvalue().count(HISTOGRAM) == 1
    path = write(tmp_path, out.getvalue().replace(HISTOGRAM, SHORT))
    _, said, counts = growth(Parquet(), path, VALID)
    assert said.startswith(f"{path}, row group 0 cannot be read: ")
    assert "Definition level histogram size mismatch" in said
    assert counts == []


def test_a_footer_that_is_cut_anywhere_is_refused() -> None:
    footer = footer_of(VALID)
    assert find_columns(footer)[0]
    for size in range(len(footer)):
        assert not find_columns(footer[:size])[0]


def footer_of(file: bytes) -> np.ndarray:
    return np.frombuffer(file[-8 - int.from_bytes(file[-8:-4], "little") : -8], np.uint8)


# Of Thrift's compact protocol: a field of a structure is how much its number grew and its type.
LIST_4, STRUCT_ELEMENTS, NUMBER_ELEMENTS = 0x49, 0x1C, 0x16
TWICE = bytes([LIST_4, STRUCT_ELEMENTS, 0x36, 2, 0, 0x09, 8, STRUCT_ELEMENTS, 0x36, 4, 0, 0])


def test_of_a_field_that_is_there_twice_the_last_counts() -> None:
    valid, groups, _ = find_columns(np.frombuffer(TWICE, np.uint8))
    assert valid
    assert groups[:, 1].tolist() == [2]


@pytest.mark.parametrize(
    "footer",
    [
        bytes([LIST_4, NUMBER_ELEMENTS, 2, 0]),  # a number for a row group
        bytes([LIST_4, 0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0]),  # more of them than bytes
        bytes([0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01, 0]),  # a text
        bytes([0x16] + [0xFF] * 11),  # a number without an end
        bytes([0x1C] * 99),  # structures in structures
        bytes([0x1B, 0, 0]),  # a map
        bytes([0x0C, 1, 0, 0]),  # a number of a field below 0
    ],
)
def test_a_corrupt_footer_is_refused(footer: bytes) -> None:
    assert not find_columns(np.frombuffer(footer, np.uint8))[0]
    file = io.BytesIO(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(DatasetError, match=r"x\.parquet: the footer is corrupt"):
        read_footer(file, "x.parquet")


@given(st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 255)), min_size=1))
def test_footers_that_were_changed_anywhere_are_understood_or_refused(
    edits: list[tuple[int, int]],
) -> None:
    footer = footer_of(VALID).copy()
    for at, byte in edits:
        footer[at % len(footer)] = byte
    valid, groups, columns = find_columns(footer)
    if valid:
        assert (groups[:, 2] <= groups[:, 3]).all()
        assert (groups[:, 3] <= len(columns)).all()
