"""Tests of buffers: what steps of several workers make of them, however late; servers here."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import psnb.torch
from psnb._src.protocol.modes import Async, BoundedStaleness, Geo, Mode, Sync
from psnb._src.server.optimizers import SGD
from psnb.errors import ConfigurationError
from tests.models.placing import InProcessStrategy
from tests.models.torch.wide_deep import RATE, assert_same, distributed

MOMENTUM = 0.1


class Net(nn.Module):
    """Normalizes what it gets, and what it makes of it, with two layers that are called or one."""

    def __init__(self, norm: nn.Module | None = None, calls: int = 1) -> None:
        super().__init__()
        self.norm = norm or nn.BatchNorm1d(3, momentum=MOMENTUM)
        self.out, self.calls = nn.Linear(3, 1), calls

    def forward(self, x: Tensor) -> Tensor:
        for number in range(self.calls):
            x = self.norm(x + number)
        return self.out(x).square().mean()


def batches(count: int, scale: float, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(8, 3, generator=generator) for _ in range(count)]


def train(model: psnb.torch.DistributedModel, x: Tensor) -> None:
    with model.step():
        model(x).backward()


@contextmanager
def late(model: psnb.torch.DistributedModel, several: Sequence[Tensor]) -> Iterator[None]:
    """Let a worker for each batch compute a step before the block, and push it after it."""
    computed = threading.Barrier(len(several) + 1, timeout=30)
    go = [threading.Event() for _ in several]

    def paused(x: Tensor, go: threading.Event) -> None:
        with model.step():
            model(x).backward()
            computed.wait()
            assert go.wait(30)

    with ThreadPoolExecutor(len(several)) as threads:
        steps = [threads.submit(paused, *each) for each in zip(several, go, strict=True)]
        computed.wait()
        yield
        for step, event in zip(steps, go, strict=True):
            event.set()
            step.result()


def averaged(before: np.ndarray, statistics: Sequence[np.ndarray]) -> np.ndarray:
    """Return the moving average of statistics, by hand."""
    for each in statistics:
        before = (1 - MOMENTUM) * before + MOMENTUM * each
    return before


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_late_steps_are_averaged_with_what_is_there_when_they_come(scale: float) -> None:
    model = distributed(Net(), sparse=None)
    x = batches(43, scale)
    with late(model, x[:3]):
        for each in x[3:]:
            train(model, each)
    found = model.state_dict()
    statistics = {
        "running_mean": (np.zeros(3), [each.double().mean(0).numpy() for each in x]),
        "running_var": (np.ones(3), [each.double().var(0).numpy() for each in x]),
    }
    for name, (before, of_batches) in statistics.items():
        expected = averaged(before, [*of_batches[3:], *of_batches[:3]])
        value = found[f"norm.{name}"].numpy()
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6 * scale)
    assert (found["norm.running_var"] > 0).all()
    assert found["norm.num_batches_tracked"] == 43
    with torch.no_grad():
        assert model.eval()(x[0]).isfinite()


def test_late_steps_leave_a_variance_between_those_of_batches() -> None:
    model = distributed(Net(), sparse=None)
    large, small = batches(30, 10.0), batches(30, 1e-3, seed=1)
    seen = torch.stack([torch.ones(3), *(each.var(0) for each in (*large, *small))])
    for _ in range(4):
        for several, others in ((large, small), (small, large)):
            for each in several:
                train(model, each)
            with late(model, several[:4]):
                for each in others:
                    train(model, each)
            found = model.state_dict()["norm.running_var"]
            assert (seen.min(0).values <= found).all()
            assert (found <= seen.max(0).values).all()


LAYERS = [
    nn.BatchNorm1d(3),
    nn.BatchNorm1d(3, momentum=0.0),
    nn.BatchNorm1d(3, momentum=1.0),
    nn.BatchNorm1d(3, affine=False),
    nn.BatchNorm1d(3, track_running_stats=False),
]


def assert_as_alone(module: nn.Module, x: Sequence[Tensor], mode: Mode | None = None) -> None:
    """Train on the servers and alone, and compare parameters and buffers."""
    model = distributed(module, InProcessStrategy(mode=mode or Async()), sparse=None)
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    for each in x:
        train(model, each)
        optimizer.zero_grad()
        module(each).backward()
        optimizer.step()
    assert_same(model, module)


@pytest.mark.parametrize("norm", LAYERS, ids=lambda each: each.extra_repr())
@pytest.mark.parametrize("calls", [1, 3])
def test_one_worker_gives_the_averages_of_torch(norm: nn.Module, calls: int) -> None:
    assert_as_alone(Net(copy.deepcopy(norm), calls), batches(5, 2.0))


def test_instances_are_averaged_as_in_torch() -> None:
    class Instances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
            self.still = nn.InstanceNorm1d(2, momentum=None, track_running_stats=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.still(self.norm(x.reshape(4, 2, 3)) + 1).square().mean()

    assert_as_alone(Instances(), batches(3, 2.0))


def test_an_average_of_all_batches_is_that_of_torch_in_rounds() -> None:
    norm = nn.BatchNorm1d(3, momentum=None)
    assert_as_alone(Net(norm), batches(4, 2.0), Sync(1))


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1), Geo(2)])
def test_an_average_of_all_batches_is_refused_where_steps_may_come_late(mode: Mode) -> None:
    strategy = InProcessStrategy(mode=mode)
    module = Net(nn.Sequential(nn.BatchNorm1d(3, momentum=None)))
    with pytest.raises(ConfigurationError, match=r"'norm\.0' has momentum=None.*psnb\.Sync"):
        psnb.torch.distribute(module, strategy, dense=SGD(0.1))
    assert not strategy.parameters


def test_a_layer_that_is_evaluated_in_a_step_moves_nothing_and_uses_its_averages() -> None:
    module = Net()
    model = distributed(module, sparse=None)
    x, y = batches(2, 3.0)
    train(model, x)
    module.load_state_dict(model.state_dict())
    model.module.norm.eval()
    with model.step():
        found = model(y)
        found.backward()
    module.norm.eval()
    torch.testing.assert_close(found, module(y))
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        expected = getattr(module.norm, name)
        torch.testing.assert_close(model.state_dict()[f"norm.{name}"], expected, rtol=0, atol=0)


def test_averages_are_those_of_torch_within_a_step() -> None:
    class Reading(Net):
        def forward(self, x: Tensor) -> Tensor:
            before = self.norm.running_var.clone()
            found = super().forward(x)
            return found * (self.norm.running_var - before).sum()

    assert_as_alone(Reading(), batches(3, 3.0))


def test_a_part_that_is_computed_again_backwards_counts_twice_as_in_torch() -> None:
    class Again(Net):
        def forward(self, x: Tensor) -> Any:
            return checkpoint(super().forward, self.out.weight.sum() + x, use_reentrant=False)

    assert_as_alone(Again(), batches(3, 3.0))


def test_a_compiled_layer_gives_the_averages_of_torch() -> None:
    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net()

        def forward(self, x: Tensor) -> Any:
            return self.inner(x)

    module = Compiled()
    module.inner.compile(backend="eager")
    assert_as_alone(module, batches(3, 3.0))


@pytest.mark.parametrize("how", ["inference", "written", "between"])
def test_averages_that_something_else_moves_too_are_set(how: str) -> None:
    class Moved(Net):
        def forward(self, x: Tensor) -> Tensor:
            found = super().forward(x)
            if how == "inference":
                with torch.inference_mode():
                    super().forward(x + 2)
            else:
                self.norm.running_var.data.mul_(0.5)
            if how == "between":
                found = found + super().forward(x + 2)
            return found

    assert_as_alone(Moved(), batches(3, 3.0))


def test_a_call_that_fails_leaves_averages_as_they_were() -> None:
    module = Net()
    model = distributed(module, sparse=None)
    x = batches(1, 3.0)[0]
    with model.step():
        with pytest.raises(RuntimeError):
            model(x[:, :2])
        model(x).backward()
    with pytest.raises(RuntimeError):
        module(x[:, :2])
    module(x).backward()
    torch.optim.SGD(module.parameters(), RATE).step()
    assert_same(model, module)


class Teacher(nn.Module):
    """Has a buffer of its own, which it moves slowly, and counts its steps."""

    slow: Tensor
    steps: Tensor
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("slow", torch.ones(2))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([-torch.inf, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.slow.mul_(0.5).add_(x, alpha=0.5)
            self.steps += 1
            self.mask[1] -= 1
        return (self.weight * x).sum()


def test_late_steps_set_other_buffers_to_what_they_have_computed_and_add_to_counts() -> None:
    model = distributed(Teacher(), sparse=None)
    zero = torch.zeros(2)
    with late(model, [zero]):
        for _ in range(20):
            train(model, zero)
        assert model.state_dict()["slow"][0] == 0.5**20
    found = model.state_dict()
    assert found["slow"].tolist() == [0.5, 0.5]  # changes would add up to -0.5
    assert found["steps"] == 21
    assert found["mask"].tolist() == [-torch.inf, -1.0]


def test_buffers_that_a_step_does_not_move_are_not_written() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = Net(), Teacher()

        def forward(self, x: Tensor) -> Tensor:
            return self.left(x) if x.shape == (8, 3) else self.right(x)

    model = distributed(Either(), sparse=None)
    x, y = batches(1, 3.0)[0], torch.zeros(2)
    with late(model, [x, y]):
        train(model, y)
        train(model, x)
    found = model.state_dict()
    assert found["left.norm.num_batches_tracked"] == 2
    assert found["right.steps"] == 2
    assert found["right.slow"].tolist() == [0.5, 0.5]


def test_a_buffer_of_half_precision_is_kept() -> None:
    class Half(nn.Module):
        last: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("last", torch.zeros(2, dtype=torch.bfloat16))

        def forward(self, x: Tensor) -> Tensor:
            self.last.copy_(x)
            return (self.weight * x).sum()

    model = distributed(Half(), sparse=None)
    train(model, torch.tensor([1.5, 2.5]))
    assert model.state_dict()["last"].tolist() == [1.5, 2.5]
