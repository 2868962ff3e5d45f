"""PyTorch modules on a real cluster: the numbers of torch alone, whatever dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed import Client
from torch import Tensor, nn

import psnb
import psnb.torch
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError
from tests.integration.helpers import wait_for_file
from tests.integration.models import wide_and_deep as wd
from tests.integration.models.torch_wide_deep import (
    Inputs,
    WideDeep,
    assert_as_alone,
    distributed,
    step_of,
)


def test_fifty_rounds_are_fifty_steps_of_torch_alone(cluster: Client) -> None:
    with wd.synchronous(cluster) as strategy:
        model = distributed(strategy)
        losses = wd.trained(strategy, step_of(model), wd.STEPS)
        assert_as_alone(losses, model)
        assert len(model.tables) == 26
        assert len(model.variables) == 1


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(psnb.Async(), id="async"),
        pytest.param(
            psnb.BoundedStaleness(1),
            id="bounded",
            marks=pytest.mark.second_tier("as async, and who waits: test_staleness.py"),
        ),
        pytest.param(
            psnb.Geo(3),
            id="geo",
            marks=pytest.mark.second_tier("as async, and what is pushed: local/test_geo.py"),
        ),
    ],
)
def test_a_module_learns_in_every_mode(cluster: Client, mode: Any) -> None:
    class Normed(WideDeep):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(wd.DENSE)

        def forward(self, batch: Inputs) -> Tensor:
            return super().forward({**batch, "x": self.norm(batch["x"])})

    with psnb.ParameterServerStrategy(cluster, mode=mode) as strategy:
        model = psnb.torch.distribute(
            Normed(), strategy, sparse=psnb.Adagrad(wd.SPARSE_RATE), dense=psnb.Adam(wd.RATE)
        )
        losses = wd.trained(strategy, step_of(model), wd.STEPS)
        tracked = model.state_dict()["norm.num_batches_tracked"].item()
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])
    # In mode Geo, what workers have learned is averaged: so are these counts.
    assert tracked == (2 * wd.STEPS if not isinstance(mode, psnb.Geo) else tracked) > 0


def test_a_step_that_took_long_moves_averages_from_where_they_are(
    cluster: Client, tmp_path: Path
) -> None:
    computed, go = tmp_path / "computed", tmp_path / "go"
    rows = 1e-4 * torch.randn(40, 8, 3, generator=torch.Generator().manual_seed(0))
    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = psnb.torch.distribute(nn.BatchNorm1d(3), strategy, dense=psnb.SGD(0.01))
        coordinator = psnb.ClusterCoordinator(strategy)

        def step(x: Tensor, late: bool = False) -> None:
            with model.step():
                model(x).sum().backward()
                if late:
                    computed.touch()
                    wait_for_file(go)

        coordinator.schedule(step, (rows[0], True), worker=0)
        wait_for_file(computed)
        for x in rows[1:]:
            coordinator.fetch(coordinator.schedule(step, (x,), worker=1))
        go.touch()
        coordinator.join()
        variance = model.state_dict()["running_var"].numpy()
    expected = np.ones(3)
    for x in (*rows[1:], rows[0]):
        expected = 0.9 * expected + 0.1 * x.double().var(0).numpy()
    np.testing.assert_allclose(variance, expected, rtol=1e-5)


def test_a_round_averages_what_each_of_its_steps_makes_of_averages(cluster: Client) -> None:
    rows = torch.randn(6, 8, 3, generator=torch.Generator().manual_seed(0))
    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(2)) as strategy:
        layer = nn.BatchNorm1d(3, momentum=None)
        model = psnb.torch.distribute(layer, strategy, dense=psnb.SGD(0.01))
        coordinator = psnb.ClusterCoordinator(strategy)

        def step(x: Tensor) -> None:
            with model.step():
                model(x).sum().backward()

        for x in rows:
            coordinator.schedule(step, (x,))
        coordinator.join()
        found = model.state_dict()
    assert found["num_batches_tracked"] == 3
    # Of all batches, as momentum=None says.
    for name, expected in (("mean", rows.mean(1)), ("var", rows.var(1))):
        torch.testing.assert_close(found[f"running_{name}"], expected.mean(0))


class Loaded(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """A dataset of torch's own."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(12).reshape(6, 2))


