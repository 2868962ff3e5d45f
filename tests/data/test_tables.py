"""Tables in memory as datasets."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

from psnb.data import Dataset, Ragged
from psnb.errors import ConfigurationError, DatasetError

FRAME = pd.DataFrame(
    {
        "i": np.array([1, 2, 3], np.int32),
        "f": [0.5, np.nan, 2.0],
        "n": pd.array([1.5, None, 2.5], "Float64"),
        "s": ["x", None, "z"],
        "c": pd.Categorical(["a", "b", "a"]),
        "t": pd.to_datetime(["2020-01-01", None, "2020-01-03"]).astype("datetime64[us]"),
        "a": pd.array([1, 2, 3], "int64[pyarrow]"),
        "l": [[1, 2], [], [3]],
    },
    index=[7, 8, 9],
)


def batch(table: Any, columns: list[str] | None = None) -> dict[str, Any]:
    (found,) = Dataset.from_table(table, columns).ragged_batch(100)
    return found


def same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert list(left) == list(right)
    for name, column in left.items():
        if isinstance(column, Ragged):
            assert column == right[name]
        else:
            assert column.dtype == right[name].dtype
            np.testing.assert_array_equal(column, right[name])


def test_a_pandas_frame_has_the_rows_of_its_parquet_file(tmp_path: Any) -> None:
    FRAME.to_parquet(tmp_path / "f.parquet", index=False)
    (of_file,) = Dataset.parquet(tmp_path / "f.parquet").ragged_batch(3)
    same(batch(FRAME), of_file)
    same(batch(pa.Table.from_pandas(FRAME, preserve_index=False)), of_file)


def test_polars_and_hugging_face_give_the_same_rows() -> None:
    table = pa.Table.from_pandas(FRAME, preserve_index=False)
    for library, made in (
        ("polars", lambda module: module.from_arrow(table)),
        ("datasets", lambda module: module.Dataset(module.table.InMemoryTable(table))),
    ):
        same(batch(made(import_module(library))), batch(table))


def test_rows_that_a_hugging_face_dataset_has_chosen() -> None:
    datasets: Any = import_module("datasets")
    chosen = datasets.Dataset.from_dict({"x": [1, 2, 3], "y": ["a", "b", "c"]}).select([2, 0])
    assert batch(chosen, ["x"])["x"].tolist() == [3, 1]
    with pytest.raises(ConfigurationError, match=r'one split, such as dataset\["train"\]'):
        Dataset.from_table(datasets.DatasetDict({"train": chosen}))


def test_columns_of_numpys_dtypes_are_not_copied() -> None:
    (element,) = Dataset.from_table(FRAME.iloc[:1], ["f", "i"])
    assert list(element) == ["f", "i"]
    table = pa.table({"x": np.arange(4.0)})
    fields = np.zeros(3, [("a", "i4"), ("b", "f4", 2)])
    matrix = sparse.csr_array(np.eye(3))
    for given, memory, name in (
        (FRAME, FRAME["f"].to_numpy(), "f"),
        (table, table["x"].chunk(0).to_numpy(), "x"),
        (fields, fields, "b"),
        (matrix, matrix.data, "values"),
    ):
        column = Dataset.from_table(given).node.block.whole()[name]  # type: ignore[attr-defined]
        values = column.values if isinstance(column, Ragged) else column
        assert np.shares_memory(values, memory)
        assert not values.flags.writeable


def test_a_structured_array_is_a_table_of_its_fields() -> None:
    array = np.array([(1, (0.5, 1.5), "x"), (2, (2.5, 3.5), "y")], "i8, (2,)f4, U1")
    found = batch(array)
    assert found["f0"].tolist() == [1, 2]
    assert found["f1"].tolist() == [[0.5, 1.5], [2.5, 3.5]]
    assert found["f2"].tolist() == ["x", "y"]


def test_a_sparse_matrix_has_the_entries_of_each_row() -> None:
    twice = sparse.coo_matrix(([1.0, 2.0, 4.0], ([0, 0, 2], [5, 5, 1])), (3, 6))
    for matrix in (twice, sparse.csc_array(twice), sparse.csr_matrix(twice)):
        found = batch(matrix)
        assert found["indices"].to_list() == [[5], [], [1]]
        assert found["values"].to_list() == [[3.0], [], [4.0]]
    rows = list(Dataset.from_tensor_slices((twice, [7, 8, 9])))
    assert (rows[2][0]["values"].tolist(), rows[2][1]) == ([4.0], 9)


def test_a_matrix_with_entries_that_are_there_twice_stays_as_it_is() -> None:
    matrix = sparse.csr_array((np.ones(2), np.array([1, 1]), np.array([0, 2])), (1, 3))
    assert batch(matrix)["values"].to_list() == [[2.0]]
    assert matrix.nnz == 2


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"a": [1]}, "from_table takes a table of pandas"),
        (np.zeros((2, 2)), "for others use from_tensor_slices"),
        (pd.Series([1]), "from_table takes a table of pandas"),
        (sparse.coo_array(np.ones(3)), r"a sparse matrix with rows and columns, found .* \(3,\)"),
    ],
)
def test_what_is_no_table_is_refused(table: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Dataset.from_table(table)


@pytest.mark.parametrize("columns", [["f", "z"], "f", []])
def test_columns_that_are_not_there_are_refused(columns: Any) -> None:
    with pytest.raises(ConfigurationError, match="columns"):
        Dataset.from_table(FRAME, columns)


@pytest.mark.parametrize(
    "column",
    [
        pd.array([1, None], "Int64"),
        pd.array([True, None], "boolean"),
        pd.Categorical([1, None]),
        pd.array([1, None], "int64[pyarrow]"),
    ],
)
def test_missing_integers_and_booleans_are_refused(column: Any) -> None:
    with pytest.raises(DatasetError, match=r"column .a. lacks a value in row 1.*convert it to"):
        Dataset.from_table(pd.DataFrame({"a": column}))


def test_of_two_columns_with_one_name_others_can_be_chosen() -> None:
    frame = pd.DataFrame([[1, 2, 3]], columns=["a", "a", "b"])
    with pytest.raises(DatasetError, match=r"two columns have one name.*choose others"):
        Dataset.from_table(frame)
    assert batch(frame, ["b"])["b"].tolist() == [3]


@pytest.mark.parametrize("numbers", [[1, 2**63], [[1], [2**63]], [-1, 2**63], [2**70]])
def test_integers_beyond_int64_as_objects_are_refused(numbers: list[Any]) -> None:
    frame = pd.DataFrame({"other": 1.0, "a": pd.Series(numbers, dtype=object)})
    with pytest.raises(DatasetError, match=r"column 'a' .* beyond int64.*astype\('uint64'\)"):
        Dataset.from_table(frame)
