"""Columns of predictions, as files hold them."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from psnb._src.training.prediction_files import json_lines, parquet_table, single_columns

ODD = np.array([1.5, np.nan, -np.inf], ml_dtypes.bfloat16)
WIDE = np.array([[1, np.inf], [2, 3], [np.nan, 5]], np.float32)


def test_json_lines_have_null_for_what_json_lacks() -> None:
    lines = list(json_lines({"id": np.arange(3), "odd": ODD, "wide": WIDE}))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert [json.loads(line, parse_constant=refuse) for line in lines] == [
        {"id": 0, "odd": 1.5, "wide": [1.0, None]},
        {"id": 1, "odd": None, "wide": [2.0, 3.0]},
        {"id": 2, "odd": None, "wide": [None, 5.0]},
    ]


def test_parquet_has_float32_for_bfloat16_and_keeps_nan() -> None:
    table = parquet_table({"odd": ODD, "wide": WIDE})
    assert [str(field.type) for field in table.schema] == [
        *("float", "fixed_size_list<item: float>[2]")
    ]
    np.testing.assert_array_equal(table["odd"].to_numpy(), ODD.astype(np.float32))
    assert table["wide"].to_pylist()[1] == [2.0, 3.0]


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_no_rows_have_the_type_of_their_column(shape: tuple[int, ...]) -> None:
    some = parquet_table({"score": np.zeros((2, *shape[1:]), np.float32)})
    assert parquet_table({"score": np.zeros(shape, np.float32)}).schema == some.schema


def test_several_numbers_a_row_become_columns_of_one() -> None:
    columns = {"id": np.arange(2), "scores": np.arange(8).reshape(2, 2, 2)}
    found = single_columns(columns)
    assert {name: array.tolist() for name, array in found.items()} == {
        "id": [0, 1],
        "scores.0": [0, 4],
        "scores.1": [1, 5],
        "scores.2": [2, 6],
        "scores.3": [3, 7],
    }
