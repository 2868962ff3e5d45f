"""Servers that freeze, and notebooks: the unresponsive are named in time, and never given up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import EventKind, errors
from psnb._src.server.operations import ApplyCommit
from tests.conftest import DEADLINE, wait_until
from tests.integration.clusters import on_both
from tests.integration.counting import Counter, wait_until_copied
from tests.integration.faults import worker_deaths
from tests.integration.helpers import frozen

PATIENCE = 2.0

SOON = 4 * PATIENCE
"""Seconds that are enough on a busy machine too, and less than anybody is patient by default."""


def patient(client: Client, replicas: int = 0) -> psnb.ParameterServerStrategy:
    return psnb.ParameterServerStrategy(client, replicas=replicas, heartbeat_timeout=PATIENCE)


def kinds(strategy: psnb.ParameterServerStrategy) -> list[EventKind]:
    return [event.kind for event in strategy.server_events()]


def wait_for(strategy: psnb.ParameterServerStrategy, kind: EventKind, times: int = 1) -> None:
    wait_until(lambda: kinds(strategy).count(kind) >= times, f"{kind} {times} times")


def pids(strategy: psnb.ParameterServerStrategy) -> list[int]:
    """Return the processes of the servers of the shards, in their order."""
    places = strategy._core.layout.placements
    addresses = [place.primary.address for place in places if place.primary]
    found = strategy.client.run(os.getpid, workers=addresses)
    return [found[address] for address in addresses]


@on_both("started")
def test_a_frozen_server_is_reported_in_time_to_readers(whole: Client) -> None:
    with patient(whole) as strategy:
        v = strategy.variable(np.zeros(3))
        with frozen(pids(strategy)[0]):
            begin = time.monotonic()
            with pytest.raises(errors.ServerUnresponsiveError, match="has not answered for 2 s"):
                v.read()
            assert time.monotonic() - begin < SOON
            wait_for(strategy, EventKind.SERVER_UNRESPONSIVE)
        assert v.read().tolist() == [0, 0, 0]
        wait_for(strategy, EventKind.SERVER_BACK)
        assert EventKind.SERVER_LOST not in kinds(strategy)


def test_a_closure_that_raises_as_a_server_says_nothing_has_written_nothing(whole: Client) -> None:
    with patient(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        accounts = [strategy.variable(np.int64(0)) for _ in "ab"]

        def add() -> None:
            for account in accounts:
                account.assign_add(np.int64(1))

        with frozen(pids(strategy)[1]):
            coordinator.schedule(add)
            begin = time.monotonic()
            with pytest.raises(errors.ServerUnresponsiveError):
                coordinator.join(DEADLINE)
            assert time.monotonic() - begin < SOON
            assert int(accounts[0].read()) == 0
        coordinator.schedule(add)
        coordinator.join(DEADLINE)
        assert [int(account.read()) for account in accounts] == [1, 1]


def test_a_commit_to_a_server_that_says_nothing_is_open_until_it_does(whole: Client) -> None:
    with patient(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        account = strategy.variable(np.int64(0))
        with frozen(pids(strategy)[0]):
            remote = coordinator.schedule(account.assign_add, (np.int64(1),))
            with pytest.raises(errors.ServerUnresponsiveError, match="has not answered"):
                coordinator.join(DEADLINE)
            with pytest.raises(errors.ServerUnresponsiveError, match="has not answered"):
                remote.fetch(DEADLINE)
            assert coordinator.statistics().in_flight == 1
            assert not remote.done()
        # It had the commit all the time.
        wait_until(remote.done, "the server goes on")
        assert remote.fetch() is None
        coordinator.join(DEADLINE)
        assert int(account.read()) == 1


def test_recovery_ends_what_an_unresponsive_server_held_up(whole: Client, tmp_path: Path) -> None:
    with patient(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        account = strategy.variable(np.int64(5))
        psnb.CheckpointManager(coordinator, tmp_path).save()
        with frozen(pids(strategy)[0]):
            remote = coordinator.schedule(account.assign_add, (np.int64(1),))
            with pytest.raises(errors.ServerUnresponsiveError):
                coordinator.join(DEADLINE)
            strategy.recover()
            # It was lost with its server, and ran again.
            wait_until(remote.done, "it is known that it was lost")
            assert remote.fetch() is None
            coordinator.join(DEADLINE)
            assert int(account.read()) == 6
        assert int(account.read()) == 6


def test_what_workers_have_learned_since_is_no_part_of_what_is_recovered(
    whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(
        whole, mode=psnb.Geo(2), heartbeat_timeout=PATIENCE
    ) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        account = strategy.variable(np.int64(0))
        psnb.CheckpointManager(coordinator, tmp_path).save()

        def add(worker: int) -> psnb.RemoteValue:
            return coordinator.schedule(account.assign_add, (np.int64(1),), worker=worker)

        for worker in (0, 1):
            add(worker).fetch()
        with frozen(pids(strategy)[0]):
            exchanged = add(1)  # by worker 1, but not yet what worker 0 has learned
            with pytest.raises(errors.ServerUnresponsiveError):
                coordinator.join(DEADLINE)
            strategy.recover()
            wait_until(exchanged.done, "it is known that it was lost")
            with pytest.raises(errors.ServerLostError, match="learned together was lost"):
                exchanged.fetch()
            coordinator.drain(DEADLINE)
            assert int(account.read()) == 0


@on_both("started")
def test_all_servers_may_freeze_at_once_for_longer_than_the_timeout(whole: Client) -> None:
    with patient(whole, replicas=1) as strategy:
        wait_until_copied(strategy)
        counter = Counter(strategy)
        counter.wait_for(100)
        counter.coordinator.join(DEADLINE)
        first, second = pids(strategy)
        with frozen(first), frozen(second):
            wait_for(strategy, EventKind.SERVER_UNRESPONSIVE, 2)
            threading.Event().wait(PATIENCE)
        wait_for(strategy, EventKind.SERVER_BACK, 2)
        counter.wait_for(100)
        counter.require_all()
        assert EventKind.SHARDS_LOST not in kinds(strategy)
        assert EventKind.SERVER_LOST not in kinds(strategy)


def test_what_asks_all_servers_waits_for_the_copies_of_one_that_is_unresponsive(
    whole: Client,
) -> None:
    with patient(whole, replicas=1) as strategy:
        strategy.variable(np.zeros(100), name="v")
        wait_until_copied(strategy)
        for ask in (strategy.memory, strategy.rebalance):
            first, _ = pids(strategy)
            with frozen(first):
                assert ask() is not None
            wait_until_copied(strategy)


NOTEBOOK = """
import sys, threading, numpy as np, psnb
from tests.integration.counting import Counter, wait_until_copied
with psnb.connect(sys.argv[1]) as client:
    with psnb.ParameterServerStrategy(client, replicas=1, heartbeat_timeout=2) as strategy:
        wait_until_copied(strategy)
        counter = Counter(strategy)
        counter.wait_for(100)
        print("ready", flush=True)
        sys.stdin.readline()
        counter.wait_for(100)
        counter.require_all()
        print(sorted({event.kind.value for event in strategy.server_events()}), flush=True)
