"""No gradient is not a gradient of zeros: what a step has none for stays as PyTorch leaves it."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as entropy

import psnb
import psnb.torch
from psnb._src.worker.context import WorkerContext, entered
from psnb.errors import ConfigurationError
from tests.models.placing import InProcessStrategy

Optimizers = list[torch.optim.Optimizer]
Make = Callable[[Any], torch.optim.Optimizer]

MADE: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, lr_decay=0.3),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-2, momentum=0.5),
}
KINDS = pytest.mark.parametrize("make", MADE.values(), ids=MADE)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 1), nn.Linear(5, 1)

    def forward(self, x: Tensor, head: str) -> Tensor:
        found: Tensor = getattr(self, head)(torch.relu(self.base(x)))[:, 0]
        return found


def batch(number: int) -> Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(number))


def made(kind: Callable[[], nn.Module] = Heads) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def loss(model: Any, number: int) -> Tensor:
    head = "ab"[number // 2 % 2]
    return (model(batch(number), head) - 1).square().mean()


def distance(model: psnb.torch.DistributedModel, plain: nn.Module) -> float:
    found, expected = model.state_dict(), plain.state_dict()
    return max((found[k] - expected[k]).abs().max().item() for k in expected)


def distributed(
    module: nn.Module, optimizer: Any, mode: psnb.Sync | None = None
) -> psnb.torch.DistributedModel:
    strategy: Any = InProcessStrategy(mode=mode)
    return psnb.torch.distribute(module, strategy, optimizer=optimizer)


@KINDS
def test_heads_that_are_used_in_turn_are_torchs(make: Make) -> None:
    module, plain = made(), made()
    model = distributed(module, make(module.parameters()))
    optimizer = make(plain.parameters())
    for number in range(8):
        with model.step():
            loss(model, number).backward()
        optimizer.zero_grad()
        loss(plain, number).backward()
        optimizer.step()
    assert distance(model, plain) < 1e-6


@KINDS
def test_two_optimizers_of_equal_settings_are_two(make: Make) -> None:
    module, plain = made(), made()

    def optimizers(of: Any) -> Optimizers:
        return [make([*of.base.parameters(), *of.a.parameters()]), make(of.b.parameters())]

    model = distributed(module, optimizers(module))
    assert len(model.variables) == 2
    for number in range(8):
        with model.step():
            loss(model, number).backward()
    both = optimizers(plain)
    for number in range(8):
        for each in both:
            each.zero_grad()
        loss(plain, number).backward()
        for each in both:
            each.step()
    assert distance(model, plain) < 1e-6


def by_parameters(model: psnb.torch.DistributedModel, module: Any, learns: bool) -> None:
    for name, each in model.named_parameters():
        if name.startswith("base"):
            each.requires_grad_(learns)


def by_module(model: psnb.torch.DistributedModel, module: Any, learns: bool) -> None:
    model.module.base.requires_grad_(learns)  # type: ignore[union-attr,operator]


def by_the_plain_module(model: psnb.torch.DistributedModel, module: Any, learns: bool) -> None:
    module.base.requires_grad_(learns)


def run(model: psnb.torch.DistributedModel, number: int, closure: int) -> None:
    """Make a step as a closure that is scheduled now does."""
    travelled: psnb.torch.DistributedModel = cloudpickle.loads(cloudpickle.dumps(model))
    values = model._placed.values
    travelled._placed.values.__dict__.update(values.__dict__)  # whose servers are in this process
    context = WorkerContext(0, 1, "w", 1, lambda *_: None, closure=closure)
    with entered(context), travelled.step():
        loss(travelled, number).backward()


@pytest.mark.parametrize("freeze", [by_parameters, by_module, by_the_plain_module])
@KINDS
def test_what_the_notebook_freezes_stays_until_it_learns_again(make: Make, freeze: Any) -> None:
    module, plain = made(), made()
    model, optimizer = distributed(module, make(module.parameters())), make(plain.parameters())
    for number, learns in enumerate([True, True, False, False, True, True]):
        freeze(model, module, learns)
        plain.base.requires_grad_(learns)  # type: ignore[union-attr,operator]
        run(model, number, number)
        optimizer.zero_grad()
        loss(plain, number).backward()
        optimizer.step()
    assert distance(model, plain) < 1e-6


@KINDS
def test_what_was_frozen_learns_later_if_an_optimizer_has_it(make: Make) -> None:
    module, plain = made(), made()
    for each in (module, plain):
        each.base.requires_grad_(False)  # type: ignore[union-attr,operator]
    model, optimizer = distributed(module, make(module.parameters())), make(plain.parameters())
    for number in range(6):
        learns = number >= 3
        plain.base.requires_grad_(learns)  # type: ignore[union-attr,operator]
        with model.step():
            by_module(model, module, learns)
            loss(model, number).backward()
        optimizer.zero_grad()
        loss(plain, number).backward()
        optimizer.step()
    assert distance(model, plain) < 1e-6


class Referred(nn.Module):
    """Refers to the gradient of a frozen parameter by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.last = nn.Linear(6, 5), nn.Linear(5, 1)
        self.base.weight.register_hook(torch.neg)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.relu(self.base(x)))[:, 0]
        return found


