"""Processes that are killed in the middle of a rewind: all of it, or an error and nothing of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import EventKind, data, errors
from psnb._src.client.tables import marks
from psnb._src.client.whole_tables import load_tables
from psnb._src.server.marks import MOST_MARKS
from tests.conftest import DEADLINE, wait_until
from tests.integration.counting import Counter, kill, terminate, wait_until_copied
from tests.integration.helpers import Steps, frozen, pid_of
from tests.integration.training.trainer_helpers import counting, numbers, visits_of

pytestmark = pytest.mark.second_tier("kills processes")


def in_the_middle(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Do something when the first parameter was loaded, once, and the others were not."""
    pending = [do]

    def load(client: Any, loads: Any, *rest: Any) -> None:
        if pending:
            load_tables(client, loads[:1])
            pending.pop()()
        load_tables(client, loads, *rest)

    monkeypatch.setattr(marks, "load_tables", load)


def test_server_with_a_replica_is_killed_meanwhile_and_all_is_rewound(
    pair: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psnb.ParameterServerStrategy(pair, replicas=1) as strategy:
        wait_until_copied(strategy)
        counter = Counter(strategy)
        counter.schedule(20)
        counter.coordinator.join()
        mark = counter.coordinator.mark()
        counter.wait_for(20)
        counter.coordinator.join()
        in_the_middle(monkeypatch, lambda: kill(pair, strategy.server_addresses[0]))
        counter.coordinator.rewind(mark)
        counter.scheduled = 20
        counter.require_all()
        counter.schedule(20)
        counter.require_all()
        # The replica that was filled since lacks it: when its server has the shards, it is stale.
        wait_until_copied(strategy)
        kill(pair, strategy.server_addresses[0])
        with pytest.raises(errors.StaleMarkError, match="Go back to a checkpoint"):
            counter.coordinator.rewind(mark)
        counter.require_all()


def test_server_without_replica_is_killed_meanwhile_and_nothing_is_half_rewound(
    pair: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psnb.ParameterServerStrategy(pair) as strategy:
        counter = Counter(strategy)
        counter.schedule(20)
        counter.coordinator.join()
        path = psnb.CheckpointManager(counter.coordinator, tmp_path).save()
        counter.wait_for(5)
        counter.coordinator.join()
        mark = counter.coordinator.mark()
        counter.wait_for(5)
        in_the_middle(monkeypatch, lambda: kill(pair, strategy.server_addresses[0]))
        with pytest.raises(errors.ServerLostError) as caught:
            counter.coordinator.rewind(mark)
        assert any("recover(checkpoint)" in note for note in caught.value.__notes__)
        for each in strategy.parameters.values():
            with pytest.raises((errors.ServerLostError, errors.ConfigurationError)):
                _ = each.read() if isinstance(each, psnb.Variable) else each.lookup(np.arange(40))
        strategy.recover(path)
        counter.scheduled = 20
        counter.require_all()
        with pytest.raises(errors.StaleMarkError):
            counter.coordinator.rewind(mark)
        counter.schedule(5)
        counter.require_all()


def test_closure_of_a_frozen_worker_runs_once_after_the_rewind(
    pair: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(pair) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy, heartbeat_timeout=2.0)
        v, steps = strategy.variable(np.int64(0)), Steps(tmp_path)
        mark = coordinator.mark()
        coordinator.schedule(steps.counting(v))
        (worker,) = steps.begun()
        pid = pid_of(pair, worker)
        with frozen(pid):
            steps.end()
            thread = threading.Thread(target=coordinator.rewind, args=(mark,))
            thread.start()
            thread.join(2 * DEADLINE)
            assert not thread.is_alive()
            coordinator.join()
            assert v.read() == 1  # it had no effect, and was queued again
        coordinator.schedule(lambda: v.assign_add(np.int64(5)))
        coordinator.join()
        assert v.read() == 6


def test_worker_is_killed_meanwhile_and_its_closures_run_once(
    pair: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psnb.ParameterServerStrategy(pair) as strategy:
        counter = Counter(strategy)
        counter.schedule(20)
        counter.coordinator.join()
        mark = counter.coordinator.mark()
        counter.schedule(400)
        done: list[int] = []

        def meanwhile() -> None:
            found = counter.coordinator.statistics()
            done.append(found.completed)
            assert found.in_flight == 0
            kill(pair, found.workers[0].address)

        in_the_middle(monkeypatch, meanwhile)
        counter.coordinator.rewind(mark)
        counter.scheduled = 20 + 420 - done[0]
        assert counter.scheduled > 20
        counter.require_all()


@pytest.mark.parametrize("mode", [psnb.Sync(2), psnb.Geo(3), psnb.BoundedStaleness(2)], ids=str)
def test_modes_go_back_with_what_workers_have_kept(pair: Client, mode: Any) -> None:
    with psnb.ParameterServerStrategy(pair, mode=mode) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        v = strategy.variable(np.zeros(4), optimizer=psnb.SGD(1.0))
        table = strategy.embedding("e", 2, optimizer=psnb.Adam(0.1), initializer=0.0)

        def step() -> None:
            table.lookup([1, 2])
            psnb.push({v: -np.ones(4), table: ([1, 2], np.ones((2, 2), np.float32))})

        def run(times: int) -> tuple[list[float], list[list[float]]]:
            for _ in range(times):
                coordinator.schedule(step)
            coordinator.join()
            return v.read().tolist(), table.lookup([1, 2]).tolist()

        before = run(4)
        mark = coordinator.mark()
        run(8)
        coordinator.rewind(mark)
        assert (v.read().tolist(), table.lookup([1, 2]).tolist()) == before
        ahead, _ = run(4)
        assert sum(ahead) > sum(before[0])


def test_mark_of_shards_that_were_moved_is_stale_and_the_checkpoint_before_it_is_next(
    pair: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(pair) as strategy:
        counter = Counter(strategy)
        counter.schedule(5)
        counter.coordinator.join()
        path = psnb.CheckpointManager(counter.coordinator, tmp_path).save()
        counter.wait_for(5)
        mark = counter.coordinator.mark()
        counter.wait_for(5)
        terminate(pair, strategy.server_addresses[0])
        wait_until(
            lambda: EventKind.SERVER_RETIRED in {e.kind for e in counter.coordinator.events()},
            "its shards have moved",
        )
        with pytest.raises(errors.StaleMarkError, match="its server came since"):
            counter.coordinator.rewind()
        counter.require_all()
        assert mark.dropped
        assert counter.coordinator.rewind().path == path  # type: ignore[union-attr]
        counter.scheduled = 5
        counter.require_all()


def test_marks_end_with_their_last_reference(fragile: Client) -> None:
    with psnb.ParameterServerStrategy(fragile) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        v = strategy.variable(np.zeros(3))
        kept = [coordinator.mark() for _ in range(MOST_MARKS)]
        with pytest.raises(errors.ConfigurationError, match="drop one first"):
            coordinator.mark()
        kept.pop()
        del kept[:3]

        def can_mark() -> bool:
            try:
                kept.append(coordinator.mark())
            except errors.ConfigurationError:
                return False
            return True

        for _ in range(4):
            wait_until(can_mark, "servers have forgotten it")
        v.assign(np.ones(3))
        coordinator.pause()
        coordinator.rewind(kept[0])  # also while it is paused
        assert coordinator.paused
        assert v.read().tolist() == [0.0] * 3


@pytest.mark.parametrize("lost", ["worker", "server"])
def test_trainer_goes_back_while_a_process_is_killed_and_each_example_counts_once(
    pair: Client, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    with psnb.ParameterServerStrategy(pair, replicas=1) as strategy:
        wait_until_copied(strategy)
        coordinator = psnb.ClusterCoordinator(strategy)
        visits = visits_of(strategy, 400)

        def end() -> None:
            worker = coordinator.statistics().workers[0].address
            kill(pair, worker if lost == "worker" else strategy.server_addresses[0])

        def step(iterator: Any) -> None:
            time.sleep(0.01)
            counting(visits)(iterator)

        def go_back() -> None:
            wait_until(lambda: sum(numbers(visits, 400)) > 50, "some are counted")
            mark, enough = coordinator.mark(), sum(numbers(visits, 400)) + 50
            wait_until(lambda: sum(numbers(visits, 400)) > enough, "some more are counted")
            coordinator.rewind(mark)

        in_the_middle(monkeypatch, end)
        thread = threading.Thread(target=go_back)
        thread.start()
        trainer = psnb.Trainer(coordinator, step)
        history = trainer.train_from_dataset(data.Dataset.range(400).batch(2))
        thread.join()
        assert EventKind.REWOUND in {each.kind for each in coordinator.events()}
        assert numbers(visits, 400) == [1] * 400
        assert [(row.batches, row.examples) for row in history.rows] == [(200, 400)]
