"""Tests of where ids are in the inputs of a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from psnb._src.torch_models.id_plan import inputs_of, located, planned

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
    "take", [lambda ids: ids + 1, lambda ids: ids.clone(), lambda ids: ids.int(), lambda ids: ids.T]
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
