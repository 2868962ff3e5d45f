"""Tests of what a step asks of servers; servers in this process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from psnb._src.server.optimizers import Adam
from tests.models.placing import InProcessStrategy
from tests.models.torch.wide_deep import (
    IDS,
    OFFSETS,
    RATE,
    WORDS,
    WideDeep,
    assert_same,
    distributed,
    loss_of,
    step,
    step_alone,
)


def test_from_the_second_step_on_servers_are_read_once_and_written_once() -> None:
    strategy = InProcessStrategy()
    model = distributed(WideDeep(), strategy)
    counts = []
    for _ in range(3):
        strategy.calls()
        step(model)
        counts.append(strategy.calls())
    assert counts[1:] == [3, 3]  # one to read; prepared on both servers, then applied
    assert counts[0] > 3


def test_tables_that_are_asked_for_the_same_ids_keep_their_own_rows() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Embedding(10, 2), nn.Embedding(10, 2)

        def forward(self, ids: Tensor) -> Tensor:
            first, second = ids[:, 0], ids[:, 1]
            return (self.one(first) * self.two(second) * self.two(first)).sum()

    module = Both()
    model, ids = distributed(module), torch.tensor([[5, 7], [2, 3]])
    expected = module(ids)
    for _ in range(2):  # the second time ids are known ahead
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(ids), expected)


def test_what_was_learned_from_a_batch_is_of_use_for_batches_of_other_lengths() -> None:
    strategy = InProcessStrategy()
    model = distributed(WideDeep(), strategy)
    step(model)
    strategy.calls()
    with torch.no_grad():
        model(IDS[:2], WORDS[:3], OFFSETS[:2])
    assert strategy.calls() == 1


def test_ids_that_a_module_computes_can_be_declared() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.table(ids + 1).sum()

    strategy = InProcessStrategy()
    model = distributed(Shifted(), strategy)
    for options, expected in (({}, 3), ({"ids": {"table": IDS.clamp(max=8) + 1}}, 3)):
        strategy.calls()
        with model.step(**options):
            model(IDS.clamp(max=8)).backward()
        assert strategy.calls() == expected


class Choosing(nn.Module):
    """A module that uses two inputs, or one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 2)

    def forward(self, one: Tensor, two: Tensor, both: bool = True) -> Tensor:
        rows = self.table(one).sum()
        return rows + 2 * self.table(two).sum() if both else rows


def test_rows_that_were_expected_and_not_used_do_not_move() -> None:
    model = distributed(Choosing(), sparse=Adam(RATE), dense=None)
    one, two = torch.tensor([1, 2]), torch.tensor([2, 3, 3])
    for _ in range(2):
        with model.step():
            model(one, two).backward()
    before = model.state_dict()["table.weight"]
    with model.step():
        model(one, two, both=False).backward()
    after = model.state_dict()["table.weight"]
    moved = (after != before).any(1).nonzero().flatten().tolist()
    assert moved == [1, 2]  # by its momentum, 3 would move too


class Shifting(nn.Module):
    """A module that changes its ids in their place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids.sub_(10)).sum()


def test_ids_that_a_module_changes_in_their_place_are_not_expected_as_they_came() -> None:
    module = Shifting()
    model = distributed(module, dense=None)
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    for _ in range(3):
        with model.step():
            model(torch.tensor([10, 18])).backward()  # outside of the table, as they come
        optimizer.zero_grad()
        module(torch.tensor([10, 18])).backward()
        optimizer.step()
    assert_same(model, module)


def test_declared_ids_that_change_in_their_place_are_looked_up_as_they_are_then() -> None:
    strategy = InProcessStrategy()
    model = distributed(nn.Embedding(10, 2), strategy, dense=None)
    before = model.state_dict()["weight"]
    ids = torch.tensor([1, 2])
    with model.step(ids={"weight": ids}):
        model(ids.add_(1)).sum().backward()
    moved = (model.state_dict()["weight"] != before).any(1).nonzero().flatten().tolist()
    assert moved == [2, 3]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_model_that_was_first_called_without_gradients_learns(mode: Any) -> None:
    module = WideDeep()
    model = distributed(module)
    with mode():
        loss_of(model)
    for _ in range(2):
        assert step(model) == pytest.approx(step_alone(module), rel=1e-5)
        with mode():
            torch.testing.assert_close(loss_of(model.eval()), loss_of(module))
        model.train()
    assert_same(model, module)