def test_a_loader_of_torch_is_a_workers_dataset(cluster: Client) -> None:
    def loader() -> Any:
        return torch.utils.data.DataLoader(Loaded(), batch_size=3)

    def take(iterator: Iterator[Tensor]) -> int:
        return int(next(iterator).sum())

    with psnb.ParameterServerStrategy(cluster) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        iterator = iter(coordinator.create_per_worker_dataset(loader))
        found = coordinator.fetch([coordinator.schedule(take, (iterator,)) for _ in range(2)])
        assert set(found) <= {sum(range(6)), sum(range(6, 12))}


def test_torch_datasets_need_no_function(cluster: Client) -> None:
    def take(iterator: Iterator[Tensor]) -> int:
        return int(next(iterator).sum())

    with psnb.ParameterServerStrategy(cluster) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        for source in (Loaded(), torch.utils.data.DataLoader(Loaded(), batch_size=1)):
            iterator = iter(coordinator.create_per_worker_dataset(source))
            assert coordinator.schedule(take, (iterator,)).fetch() == 1


def test_a_closure_has_the_modes_that_the_notebook_had_when_it_was_scheduled(
    cluster: Client,
) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = distributed(strategy)
        coordinator = psnb.ClusterCoordinator(strategy)

        def mode() -> tuple[bool, bool]:
            found = model.training
            model.train(not found)  # for the rest of this closure
            return found, model.training

        for expected in (True, False, True):
            model.train(expected)
            remotes = [coordinator.schedule(mode) for _ in range(8)]
            assert set(coordinator.fetch(remotes)) == {(expected, not expected)}


