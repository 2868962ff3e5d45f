"""Tests of training and evaluation modes: those of the notebook count, closure by closure."""

from __future__ import annotations

import cloudpickle
import pytest
import torch
from torch import nn

import psnb.torch
from psnb._src.coordinator.closures.functions import FunctionRegistry
from psnb._src.worker.context import WorkerContext, entered
from tests.models.torch.wide_deep import Normed, distributed


def in_closure(number: int, attempt: int = 1) -> WorkerContext:
    return WorkerContext(0, 1, "w", attempt, lambda *_: None, closure=number)


def modes(model: psnb.torch.DistributedModel) -> tuple[bool, bool]:
    module = model._replicas.get().module  # of what has travelled, the servers are not here
    return model.training, module.norm.training  # type: ignore[return-value]


def travelled(model: psnb.torch.DistributedModel) -> psnb.torch.DistributedModel:
    found: psnb.torch.DistributedModel = cloudpickle.loads(cloudpickle.dumps(model))
    return found


def test_a_closure_begins_in_the_modes_of_the_notebook() -> None:
    model = distributed(Normed(), sparse=None)
    model.module.norm.eval()  # type: ignore[operator]
    first, second = travelled(model), travelled(model.eval())
    with entered(in_closure(1)):
        assert modes(first) == (True, False)
        assert modes(second) == (False, False)


@pytest.mark.parametrize("context", [in_closure(2), in_closure(1, attempt=2)])
def test_what_a_closure_changes_in_modes_ends_with_it(context: WorkerContext) -> None:
    model = travelled(distributed(Normed(), sparse=None))
    with entered(in_closure(1)):
        model.eval()
        assert modes(model) == (False, False)
    with entered(context):
        assert modes(model) == (True, True)


def test_a_function_travels_again_when_a_mode_has_changed() -> None:
    model = distributed(Normed(), sparse=None)

    def step() -> bool:
        return model.training

    registry = FunctionRegistry()
    first = registry.register(step)
    assert registry.register(step) is first
    model.module.norm.eval()  # type: ignore[operator]
    second = registry.register(step)
    assert second.id != first.id
    model.eval()
    assert registry.register(step).id not in (first.id, second.id)


def test_a_function_travels_again_when_what_stays_on_workers_was_loaded() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].bias.requires_grad_(False)
    model = distributed(module, sparse=None)

    def step() -> torch.Tensor:
        return model(torch.zeros(1, 2))

    registry = FunctionRegistry()
    first = registry.register(step)
    model.load_state_dict({**model.state_dict(), "0.bias": torch.ones(2)})
    assert registry.register(step).id != first.id


def test_a_train_of_the_modules_own_is_asked() -> None:
    class Frozen(Normed):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self.norm.eval()
            return self

    model = distributed(Frozen().eval(), sparse=None)
    assert modes(model.train()) == (True, False)
    assert modes(travelled(model.train())) == (True, False)
