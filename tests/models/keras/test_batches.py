"""What `fit` takes becomes batches, without a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from psnb._src.models.keras.data import as_batches

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
