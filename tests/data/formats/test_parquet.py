from __future__ import annotations

import datetime
import io
import sys
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.data.formats.csv import Csv
from psnb._src.data.formats.parquet import Parquet
from psnb._src.data.ragged import Ragged
from psnb.data import ArraySpec, Dataset
from psnb.errors import ConfigurationError, DatasetError
from tests.data.formats.samples import plain, records, write


def content(table: dict[str, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(table), out, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        (pa.array([1, 2], pa.uint8()), np.dtype(np.uint8)),
        (pa.array([1.5, 2.5], pa.float32()), np.dtype(np.float32)),
        (pa.array([True, False]), np.dtype(bool)),
        (pa.array(["a", None]), np.dtype(object)),
        (pa.array(["a", "b"]).dictionary_encode(), np.dtype(object)),
        (pa.array([b"a", b"b"]), np.dtype(object)),
        (pa.array([datetime.datetime(2026, 1, 1), None]), np.dtype("datetime64[us]")),
        (pa.array([Decimal("1.5"), Decimal("2")]), np.dtype(np.float64)),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_columns_become_arrays_of_their_dtype(
    column: pa.Array, dtype: np.dtype, tmp_path: Path
) -> None:
    found = next(Parquet().read(write(tmp_path, content({"c": column})))).columns["c"]
    assert found.dtype == dtype
    assert len(found) == 2


@pytest.mark.parametrize(
    ("digits", "numbers", "dtype"),
    [
        (20, [2**63 + 1, 2**53 + 1], np.uint64),
        (19, [-(2**63), 2**53 + 1], np.int64),
        (38, [-1, 2**63 - 1], np.int64),
    ],
)
def test_decimals_without_fractions_are_integers(
    digits: int, numbers: list[int], dtype: Any, tmp_path: Path
) -> None:
    column = pa.array([Decimal(number) for number in numbers], pa.decimal128(digits, 0))
    found = next(Parquet().read(write(tmp_path, content({"c": column})))).columns["c"]
    assert (found.dtype, found.tolist()) == (dtype, numbers)


@pytest.mark.parametrize(("digits", "number"), [(20, -1), (19, 2**63), (38, 2**64)])
def test_decimals_that_are_no_integers_of_64_bits_are_refused(
    digits: int, number: int, tmp_path: Path
) -> None:
    column = pa.array([Decimal(number)], pa.decimal128(digits, 0))
    with pytest.raises(DatasetError, match=r"column 'c' holds a decimal128.* that is no u?int64"):
        next(Parquet().read(write(tmp_path, content({"c": column}))))


def test_two_columns_of_one_name_are_refused_unless_others_are_chosen(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "b", "a"])
    pq.write_table(table, tmp_path / "double")
    with pytest.raises(DatasetError, match=r"double: .* several are called \{'a'\}"):
        next(Parquet().read(str(tmp_path / "double")))
    assert next(Parquet(["b"]).read(str(tmp_path / "double"))).columns["b"].tolist() == [2]


def test_the_spec_of_a_column_of_lists_has_no_length(tmp_path: Path) -> None:
    path = write(tmp_path, content({"c": pa.array([[1, 2], [3]]), "x": pa.array([1.0, 2.0])}))
    spec = Dataset.parquet(path).element_spec
    assert spec == {"c": ArraySpec((None,), np.int64), "x": ArraySpec((), np.float64)}


def test_lists_become_ragged_or_arrays(tmp_path: Path) -> None:
    table = {
        "ragged": pa.array([[1, 2], None, [], [3]]),
        "fixed": pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32(), 2)),
        "pairs": pa.array([[[1, 2]], [], [], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int8(), 2))),
    }
    path = write(tmp_path, content(table))
    columns = next(Parquet().read(path, 0)).columns
    assert isinstance(columns["ragged"], Ragged)
    assert plain(columns["ragged"]) == [[1, 2], [], [], [3]]
    assert columns["fixed"].shape == (4, 2)
    assert plain(columns["pairs"]) == [[[1, 2]], [], [], [[3, 4], [5, 6]]]
    # Arrow's own offsets do not begin with 0 then.
    assert plain(next(Parquet(["ragged"]).read(path, 3)).columns["ragged"]) == [[3]]


def test_missing_floats_are_nan(tmp_path: Path) -> None:
    found = next(Parquet().read(write(tmp_path, content({"c": pa.array([1.0, None])})))).columns
    assert np.isnan(found["c"][1])


def test_a_missing_integer_is_named_after_the_rows_before(tmp_path: Path) -> None:
    path = write(tmp_path, content({"a": [0] * 9, "b": [*range(7), None, 8]}, row_group_size=4))
    reader = Parquet().read(path)
    assert [next(reader).count, next(reader).count] == [4, 3]
    with pytest.raises(DatasetError, match=f"{path}, row 8: column 'b' of int64 misses a value"):
        next(reader)


def test_columns_are_chosen_in_their_order(tmp_path: Path) -> None:
    path = write(tmp_path, content({"a": [1], "b": [2], "c": [3]}))
    assert list(next(Parquet(["c", "a"]).read(path)).columns) == ["c", "a"]
    with pytest.raises(DatasetError, match=rf"{path}: the columns are \['a', 'b', 'c'\]; no {{'x'"):
        next(Parquet(["x"]).read(path))


@pytest.mark.parametrize("column", [pa.array([{"x": 1}]), pa.nulls(1), pa.array([[[1]]])])
def test_columns_that_no_array_holds_are_named(column: pa.Array, tmp_path: Path) -> None:
    path = write(tmp_path, content({"c": column}))
    with pytest.raises(DatasetError, match=f"{path}, row group 0: column 'c'"):
        next(Parquet().read(path))


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.string())])
def test_text_that_is_not_utf_8_is_refused(kind: pa.DataType, tmp_path: Path) -> None:
    raw = pa.array([b"\xff"] if kind == pa.string() else [[b"\xff"]])
    wrong = (
        raw.view(kind)
        if kind == pa.string()
        else raw.from_arrays(raw.offsets, raw.values.view(pa.string()))
    )
    path = write(tmp_path, content({"c": wrong}))
    with pytest.raises(DatasetError, match=f"{path}, row group 0: column 'c' .* is not UTF-8: "):
        next(Parquet().read(path))


def test_row_groups_are_split_by_their_size(tmp_path: Path) -> None:
    path = write(tmp_path, content({"a": range(10)}, row_group_size=2))
    assert Parquet().splits(path, 1) == [(0, 2), (2, 4), (4, 6), (6, 8), (8, None)]
    [one] = Parquet().splits(path, 10**9)
    assert one == (0, None)


def test_without_pyarrow_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    for make in (Parquet, lambda: Csv(dtypes={"a": int})):
        with pytest.raises(ConfigurationError, match=r"pip install 'psnb\[data\]'"):
            make()


VALID = content({"a": [1, 2, 3], "b": ["x", "y", "z"], "c": [[1], [], [2, 3]]})


@given(st.lists(st.tuples(st.integers(0, len(VALID)), st.binary(max_size=3)), min_size=1))
def test_mutated_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]]
) -> None:
    mutated = VALID
    for at, new in edits:
        mutated = mutated[:at] + new + mutated[at + len(new) :]
    with suppress(DatasetError):
        records(Parquet().read(write(tmp_path_factory.getbasetemp(), mutated, "parquet")))
