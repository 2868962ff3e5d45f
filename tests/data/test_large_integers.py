"""Integers of 64 bits in Python's lists: NumPy would make floats of them, and round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb._src.client.arguments import initial_array
from psnb.data import ArraySpec, Dataset, Ragged
from psnb.errors import ConfigurationError, DatasetError

D = Dataset
IDS = [5, 2**53 + 1, 2**63 + 1]
MIXED = [np.int64(2**53 + 1), np.uint64(3)]
SPEC = ArraySpec((None,), np.uint64)


@pytest.mark.parametrize(
    "dataset",
    [
        D.from_tensors(IDS),
        D.from_tensor_slices(IDS).batch(3),
        D.from_tensor_slices([[each] for each in IDS]).map(lambda x: x[0]).batch(3),
        D.range(1).map(lambda x: IDS),
        D.range(3).map(lambda x: IDS, batched=True).batch(3),
        D.from_generator(lambda: [IDS]),
        D.from_generator(lambda: [[5], IDS], output_signature=SPEC).skip(1),
        D.from_generator(lambda: IDS, output_signature=ArraySpec((), np.uint64)).batch(3),
    ],
)
def test_they_stay_integers(dataset: Dataset) -> None:
    (found,) = dataset
    assert (found.dtype, found.tolist()) == (np.uint64, IDS)


def test_so_do_signed_ones_beside_unsigned_ones() -> None:
    (found,) = D.from_tensors(MIXED)
    assert (found.dtype, found.tolist()) == (np.int64, [2**53 + 1, 3])


@pytest.mark.parametrize("numbers", [[-1, 2**63], [1, 2**64]])
def test_what_no_type_holds_is_refused(numbers: list[int]) -> None:
    with pytest.raises(DatasetError, match="no 64-bit type holds"):
        D.from_tensors(numbers)
    with pytest.raises(ConfigurationError, match="no 64-bit type holds"):
        initial_array(numbers, None, "v")


@pytest.mark.parametrize(
    "rows",
    [
        [[2**53 + 1], [2**63 + 1]],
        [np.array([2**53 + 1]), np.array([2**63 + 1], "u8")],
        [[], [2**53 + 1], [], [2**63 + 1]],
    ],
)
def test_rows_of_different_lengths_keep_them_too(rows: list[Any]) -> None:
    found = Ragged.from_rows(rows)
    assert (found.dtype, found.values.tolist()) == (np.uint64, [2**53 + 1, 2**63 + 1])
    parts = [Ragged.from_rows([row]) for row in rows if len(row)]
    assert Ragged.concatenate(parts).values.tolist() == [2**53 + 1, 2**63 + 1]


def test_rows_that_no_type_holds_together_are_refused() -> None:
    with pytest.raises(DatasetError, match="Ragged: no 64-bit type holds"):
        Ragged.from_rows([[-1], [2**63]])


def test_floats_stay_floats() -> None:
    given: list[Any] = [1.5, 2**63]
    (found,) = D.from_tensors(given)
    assert found.tolist() == [1.5, 2.0**63]
    assert initial_array(given, None, "v").dtype == np.float32


def test_initial_values_of_variables_are_exact_too() -> None:
    found = initial_array(IDS, None, "v")
    assert (found.dtype, found.tolist()) == (np.uint64, IDS)
