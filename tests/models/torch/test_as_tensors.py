"""Tests of elements as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import psnb.torch
from psnb.data import Dataset, Ragged
from psnb.errors import ConfigurationError


@dataclass
class Kind:
    a: Any


class Pair(NamedTuple):
    a: Any
    b: Any


def test_arrays_become_tensors_with_the_same_memory() -> None:
    array = np.arange(4.0)
    array.flags.writeable = False
    found = psnb.torch.as_torch({"a": (array, [Pair(array, "text")])})
    assert found["a"][0].data_ptr() == array.ctypes.data
    assert found["a"][1][0].b == "text"
    assert psnb.torch.as_torch(Kind) is Kind  # a class, not one of its objects
    assert torch.equal(psnb.torch.as_torch(Kind(array)).a, found["a"][0])
    assert torch.equal(found["a"][1][0].a, torch.arange(4.0, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["u1", "u2", "u4", ">u2", ">u4"])
def test_unsigned_integers_keep_their_numbers(kind: str) -> None:
    array = np.array([0, np.iinfo(kind).max], kind)
    found = psnb.torch.as_torch(array)
    assert found.tolist() == array.tolist()
    assert found.dtype in {torch.uint8, torch.int32, torch.int64}  # torch does much with these


@pytest.mark.parametrize("kind", ["u8", ">u8"])
def test_unsigned_integers_of_64_bits_keep_their_bits(kind: str) -> None:
    array = np.array([5, 2**64 - 1], kind)
    assert psnb.torch.as_torch(array).tolist() == [5, -1]


def test_arrays_that_torch_cannot_show_are_copied() -> None:
    assert psnb.torch.as_torch(np.arange(3)[::-1]).tolist() == [2, 1, 0]
    assert psnb.torch.as_torch(np.arange(3, dtype=">i4")).tolist() == [0, 1, 2]


def test_ragged_rows_become_bags() -> None:
    bags = psnb.torch.as_torch(Ragged.from_rows([[1, 2], [], [0]], np.int64))
    module = nn.EmbeddingBag(3, 2, mode="sum")
    rows = module.weight
    torch.testing.assert_close(
        module(*bags), torch.stack([rows[1] + rows[2], 0 * rows[0], rows[0]])
    )


def test_what_a_dataset_yields_is_not_copied() -> None:
    dataset = Dataset.from_tensor_slices({"x": np.arange(6.0), "name": np.array(list("abcdef"))})
    batch = next(iter(dataset.batch(3)))
    found = psnb.torch.as_torch(batch)
    assert found["x"].data_ptr() == batch["x"].ctypes.data
    assert found["name"] is batch["name"]


def test_columns_of_frames_become_tensors_and_a_frame_is_no_batch() -> None:
    frame = pd.DataFrame({"user": [1, 2], "price": [0.5, 1.5], "city": ["Rome", "Oslo"]})
    found = psnb.torch.as_torch(dict(frame))
    assert (found["user"].tolist(), found["price"].tolist()) == ([1, 2], [0.5, 1.5])
    assert found["city"].tolist() == ["Rome", "Oslo"]
    with pytest.raises(ConfigurationError, match=r"which dict\(frame\) makes of a frame"):
        psnb.torch.as_torch(frame)
