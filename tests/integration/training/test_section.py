"""Pipelines: models in stages on several workers, on real clusters."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from distributed import Client

import psnb
import psnb.jax
from psnb.errors import ConfigurationError

ROWS, DIM, HIDDEN, MICRO, MICROBATCHES, UPDATES = 20, 4, 6, 8, 3, 4
RATE = 0.5


def _examples() -> dict[str, np.ndarray]:
    random, count = np.random.default_rng(0), MICRO * MICROBATCHES * UPDATES
    return {
        "ids": random.integers(ROWS, size=(count, 2)),
        "x": random.normal(size=(count, 3)).astype(np.float32),
        "y": random.integers(2, size=count).astype(np.float32),
    }


def _layers() -> dict[str, dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    shapes = {"first": (2 * DIM + 3, HIDDEN), "second": (HIDDEN, HIDDEN), "last": (HIDDEN, 1)}
    return {
        name: {"w": random.normal(size=shape).astype(np.float32), "b": np.zeros(shape[1], "f4")}
        for name, shape in shapes.items()
    }


def _table() -> np.ndarray:
    return np.random.default_rng(2).normal(size=(ROWS, DIM)).astype(np.float32)


def first(params: Any, rows: Any, batch: Any) -> Any:
    rows = rows["ids"].reshape(len(batch["x"]), -1)
    inputs = jnp.concatenate([rows, batch["x"]], axis=1)
    return {"h": jnp.tanh(inputs @ params["w"] + params["b"]), "y": batch["y"].astype(int)}


def second(params: Any, rows: Any, inputs: Any) -> Any:
    return {**inputs, "h": jnp.tanh(inputs["h"] @ params["w"] + params["b"])}


def last(params: Any, rows: Any, inputs: Any) -> Any:
    logits = (inputs["h"] @ params["w"] + params["b"])[:, 0]
    return jnp.mean(jnp.logaddexp(0.0, logits) - inputs["y"] * logits)


def _alone() -> tuple[dict[str, Any], np.ndarray]:
    """Train in this process, on the micro-batches of an update joined."""

    def loss(layers: Any, table: Any, batch: Any) -> Any:
        outputs = first(layers["first"], {"ids": table[batch["ids"]]}, batch)
        return last(layers["last"], None, second(layers["second"], None, outputs))

    state: tuple[Any, Any] = _layers(), jnp.asarray(_table())
    size = MICRO * MICROBATCHES
    for start in range(0, size * UPDATES, size):
        batch = {name: each[start : start + size] for name, each in _examples().items()}
        gradients = jax.grad(loss, argnums=(0, 1))(*state, batch)
        state = jax.tree.map(lambda value, by: value - RATE * by, state, gradients)
    return jax.device_get(state)  # type: ignore[no-any-return]


class _Model:
    """The stages on servers."""

    def __init__(self, strategy: psnb.ParameterServerStrategy, middle: Any = second) -> None:
        self.table = strategy.embedding("ids", DIM, ROWS, optimizer=psnb.SGD(RATE))
        self.table.assign(np.arange(ROWS), _table())
        self.layers = {
            name: psnb.jax.variables(strategy, layer, psnb.SGD(RATE), name)
            for name, layer in _layers().items()
        }
        self.stages = [
            psnb.jax.stage(first, params=self.layers["first"], tables={"ids": self.table}),
            psnb.jax.stage(middle, params=self.layers["second"]),
            psnb.jax.stage(last, params=self.layers["last"]),
        ]

    def train(self, strategy: psnb.ParameterServerStrategy, section: psnb.Section) -> Any:
        coordinator = psnb.ClusterCoordinator(strategy)
        data = psnb.data.Dataset.from_tensor_slices(_examples()).batch(MICRO)
        iterator = iter(coordinator.create_per_worker_dataset(data, sharding="dynamic", splits=1))
        section.train(coordinator, None, iterator, lambda: None)
        return iterator.progress(), coordinator.statistics()

    def check(self) -> None:
        layers, table = _alone()
        for name, each in self.layers.items():
            jax.tree.map(
                lambda found, alone: np.testing.assert_allclose(found, alone, atol=1e-5),
                each.read(),
                layers[name],
            )
        np.testing.assert_allclose(self.table.lookup(np.arange(ROWS)), table, atol=1e-5)


CLOSURES = MICROBATCHES * 2 * 3


def test_it_equals_the_undivided_model_in_sync_mode(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(CLOSURES)) as strategy:
        model = _Model(strategy)
        progress, statistics = model.train(strategy, psnb.Section(model.stages, MICROBATCHES))
        assert progress.visits == MICROBATCHES * UPDATES
        assert statistics.metrics["loss"].count == MICROBATCHES * UPDATES
        model.check()


def test_a_trainer_trains_stages_in_epochs(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = _Model(strategy)
        section = psnb.Section(model.stages, MICROBATCHES)
        trainer = psnb.Trainer(psnb.ClusterCoordinator(strategy), worker=section, progress=False)
        data = psnb.data.Dataset.from_tensor_slices(_examples()).batch(MICRO)
        history = trainer.train_from_dataset(data, 6)
        assert [each.batches for each in history.rows] == [MICROBATCHES * UPDATES] * 6
        assert history["loss"][-1] < history["loss"][0]
        with pytest.raises(ConfigurationError, match="make the trainer with evaluate="):
            trainer.evaluate(data)


def test_a_step_beside_the_stages_is_refused(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = _Model(strategy)
        section = psnb.Section(model.stages, MICROBATCHES)
        with pytest.raises(ConfigurationError, match="Section trains its stages"):
            psnb.Trainer(psnb.ClusterCoordinator(strategy), print, section)


def test_stages_run_on_different_workers(cluster: Client, tmp_path: Path) -> None:
    def noted(name: str, function: Any) -> Any:
        def stage(params: Any, rows: Any, inputs: Any) -> Any:
            worker = psnb.worker_index()
            (tmp_path / f"{name}-{worker}").touch()  # where it is traced
            return function(params, rows, inputs)

        return stage

    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = _Model(strategy)
        stages = [
            psnb.jax.stage(
                noted("first", first), params=model.layers["first"], tables={"ids": model.table}
            ),
            psnb.jax.stage(noted("second", second), params=model.layers["second"]),
            psnb.jax.stage(last, params=model.layers["last"]),
        ]
        coordinator = psnb.ClusterCoordinator(strategy)
        for worker in range(2):  # stages have their places when the first worker is ready
            coordinator.schedule(int, worker=worker)
        coordinator.join()
        model.train(strategy, psnb.Section(stages, MICROBATCHES))
    found = [path.name.split("-") for path in tmp_path.iterdir()]
    assert sorted(name for name, _ in found) == ["first", "second"]
    assert len({worker for _, worker in found}) == 2


@pytest.mark.second_tier("closures of stages are retried as others are")
def test_a_stage_whose_worker_is_killed_moves_and_the_result_is_the_same(
    whole: Client, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"

    def middle(params: Any, rows: Any, inputs: Any) -> Any:
        if not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return second(params, rows, inputs)

    with psnb.ParameterServerStrategy(whole, mode=psnb.Sync(CLOSURES)) as strategy:
        model = _Model(strategy, middle)
        progress, statistics = model.train(strategy, psnb.Section(model.stages, MICROBATCHES))
        assert statistics.retried
        assert progress.visits == MICROBATCHES * UPDATES
        model.check()


@pytest.mark.second_tier("in rounds it equals the undivided model")
def test_it_learns_without_rounds(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = _Model(strategy)
        section = psnb.Section(model.stages, MICROBATCHES)
        _, before = model.train(strategy, section)
        for _ in range(8):
            progress, after = model.train(strategy, section)
        assert progress.visits == MICROBATCHES * UPDATES
        assert after.metrics["loss"].smoothed < before.metrics["loss"].smoothed


def test_what_a_stage_raises_ends_it(cluster: Client) -> None:
    def middle(params: Any, rows: Any, inputs: Any) -> Any:
        raise ZeroDivisionError("in the middle")

    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = _Model(strategy, middle)
        with pytest.raises(ZeroDivisionError, match="in the middle"):
            model.train(strategy, psnb.Section(model.stages, MICROBATCHES))


def test_another_number_of_closures_a_round_is_refused(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(5)) as strategy:
        model = _Model(strategy)
        with pytest.raises(ConfigurationError, match=rf"psnb.Sync\({CLOSURES}\), found Sync"):
            model.train(strategy, psnb.Section(model.stages, MICROBATCHES))


def test_one_stage_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="two stages or more, found 1"):
        psnb.Section([psnb.jax.stage(last)])
