"""Tests of parts of PyTorch models in pipelines; servers in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import psnb.torch
from psnb._src.server.optimizers import SGD
from psnb.errors import ConfigurationError
from tests.models.placing import InProcessStrategy

RATE = 0.5
RANDOM = np.random.default_rng(0)
BATCH = {
    "ids": RANDOM.integers(9, size=(5, 2)),
    "x": RANDOM.normal(size=(5, 3)).astype(np.float32),
    "y": RANDOM.integers(2, size=5).astype(np.float32),
    "weight": np.array([1, 2, 1, 1, 3]),
}


class First(nn.Module):
    """Rows and numbers to a hidden layer; labels and weights pass along."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.layer = nn.Embedding(9, 2), nn.Linear(7, 4)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        inputs = torch.cat([self.rows(batch["ids"]).flatten(1), batch["x"]], 1)
        return torch.tanh(self.layer(inputs)), {name: batch[name] for name in ("y", "weight")}


class Last(nn.Module):
    """The loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, inputs: tuple[Tensor, dict[str, Tensor]]) -> Tensor:
        hidden, rest = inputs
        logits = self.layer(hidden)[:, 0]
        return functional.binary_cross_entropy_with_logits(logits, rest["y"], rest["weight"])


def distributed(module: nn.Module, name: str) -> psnb.torch.DistributedModel:
    strategy = InProcessStrategy()
    return psnb.torch.distribute(module, strategy, sparse=SGD(RATE), dense=SGD(RATE), name=name)


def assert_state(found: psnb.torch.DistributedModel, module: nn.Module) -> None:
    for name, value in module.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_stages_give_the_loss_and_the_update_of_the_undivided_model(scale: float) -> None:
    torch.manual_seed(0)
    first, last = First(), Last()
    models = [distributed(first, "first"), distributed(last, "last")]
    stages = [psnb.torch.stage(each) for each in models]
    hidden = stages[0].forward(BATCH)
    assert all(isinstance(each, np.ndarray) for each in (hidden[0], *hidden[1].values()))
    loss, examples, by = stages[1].train(hidden, scale)
    stages[0].backward(BATCH, by, scale)

    expected = last(first(psnb.torch.as_torch(BATCH)))
    expected.backward()
    with torch.no_grad():
        for each in (*first.parameters(), *last.parameters()):
            each -= RATE * scale * each.grad
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    assert examples == 5
    assert_state(models[0], first)
    assert_state(models[1], last)


def test_the_gradient_of_inputs_is_in_their_order_and_without_the_scale() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, given: list[Any]) -> dict[str, Any]:
            x, number, _, z = given
            return {"product": x * self.w * z, "number": number, "float": number.float()}

    x, z = np.array([2.0, 3.0], np.float32), np.array([5.0, 7.0], np.float32)
    found = psnb.torch.stage(distributed(Product(), "p"))
    given = [x, np.arange(2), np.ones(3, np.float32), z]
    by = np.array([1.0, 10.0], np.float32)
    back = found.backward(given, [by, by], 4.0)
    np.testing.assert_allclose(back[0], z * by)
    np.testing.assert_array_equal(back[1], np.zeros(3))
    np.testing.assert_allclose(back[2], x * by)
    np.testing.assert_array_equal(x, [2.0, 3.0])


def test_dropout_is_the_same_when_a_stage_is_computed_again_and_another_for_other_inputs() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(64))
            self.dropout = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.dropout(x * self.w)

    model = distributed(Dropped(), "d")
    found = psnb.torch.stage(model)
    x = np.ones(64, np.float32)
    outputs = found.forward(x)
    assert ((found.forward(1 + x) == 0) != (outputs == 0)).any()
    torch.rand(1)  # whatever is drawn in between
    before = torch.random.get_rng_state()
    (back,) = found.backward(x, [np.ones(64, np.float32)], 1.0)
    np.testing.assert_array_equal(back, outputs)  # 0 or 2, at the same places
    np.testing.assert_allclose(model.state_dict()["w"], 1 - RATE * outputs)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_dropout_is_another_for_other_ids() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.dropout = nn.Embedding(9, 64), nn.Dropout(0.5)
            nn.init.ones_(self.rows.weight)

        def forward(self, ids: Tensor) -> Tensor:
            return self.dropout(self.rows(ids))

    found = psnb.torch.stage(distributed(Dropped(), "d"))
    assert (found.forward(np.array([1])) != found.forward(np.array([2]))).any()


def test_a_module_that_is_not_on_servers_is_no_stage() -> None:
    with pytest.raises(ConfigurationError, match=r"takes what psnb.torch.distribute.*found Linear"):
        psnb.torch.stage(nn.Linear(1, 1))  # type: ignore[arg-type]
