"""The wide & deep net of `wide_and_deep` in PyTorch, distributed and alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import psnb
import psnb.torch
from tests.integration.models import wide_and_deep as wd

Inputs = dict[str, Any]


class WideDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        rows = {name: torch.tensor(array) for name, array in wd.initial_tables().items()}
        network = {name: torch.tensor(array) for name, array in wd.initial_network().items()}
        self.columns = nn.ModuleList(
            nn.Embedding.from_pretrained(rows[name], freeze=False) for name in wd.COLUMNS
        )
        self.words = nn.EmbeddingBag.from_pretrained(rows["words"], freeze=False, mode="mean")
        self.wide = nn.Embedding.from_pretrained(rows["wide"], freeze=False)
        self.first, self.bias, self.last = (nn.Parameter(each) for each in network.values())

    def forward(self, batch: Inputs) -> Tensor:
        ids = batch["ids"]
        columns = [column(ids[:, number]) for number, column in enumerate(self.columns)]
        hidden = torch.cat([*columns, self.words(*batch["words"]), batch["x"]], 1)
        hidden = functional.relu(hidden @ self.first + self.bias)
        return (hidden @ self.last)[:, 0] + self.wide(ids).sum((1, 2))


def loss_of(model: Callable[[Inputs], Tensor], batch: wd.Batch) -> Tensor:
    inputs = psnb.torch.as_torch(batch)
    return functional.binary_cross_entropy_with_logits(model(inputs), inputs["y"])


@cache
def alone() -> tuple[list[float], dict[str, Tensor]]:
    """Train with torch in this process; return losses and the state."""
    module = WideDeep()
    own = {name: each for name, each in module.named_parameters() if "." not in name}
    rows = [each for name, each in module.named_parameters() if "." in name]
    optimizers = [
        torch.optim.Adagrad(rows, wd.SPARSE_RATE, eps=1e-7),
        torch.optim.Adam(own.values(), wd.RATE),
    ]
    losses, data = [], wd.batches()
    for first, second in zip(data[::2], data[1::2], strict=True):
        module.zero_grad()
        loss = loss_of(module, wd.joined(first, second))
        loss.backward()
        for each in optimizers:
            each.step()
        losses.append(loss.item())
    return losses, module.state_dict()


def distributed(strategy: psnb.ParameterServerStrategy) -> psnb.torch.DistributedModel:
    return psnb.torch.distribute(
        WideDeep(), strategy, sparse=psnb.Adagrad(wd.SPARSE_RATE), dense=psnb.Adam(wd.RATE)
    )


def step_of(
    model: psnb.torch.DistributedModel, before_backward: Callable[[Tensor], Any] = lambda loss: None
) -> Callable[[Iterator[wd.Batch]], float]:
    def step(iterator: Iterator[wd.Batch]) -> float:
        with model.step():
            loss = loss_of(model, next(iterator))
            before_backward(loss)
            loss.backward()
        psnb.report(loss=loss.item())
        return loss.item()

    return step


def assert_as_alone(losses: list[float], model: psnb.torch.DistributedModel) -> None:
    expected_losses, expected = alone()
    found = model.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5, msg=name)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert losses[-1] < 0.8 * losses[0]
