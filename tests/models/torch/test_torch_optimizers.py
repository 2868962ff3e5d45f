"""Tests of torch's optimizers as those of psnb: what is taken over, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import psnb
import psnb.torch
from psnb._src.server.optimizer import Optimizer
from psnb.errors import ConfigurationError
from tests.models.placing import InProcessStrategy


class Small(nn.Module):
    """A table and a layer."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 2, **options), nn.Linear(2, 1)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.table(ids)).sum()
        return found


def distributed(module: nn.Module, optimizer: Any, **options: Any) -> psnb.torch.DistributedModel:
    return psnb.torch.distribute(module, InProcessStrategy(), optimizer=optimizer, **options)


def optimizer_of(make: Callable[[Any], torch.optim.Optimizer]) -> Optimizer:
    """Return what the table has of an optimizer of all parameters."""
    module = Small()
    model = distributed(module, make(module.parameters()))
    live = model.tables["table.weight"].optimizer
    assert live is not None
    (variable,) = model.variables
    assert variable.optimizer is not None
    assert variable.optimizer.current() == live.current()
    return live.current()


optim = torch.optim
TAKEN: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], Optimizer]] = {
    "sgd": (lambda p: optim.SGD(p, 0.5, weight_decay=0.25), psnb.SGD(0.5, weight_decay=0.25)),
    "momentum": (
        lambda p: optim.SGD(p, 0.5, 0.25, dampening=0.5, maximize=True),
        psnb.Momentum(0.5, 0.25, dampening=0.5, maximize=True),
    ),
    "nesterov": (lambda p: optim.SGD(p, 0.5, 0.25, nesterov=True), psnb.Momentum(0.5, 0.25, True)),
    "adagrad": (optim.Adagrad, psnb.Adagrad(0.01, 0.0, 1e-10)),
    "adagrad of other numbers": (
        lambda p: optim.Adagrad(p, 0.5, 0.25, 0.125, 2.0, 1e-3),
        psnb.Adagrad(0.5, 2.0, 1e-3, learning_rate_decay=0.25, weight_decay=0.125),
    ),
    "adam": (optim.Adam, psnb.Adam(0.001, decoupled=False)),
    "adam of other numbers": (
        lambda p: optim.Adam(p, torch.tensor(0.5), (0.5, 0.75), 1e-3, 0.25, True),
        psnb.Adam(0.5, 0.5, 0.75, 1e-3, decoupled=False, weight_decay=0.25, amsgrad=True),
    ),
    "adamw": (optim.AdamW, psnb.Adam(0.001, weight_decay=0.01)),
    "rmsprop": (optim.RMSprop, psnb.RMSProp(0.01, 0.99, epsilon=1e-8, epsilon_in_root=False)),
    "rmsprop of other numbers": (
        lambda p: optim.RMSprop(p, 0.5, 0.25, 1e-3, 0.125, 0.75, True),
        psnb.RMSProp(0.5, 0.25, 0.75, 1e-3, True, epsilon_in_root=False, weight_decay=0.125),
    ),
    "how it is computed": (
        lambda p: optim.Adam(p, foreach=True, capturable=True),
        psnb.Adam(decoupled=False),
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_an_optimizer_keeps_its_hyperparameters(name: str) -> None:
    make, expected = TAKEN[name]
    assert optimizer_of(make) == expected


def test_groups_of_parameters_keep_their_own() -> None:
    module = Small()
    groups = [
        {"params": module.table.parameters(), "lr": 0.5},
        {"params": [module.out.weight], "betas": (0.5, 0.75)},
        {"params": [module.out.bias], "lr": 0.25, "weight_decay": 0.5},
    ]
    model = distributed(module, torch.optim.AdamW(groups, weight_decay=0.0))
    live = model.tables["table.weight"].optimizer
    assert live is not None
    assert live.current() == psnb.Adam(0.5)
    assert [each.optimizer.current() for each in model.variables] == [  # type: ignore[union-attr]
        psnb.Adam(0.001, 0.5, 0.75),
        psnb.Adam(0.25, weight_decay=0.5),
    ]


def test_several_optimizers_and_those_of_psnb_share_a_module() -> None:
    module = Small(sparse=True)
    module.hashed = psnb.torch.Embedding(2)
    model = distributed(
        module,
        [
            torch.optim.SparseAdam(module.table.parameters(), 0.5),
            torch.optim.SGD([module.out.weight], 0.25),
        ],
        sparse=psnb.Adagrad(0.125),
        dense=lambda name: psnb.FTRL(0.75) if name == "out.bias" else psnb.SGD(),
    )
    found = {n: e.optimizer.current() for n, e in model.tables.items()}  # type: ignore[union-attr]
    assert found == {
        "table.weight": psnb.Adam(0.5, epsilon_hat=True),
        "hashed": psnb.Adagrad(0.125),
    }
    assert {each.optimizer.current() for each in model.variables} == {  # type: ignore[union-attr]
        psnb.SGD(0.25),
        psnb.FTRL(0.75),
    }


def test_frozen_and_shared_parameters_are_found() -> None:
    module = Small()
    module.other = nn.Linear(2, 1)
    module.other.weight = module.out.weight
    module.out.bias.requires_grad_(False)
    model = distributed(module, torch.optim.SGD(module.parameters(), 0.5))
    found = [each.optimizer.current() for each in model.variables]  # type: ignore[union-attr]
    assert found == [psnb.SGD(0.5)] * 2  # what is frozen lies apart


def used(module: nn.Module, kind: Any) -> torch.optim.Optimizer:
    """Return an optimizer that has taken a step."""
    optimizer: torch.optim.Optimizer = kind(module.parameters(), lr=0.5)
    module(torch.tensor([1])).backward()
    optimizer.step()
    return optimizer


def loaded(module: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adagrad(module.parameters())
    optimizer.load_state_dict(used(Small(), torch.optim.Adagrad).state_dict())
    return optimizer


def hooked(module: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(module.parameters())
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def scheduled(module: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(module.parameters())
    StepLR(optimizer, 10)
    return optimizer


class Own(torch.optim.Adam):
    """An optimizer that may step in a way of its own."""


REFUSED: dict[str, Callable[[Any], Any]] = {
    r"servers have no torch\.optim\.nadam\.NAdam; they apply SGD, Adagrad, Adam, AdamW": lambda m: (
        optim.NAdam(m.parameters())
    ),
    r"servers have no .*test_torch_optimizers\.Own": lambda m: Own(m.parameters()),
    r"expected an optimizer of torch.*found Adagrad\(.*sparse= and dense=": lambda m: psnb.Adagrad(
        0.1
    ),
    r"differentiable=True": lambda m: optim.SGD(m.parameters(), differentiable=True),
    r"SGD has a scheduler .*psnb\.CosineDecay.*learning_rate = rate": scheduled,
    r"hooks of its steps": hooked,
    r"Adam has taken steps.*exp_avg.*make a new": lambda m: used(m, optim.Adam),
    r"Adagrad has taken steps": lambda m: used(m, optim.Adagrad),
    r"or has loaded the state": loaded,
    r"group 0 of SGD has a parameter of shape \(5, 2\) that is none of the module's": lambda m: (
        optim.SGD(Small().parameters())
    ),
    r"'out.bias' \(1 of 2\) are in no optimizer.*dense=": lambda m: optim.SGD(
        [m.table.weight, m.out.weight]
    ),
    r"'table.weight' \(1 of 1\) are in no optimizer.*sparse=": lambda m: optim.SGD(
        m.out.parameters()
    ),
    r"'out.weight' is in two optimizers": lambda m: (
        [optim.SGD(m.parameters()), optim.Adam([m.out.weight])]
    ),
    r"SparseAdam has 'out.weight', which is not a": lambda m: optim.SparseAdam(m.parameters()),
    r"torch\.optim\.SGD: Momentum\(momentum=1\.5\): momentum must be": lambda m: optim.SGD(
        m.parameters(), momentum=1.5
    ),
    r"torch\.optim\.Adam: Adam\(epsilon=0.*above 0": lambda m: optim.Adam(m.parameters(), eps=0),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_servers_cannot_do_is_refused_by_name(message: str) -> None:
    module, strategy = Small(), InProcessStrategy()
    with pytest.raises(ConfigurationError, match=message):
        psnb.torch.distribute(module, strategy, optimizer=REFUSED[message](module))
    assert not strategy.parameters


@pytest.mark.parametrize("unused", ["sparse", "dense"])
def test_an_optimizer_that_nothing_would_have_is_refused(unused: str) -> None:
    module = Small()
    optimizer = torch.optim.SGD(module.parameters())
    with pytest.raises(ConfigurationError, match=f"all that {unused}= would be for"):
        distributed(module, optimizer, **{unused: psnb.SGD()})


def test_sgd_without_state_may_have_been_used() -> None:
    module = Small()
    model = distributed(module, used(module, torch.optim.SGD))
    assert model.variables[0].optimizer.current() == psnb.SGD(0.5)  # type: ignore[union-attr]


def test_accumulators_begin_where_the_optimizer_made_them() -> None:
    module = Small()
    groups = [{"params": module.parameters(), "initial_accumulator_value": 3.0}]
    optimizer = torch.optim.Adagrad(groups, initial_accumulator_value=2.0)
    model = distributed(module, optimizer)
    assert model.variables[0].optimizer.initial_accumulator_value == 2.0  # type: ignore[union-attr]


def test_accumulators_that_were_changed_are_refused() -> None:
    module = Small()
    optimizer = torch.optim.Adagrad(module.parameters())
    optimizer.state[module.out.weight]["sum"][0, 0] = 3.0
    with pytest.raises(ConfigurationError, match="accumulators of this Adagrad were changed"):
        distributed(module, optimizer)


def test_an_optimizer_of_torch_as_one_of_psnb_says_where_it_goes() -> None:
    module = Small()
    optimizer = torch.optim.SGD(module.parameters())
    with pytest.raises(ConfigurationError, match=r"psnb\.torch\.distribute\(optimizer=\)"):
        psnb.torch.distribute(module, InProcessStrategy(), sparse=optimizer, dense=optimizer)  # type: ignore[arg-type]