def test_what_refers_to_a_frozen_parameter_follows_it_when_it_learns() -> None:
    module, plain = made(Referred), made(Referred)
    model = distributed(module, MADE["momentum"](module.parameters()))
    optimizer = MADE["momentum"](plain.parameters())
    for number in range(6):
        for each in (module, plain):
            each.get_submodule("base").requires_grad_(number > 1)
        with model.step():
            (model(batch(number)) - 1).square().mean().backward()
        optimizer.zero_grad()
        (plain(batch(number)) - 1).square().mean().backward()
        optimizer.step()
    assert distance(model, plain) < 1e-6


def test_a_frozen_embedding_cannot_learn_later() -> None:
    module = nn.Embedding(4, 2)
    module.weight.requires_grad_(False)
    both = nn.Sequential(module, nn.Linear(2, 1))
    model = distributed(both, torch.optim.Adam(both.parameters()))
    module.requires_grad_(True)
    with pytest.raises(ConfigurationError, match=r"for them\. Distribute"), model.step():
        model(torch.tensor([1])).sum().backward()


def test_what_was_frozen_without_an_optimizer_is_refused_a_gradient() -> None:
    module = made()
    module.base.requires_grad_(False)  # type: ignore[union-attr,operator]
    strategy: Any = InProcessStrategy()
    model = psnb.torch.distribute(module, strategy, dense=psnb.SGD(0.1))

    def step() -> None:
        with model.step():
            by_module(model, module, True)
            loss(model, 0).backward()

    with pytest.raises(ConfigurationError, match=r"'base.weight'.*frozen when"):
        step()


class Momentum(Heads):
    """Moves a frozen part after another one, as momentum encoders do."""

    def forward(self, x: Tensor, head: str) -> Tensor:
        with torch.no_grad():
            for mine, other in zip(self.b.parameters(), self.a.parameters(), strict=True):
                mine.mul_(0.9).add_(other, alpha=0.1)
        return super().forward(x, "a") + self.b(torch.relu(self.base(x)))[:, 0]


def test_a_frozen_part_that_forward_moves_may_be_in_an_optimizer() -> None:
    module, plain = made(Momentum), made(Momentum)
    for each in (module, plain):
        each.b.requires_grad_(False)  # type: ignore[union-attr,operator]
        each.base.requires_grad_(False)  # type: ignore[union-attr,operator]
    make = MADE["Adam"]
    model, optimizer = distributed(module, make(module.parameters())), make(plain.parameters())
    for number in range(5):
        # What learns and what is moved are in one variable then.
        plain.base.requires_grad_(number > 2)  # type: ignore[union-attr,operator]
        with model.step():
            by_module(model, module, number > 2)
            loss(model, number).backward()
        optimizer.zero_grad()
        loss(plain, number).backward()
        optimizer.step()
    assert distance(model, plain) < 1e-6


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ids, self.out = nn.Embedding(5, 3), nn.Linear(3, 1)
        self.any = psnb.torch.Embedding(3, initializer=0.5)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.ids(ids) + self.any(ids))
        return found


def test_a_frozen_table_stays() -> None:
    strategy: Any = InProcessStrategy()
    model = psnb.torch.distribute(
        made(Tables), strategy, sparse=psnb.Adagrad(0.1), dense=psnb.SGD(0.1)
    )
    ids = torch.tensor([1, 3])

    def step() -> dict[str, Tensor]:
        with model.step():
            model(ids).sum().backward()
        return model.state_dict()

    before = step()
    model.requires_grad_(False)
    model.module.out.requires_grad_(True)  # type: ignore[union-attr,operator]
    after = step()
    for name in ("ids.weight", "any.rows"):
        assert torch.equal(before[name], after[name])
    assert not torch.equal(before["out.weight"], after["out.weight"])
    model.requires_grad_()
    last = step()
    for name in ("ids.weight", "any.rows"):
        assert not torch.equal(after[name], last[name])


