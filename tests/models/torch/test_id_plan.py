"""Tests of where ids are in the inputs of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from psnb._src.models.torch.model_pass import examples_of, inputs_of, located, planned, same_memory

TAKEN: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda ids: ids,
    "a column": lambda ids: ids[:, 3],
    "columns": lambda ids: ids[:, 1:4],
    "the last column": lambda ids: ids[:, -1],
    "all in another shape": lambda ids: ids.reshape(-1),
    "a column with an axis": lambda ids: ids[:, 2:3],
}


@pytest.mark.parametrize("take", TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize("batch", [1, 3, 7])
def test_what_was_taken_from_a_batch_is_found_in_another(
    take: Callable[[Tensor], Tensor], batch: int
) -> None:
    first, second = torch.arange(20).reshape(4, 5), torch.arange(5 * batch).reshape(batch, 5)
    entry = located("t", take(first), dict(inputs_of(({"x": first.float(), "ids": first},))))
    assert entry is not None
    assert entry.path == (0, "ids")
    found = planned(entry, dict(inputs_of(({"ids": second},))))
    assert found is not None
    assert found.reshape(-1).tolist() == take(second).reshape(-1).tolist()


@pytest.mark.parametrize(
    "take",
    [
        lambda ids: ids + 1,
        lambda ids: ids.clone(),
        lambda ids: ids.int(),
        lambda ids: ids.T,
        lambda ids: ids.view(torch.float64),
        lambda ids: ids.reshape(-1)[2:6:2],
        lambda ids: ids[::2],
        lambda ids: ids.diagonal(),
    ],
)
def test_what_was_computed_is_no_part_of_a_batch(take: Callable[[Tensor], Tensor]) -> None:
    ids = torch.arange(20).reshape(4, 5)
    assert located("t", take(ids), {(): ids}) is None


def test_a_batch_without_such_an_input_has_no_such_ids() -> None:
    ids = torch.arange(20).reshape(4, 5)
    entry = located("t", ids[:, 4], {(0,): ids})
    assert entry is not None
    for other in ({(1,): ids}, {(0,): ids[:, :4].contiguous()}, {(0,): ids.reshape(-1)}):
        assert planned(entry, other) is None
    columns = located("t", ids[:, 2:4], {(0,): ids})
    assert columns is not None
    assert planned(columns, {(0,): ids[:, :3].contiguous()}) is None
    assert planned(columns, {(0,): ids[:, :4].contiguous()}) is not None


def test_what_is_taken_from_an_input_that_is_no_whole_array_is_not_found() -> None:
    ids = torch.arange(20).reshape(4, 5).T
    assert located("t", ids[0], {(): ids}) is None


def test_a_part_at_the_beginning_of_an_input_is_not_all_of_it() -> None:
    ids = torch.arange(6)
    entry = located("t", ids[:2], {(): ids})
    assert entry is not None
    assert entry.part == ((0, 2),)


def test_the_same_memory_is_the_same_elements_in_the_same_order() -> None:
    ids = torch.arange(4).reshape(2, 2)
    assert same_memory(ids, ids.reshape(-1))
    assert same_memory(ids.T, ids.T)
    assert same_memory(ids[:, 0], ids[:, 0])
    for one, other in ((ids, ids[:1]), (ids, ids.T), (ids.T, ids), (ids[:, 0], ids[0])):
        assert not same_memory(one, other)


def test_settings_of_a_model_are_no_batch() -> None:
    @dataclass
    class Settings:
        weights: Tensor
        cache: Any = field(init=False)  # never set

    settings = Settings(torch.ones(3))
    assert examples_of(((settings, torch.zeros(512)), {})) == 512
    assert [path for path, _ in inputs_of((settings, torch.zeros(2)))] == [(1,)]
