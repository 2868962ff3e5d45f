"""Checkpoints that are saved by themselves, on real clusters."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import data
from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.requests import Request
from psnb._src.server.operations import TakeSnapshot
from psnb.errors import ConfigurationError
from tests.conftest import DEADLINE, wait_until
from tests.integration.clusters import on_both
from tests.integration.counting import kill
from tests.integration.training.trainer_helpers import (
    counting,
    numbers,
    slow_until_saved,
    visits_of,
)

Coordinator = psnb.ClusterCoordinator


def wait_a_little() -> None:
    """Take a moment, as a closure."""
    time.sleep(0.01)


def saving_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "psnb-saving"]


def told(coordinator: Coordinator, kind: psnb.EventKind) -> list[str]:
    return [event.message for event in coordinator.events() if event.kind is kind]


def poll(coordinator: Coordinator) -> None:
    end = time.monotonic() + DEADLINE
    while not coordinator.done():
        assert time.monotonic() < end
        time.sleep(0.02)


def join_as_coroutine(coordinator: Coordinator) -> None:
    asyncio.run(coordinator.join_async(DEADLINE))


def wait_for(gate: psnb.Variable) -> None:
    """The closure that waits until a variable is not zero."""
    end = time.monotonic() + DEADLINE
    while not gate.read() and time.monotonic() < end:
        time.sleep(0.05)


@pytest.mark.parametrize("wait", [poll, Coordinator.join, join_as_coroutine])
def test_due_checkpoints_are_saved_while_a_call_waits(
    coordinator: Coordinator, tmp_path: Path, wait: Callable[[Coordinator], None]
) -> None:
    manager = psnb.CheckpointManager(coordinator, tmp_path, every="0.1 s")
    coordinator.map(lambda number: wait_a_little(), range(100))
    wait(coordinator)
    wait_until(lambda: told(coordinator, psnb.EventKind.CHECKPOINT_SAVED), "it is saved")
    assert manager.checkpoints
    assert coordinator.statistics().completed == 100


def test_due_checkpoints_are_saved_in_an_epoch_after_so_many_closures(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    dataset = coordinator.create_per_worker_dataset(data.Dataset.range(300), sharding="dynamic")
    iterator = iter(dataset)
    manager = psnb.CheckpointManager(
        coordinator, tmp_path, 50, steps=50, state=lambda: {"epoch": iterator.state()}
    )

    def use(elements: Iterator[int]) -> None:
        next(elements)
        wait_a_little()

    coordinator.run_epoch(use, iterator)
    wait_until(lambda: not saving_threads(), "the last save has ended")
    assert 1 <= len(manager.checkpoints) <= 6
    assert "epoch" in manifest(manager.checkpoints[0])["metadata"]


def manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return found


def test_nothing_is_saved_and_no_thread_lives_when_no_call_waits(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    manager = psnb.CheckpointManager(coordinator, tmp_path, steps=1)
    remotes = coordinator.map(lambda number: wait_a_little(), range(50))
    for remote in remotes:
        remote.fetch(DEADLINE)
    assert not saving_threads()
    assert manager.checkpoints == []
    coordinator.done()
    wait_until(lambda: len(manager.checkpoints) == 1, "it is saved at the first poll")


def test_a_folder_that_is_replaced_by_a_file_is_reported_once_and_training_goes_on(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    manager = psnb.CheckpointManager(coordinator, folder, steps=1)
    (folder / ".lock").unlink(missing_ok=True)
    folder.rmdir()
    folder.write_text("not a folder")
    attempts: list[str] = []

    def closures_until(holds: Callable[[], object]) -> None:
        while not holds():
            coordinator.schedule(wait_a_little)
            coordinator.join(DEADLINE)
            if manager.status.error and manager.status.error not in attempts:
                attempts.append(manager.status.error)

    failed = psnb.EventKind.CHECKPOINT_FAILED
    closures_until(lambda: told(coordinator, failed))
    assert "checkpoints" in attempts[0]
    assert coordinator.statistics().checkpoint.state == "failed"
    folder.unlink()
    folder.mkdir()
    closures_until(lambda: told(coordinator, psnb.EventKind.CHECKPOINT_SAVED))
    assert len(told(coordinator, failed)) == 1
    assert "attempts that failed" in told(coordinator, psnb.EventKind.CHECKPOINT_SAVED)[0]
    assert manager.latest_checkpoint is not None
    assert coordinator.statistics().failed == 0


class Counters:
    """Two counters on different servers, to both of which each closure adds one."""

    def __init__(self, coordinator: Coordinator) -> None:
        strategy = coordinator.strategy
        left, right = (strategy.variable(0, name=name) for name in ("left", "right"))
        assert [len(tables) for tables in strategy.memory().values()] == [1, 1]
        self._coordinator = coordinator

        def count(number: int) -> None:
            left.assign_add(1)
            right.assign_add(1)

        self._count = count

    def run(self, until: Callable[[], object]) -> None:
        """Schedule closures and poll."""
        end = time.monotonic() + DEADLINE
        while not until():
            assert time.monotonic() < end
            self._coordinator.map(self._count, range(100))
            poll(self._coordinator)
        wait_until(lambda: not saving_threads(), "the last save has ended")


@pytest.fixture
def counters(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Counters:
    """Let some closures complete, if any can, between the snapshots of two counters."""
    call = CommServerClient.call

    def one_by_one(self: CommServerClient, requests: Sequence[Request], *more: Any) -> list[Any]:
        if not any(isinstance(each.operation, TakeSnapshot) for each in requests):
            return call(self, requests, *more)
        found = []
        for request in requests:
            found += call(self, [request])
            begin, end = coordinator.statistics().completed, time.monotonic() + 0.2
            while coordinator.statistics().completed < begin + 5 and time.monotonic() < end:
                time.sleep(0.005)
        return found

    monkeypatch.setattr(CommServerClient, "call", one_by_one)
    return Counters(coordinator)


def counts(path: Path) -> tuple[int, int]:
    saved = psnb.checkpoint.load(path)
    return int(saved["left"]), int(saved["right"])


def test_every_checkpoint_is_of_one_moment(
    coordinator: Coordinator, counters: Counters, tmp_path: Path
) -> None:
    manager = psnb.CheckpointManager(coordinator, tmp_path, 100, steps=10)
    found: dict[Path, tuple[int, int]] = {}

    def enough() -> bool:
        found.update({path: counts(path) for path in manager.checkpoints if path not in found})
        # In the middle of what was scheduled, too.
        return len(found) >= 3 and any(left % 100 for left, _ in found.values())

    counters.run(until=enough)
    assert all(left == right for left, right in found.values())
    assert all(manifest(path)["consistent"] for path in manager.checkpoints)
    assert coordinator.statistics().checkpoint.held > 0.2
    assert "closures were held for" in told(coordinator, psnb.EventKind.CHECKPOINT_SAVED)[0]


def test_closures_go_on_if_it_need_not_be_of_one_moment_and_the_manifest_says_so(
    coordinator: Coordinator, counters: Counters, tmp_path: Path
) -> None:
    manager = psnb.CheckpointManager(coordinator, tmp_path, 100, steps=10, consistent=False)

    def torn() -> bool:
        return any(left != right for left, right in map(counts, manager.checkpoints))

    counters.run(until=torn)
    assert not any(manifest(path)["consistent"] for path in manager.checkpoints)
    assert coordinator.statistics().checkpoint.held == 0


def test_a_pause_of_the_user_is_one_before_during_and_after_a_save(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def state() -> dict[str, int]:
        begun.set()
        assert go_on.wait(DEADLINE)
        return {}

    manager = psnb.CheckpointManager(coordinator, tmp_path, every=0.01, state=state)
    remote = coordinator.schedule(wait_a_little)
    remote.fetch(DEADLINE)
    wait_until(lambda: bool(coordinator.done() and begun.is_set()), "it saves")
    assert not coordinator.paused
    coordinator.pause()
    later = coordinator.schedule(abs, (-3,))
    go_on.set()
    wait_until(lambda: not saving_threads(), "the save has ended")
    assert manager.latest_checkpoint is not None
    assert coordinator.paused
    assert later.status is psnb.ClosureStatus.QUEUED
    coordinator.resume()
    assert later.fetch(DEADLINE) == 3


def test_a_save_that_waits_for_closures_ends_with_the_coordinator(
    strategy: psnb.ParameterServerStrategy, coordinator: Coordinator, tmp_path: Path
) -> None:
    gate = strategy.variable(0)
    psnb.CheckpointManager(coordinator, tmp_path, every=0.01)
    remote = coordinator.schedule(wait_for, (gate,))
    wait_until(lambda: remote.status is psnb.ClosureStatus.RUNNING, "it runs")
    wait_until(lambda: not coordinator.done() and bool(saving_threads()), "a save waits")
    coordinator.close()
    wait_until(lambda: not saving_threads(), "the thread has ended", 5)
    gate.assign(1)


def test_no_time_at_all_for_a_save_is_refused(coordinator: Coordinator, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="save_timeout must be a positive number"):
        psnb.CheckpointManager(coordinator, tmp_path, save_timeout=0)


def test_closures_that_take_too_long_make_a_save_fail_and_go_on(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    psnb.CheckpointManager(coordinator, tmp_path, every=0.01, save_timeout=0.1)
    failed = psnb.EventKind.CHECKPOINT_FAILED
    coordinator.map(lambda number: time.sleep(0.5), range(4))
    poll(coordinator)
    (text,) = told(coordinator, failed)
    assert "TimeoutError: after 0.1 s" in text
    assert coordinator.statistics().completed == 4


def test_what_a_trainers_manager_saves_by_itself_can_be_resumed(
    strategy: psnb.ParameterServerStrategy, coordinator: Coordinator, tmp_path: Path
) -> None:
    visits = visits_of(strategy, 800)
    step = slow_until_saved(counting(visits), 400, tmp_path)
    manager = psnb.CheckpointManager(coordinator, tmp_path, 50, steps=50, state=lambda: {"a": 1})
    trainer = psnb.Trainer(coordinator, step)
    dataset = data.Dataset.range(800).batch(2)
    trainer.train_from_dataset(dataset, checkpoint=manager, metadata={"b": 2})
    midway = manager.checkpoints[0]
    state = manager.restore(midway)
    assert (state["a"], state["b"]) == (1, 2)
    assert 0 < sum(numbers(visits, 800)) < 800
    history = trainer.train_from_dataset(dataset, resume=state)
    assert history["examples"] == [800]
    assert numbers(visits, 800) == [1] * 800


@on_both("started")
def test_lost_servers_are_reported_once_and_after_recovery_checkpoints_are_saved_again(
    whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = Coordinator(strategy)
        strategy.variable(np.zeros(3), name="weights")
        manager = psnb.CheckpointManager(coordinator, tmp_path, every=0.05)
        manager.save()
        kill(whole, *strategy.server_addresses)
        failed, saved = psnb.EventKind.CHECKPOINT_FAILED, psnb.EventKind.CHECKPOINT_SAVED
        wait_until(lambda: coordinator.done() and bool(told(coordinator, failed)), "it is told")
        assert coordinator.schedule(abs, (-3,)).fetch(DEADLINE) == 3
        before = len(told(coordinator, saved))
        strategy.recover()
        wait_until(lambda: coordinator.done() and len(told(coordinator, saved)) > before, "again")
        assert "attempts that failed" in told(coordinator, saved)[before]
        assert len(told(coordinator, failed)) == 1


def test_an_interrupted_save_that_waits_for_closures_leaves_nothing_held(
    strategy: psnb.ParameterServerStrategy, coordinator: Coordinator, tmp_path: Path
) -> None:
    gate = strategy.variable(0)
    manager = psnb.CheckpointManager(coordinator, tmp_path)
    remote = coordinator.schedule(wait_for, (gate,))
    wait_until(lambda: remote.status is psnb.ClosureStatus.RUNNING, "it runs")

    def interrupt() -> None:
        wait_until(lambda: manager.status.state == "saving", "it waits")
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        manager.save()
    interrupting.join()
    assert coordinator.schedule(abs, (-3,)).fetch(DEADLINE) == 3  # on the other worker
    assert remote.status is psnb.ClosureStatus.RUNNING
    gate.assign(1)
    assert manager.save() == manager.latest_checkpoint
