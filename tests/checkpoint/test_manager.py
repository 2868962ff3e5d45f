"""Tests of saving and restoring all parameters of a strategy, on a real cluster."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb.errors import CheckpointError, ConfigurationError

Strategy = psnb.ParameterServerStrategy

SPLIT = psnb.FixedShards(2)
IDS = np.array([[0, 3, 3], [9, 1, 2]])  # even and odd ones: each of two shards has every step
ANY_IDS = np.array([-1, 2**40, 5])


def build(strategy: Strategy) -> None:
    """Make parameters of every kind."""
    # Adam and the schedule go by the step.
    adam = psnb.Adam(psnb.ExponentialDecay(0.1, 3, 0.5))
    strategy.variable(np.ones((5, 2), np.float32), name="w", optimizer=adam)
    strategy.variable(0.0, name="bias", optimizer=psnb.Momentum(0.1))
    strategy.variable(0, name="step")
    strategy.embedding("fixed", 2, rows=10, optimizer=adam)
    strategy.embedding("any", 3, optimizer=psnb.Adagrad(0.5), dtype=np.float64)


def train(strategy: Strategy, start: int, stop: int) -> None:
    """Take some steps, each of a gradient of its own."""
    p: Any = strategy.parameters
    for step in range(start, stop):
        rng = np.random.default_rng(step)
        p["w"].push(rng.normal(size=(5, 2)).astype(np.float32))
        p["bias"].push(rng.normal())
        p["step"].assign_add(1)
        p["fixed"].push(IDS, rng.normal(size=(*IDS.shape, 2)).astype(np.float32))
        p["any"].push(ANY_IDS, rng.normal(size=(3, 3)))


def values(strategy: Strategy) -> dict[str, list[Any]]:
    p: Any = strategy.parameters
    return {
        **{name: p[name].read().tolist() for name in ("w", "bias", "step")},
        "fixed": p["fixed"].lookup(range(10)).tolist(),
        "any": p["any"].lookup(ANY_IDS).tolist(),
    }


@contextmanager
def managed(
    cluster: Client, directory: Path, num_servers: int | None = None, **options: Any
) -> Iterator[tuple[Strategy, psnb.CheckpointManager]]:
    """Give a strategy with parameters of every kind, and its manager."""
    with Strategy(cluster, num_servers, SPLIT) as strategy:
        build(strategy)
        yield (
            strategy,
            psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), directory, **options),
        )


@pytest.fixture
def manager(coordinator: psnb.ClusterCoordinator, tmp_path: Path) -> psnb.CheckpointManager:
    """Return a manager of the shared strategy, which has no parameters yet."""
    return psnb.CheckpointManager(coordinator, tmp_path)


def test_training_after_a_restore_goes_on_as_if_never_interrupted(
    cluster: Client, tmp_path: Path
) -> None:
    with managed(cluster, tmp_path) as (strategy, manager):
        train(strategy, 0, 5)
        manager.save()
        train(strategy, 5, 10)
        uninterrupted = values(strategy)
        manager.restore()
        train(strategy, 5, 10)
        assert values(strategy) == uninterrupted


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_checkpoint_restores_onto_another_number_of_servers(
    cluster: Client, tmp_path: Path, before: int, after: int
) -> None:
    with managed(cluster, tmp_path, before) as (strategy, manager):
        train(strategy, 0, 3)
        manager.save()
        train(strategy, 3, 6)
        uninterrupted = values(strategy)
    with managed(cluster, tmp_path, after) as (strategy, manager):
        assert values(strategy) != uninterrupted
        manager.restore()
        train(strategy, 3, 6)
        assert values(strategy) == uninterrupted


def test_rows_first_seen_after_the_checkpoint_start_over(
    strategy: Strategy, manager: psnb.CheckpointManager
) -> None:
    e = strategy.embedding("e", 2, optimizer=psnb.SGD(1.0))
    before = e.lookup([1])
    empty = manager.save()
    e.push([1], [[5.0, 5.0]])
    manager.restore(empty)
    np.testing.assert_array_equal(e.lookup([1]), before)


def test_embedding_without_any_row_can_be_saved(
    strategy: Strategy, manager: psnb.CheckpointManager
) -> None:
    e = strategy.embedding("e", 2, initializer=1.0, optimizer=psnb.Adagrad())
    manager.save()
    e.push([1], [[5.0, 5.0]])
    manager.restore()
    assert e.lookup([1]).tolist() == [[1, 1]]


def test_metadata_comes_back(strategy: Strategy, manager: psnb.CheckpointManager) -> None:
    strategy.variable(1.0)
    metadata = {"step": 7, "loss": 0.25, "names": ["a", None]}
    manager.save(metadata)
    assert manager.restore() == metadata
    manager.save()
    assert manager.restore() == {}


def test_chosen_checkpoint_is_restored(strategy: Strategy, manager: psnb.CheckpointManager) -> None:
    v = strategy.variable(0)
    paths = []
    for value in range(3):
        v.assign(value)
        paths.append(manager.save())
    manager.restore()
    assert v.read() == 2
    manager.restore(str(paths[0]))
    assert v.read() == 0


def test_another_manager_goes_on_in_the_same_folder(
    coordinator: psnb.ClusterCoordinator, manager: psnb.CheckpointManager, tmp_path: Path
) -> None:
    first = manager.save()
    again = psnb.CheckpointManager(coordinator, str(tmp_path))
    assert again.latest_checkpoint == first
    assert again.save().name == "ckpt-000002"


def test_optimizer_of_the_same_state_may_have_other_hyperparameters(
    cluster: Client, manager: psnb.CheckpointManager, strategy: Strategy, tmp_path: Path
) -> None:
    strategy.variable(1.0, name="v", optimizer=psnb.Adagrad(np.float32(0.5)))
    manager.save()
    with Strategy(cluster) as other:
        v = other.variable(9.0, name="v", optimizer=psnb.Adagrad(0.1))
        psnb.CheckpointManager(psnb.ClusterCoordinator(other), tmp_path).restore()
        assert v.read() == 1


MISMATCHES: dict[str, tuple[Callable[[Strategy], Any], str]] = {
    "kind": (lambda s: s.embedding("v", 3), "'v': expected kind 'embedding', found 'variable'"),
    "dim": (lambda s: s.embedding("e", 3, rows=4), "'e': expected dim 3, found 2"),
    "rows": (lambda s: s.embedding("e", 2), "'e': expected rows None, found 4"),
}


@pytest.mark.parametrize("mismatch", MISMATCHES)
def test_checkpoint_that_does_not_fit_is_refused_and_nothing_changed(
    cluster: Client,
    strategy: Strategy,
    manager: psnb.CheckpointManager,
    tmp_path: Path,
    mismatch: str,
) -> None:
    strategy.variable(1.0, name="first")
    strategy.variable([1.0, 2.0, 3.0], name="v")
    strategy.embedding("e", 2, rows=4)
    manager.save()
    make, message = MISMATCHES[mismatch]
    with Strategy(cluster) as other:
        first = other.variable(9.0, name="first")
        make(other)
        unfit = psnb.CheckpointManager(psnb.ClusterCoordinator(other), tmp_path)
        with pytest.raises(CheckpointError, match=rf"(?s)ckpt-000001.*{message}"):
            unfit.restore()
        assert first.read() == 9


def test_nothing_to_restore_is_reported_with_the_folder(
    manager: psnb.CheckpointManager, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=f"there is no checkpoint in '{tmp_path}'"):
        manager.restore()
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        manager.restore(tmp_path / "ckpt-000009")


def test_folder_that_cannot_be_written_is_refused(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        psnb.CheckpointManager(coordinator, tmp_path / "file" / "below")


@pytest.mark.parametrize("bad", [0, -1, 1.5, None])
def test_number_to_keep_below_one_is_refused(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path, bad: Any
) -> None:
    with pytest.raises(ConfigurationError, match="max_to_keep must be 1 or more"):
        psnb.CheckpointManager(coordinator, tmp_path, max_to_keep=bad)


def test_what_is_no_coordinator_is_refused(strategy: Strategy, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"coordinator must be a psnb\.ClusterCoordinator"):
        psnb.CheckpointManager(strategy, tmp_path)  # type: ignore[arg-type]


def test_manifest_names_the_optimizer_for_people_to_read(
    strategy: Strategy, manager: psnb.CheckpointManager
) -> None:
    v = strategy.variable(1.0, name="v", optimizer=psnb.SGD(np.float32(0.5)))
    assert v.optimizer is not None
    v.optimizer.learning_rate = 0.25
    manifest = json.loads((manager.save() / "manifest.json").read_text())
    assert manifest["parameters"][0]["optimizer"] == psnb.SGD(0.25).describe()


def test_a_rate_by_a_function_is_saved_by_name_and_stays_as_it_is_on_restore(
    strategy: Strategy, manager: psnb.CheckpointManager
) -> None:
    v = strategy.variable(0.0, name="v", optimizer=psnb.SGD(lambda step: 1.0 + step))
    v.push(1.0)
    manifest = json.loads((manager.save() / "manifest.json").read_text())
    rate = manifest["parameters"][0]["optimizer"]["learning_rate"]
    assert rate["function"].endswith("<locals>.<lambda>")
    v.push(1.0)
    manager.restore()
    v.push(1.0)
    assert v.read() == -3  # 1 for the first step, 2 for the second again


def test_save_while_another_thread_trains_has_no_update_by_half(
    strategy: Strategy, manager: psnb.CheckpointManager
) -> None:
    v = strategy.variable(np.zeros(10_000, np.int64), name="v")
    done = threading.Event()

    def train_on() -> None:
        while not done.is_set():
            v.assign_add(np.ones(10_000, np.int64))

    trainer = threading.Thread(target=train_on)
    trainer.start()
    try:
        paths = [manager.save() for _ in range(3)]
    finally:
        done.set()
        trainer.join()
    for path in paths:
        manager.restore(path)
        assert np.unique(v.read()).size == 1
