"""Going on from a checkpoint alone, on another cluster or in another process."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from distributed import Client
from fsspec.implementations.memory import MemoryFileSystem

import psnb
from psnb import data
from psnb._src.coordinator.coordinator import coordinator_core
from psnb.errors import CheckpointError, ConfigurationError
from tests.checkpoint.saved import forge
from tests.conftest import wait_until
from tests.integration.training.trainer_helpers import counting, numbers, visits_of

OPTIMIZERS: list[psnb.Optimizer] = [
    psnb.SGD(0.5, clipnorm=1.0),
    psnb.Momentum(psnb.Warmup(psnb.CosineDecay(0.5, 10), 3), nesterov=True),
    psnb.Adagrad(psnb.PiecewiseConstant([2, 4], [0.5, 0.25, 0.125])),
    psnb.Adam(psnb.ExponentialDecay(0.1, 5, 0.5, staircase=True), epsilon_hat=True),
    psnb.RMSProp(psnb.PolynomialDecay(0.1, 7), centered=True),
    psnb.FTRL(0.2),
]


MODEL: dict[str, Any] = {"arrays": {}, "tables": {}, "local": {}, "scratch": {}}
"""The record of a model without anything."""


def ckpt(directory: Path) -> list[Path]:
    return sorted(directory.glob("ckpt-*"))


def damage(path: Path) -> None:
    """Cut off a checkpoint's first file."""
    file = min(path.glob("*.bin"))
    file.write_bytes(file.read_bytes()[:-1])


def saved(strategy: psnb.ParameterServerStrategy, directory: Path, **metadata: Any) -> Path:
    return psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), directory).save(metadata)


def test_all_parameters_are_there_again_as_they_were(cluster: Client, tmp_path: Path) -> None:
    with psnb.ParameterServerStrategy(
        cluster, partitioner=psnb.FixedShards(2), mode=psnb.Sync(closures=3), replicas=1
    ) as old:
        for number, optimizer in enumerate(OPTIMIZERS):
            w = old.variable(np.ones((4, 2)), name=f"w{number}", optimizer=optimizer)
            w.push(np.full((4, 2), 0.25))
        old.variable(np.arange(3), name="plain", nonfinite="skip")
        ads = old.embedding(
            "ads",
            3,
            optimizer=psnb.Adam(0.1),
            dtype=np.float64,
            nonfinite="allow",
            padding_idx=7,
            admission=psnb.CountFilter(2),
            accessor=psnb.CtrAccessor(delete_after_unseen_days=math.inf),
            storage="disk",
        )
        for _ in range(2):
            ads.push([1, 2, 3], np.ones((3, 3)))
        ads.lookup([4])
        ads.optimizer.beta_1 = 0.5  # type: ignore[union-attr]
        tags = old.embedding("tags", 2, initializer=psnb.Normal(np.float32(0.5), 1), padding_idx=7)
        old.embedding("words", 2, rows=5, initializer=0.25)
        saved(old, tmp_path, step=8)
        variables = [each for each in old.parameters.values() if isinstance(each, psnb.Variable)]
        kept = {each.name: each.read() for each in variables}
        rows = ads.lookup([1, 2, 3, 9], training=False)
        first = tags.lookup([1, 7], training=False)
        to_config = {name: str(each.optimizer) for name, each in old.parameters.items()}
    with psnb.resume(tmp_path, cluster, replicas=0) as resumed:
        found = resumed.strategy.parameters
        assert resumed.metadata == {"step": 8}
        assert resumed.strategy.mode == psnb.Sync(closures=3)
        assert {name: str(each.optimizer) for name, each in found.items()} == to_config
        for name, value in kept.items():
            np.testing.assert_array_equal(found[name].read(), value)  # type: ignore[union-attr]
        made = found["ads"]
        assert isinstance(made, psnb.Embedding)
        np.testing.assert_array_equal(made.lookup([1, 2, 3, 9], training=False), rows)
        assert made.padding_idx == 7
        assert made.statistics().disk_nbytes > 0
        assert (made.admission, made.accessor) == (ads.admission, ads.accessor)
        made.push([4], np.ones((1, 3)))  # was seen once before it was saved
        assert made.lookup([4], training=False).any()
        made.push([1], np.full((1, 3), math.inf))  # as nonfinite= says
        words = found["words"]
        assert isinstance(words, psnb.Embedding)
        assert words.rows == 5
        assert repr(resumed).startswith("<psnb.Resumed ")
        assert "10 parameters" in repr(resumed)
        again = found["tags"]
        assert isinstance(again, psnb.Embedding)
        np.testing.assert_array_equal(again.lookup([1, 7]), first)


