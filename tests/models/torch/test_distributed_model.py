"""Tests of training steps: the numbers of torch; servers in this process."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import psnb.torch
from psnb._src.server.optimizers import SGD, Adam
from psnb.errors import ConfigurationError
from tests.models.torch.wide_deep import (
    IDS,
    OFFSETS,
    RATE,
    WORDS,
    Normed,
    WideDeep,
    assert_same,
    distributed,
    loss_of,
    step,
    step_alone,
)


@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_step_is_one_of_torch(mode: str, padding: int | None) -> None:
    module = WideDeep(mode, padding_idx=padding)
    model = distributed(module)
    assert_same(model, module)
    for _ in range(3):
        assert step(model) == pytest.approx(step_alone(module), rel=1e-5)
    assert_same(model, module)


def test_gradients_are_scaled_by_how_often_ids_occur_as_in_torch() -> None:
    module = WideDeep()
    module.users.scale_grad_by_freq = True
    model = distributed(module)
    for _ in range(2):
        assert step(model) == pytest.approx(step_alone(module), rel=1e-5)
    assert_same(model, module)


def test_bags_that_end_with_the_last_offset_are_those_of_torch() -> None:
    module = nn.EmbeddingBag(9, 2, mode="sum", include_last_offset=True)
    model = distributed(module, dense=None)
    ids, offsets = torch.tensor([1, 2, 2, 8]), torch.tensor([0, 1, 4], dtype=torch.int32)
    with model.step():
        found = model(ids, offsets)
        found.square().sum().backward()
    expected = module(ids, offsets.long())
    torch.testing.assert_close(found, expected)
    expected.square().sum().backward()
    torch.optim.SGD(module.parameters(), RATE).step()
    assert_same(model, module)


def test_weights_in_bags_are_those_of_torch() -> None:
    module, weights = WideDeep("sum"), torch.linspace(0.1, 1.0, 5)
    model = distributed(module)
    assert step(model, weights=weights) == pytest.approx(step_alone(module, weights=weights))
    assert_same(model, module)


def test_gradients_of_several_calls_in_a_step_add_up() -> None:
    module = WideDeep()
    model = distributed(module)
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    with model.step():
        for part in (slice(0, 2), slice(2, 4)):
            for each in (model, module):
                each(IDS[part], WORDS[part], torch.arange(2)).sum().backward()
    optimizer.step()
    assert_same(model, module)


def test_clipping_by_norm_counts_rows_as_well() -> None:
    module = WideDeep()
    model = distributed(module)
    with model.step():
        loss_of(model).backward()
        found = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    loss_of(module).backward()
    expected = nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    torch.testing.assert_close(found, expected)
    torch.optim.SGD(module.parameters(), RATE).step()
    assert_same(model, module)


def test_running_statistics_are_those_of_torch() -> None:
    module = Normed()
    model = distributed(module, sparse=None)
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    for seed in range(3):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed))
        with model.step():
            model(x).backward()
        optimizer.zero_grad()
        module(x).backward()
        optimizer.step()
    assert_same(model, module)
    assert model.state_dict()["norm.num_batches_tracked"] == 3
    x = torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), module.eval()(x), rtol=1e-5, atol=1e-6)


def test_autocast_computes_in_half_precision_and_keeps_float32() -> None:
    model = distributed(WideDeep())
    with model.step(), torch.autocast("cpu", torch.bfloat16):
        out = model(IDS, WORDS, OFFSETS)
        assert out.dtype == torch.bfloat16
        out.sum().backward()
    assert all(value.dtype == torch.float32 for value in model.state_dict().values())


def test_a_compiled_part_works() -> None:
    module = WideDeep()
    model_alone = WideDeep()
    model_alone.load_state_dict(module.state_dict())
    module.network.compile(backend="eager")
    model = distributed(module)
    for _ in range(2):
        assert step(model) == pytest.approx(step_alone(model_alone), rel=1e-5)
    assert_same(model, model_alone)


def test_threads_train_at_the_same_time() -> None:
    module = WideDeep()
    model = distributed(module)
    both, losses = threading.Barrier(2, timeout=30), []

    def train() -> None:
        with model.step():
            both.wait()
            loss = loss_of(model)
            both.wait()
            loss.backward()
            both.wait()
        losses.append(loss.item())

    threads = [threading.Thread(target=train) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert losses[0] == losses[1]
    loss_of(module).backward()
    torch.optim.SGD(module.parameters(), 2 * RATE).step()
    assert_same(model, module)


def test_gradients_of_an_evaluation_are_no_part_of_the_next_step() -> None:
    module = WideDeep()
    model = distributed(module)
    loss_of(model.eval()).backward()
    step(model.train())
    step_alone(module)
    assert_same(model, module)


class Momentum(nn.Module):
    """A network, and a slow copy of it that is frozen, and moved by what trainers write."""

    def __init__(self, move: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        self.teacher = copy.deepcopy(self.online).requires_grad_(False)
        self.move = move

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.online.parameters(), strict=True):
                self.move(slow, fast)
        return (self.online(x) - self.teacher(x) - 1).square().mean()


def lerp(slow: Tensor, fast: Tensor) -> None:
    slow.lerp_(fast, 0.5)


def replace_data(slow: Tensor, fast: Tensor) -> None:
    slow.data = slow.data * 0.5 + fast.data * 0.5


@pytest.mark.parametrize("move", [lerp, replace_data])
def test_frozen_parameters_that_forward_moves_are_one_for_all_threads(move: Any) -> None:
    alone = Momentum(move)
    model = distributed(alone, sparse=None)
    optimizer = torch.optim.SGD(alone.online.parameters(), RATE)

    def train(x: Tensor) -> None:
        with model.step():
            model(x).backward()

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for number in range(6):
            x = torch.arange(12.0).reshape(4, 3) / (number + 5)
            (one, other)[number % 2].submit(train, x).result()
            optimizer.zero_grad()
            alone(x).backward()
            optimizer.step()
    assert_same(model, alone)


def test_a_frozen_embedding_that_forward_moves_is_refused() -> None:
    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.out = nn.Embedding(3, 2).requires_grad_(False), nn.Linear(2, 1)

        def forward(self, ids: Tensor) -> Tensor:
            self.rows.weight.data.mul_(0.5)
            return self.out(self.rows(ids)).sum()

    model = distributed(Moved(), sparse=None)
    with pytest.raises(ConfigurationError, match=r"'rows\.weight'.*moves"), model.step():
        model(torch.tensor([1]))


class Factors(nn.Module):
    """Tables and nothing else."""

    def __init__(self, users: nn.Module) -> None:
        super().__init__()
        self.users, self.items = users, nn.EmbeddingBag(9, 4, mode="sum")

    def forward(self, users: Tensor, items: Tensor, offsets: Tensor) -> Tensor:
        users = users.to(next(self.items.parameters()).device)
        return self.users(users).square().sum() + self.items(items, offsets).square().sum()


NO_IDS = torch.zeros(0, dtype=torch.long)


@pytest.mark.parametrize("optimizer", [SGD(RATE), Adam(RATE)])
def test_a_batch_without_any_id_moves_nothing(optimizer: Any) -> None:
    alone = Factors(nn.Embedding(9, 4))
    model = distributed(alone, sparse=optimizer, dense=None)
    for _ in range(2):
        with model.step():
            loss = model(NO_IDS, NO_IDS, torch.zeros(2, dtype=torch.long))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert loss.item() == 0.0
    assert_same(model, alone)


def test_a_step_with_a_call_without_ids_learns_of_the_others() -> None:
    """Of several calls, tables with ids of any number among them."""
    model = distributed(Factors(psnb.torch.Embedding(4, 0.5)), dense=None)
    offsets = torch.tensor([0])
    with model.step():
        model(NO_IDS, NO_IDS, offsets).backward()
        model(torch.tensor([3]), NO_IDS, offsets).backward()
        model(NO_IDS, NO_IDS, offsets).backward()
    assert model.state_dict()["users.rows"].tolist() == [[0.5 - RATE * 2 * 0.5] * 4]


def test_without_backward_a_batch_without_any_id_is_refused_like_others() -> None:
    model = distributed(Factors(nn.Embedding(9, 4)), dense=None)
    with pytest.raises(ConfigurationError, match="belongs into the block"), model.step():
        model(NO_IDS, NO_IDS, torch.tensor([0]))


@pytest.mark.parametrize("name", ["to", "cuda"])
def test_moving_it_to_a_device_raises_where_to_set_that(name: str) -> None:
    model = distributed(WideDeep())
    with pytest.raises(AttributeError, match=r"distribute\(module, strategy, device=\"cuda\"\)"):
        getattr(model, name)
