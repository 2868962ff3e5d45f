"""torch alone: two processes of one core, each of which trains a model of its own in memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.benchmarks.beside import criteo
from tests.benchmarks.beside.two import Step, Two


def perceptron() -> nn.Sequential:
    """Return the network, with the weights that all begin with."""
    layers: list[nn.Module] = []
    for rows, columns in pairwise(criteo.WIDTHS):
        layers += [nn.Linear(rows, columns), nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for mine, first in zip(network.parameters(), criteo.initial_weights(), strict=True):
            mine.copy_(torch.from_numpy(first.T.copy()))
    return network


class WideDeep(nn.Module):
    """The model, of embeddings that are made by a function of cardinality and dimension."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.deep = nn.ModuleList(embedding(rows, criteo.DIM) for rows in criteo.CARDINALITIES)
        self.wide = nn.ModuleList(embedding(rows, 1) for rows in criteo.CARDINALITIES)
        self.network = perceptron()

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        columns = ids.unbind(1)
        rows = [table(column) for table, column in zip(self.deep, columns, strict=True)]
        wide = [table(column) for table, column in zip(self.wide, columns, strict=True)]
        inputs = torch.cat([*rows, numbers.to(rows[0].device)], 1)
        found: torch.Tensor = self.network(inputs)[:, 0]
        return found + torch.cat(wide, 1).sum(1)


def loss_of(model: Any, batch: criteo.Batch) -> torch.Tensor:
    """Return the loss of a batch, where the model computes it."""
    ids, numbers, labels = map(torch.from_numpy, batch)
    logits = model(ids.long(), numbers)
    return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.device))


def zeros(rows: int, dim: int) -> nn.Embedding:
    """Return a table in memory."""
    return nn.Embedding(rows, dim, sparse=True, _weight=torch.zeros(rows, dim))


def make(rank: int) -> Step:
    """Return the step of a process."""
    torch.set_num_threads(1)
    model = WideDeep(zeros)
    optimizer = torch.optim.Adagrad(
        model.parameters(),
        criteo.RATE,
        initial_accumulator_value=criteo.ACCUMULATOR,
        eps=criteo.EPSILON,
    )
    data: Mapping[int, Any] = {size: criteo.batches(size, rank) for size in criteo.SIZES}

    def step(size: int) -> float:
        optimizer.zero_grad()
        loss = loss_of(model, next(data[size]))
        loss.backward()
        optimizer.step()
        return float(np.float32(loss.item()))

    return step


if __name__ == "__main__":
    from tests.benchmarks.beside.peers import torch as own

    Two(own.make).serve("torch")
