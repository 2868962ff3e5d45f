"""Tests of what callers may pass for parameters."""

import math
import mmap
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import psnb.metrics
from psnb._src.client.arguments import (
    as_initializer,
    check_optimizer,
    check_rows,
    check_slots,
    checked_array,
    checked_ids,
    initial_array,
    unchanging,
)
from psnb._src.server.optimizers import SGD, Adam, Lion, Momentum
from psnb._src.server.tables.initializers import Constant, Normal, Uniform
from psnb.data import Dataset, Ragged
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError

FLOAT, BYTE, WORD = (np.dtype(name) for name in ("float32", "int8", "uint64"))


@pytest.mark.parametrize("value", [[1, 2], (1.0, 2.0), [np.float32(1), 2], jnp.array([1.0, 2.0])])
def test_numbers_become_an_array_of_the_dtype(value: Any) -> None:
    array = checked_array(value, FLOAT, "x")
    assert array.dtype == FLOAT
    assert array.tolist() == [1, 2]


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.0, 2.0]),
        torch.tensor([1.0, 2.0], requires_grad=True),
        torch.tensor([1.0, 2.0], dtype=torch.bfloat16),  # which NumPy has not
    ],
    ids=["plain", "with gradient", "bfloat16"],
)
def test_tensors_are_arrays(value: Any) -> None:
    assert checked_array(value, FLOAT, "x").tolist() == [1, 2]
    assert initial_array(value, None, "x").tolist() == [1, 2]
    assert Ragged(value, torch.tensor([0, 2])).values.tolist() == [1, 2]
    assert next(iter(Dataset.from_tensors(value))).tolist() == [1, 2]
    assert psnb.metrics.Mean()(value).result() == 1.5


def test_a_tensor_of_another_dtype_is_refused() -> None:
    with pytest.raises(InvalidArrayError, match="expected dtype float32, found float64"):
        checked_array(torch.tensor([1.0], dtype=torch.float64), FLOAT, "x")


def test_array_of_the_right_dtype_is_not_copied() -> None:
    value = np.ones((2, 3), np.float32)
    assert checked_array(value, FLOAT, "x") is value


@pytest.mark.parametrize("value", [np.ones((3, 2), np.float32).T, np.ones(6, np.float32)[::2]])
def test_strided_array_becomes_contiguous(value: np.ndarray) -> None:
    array = checked_array(value, FLOAT, "x")
    assert array.flags.c_contiguous
    np.testing.assert_array_equal(array, value)


@pytest.mark.parametrize("value", [np.ones(2), np.ones(2, np.int32), np.float64(1)])
def test_other_dtype_is_refused_with_expected_and_found(value: Any) -> None:
    with pytest.raises(InvalidArrayError, match=f"x: expected dtype float32, found {value.dtype}"):
        checked_array(value, FLOAT, "x")


@pytest.mark.parametrize("value", [np.ones(2), np.float64(1), jnp.ones(2, jnp.float16)])
def test_floats_of_another_size_are_refused_with_the_way_to_cast_them(value: Any) -> None:
    with pytest.raises(InvalidArrayError, match=r"; pass it as value.astype\(np.float32\)$"):
        checked_array(value, FLOAT, "x")


def test_a_cast_that_loses_fractions_is_not_advised() -> None:
    with pytest.raises(InvalidArrayError, match=r"expected dtype int8, found float64$"):
        checked_array(np.ones(2), BYTE, "x")


@pytest.mark.parametrize("value", [["a"], ["1.5"], {}, None, [None, 1.0], [1j], [[1], [2, 3]]])
def test_what_is_no_array_of_real_numbers_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArrayError, match=r"x: expected .*float32, found"):
        checked_array(value, FLOAT, "x")


@pytest.mark.parametrize(("value", "dtype"), [([300], BYTE), (-1, WORD), (2**64, WORD)])
def test_integer_that_the_dtype_cannot_hold_is_refused(value: Any, dtype: np.dtype) -> None:
    with pytest.raises(InvalidArrayError, match=f"x: expected .*{dtype}"):
        checked_array(value, dtype, "x")


