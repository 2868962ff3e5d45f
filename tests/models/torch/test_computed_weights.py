"""Tests of layers whose weights are computed of others: by parametrizations, and by hooks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import psnb
import psnb.torch
from tests.models.torch.wide_deep import RATE, assert_same, distributed

IDS = torch.tensor([1, 4, 4, 7])


class Net(nn.Module):
    """A table and a layer, of which the weight of one is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.table(ids))
        return found


class Symmetric(nn.Module):
    """A parametrization of the user's, with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, weight: Tensor) -> Tensor:
        return self.scale * (weight + weight.flip(0))


def own(net: Net) -> None:
    parametrize.register_parametrization(net.out, "weight", Symmetric())
    parametrize.register_parametrization(net.out, "bias", nn.Softplus())


MADE: dict[str, Any] = {
    "weight_norm": lambda net: parametrizations.weight_norm(net.out),
    "spectral_norm": lambda net: parametrizations.spectral_norm(net.out),
    "orthogonal": lambda net: parametrizations.orthogonal(net.out, orthogonal_map="cayley"),
    "own": own,
    "weight_norm of all": lambda net: parametrizations.weight_norm(net.out, dim=None),
    "weight_norm of an embedding": lambda net: parametrizations.weight_norm(net.table),
    "old weight_norm": lambda net: nn.utils.weight_norm(net.out),
    "old spectral_norm": lambda net: nn.utils.spectral_norm(net.out),
    "pruned": lambda net: prune.l1_unstructured(net.out, "weight", 0.5),
}


def made(how: str) -> Net:
    torch.manual_seed(0)
    net = Net()
    MADE[how](net)
    net(IDS).sum()  # a notebook tries its module first
    return net


def travelled(model: psnb.torch.DistributedModel) -> psnb.torch.DistributedModel:
    placed = model._placed
    graph = cloudpickle.loads(cloudpickle.dumps(placed.graph))
    return psnb.torch.DistributedModel(replace(placed, graph=graph))


@pytest.mark.parametrize("how", MADE)
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_computed_weight_learns_as_in_torch_alone(how: str) -> None:
    alone = made(how)
    before = {key: value.clone() for key, value in alone.state_dict().items()}
    model = travelled(distributed(alone))
    assert all(torch.equal(value, before[key]) for key, value in alone.state_dict().items())
    optimizer = torch.optim.SGD(alone.parameters(), RATE)
    for _ in range(3):
        with model.step():
            loss = model(IDS).square().mean()
            loss.backward()
        optimizer.zero_grad()
        expected = alone(IDS).square().mean()
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected)
    assert_same(model, alone)


@pytest.mark.parametrize("how", MADE)
@pytest.mark.filterwarnings("ignore")  # of torch about itself
def test_a_computed_weight_is_exported(tmp_path: Path, how: str) -> None:
    model = distributed(made(how)).eval()
    with torch.no_grad():
        expected = model(IDS)
    loaded = psnb.load_model(psnb.export(tmp_path / "model", model, example=IDS))
    np.testing.assert_allclose(loaded.predict({"ids": IDS.numpy()}), expected, atol=1e-6)
