"""PyTorch's optimizers on a real cluster: fifty rounds of one closure are fifty steps of torch."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from distributed import Client
from torch import Tensor, nn

import psnb
import psnb.torch
from tests.conftest import DEADLINE

# Of torch's own optimizers of rows.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")

STEPS, ROWS, BATCH = 50, 12, 8
optim = torch.optim


class Net(nn.Module):
    """A network beside a table, whose gradients torch may keep as rows."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(ROWS, 3, sparse=sparse)
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 1)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(torch.cat([self.table(ids), x], 1)))
        found: Tensor = self.last(hidden)[:, 0]
        return found


Batch = tuple[Tensor, Tensor, Tensor]
Make = Callable[[Net], Any]


def batches(every_row: bool) -> list[Batch]:
    """Return batches of ids, some twice, or of all ids, features and targets."""
    rng = torch.Generator().manual_seed(1)
    found = []
    for _ in range(STEPS):
        count = 2 * ROWS if every_row else BATCH
        ids = torch.randint(ROWS, (count,), generator=rng)
        if every_row:
            ids[:ROWS] = torch.arange(ROWS)
        x = torch.randn(count, 2, generator=rng)
        found.append((ids, x, torch.sin(3 * x[:, 0]) + ids / ROWS))
    return found


def loss_of(model: Any, batch: Batch) -> Tensor:
    ids, x, y = batch
    found: Tensor = (model(ids, x) - y).square().mean()
    return found


def alone(module: Net, make: Make, data: list[Batch]) -> dict[str, Tensor]:
    """Train with torch in this process, and return the state."""
    given = make(module)
    optimizers = given if isinstance(given, list) else [given]
    for batch in data:
        for each in optimizers:
            each.zero_grad()
        # What maximizes learns from the negated loss.
        loss = loss_of(module, batch)
        (-loss if optimizers[0].defaults["maximize"] else loss).backward()
        for each in optimizers:
            each.step()
    return module.state_dict()


def served(client: Client, module: Net, make: Make, data: list[Batch]) -> dict[str, Tensor]:
    """Train in rounds of one closure, and return the state."""
    given = make(module)
    first = given[0] if isinstance(given, list) else given
    maximizes = first.defaults["maximize"]
    with psnb.ParameterServerStrategy(client, mode=psnb.Sync(1)) as strategy:
        model = psnb.torch.distribute(module, strategy, optimizer=given)
        coordinator = psnb.ClusterCoordinator(strategy)

        def step(batch: Batch) -> None:
            with model.step():
                loss = loss_of(model, batch)
                (-loss if maximizes else loss).backward()

        for batch in data:
            coordinator.schedule(step, (batch,))
            coordinator.join(DEADLINE)
        return dict(model.state_dict())


def assert_same(client: Client, make: Make, *, every_row: bool, sparse: bool) -> None:
    module, data = Net(sparse), batches(every_row)
    expected = alone(deepcopy(module), make, data)
    found = served(client, module, make, data)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-5, atol=2e-6, msg=name)
        assert (value - module.state_dict()[name]).abs().max() > 0.01, name


def groups(module: Net) -> list[dict[str, Any]]:
    return [
        {"params": module.table.parameters(), "lr": 0.05},
        {"params": [module.first.weight, module.last.weight]},
        {"params": [module.first.bias, module.last.bias], "lr": 0.02, "weight_decay": 0.0},
    ]


DENSE: dict[str, Make] = {
    "sgd with momentum": lambda m: optim.SGD(m.parameters(), 0.02, 0.9, dampening=0.2),
    "sgd of nesterov with decay": lambda m: optim.SGD(
        m.parameters(), 0.02, 0.9, weight_decay=0.01, nesterov=True
    ),
    "adagrad with decays": lambda m: optim.Adagrad(m.parameters(), 0.05, 0.01, 0.01, 0.2, 1e-3),
    "adam with decay": lambda m: optim.Adam(m.parameters(), 0.01, (0.8, 0.9), weight_decay=0.1),
    "adam with amsgrad": lambda m: optim.Adam(m.parameters(), 0.01, amsgrad=True, maximize=True),
    "adamw in groups": lambda m: optim.AdamW(groups(m), 0.01, weight_decay=0.1),
    "rmsprop": lambda m: optim.RMSprop(m.parameters(), 0.003),
    "rmsprop with everything": lambda m: optim.RMSprop(
        m.parameters(), 0.001, 0.9, 1e-4, 0.01, 0.5, True
    ),
}


@pytest.mark.parametrize("name", DENSE)
def test_it_is_torch_alone_where_batches_have_all_rows(cluster: Client, name: str) -> None:
    assert_same(cluster, DENSE[name], every_row=True, sparse=False)


ROWS_ALONE: dict[str, tuple[Make, bool]] = {
    "sgd": (lambda m: optim.SGD(m.parameters(), 0.1), False),
    "sgd of rows": (lambda m: optim.SGD(m.parameters(), 0.1), True),
    "adagrad": (lambda m: optim.Adagrad(m.parameters(), 0.1), False),
    "adagrad of rows": (lambda m: optim.Adagrad(m.parameters(), 0.1, 0.01), True),
    "adam of rows": (
        lambda m: [
            optim.SparseAdam(m.table.parameters(), 0.01, eps=1e-3),
            optim.Adam([*m.first.parameters(), *m.last.parameters()], 0.01),
        ],
        True,
    ),
}


@pytest.mark.parametrize("name", ROWS_ALONE)
def test_it_is_torch_alone_where_batches_have_some_rows(cluster: Client, name: str) -> None:
    make, sparse = ROWS_ALONE[name]
    assert_same(cluster, make, every_row=False, sparse=sparse)