def test_what_follows_is_the_same_to_the_bit(cluster: Client, tmp_path: Path) -> None:
    gradient = np.linspace(-1, 1, 8).reshape(4, 2)

    def go_on(parameters: Any) -> list[Any]:
        for number in range(len(OPTIMIZERS)):
            for _ in range(3):
                parameters[f"w{number}"].push(gradient)
        return [parameters[f"w{number}"].read().tolist() for number in range(len(OPTIMIZERS))]

    with psnb.ParameterServerStrategy(cluster) as old:
        for number, optimizer in enumerate(OPTIMIZERS):
            old.variable(np.ones((4, 2)), f"w{number}", optimizer).push(gradient)
        saved(old, tmp_path)
        undisturbed = go_on(old.parameters)
    with psnb.resume(tmp_path, cluster) as resumed:
        assert go_on(resumed.strategy.parameters) == undisturbed


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_taken(
    strategy: psnb.ParameterServerStrategy,
    cluster: Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy.variable(1.0, name="w")
    first, second = (saved(strategy, tmp_path, step=step) for step in (1, 2))
    damage(second)
    with caplog.at_level(logging.WARNING, "psnb"), psnb.resume(tmp_path, cluster) as resumed:
        assert (resumed.path, resumed.metadata) == (first, {"step": 1})
    assert second.name in caplog.text
    assert "damaged" in caplog.text
    damage(first)
    with pytest.raises(CheckpointError, match=r"all checkpoints in .* are damaged"):
        psnb.resume(tmp_path, cluster)


def test_its_manager_has_the_settings_of_the_one_that_saved(
    strategy: psnb.ParameterServerStrategy, cluster: Client, tmp_path: Path
) -> None:
    strategy.variable(0, name="w")
    coordinator = psnb.ClusterCoordinator(strategy)
    manager = psnb.CheckpointManager(
        coordinator, tmp_path, 1, steps=3, every="1 d", save_timeout=5.0
    )
    manager.save()
    (before,) = ckpt(tmp_path)
    with psnb.resume(tmp_path, cluster) as resumed:
        assert resumed.manager.save_timeout == 5.0
        resumed.coordinator.map(abs, range(3))
        wait_until(
            lambda: resumed.coordinator.done() and ckpt(tmp_path)[-1] != before,
            "it saves by itself",
        )
        wait_until(lambda: len(ckpt(tmp_path)) == 1, "it keeps one")


def test_a_folder_without_checkpoints_is_refused(cluster: Client, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        psnb.resume(tmp_path / "nothing", cluster)


def test_what_only_pickles_could_hold_is_refused_with_what_to_do(
    strategy: psnb.ParameterServerStrategy, cluster: Client, tmp_path: Path
) -> None:
    strategy.variable(1.0, "w", psnb.SGD(lambda step: 0.5))
    saved(strategy, tmp_path)
    with pytest.raises(ConfigurationError, match=r"'w' cannot be made again.*restore\(\)"):
        psnb.resume(tmp_path, cluster)
    assert psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), tmp_path).restore() == {}


def test_versions_and_epochs_of_the_users_own_are_saved(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    cluster: Client,
    tmp_path: Path,
) -> None:
    visits = visits_of(strategy, 200)
    clicks = data.Dataset.range(200).shuffle(50, seed=3).batch(5)

    def epochs(of: psnb.ClusterCoordinator) -> Any:
        return of.create_per_worker_dataset(clicks, sharding="dynamic", splits=4)

    other, half, whole = (epochs(coordinator) for _ in range(3))
    iterators = iter(other), iter(half), iter(whole)
    coordinator.run_epoch(lambda iterator: next(iterator), iterators[2])  # it is over
    step = counting(visits)
    for _ in range(13):
        coordinator.schedule(step, (iterators[1],))
    coordinator.join()
    saved(strategy, tmp_path)
    found = coordinator.statistics()
    coordinator.close()
    with psnb.resume(tmp_path, cluster) as resumed:
        assert resumed.versions["numpy"] == np.__version__
        assert [each["visits"] for each in resumed.epochs] == [0, 13]
        assert resumed.closures == found.completed + found.failed + found.cancelled
        again = resumed.strategy.parameters["visits"]
        assert isinstance(again, psnb.Embedding)
        rest = epochs(resumed.coordinator).iterator(resumed.epochs[1])
        assert resumed.coordinator.run_epoch(counting(again), rest).visits == 40
        assert numbers(again, 200) == [1] * 200


def number() -> int:
    """Return which closure this is."""
    return psnb.worker_context().closure


