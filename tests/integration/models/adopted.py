"""A module that learns, step by step; and a notebook that trains it until it is killed.

``python -m tests.integration.models.adopted SCHEDULER_FILE`` places it in the strategy *mine*, and
prints the number of each step that has had its effect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import psnb
import psnb.torch
from tests.conftest import connected

OPTIONS: dict[str, Any] = {
    "sparse": psnb.Adagrad(0.5),
    "dense": psnb.Adam(0.05),
    "tables": {"users": {"dtype": "bfloat16", "max_rows": 10_000}},
}


class Clicks(nn.Module):
    """Tables of fixed rows and of any id, state that steps move, and a tied weight."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.ads, self.users = nn.Embedding(20, 4), psnb.torch.Embedding(4)
        self.norm, self.first, self.second = nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.last = nn.Linear(8, 1)

    def forward(self, ads: Tensor, users: Tensor) -> Tensor:
        x = self.norm(torch.cat([self.ads(ads), self.users(users)], 1))
        found: Tensor = self.last(functional.relu(self.second(self.first(x))))
        return found[:, 0]


def step_of(model: psnb.torch.DistributedModel) -> Callable[[int], float]:
    """Return a closure that trains a batch of a number."""

    def step(number: int) -> float:
        generator = torch.Generator().manual_seed(number)
        ads = torch.randint(20, (16,), generator=generator)
        users = torch.randint(2**40, (16,), generator=generator)
        with model.step():
            y = (ads % 2).float()
            loss = functional.binary_cross_entropy_with_logits(model(ads, users), y)
            loss.backward()
        return loss.item()

    return step


def train(
    coordinator: psnb.ClusterCoordinator, model: psnb.torch.DistributedModel, numbers: range
) -> list[float]:
    """Train one batch after the other; return the losses."""
    step = step_of(model)
    return [coordinator.schedule(step, (number,)).fetch() for number in numbers]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether two states are equal, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def main(file: str) -> None:
    """Train until killed."""
    strategy = psnb.ParameterServerStrategy(connected(file), name="mine")
    coordinator = psnb.ClusterCoordinator(strategy)
    model = psnb.torch.distribute(Clicks(), strategy, **OPTIONS)
    number = 0
    while True:
        train(coordinator, model, range(number, number + 1))
        print(number := number + 1, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
