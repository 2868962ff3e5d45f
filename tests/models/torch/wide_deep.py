"""A small wide & deep module that tests train, on servers in this process and with torch alone."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import psnb.torch
from psnb._src.server.optimizers import SGD
from tests.models.placing import InProcessStrategy

RATE = 0.5
SPARSE, DENSE = SGD(RATE), SGD(RATE)


class WideDeep(nn.Module):
    """Two tables, one of which is used twice, bags, and a network."""

    def __init__(self, mode: str = "mean", **options: Any) -> None:
        super().__init__()
        self.ads = nn.Embedding(10, 4, padding_idx=0)
        self.users = nn.Embedding(8, 4)
        self.words = nn.EmbeddingBag(12, 4, mode=mode, **options)
        self.network = nn.Sequential(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 1))

    def forward(self, ids: Tensor, words: Tensor, offsets: Tensor, weights: Any = None) -> Tensor:
        bags = self.words(words, offsets, weights)
        rows = [self.ads(ids[:, 0]), self.users(ids[:, 1]), self.users(ids[:, 2]), bags]
        found: Tensor = self.network(torch.cat(rows, 1)).squeeze(1)
        return found


class Normed(nn.Module):
    """A module with buffers of floats, of integers and of bools."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(3), nn.Linear(3, 1)
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x)).sum()


IDS = torch.tensor([[1, 7, 7], [0, 2, 7], [1, 3, 2], [9, 7, 1]])
WORDS, OFFSETS = torch.tensor([3, 1, 3, 5, 11]), torch.tensor([0, 3, 3, 4])
Y = torch.tensor([1.0, 0.0, 1.0, 0.5])


def loss_of(model: Any, weights: Tensor | None = None) -> Tensor:
    return functional.binary_cross_entropy_with_logits(model(IDS, WORDS, OFFSETS, weights), Y)


def distributed(
    module: nn.Module, strategy: InProcessStrategy | None = None, **options: Any
) -> psnb.torch.DistributedModel:
    options = {"sparse": SPARSE, "dense": DENSE, **options}
    return psnb.torch.distribute(module, strategy or InProcessStrategy(), **options)


def step(model: psnb.torch.DistributedModel, **options: Any) -> float:
    with model.step():
        loss = loss_of(model, **options)
        loss.backward()
    return loss.item()


def step_alone(module: nn.Module, **options: Any) -> float:
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    optimizer.zero_grad()
    loss = loss_of(module, **options)
    loss.backward()
    optimizer.step()
    return loss.item()


def assert_same(model: psnb.torch.DistributedModel, module: nn.Module) -> None:
    expected = module.state_dict()
    found = model.state_dict()
    assert list(found) == list(expected)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6, msg=key)