def test_closures_are_numbered_and_counted_on_after_runs(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    cluster: Client,
    tmp_path: Path,
) -> None:
    made = coordinator.create_per_worker_dataset(data.Dataset.range(200), sharding="dynamic")
    coordinator.run_epoch(lambda iterator: next(iterator), iter(made))
    last = coordinator.schedule(number).fetch()
    saved(strategy, tmp_path / "own")
    # As a trainer does, from a checkpoint of another run:
    coordinator_core(coordinator).go_on_from(2000, 0)
    saved(strategy, tmp_path / "other")
    for folder, closures in (("own", coordinator.statistics().completed), ("other", 2000)):
        with psnb.resume(tmp_path / folder, cluster) as resumed:
            assert resumed.closures == closures
            assert resumed.coordinator.schedule(number).fetch() == last + 1


def test_closures_are_numbered_on_so_that_random_keys_go_on(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    cluster: Client,
    tmp_path: Path,
) -> None:
    found = [coordinator.schedule(number).fetch() for _ in range(3)]
    saved(strategy, tmp_path)
    for _ in range(2):
        with psnb.resume(tmp_path, cluster) as resumed:
            found.append(resumed.coordinator.schedule(number).fetch())
            resumed.manager.save()
    assert found == [0, 1, 2, 3, 4]


def test_a_checkpoint_has_its_run_as_json(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    strategy.variable(1.0, name="w")
    path = saved(strategy, tmp_path)
    content = json.loads((path / "manifest.json").read_text())
    assert content["run"]["mode"] == {"name": "Async"}
    assert psnb.checkpoint.load(path).run["versions"]["psnb"] == psnb.__version__


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.clear(),
        lambda run: run.update(recipes={}),
        lambda run: run["recipes"].update(w={"nonfinite": "allow", "initial_value": 3}),
        lambda run: run.update(models=[]),
        lambda run: run["models"].update(M={"arrays": {}}),
        lambda run: run["models"].update(M=MODEL | {"tables": {"t": "w"}}),
        lambda run: run["models"].update(M=MODEL | {"arrays": {"parameters": {"w": [["a", [1]]]}}}),
        lambda run: run.update(mode={"name": "os.system"}),
        lambda run: run.update(closures=-1),
        lambda run: run.update(closures=10**40),
        lambda run: run.update(next_number=-1),
        lambda run: run.update(epochs=3),
        lambda run: run.update(manager={"name": "CheckpointManager"}),
        lambda run: run["manager"].pop("steps"),
    ],
)
def test_what_no_manager_has_saved_is_refused_before_anything_is_made(
    strategy: psnb.ParameterServerStrategy,
    cluster: Client,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
) -> None:
    strategy.variable(1.0, name="w")
    forge(saved(strategy, tmp_path), lambda content: change(content["run"]))
    with pytest.raises(CheckpointError, match=r"was not saved by a psnb\.CheckpointManager"):
        psnb.resume(tmp_path, cluster)


def test_a_restore_that_fails_leaves_no_strategy_behind(
    strategy: psnb.ParameterServerStrategy,
    cluster: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy.variable(1.0, name="w")
    saved(strategy, tmp_path)
    made: list[psnb.ParameterServerStrategy] = []

    def fail(manager: psnb.CheckpointManager, path: Path) -> None:
        made.append(manager._coordinator.strategy)
        raise CheckpointError("gone")

    monkeypatch.setattr(psnb.CheckpointManager, "restore", fail)
    with pytest.raises(CheckpointError, match="gone"):
        psnb.resume(tmp_path, cluster)
    assert "closed" in repr(made[0])


@pytest.mark.parametrize("part", ["manifest.json", ".bin"])
def test_nobody_goes_on_from_an_older_one_as_the_newest_cannot_be_read_now(
    cluster: Client, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    store, where = fsspec.filesystem("memory").store, f"memory://run-{part}"
    with psnb.ParameterServerStrategy(cluster) as strategy:
        count = strategy.variable(np.int64(0), "count")
        manager = psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), where)
        manager.save()
        before = set(store)
        count.assign_add(np.int64(1))
        manager.save()
    new, read = set(store) - before, MemoryFileSystem.cat_file

    def no_answer(system: MemoryFileSystem, path: str, *arguments: Any, **more: Any) -> Any:
        if path in new and path.endswith(part):
            raise TimeoutError("no answer")
        return read(system, path, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "cat_file", no_answer)
        with pytest.raises(CheckpointError, match="ckpt-000002' cannot be read now"):
            psnb.resume(where, cluster)
    with psnb.resume(where, cluster).strategy as strategy:
        assert int(strategy.parameters["count"].read()) == 1