def test_what_is_wrong_with_a_batch_is_raised_in_the_notebook(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = distributed(strategy)
        coordinator = psnb.ClusterCoordinator(strategy)
        (batch,) = wd.batches(1)[:1]
        ids = batch["ids"].copy()
        ids[3, 2] = 70
        wrong: list[tuple[wd.Batch, type[Exception], str]] = [
            (
                {**batch, "ids": ids},
                IdOutOfRangeError,
                r"columns.2.weight' has 12 rows.*found id 70 at \[3\]; these ids are input "
                r"\[0\]\['ids'\]\[:, 2\]",
            ),
            (
                {**batch, "ids": ids * 1.0},
                InvalidArrayError,
                "'columns.0.weight': expected integers, found dtype float64",
            ),
            ({k: v for k, v in batch.items() if k != "x"}, KeyError, "x"),
            (
                {**batch, "x": batch["x"] * np.nan},
                InvalidArrayError,
                r"not finite; the batch: \[0\]\['x'\] \[12, 4\] nothing finite, 48 not finite",
            ),
        ]
        for given, kind, message in wrong:
            coordinator.schedule(step_of(model), (iter([given]),))
            with pytest.raises(kind, match=message) as error:
                coordinator.join()
            if kind is KeyError:
                assert any("there are ids, words, y" in n for n in error.value.__notes__)


def test_gradients_that_are_nan_say_which_element_of_which_file_the_batch_is(
    cluster: Client, tmp_path: Path
) -> None:
    values = ["nan" if row == 9 else "0.5" for row in range(16)]
    (tmp_path / "a").write_text("\n".join(values))
    batches = psnb.data.Dataset.text_lines(tmp_path / "a").map(np.float32).batch(4)
    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = psnb.torch.distribute(nn.Linear(4, 1), strategy, dense=psnb.SGD(0.01))
        coordinator = psnb.ClusterCoordinator(strategy)
        dataset = coordinator.create_per_worker_dataset(batches, sharding="dynamic", splits=1)

        def train(iterator: Iterator[Any]) -> None:
            for batch in iterator:
                with model.step():
                    model(psnb.torch.as_torch(batch)).sum().backward()

        coordinator.schedule(train, (iter(dataset),))
        with pytest.raises(InvalidArrayError) as raised:
            coordinator.join()
    told = str(raised.value)
    assert "'weight' (1 of 2 parameters) are not finite; the batch: [0] [4] 0.5 to 0.5, 1" in told
    where = f"element 2 (its first example is of {tmp_path / 'a'}, record 9) of split 0 of 1"
    assert where in told


class Referring(nn.Module):
    """A table and a layer that functions, lists and hooks refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.score = lambda rows: self.out(rows) @ self.words.weight.T
        self.decayed = [self.words.weight, self.out.weight]
        self.words.register_forward_hook(lambda module, args, rows: 2 * rows)
        self.out.bias.register_hook(lambda gradient: gradient * 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(self.score(self.words(ids)), ids)
        return loss + 0.1 * sum(each.square().mean() for each in self.decayed)


class Training:
    """Keeps a module and its distributed model."""

    def __init__(self, strategy: psnb.ParameterServerStrategy) -> None:
        self.net = Referring()
        self.model = psnb.torch.distribute(
            self.net, strategy, sparse=psnb.SGD(0.5), dense=psnb.SGD(0.5)
        )

    def step(self) -> float:
        with self.model.step():
            loss = self.model(torch.arange(9))
            loss.backward()
        return loss.item()

    def penalised(self) -> None:
        with self.model.step():
            (self.model(torch.arange(9)) + self.net.out.weight.sum()).backward()


def test_what_refers_to_a_module_from_anywhere_refers_to_what_is_served(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(1)) as strategy:
        training = Training(strategy)
        alone, coordinator = training.net, psnb.ClusterCoordinator(strategy)
        coordinator.schedule(training.penalised)
        with pytest.raises(ConfigurationError, match="a closure uses the module itself"):
            coordinator.join()
        losses = coordinator.fetch([coordinator.schedule(training.step) for _ in range(4)])
        coordinator.join()
        optimizer = torch.optim.SGD(alone.parameters(), 0.5)
        expected = []
        for _ in losses:
            optimizer.zero_grad()
            loss = alone(torch.arange(9))
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
        assert losses == pytest.approx(expected, rel=1e-5)
        for key, value in training.model.state_dict().items():
            torch.testing.assert_close(value, alone.state_dict()[key], rtol=1e-5, atol=1e-6)


class Critic(nn.Module):
    """Weights that are computed of others, and a method that closures call."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.hidden = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.out = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 1))

    def loss(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.hidden(self.table(ids))).square().mean()
        return found


def test_methods_and_computed_weights_are_those_of_torch_on_workers(cluster: Client) -> None:
    ids = torch.arange(9)
    alone = Critic()
    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(1)) as strategy:
        rate = psnb.SGD(0.5)
        model = psnb.torch.distribute(alone, strategy, sparse=rate, dense=rate)
        coordinator = psnb.ClusterCoordinator(strategy)

        def step() -> float:
            with model.step():
                loss = model.module.loss(ids)  # type: ignore[operator]
                loss.backward()
            return loss.item()

        losses = [coordinator.fetch(coordinator.schedule(step)) for _ in range(4)]
        optimizer = torch.optim.SGD(alone.parameters(), 0.5)
        for found in losses:
            optimizer.zero_grad()
            loss = alone.loss(ids)
            loss.backward()
            optimizer.step()
            assert found == pytest.approx(loss.item(), rel=1e-5)
        for key, value in model.state_dict().items():
            torch.testing.assert_close(value, alone.state_dict()[key], rtol=1e-5, atol=1e-6)
