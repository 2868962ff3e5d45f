"""Tests of putting modules on servers: what becomes what, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import psnb
import psnb.torch
from psnb._src.models.torch.split import split
from psnb._src.server.optimizers import SGD, Adagrad
from psnb.errors import ConfigurationError, SerializationError
from tests.models.placing import InProcessStrategy
from tests.models.torch.wide_deep import (
    RATE,
    Normed,
    WideDeep,
    assert_same,
    distributed,
    step,
    step_alone,
)


def test_a_function_of_the_name_chooses_the_optimizer() -> None:
    model = distributed(
        WideDeep(),
        sparse=lambda name: SGD(1.0) if name == "ads.weight" else Adagrad(),
        dense=lambda name: SGD(2.0) if name.endswith("bias") else SGD(3.0),
    )
    rates = {name: table.optimizer.learning_rate for name, table in model.tables.items()}  # type: ignore[union-attr]
    assert rates == {"ads.weight": 1.0, "users.weight": 0.01, "words.weight": 0.01}
    assert sorted(variable.shape for variable in model.variables) == [(6,), (85,)]


def test_what_takes_no_gradient_stays_where_it_is() -> None:
    module = WideDeep()
    module.users.weight.requires_grad_(False)
    module.network[0].bias.requires_grad_(False)
    strategy = InProcessStrategy()
    model = distributed(module, strategy)
    assert set(model.tables) == {"ads.weight", "words.weight"}
    frozen = module.users.weight.clone()
    step(model)
    step_alone(module)
    assert_same(model, module)
    torch.testing.assert_close(model.state_dict()["users.weight"], frozen)


def test_a_weight_that_another_layer_uses_is_a_parameter_like_others() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.out.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.table(ids)).square().sum()

    module = Tied()
    model = distributed(module, sparse=None)
    assert not model.tables
    ids = torch.tensor([0, 2])
    with model.step():
        model(ids).backward()
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    module(ids).backward()
    optimizer.step()
    assert_same(model, module)


def test_a_table_that_is_used_twice_gets_one_update() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Embedding(5, 2), nn.Embedding(5, 2)
            self.two.weight = self.one.weight

        def forward(self, ids: Tensor) -> Tensor:
            return (self.one(ids) * self.two(ids + 1)).sum()

    module = Twice()
    optimizer = torch.optim.Adagrad(module.parameters(), RATE, eps=1e-7)
    model = distributed(module, sparse=Adagrad(RATE))
    assert len(split(module).wanted.tables) == len(model.tables) == 1
    ids = torch.tensor([0, 2, 0])
    with model.step():
        model(ids).backward()
    module(ids).backward()
    optimizer.step()
    assert_same(model, module)


def test_modules_that_servers_cannot_keep_are_refused_before_anything_is_placed() -> None:
    strategy = InProcessStrategy()

    class Locked(WideDeep):
        def __init__(self) -> None:
            super().__init__()
            self.network.lock = threading.Lock()  # type: ignore[assignment]

    lock = threading.Lock()
    held = WideDeep()
    held.network.scale = lambda x: x if lock.locked() else 2 * x  # type: ignore[assignment]
    half = WideDeep()
    half.network.half()
    large = WideDeep()
    large.users.max_norm = 1.0
    for module, error, message in (
        (large, ConfigurationError, "'users' has max_norm=1.0"),
        (half, ConfigurationError, "float16; servers keep float32.*autocast"),
        (WideDeep().bfloat16(), ConfigurationError, "bfloat16; servers keep float32.*autocast"),
        (Locked(), SerializationError, "'network.lock'.*cannot be pickled"),
        (
            WideDeep("sum", scale_grad_by_freq=True),
            ConfigurationError,
            "'words'.*scale_grad_by_freq=True.*wrong on the CPU",
        ),
        (held, SerializationError, "'network.scale' of WideDeep, function, cannot be pickled"),
        (nn.Sequential(nn.LazyLinear(3)), ConfigurationError, "'0.weight' has no shape before"),
        (WideDeep, ConfigurationError, "expected a torch.nn.Module, found type"),
    ):
        with pytest.raises(error, match=message):
            distributed(module, strategy)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"'ads\.weight': expected an optimizer of psnb"):
        distributed(WideDeep(), strategy, sparse=torch.optim.SGD)
    with pytest.raises(ConfigurationError, match=r"'network\.0\.weight': expected an optimizer"):
        distributed(WideDeep(), strategy, dense=None)
    assert not strategy.parameters


def test_an_embedding_with_a_forward_of_its_own_is_a_layer_like_others() -> None:
    class Scaled(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return 3 * super().forward(ids)

    module = Scaled(5, 2)
    model = distributed(module, sparse=None)
    assert not model.tables
    ids = torch.tensor([0, 2, 2])
    with model.step():
        model(ids).square().sum().backward()
    module(ids).square().sum().backward()
    torch.optim.SGD(module.parameters(), RATE).step()
    assert_same(model, module)


def test_buffers_that_count_or_move_are_on_servers() -> None:
    strategy = InProcessStrategy()
    distributed(Normed(), strategy, sparse=None)
    placed = {name: each.shape for name, each in strategy.parameters.items() if "buffers" in name}  # type: ignore[union-attr]
    assert placed == {"Normed.buffers": (8,), "Normed.buffers.1": (2,)}


def test_buffers_that_are_no_part_of_the_state_stay_on_each_worker() -> None:
    strategy, module = InProcessStrategy(), nn.Linear(1, 1)
    module.register_buffer("last", torch.zeros(3), persistent=False)
    model = distributed(module, strategy, sparse=None)
    assert list(strategy.parameters) == ["Linear"]
    assert "last" not in model.state_dict()


def test_a_second_model_needs_another_name() -> None:
    strategy = InProcessStrategy()
    distributed(WideDeep(), strategy)
    with pytest.raises(ConfigurationError, match="name= places another one"):
        distributed(WideDeep(), strategy)
    distributed(WideDeep(), strategy, name="other")
    assert "other.ads.weight" in strategy.parameters


def test_an_embedding_alone_is_a_model() -> None:
    module = nn.Embedding(6, 2)
    model = distributed(module, dense=None)
    with model.step():
        model(torch.tensor([1, 1])).sum().backward()
    np.testing.assert_allclose(
        model.state_dict()["weight"][1].numpy(), module.weight.detach()[1].numpy() - 2 * RATE
    )


def test_a_model_travels_with_its_mode_and_without_values() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(50_000, 4), nn.Linear(300, 300)

        def forward(self, ids: Tensor) -> Tensor:
            return self.table(ids).sum() + self.out.weight.sum()

    model = distributed(Large())
    assert len(cloudpickle.dumps(model)) < 50_000
    assert not cloudpickle.loads(cloudpickle.dumps(model.eval())).training


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"torch\.distribute: strategy must be a psnb\.ParameterServerStrategy, found int",
    ):
        psnb.torch.distribute(nn.Linear(1, 1), 8786)  # type: ignore[arg-type]


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.users = nn.Embedding(6, 3), psnb.torch.Embedding(3, 0.5)
        self.bags, self.out = nn.EmbeddingBag(6, 3), nn.Linear(3, 1)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.rows(ids).mean(1) + self.users(ids[:, 0]) + self.bags(ids))
        return found


def part(tower: Tower) -> nn.Module:
    return nn.Sequential(torch.compile(tower, backend="eager"))  # type: ignore[arg-type]


def whole(tower: Tower) -> nn.Module:
    return torch.compile(nn.Sequential(tower), backend="eager")  # type: ignore[return-value]


def in_place(tower: Tower) -> nn.Module:
    tower.compile(backend="eager")
    return nn.Sequential(tower)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own
@pytest.mark.parametrize("compiled", [part, whole, in_place])
def test_a_compiled_module_may_have_embeddings(
    compiled: Callable[[Tower], nn.Module], tmp_path: Path
) -> None:
    ids = torch.tensor([[0, 1], [5, 1], [2, 2]])
    both = []
    for each in (compiled, nn.Sequential):
        torch.manual_seed(0)
        model = distributed(each(Tower()))
        for _ in range(2):
            with model.step():
                model(ids).square().sum().backward()
        both.append([value for _, value in sorted(model.state_dict().items())])
    for found, expected in zip(*both, strict=True):
        torch.testing.assert_close(found, expected)
    if compiled is in_place:
        assert psnb.export(tmp_path / "m", model.eval(), example=(ids,)).exists()