def test_fractions_do_not_vanish_in_an_integer_dtype() -> None:
    with pytest.raises(InvalidArrayError, match="x: expected numbers for int8, found float64"):
        checked_array([1.5], BYTE, "x")


def test_unsigned_dtype_takes_python_integers() -> None:
    assert checked_array([2**64 - 1, 1], WORD, "x").tolist() == [2**64 - 1, 1]


def test_empty_list_fits_any_dtype() -> None:
    assert checked_array([], BYTE, "x").shape == (0,)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint16", "uint64"])
def test_ids_of_any_integer_dtype_become_uint64(dtype: str) -> None:
    ids = checked_ids(np.array([[1, 2]], dtype), "e", 3)
    assert ids.dtype == np.uint64
    assert ids.tolist() == [[1, 2]]


def test_negative_id_is_the_uint64_of_the_same_bits() -> None:
    assert checked_ids([-1, -(2**63)], "e", None).tolist() == [2**64 - 1, 2**63]


def test_list_of_ids_may_mix_small_and_large_integers() -> None:
    ids = [[3, 2**64 - 1], [-1, 2**63 + 1]]
    expected = [[3, 2**64 - 1], [2**64 - 1, 2**63 + 1]]
    assert checked_ids(ids, "e", None).tolist() == expected


@pytest.mark.parametrize("ids", [5, [], [[]], [[1, 2], [3, 4]], np.empty((0, 3), np.int32)])
def test_ids_keep_their_shape(ids: Any) -> None:
    assert checked_ids(ids, "e", None).shape == np.shape(ids)


@pytest.mark.parametrize("bad", [[1.0], [True], ["1"], [2**64], [None], np.empty(0), [[1], [2, 3]]])
def test_ids_that_are_no_integers_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidArrayError, match="ids for embedding 'e'"):
        checked_ids(bad, "e", None)


@pytest.mark.parametrize("bad", [-1, 10, 2**64 - 1])
def test_id_outside_the_rows_is_named_with_table_rows_and_place(bad: int) -> None:
    told = rf"'e' has 10 rows.* 0 to 9; found id {bad}"
    with pytest.raises(IdOutOfRangeError, match=rf"{told} at \[1\]$"):
        checked_ids([3, bad, bad], "e", 10)
    with pytest.raises(IdOutOfRangeError, match=rf"{told} at \[1, 0\]$"):
        checked_ids([[3, 4], [bad, 5]], "e", 10)
    with pytest.raises(IdOutOfRangeError, match=rf"{told}$"):
        checked_ids(bad, "e", 10)


@pytest.mark.parametrize("dim", [0, -1, 2.0, "2", None])
def test_dim_must_be_a_positive_integer(dim: Any) -> None:
    with pytest.raises(ConfigurationError, match="'e': dim must be 1 or more"):
        check_rows("e", dim, 10)


@pytest.mark.parametrize("rows", [0, -1, 2.0, "2"])
def test_rows_must_be_a_positive_integer(rows: Any) -> None:
    with pytest.raises(ConfigurationError, match="'e': rows must be 1 or more"):
        check_rows("e", 2, rows)


@pytest.mark.parametrize("size", [1, np.int64(1)])
def test_good_sizes_pass(size: Any) -> None:
    check_rows("e", size, size)
    check_rows("e", size, None)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.5, None, "float32"),
        ([1, 2], None, "int64"),
        (np.ones(2), None, "float64"),
        ([1, 2], "float64", "float64"),
        (np.ones(2), np.float32, "float32"),
    ],
)
def test_initial_array_has_the_dtype_asked_for(value: Any, dtype: Any, expected: str) -> None:
    assert initial_array(value, dtype, "v").dtype.name == expected


@pytest.mark.parametrize(("kind", "dtype"), [(">f4", None), ("f4", ">f4"), (">i8", None)])
def test_initial_array_has_the_byte_order_of_this_machine(kind: str, dtype: str | None) -> None:
    found = initial_array(np.array([1, 2], kind), dtype, "v")
    assert found.dtype.isnative
    assert found.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ("a", None),
        ([1j], None),
        ([None], None),
        ([[1], [2, 3]], None),
        (1.0, "no dtype"),
        ([300], "int8"),
        (np.ones(1, np.longdouble), None),
    ],
)
def test_initial_value_that_is_no_array_of_real_numbers_is_refused(value: Any, dtype: Any) -> None:
    with pytest.raises(ConfigurationError, match="variable 'v': the initial value"):
        initial_array(value, dtype, "v")