def test_a_gan_of_two_models_is_torchs() -> None:
    def generator() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 6), nn.Tanh())

    def discriminator() -> nn.Module:
        first = nn.Linear(6, 4, bias=False)
        return nn.Sequential(first, nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))

    make = MADE["Adam"]
    plain = [made(generator), made(discriminator)]
    modules = copy.deepcopy(plain)
    strategy: Any = InProcessStrategy()
    models = [
        psnb.torch.distribute(each, strategy, optimizer=make(each.parameters()), name=name)
        for name, each in zip(("g", "d"), modules, strict=True)
    ]
    optimizers = [make(each.parameters()) for each in plain]

    def of_discriminator(g: Any, d: Any, x: Tensor, z: Tensor) -> Tensor:
        with torch.no_grad():
            fake = g(z)
        return entropy(d(x), torch.ones(4, 1)) + entropy(d(fake), torch.zeros(4, 1))

    def of_generator(g: Any, d: Any, z: Tensor) -> Tensor:
        return entropy(d(g(z)), torch.ones(4, 1))

    for number in range(6):
        x, z = batch(number), batch(number)[:, :2]
        (g, d), (plain_g, plain_d) = models, plain
        with d.step():
            of_discriminator(g, d, x, z).backward()
        d.requires_grad_(False)
        with d.step(), g.step():
            of_generator(g, d, z).backward()
        d.requires_grad_()
        optimizers[1].zero_grad()
        of_discriminator(plain_g, plain_d, x, z).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        of_generator(plain_g, plain_d, z).backward()
        optimizers[0].step()
    assert max(map(distance, models, plain)) < 1e-5


def test_a_frozen_model_passes_gradients_on_outside_of_a_step() -> None:
    model = distributed(module := made(), MADE["SGD"](module.parameters()))
    x = batch(0).requires_grad_()
    with pytest.raises(ConfigurationError, match="requires_grad_"):
        model(x, "a")
    model.requires_grad_(False)
    model(x, "a").sum().backward()
    assert x.grad is not None


@pytest.fixture
def rates() -> tuple[psnb.torch.DistributedModel, torch.optim.Optimizer]:
    module = made()
    optimizer = torch.optim.SGD(
        [
            {"params": module.base.parameters()},
            {"params": [*module.a.parameters()], "lr": 0.2},  # type: ignore[union-attr,operator]
            {"params": [*module.b.parameters()]},
        ],
        0.1,
    )  # type: ignore[union-attr,operator]
    return distributed(module, optimizer), optimizer


def live(model: psnb.torch.DistributedModel) -> list[float]:
    return [each.optimizer.learning_rate for each in model.variables]  # type: ignore[union-attr]


def test_a_scheduler_of_torch_sets_rates_on_servers(rates: Any) -> None:
    model, optimizer = rates
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    optimizer._opt_called = True  # which torch looks for, to warn
    scheduler.step()
    cloudpickle.dumps(model)  # a closure is scheduled
    assert live(model) == [0.05, 0.1]


def test_other_settings_of_torchs_optimizers_are_taken_too(rates: Any) -> None:
    model, optimizer = rates
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.25
    with model.step():
        loss(model, 0).backward()
    assert [each.optimizer.weight_decay for each in model.variables] == [0.25, 0.25]
    for each in model.variables:
        each.optimizer.learning_rate = 0.7  # torch's have nothing new
    cloudpickle.dumps(model)
    assert live(model) == [0.7, 0.7]


def test_groups_in_one_variable_cannot_become_different(rates: Any) -> None:
    model, optimizer = rates
    optimizer.param_groups[2]["lr"] = 0.3
    with pytest.raises(ConfigurationError, match=r"groups \[0, 2\]"):
        cloudpickle.dumps(model)


def test_settings_that_need_other_state_are_refused(rates: Any) -> None:
    model, optimizer = rates
    for group in optimizer.param_groups:
        group["momentum"] = 0.9
    with pytest.raises(ConfigurationError, match="needs other state"):
        cloudpickle.dumps(model)


def test_a_model_does_not_keep_what_it_was_made_of() -> None:
    module = made()
    optimizer = MADE["Adam"](module.parameters())
    model = distributed(module, optimizer)
    del module, optimizer
    gc.collect()
    assert model._followed is not None
    assert model._followed._module() is None
    cloudpickle.dumps(model)