"""


@pytest.mark.second_tier("it waits for several timeouts; frozen servers are in the first tier")
@on_both("started")
def test_a_notebook_that_was_frozen_itself_gives_no_server_up(whole: Client) -> None:
    notebook = subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK, whole.scheduler.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with notebook:
        assert notebook.stdin is not None
        assert notebook.stdout is not None
        assert notebook.stdout.readline() == "ready\n"
        with frozen(notebook.pid):
            threading.Event().wait(3 * PATIENCE)
        notebook.stdin.write("\n")
        notebook.stdin.flush()
        assert notebook.stdout.readline() == "[]\n"
    assert notebook.returncode == 0


@pytest.mark.second_tier("four million rows: server/test_writing.py has that it is done in pieces")
def test_saving_much_takes_no_server_for_dead(whole: Client, tmp_path: Path) -> None:
    with psnb.ParameterServerStrategy(whole, replicas=1, heartbeat_timeout=0.5) as strategy:
        rows = 4_000_000
        e = strategy.embedding("e", 16, rows=rows, optimizer=psnb.Adagrad(0.1))
        wait_until_copied(strategy)
        coordinator = psnb.ClusterCoordinator(strategy)
        psnb.CheckpointManager(coordinator, tmp_path, max_to_keep=1).save()
        assert e.lookup([0, rows - 1]).shape == (2, 16)
        assert kinds(strategy) == []


class Hanging:
    """The event loop of the first shard's server, which does not turn until the block ends.

    The process goes on: its other threads run, and Dask's scheduler hears of it.
    """

    def __init__(self, strategy: psnb.ParameterServerStrategy, folder: Path) -> None:
        self._client, self._begun, self._go_on = strategy.client, folder / "begun", folder / "go"
        placement = strategy._core.layout.placements[0]
        assert placement.primary is not None
        self._address = placement.primary.address

    def __enter__(self) -> None:
        begun, go_on = self._begun, self._go_on

        async def hang() -> None:
            begun.touch()
            while not go_on.exists():
                time.sleep(0.05)  # on the event loop: nothing is read or answered meanwhile

        arguments = {"workers": [self._address], "wait": True}
        self._thread = threading.Thread(target=self._client.run, args=(hang,), kwargs=arguments)
        self._thread.start()
        wait_until(begun.exists, "the loop hangs")

    def __exit__(self, *exc_info: object) -> None:
        self._go_on.touch()
        self._thread.join(DEADLINE)


@on_both("started")
def test_a_server_whose_loop_does_not_turn_is_unresponsive_to_all(
    whole: Client, tmp_path: Path
) -> None:
    with patient(whole) as strategy:
        v = strategy.variable(np.zeros(3))
        table = strategy.embedding("t", 2, rows=10, initializer=0.0, optimizer=psnb.SGD(1.0))
        coordinator = psnb.ClusterCoordinator(strategy)
        doors: dict[str, Callable[[], object]] = {
            "read": v.read,
            "write": lambda: v.assign_add(np.ones(3)),
            "lookup": lambda: table.lookup(np.arange(10)),
            "push": lambda: table.push(np.arange(10), np.ones((10, 2), np.float32)),
            "closure": lambda: coordinator.schedule(v.read).fetch(DEADLINE),
            "commit": lambda: coordinator.schedule(v.assign_add, (np.ones(3),)).fetch(DEADLINE),
            "save": psnb.CheckpointManager(coordinator, tmp_path / "saved").save,
            "memory": strategy.memory,
        }
        found: dict[str, object] = {}

        def enter(name: str) -> None:
            try:
                found[name] = doors[name]()
            except Exception as error:
                found[name] = type(error)

        with Hanging(strategy, tmp_path):
            entering = [threading.Thread(target=enter, args=(name,)) for name in doors]
            for each in entering:
                each.start()
            for each in entering:
                each.join(DEADLINE)
            assert found == dict.fromkeys(doors, errors.ServerUnresponsiveError)
        wait_for(strategy, EventKind.SERVER_BACK)
        assert v.read().shape == (3,)


def test_replicas_take_over_from_a_server_whose_loop_does_not_turn(
    whole: Client, tmp_path: Path
) -> None:
    with patient(whole, replicas=1) as strategy:
        wait_until_copied(strategy)
        counter = Counter(strategy)
        counter.wait_for(100)
        with Hanging(strategy, tmp_path):
            wait_for(strategy, EventKind.SHARDS_TAKEN_OVER)
            counter.wait_for(100)
        counter.require_all()


@on_both("started")
def test_a_broken_connection_to_the_scheduler_loses_nothing(whole: Client) -> None:
    with psnb.connect(whole.scheduler.address) as client, patient(client) as strategy:
        counter = Counter(strategy)
        counter.wait_for(100)

        before = client.scheduler_comm

        async def break_off() -> None:
            before.comm.abort()

        client.sync(break_off)
        wait_until(lambda: client.scheduler_comm not in (None, before), "there is another one")
        wait_until(lambda: client.status == "running", "the client is back")
        counter.wait_for(100)
        counter.require_all()
        assert kinds(strategy) == []


def test_a_frozen_worker_that_wakes_up_commits_nothing_that_was_given_up(
    whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy, heartbeat_timeout=PATIENCE)
        accounts = [strategy.variable(np.int64(0)) for _ in "ab"]
        held = tmp_path / "held"

        def add() -> int:
            attempt = psnb.worker_context().attempt
            if attempt == 1:

                def freeze(real: worker_deaths.Attempt, *arguments: object) -> object:
                    held.write_text(str(os.getpid()))
                    os.kill(os.getpid(), signal.SIGSTOP)
                    return real(*arguments)  # type: ignore[arg-type]

                worker_deaths.arrange(ApplyCommit, freeze)  # type: ignore[arg-type]
            for account in accounts:
                account.assign_add(np.int64(attempt))
            return attempt

        remote = coordinator.schedule(add)
        wait_until(lambda: held.exists() and bool(held.read_text()), "all hold it")
        try:
            # All held it: so it was decided without the worker, which has applied nothing yet.
            assert remote.fetch(DEADLINE) == 1
            assert [int(account.read()) for account in accounts] == [1, 1]
        finally:
            os.kill(int(held.read_text()), signal.SIGCONT)
        wait_until(
            lambda: {w.state for w in coordinator.statistics().workers} == {"ready"},
            "the worker is used again",
        )
        coordinator.schedule(lambda: None).fetch(DEADLINE)
        assert [int(account.read()) for account in accounts] == [1, 1]