@pytest.mark.parametrize("dtype", ["float16", "int64", "bool"])
def test_optimizer_for_another_dtype_than_floats_is_refused(dtype: str) -> None:
    with pytest.raises(ConfigurationError, match=f"need float32 or float64, found {dtype}"):
        check_optimizer(SGD(), np.dtype(dtype), "v")


@pytest.mark.parametrize("bad", ["sgd", SGD, 0.1])
def test_what_is_no_optimizer_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="'v': optimizer must be one of psnb's"):
        check_optimizer(bad, FLOAT, "v")


@pytest.mark.parametrize("optimizer", [None, SGD()])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_optimizer_for_floats_passes(dtype: str, optimizer: SGD | None) -> None:
    check_optimizer(optimizer, np.dtype(dtype), "v")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, Uniform()),
        (Normal(1.0), Normal(1.0)),
        (0.5, Constant(0.5)),
        (np.float32(0.5), Constant(0.5)),
        (0, Constant(0.0)),
    ],
)
def test_initializer_may_be_left_out_or_a_number(given: Any, meant: Any) -> None:
    assert as_initializer(given, "e") == meant


HUGE = pytest.param(10**400, id="more than a float holds")


@pytest.mark.parametrize("bad", ["zeros", Uniform, math.nan, math.inf, HUGE, np.zeros(2)])
def test_what_is_no_initializer_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="finite number"):
        as_initializer(bad, "e")


@pytest.mark.parametrize("check", [lambda a: checked_array(a, FLOAT, "x"), unchanging])
def test_what_others_can_write_is_copied_though_it_cannot_be_written(
    check: Callable[[np.ndarray], np.ndarray],
) -> None:
    base = np.ones(4, FLOAT)
    view = base[:2].view()
    view.flags.writeable = False
    found = check(view)
    base[...] = 9
    assert found.tolist() == [1, 1]
    base.flags.writeable = False
    assert check(base) is base


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


MEMORY = bytearray(8)


@pytest.mark.parametrize(
    ("array", "copied"),
    [
        (np.frombuffer(bytes(8), FLOAT), False),
        (np.frombuffer(memoryview(bytes(8)), FLOAT), False),
        (read_only(np.frombuffer(MEMORY, FLOAT)), True),
        (np.frombuffer(memoryview(MEMORY).toreadonly(), FLOAT), True),
        (np.frombuffer(memoryview(np.zeros(2, FLOAT)).toreadonly(), FLOAT), True),
        (read_only(np.frombuffer(mmap.mmap(-1, 8), FLOAT)), True),
    ],
)
def test_memory_that_is_no_array_is_copied_if_it_can_be_written(
    array: np.ndarray, copied: bool
) -> None:
    assert (unchanging(array) is not array) is copied


def test_ids_that_others_can_write_are_copied_though_they_cannot_be_written() -> None:
    base = np.ones(4, np.int64)
    view = base.view()
    view.flags.writeable = False
    found = checked_ids(view, "e", 10)
    base[...] = 9
    assert found.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8"])
def test_no_negative_id_is_within_a_table_of_any_size(dtype: str) -> None:
    with pytest.raises(IdOutOfRangeError, match="found id -3"):
        checked_ids(np.array([1, -3], dtype), "e", 2**64)


def test_squares_of_gradients_are_not_stored_in_float16() -> None:
    for kind in (None, "bfloat16"):
        check_slots(Adam(), np.dtype(kind) if kind else None, "e")
    for fits in (None, SGD(), Momentum(), Lion()):
        check_slots(fits, np.dtype("float16"), "e")
    with pytest.raises(ConfigurationError, match="Take slot_dtype='bfloat16'"):
        check_slots(Adam(), np.dtype("float16"), "e")
