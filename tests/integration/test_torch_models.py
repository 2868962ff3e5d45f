"""PyTorch modules on a real cluster: the numbers of torch alone, whatever dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from distributed import Client
from torch import Tensor, nn

import psnb
import psnb.torch
from tests.integration import wide_and_deep as wd

pytestmark = pytest.mark.slow

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
        torch.optim.Adagrad(rows, wd.SPARSE_RATE, initial_accumulator_value=0.1, eps=1e-7),
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


def test_fifty_rounds_are_fifty_steps_of_torch_alone(whole: Client) -> None:
    with wd.synchronous(whole) as strategy:
        model = distributed(strategy)
        losses = wd.trained(strategy, step_of(model), wd.STEPS)
        assert_as_alone(losses, model)
        assert len(model.tables) == 26
        assert len(model.variables) == 1


def test_a_worker_killed_in_the_middle_of_backward_changes_nothing(
    whole: Client, tmp_path: Path
) -> None:
    killed = wd.KilledOnce(tmp_path)

    def kill_in_backward(loss: Tensor) -> None:
        loss.register_hook(lambda gradient: killed())

    with wd.synchronous(whole) as strategy:
        model = distributed(strategy)
        losses = wd.trained(strategy, step_of(model, kill_in_backward), wd.STEPS)
        assert killed.happened()
        assert_as_alone(losses, model)


def test_a_server_killed_in_a_step_changes_nothing_where_there_are_copies(
    whole: Client, tmp_path: Path
) -> None:
    with wd.synchronous(whole, replicas=1) as strategy:
        model = distributed(strategy)
        victim = strategy.server_addresses[0]
        with wd.ServerKilled(whole, victim, tmp_path) as killed:
            wait = killed.wait
            losses = wd.trained(strategy, step_of(model, lambda loss: wait()), wd.STEPS)
        assert_as_alone(losses, model)


@pytest.mark.parametrize(
    "mode", [psnb.Async(), psnb.BoundedStaleness(1), psnb.Geo(3)], ids=["async", "bounded", "geo"]
)
def test_a_module_learns_in_every_mode(whole: Client, mode: Any) -> None:
    class Normed(WideDeep):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(wd.DENSE)

        def forward(self, batch: Inputs) -> Tensor:
            return super().forward({**batch, "x": self.norm(batch["x"])})

    with psnb.ParameterServerStrategy(whole, mode=mode) as strategy:
        model = psnb.torch.distribute(
            Normed(), strategy, sparse=psnb.Adagrad(wd.SPARSE_RATE), dense=psnb.Adam(wd.RATE)
        )
        losses = wd.trained(strategy, step_of(model), wd.STEPS)
        tracked = model.state_dict()["norm.num_batches_tracked"].item()
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])
    # In mode Geo, what workers have learned is averaged: so are these counts.
    assert tracked == (2 * wd.STEPS if not isinstance(mode, psnb.Geo) else tracked) > 0


class Loaded(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """A dataset of torch's own."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(12).reshape(6, 2))


def test_a_loader_of_torch_is_a_workers_dataset(whole: Client) -> None:
    def loader() -> Any:
        return torch.utils.data.DataLoader(Loaded(), batch_size=3)

    def take(iterator: Iterator[Tensor]) -> int:
        return int(next(iterator).sum())

    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        iterator = iter(coordinator.create_per_worker_dataset(loader))
        found = coordinator.fetch([coordinator.schedule(take, (iterator,)) for _ in range(2)])
        assert set(found) <= {sum(range(6)), sum(range(6, 12))}
