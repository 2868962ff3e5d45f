"""What `fit` takes becomes batches, without a cluster."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

from psnb._src.models.keras.data import ModelInputs, as_batches
from psnb.errors import ConfigurationError

A, B, Y = np.arange(12.0).reshape(6, 2), np.arange(6.0).reshape(6, 1), np.arange(6)


def first(*given: Any, **options: Any) -> Any:
    return next(iter(as_batches(*given, batch_size=4, **options)))


def test_lists_of_arrays_are_several_inputs_and_targets_as_in_keras() -> None:
    x, y = first([A, B], [Y, 2 * Y])
    for found, expected in zip((*x, *y), (A, B, Y, 2 * Y), strict=True):
        np.testing.assert_array_equal(found, expected[:4])


def test_lists_are_several_inputs_within_dicts_too() -> None:
    (x,) = first({"both": [A, B]})
    np.testing.assert_array_equal(x["both"][1], B[:4])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"city": pd.Series(["Oslo"], dtype=object)}, "found Series of text: psnb.hash_ids"),
        (np.array([1.0, None]), "found ndarray of missing values"),
        (object(), "found object;"),
    ],
    ids=["texts", "missing values", "no array"],
)
def test_what_is_no_array_of_numbers_is_refused_with_what_to_do(given: Any, found: str) -> None:
    with pytest.raises(ConfigurationError, match=found):
        as_batches(given, batch_size=4)


def test_a_model_of_several_inputs_does_not_take_the_matrix_of_a_frame() -> None:
    one, other = (keras.Input((1,), name=name) for name in ("one", "other"))
    inputs = ModelInputs(keras.Model([one, other], keras.layers.Add()([one, other])))
    with pytest.raises(ConfigurationError, match=r"2 inputs.* a batch has 1: .* dict\(frame\)"):
        inputs.arrays(np.ones((3, 2)))
