"""Who looks after the servers: at no moment can a death leave a shard without a way on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import EventKind, errors
from psnb._src.cluster.roles import Roles, roles
from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.placement.next_layout import next_layout
from psnb._src.placement.status import ReplicaState
from psnb._src.strategy import rebalancing as rebalancing_module
from psnb._src.strategy import reconciler
from psnb._src.strategy import servers as servers_module
from psnb._src.strategy.control import ServerControl
from psnb._src.strategy.servers import Servers
from psnb._src.utils.threads import run_on_loop
from tests.conftest import DEADLINE, wait_until
from tests.integration.counting import Counter, wait_until_copied
from tests.integration.helpers import address_of, frozen, pid_of, wait_until_whole

SERVERS = 3


@pytest.fixture(scope="module")
def started() -> Iterator[Client]:
    """A worker and three servers, which nannies start again."""
    with psnb.local_cluster(workers=1, servers=SERVERS) as client:
        yield client


@pytest.fixture
def whole(started: Client) -> Client:
    """The cluster, once nobody is missing."""
    wait_until_whole(started, 1 + SERVERS)
    return started


@pytest.fixture(scope="module")
def harmless() -> Iterator[Client]:
    """A worker and three servers in this process, for tests that kill nobody."""
    with psnb.local_cluster(workers=1, servers=SERVERS, processes=False) as client:
        yield client


def kinds(strategy: psnb.ParameterServerStrategy) -> list[EventKind]:
    return [event.kind for event in strategy.server_events()]


def processes(client: Client) -> dict[str, int]:
    """Return the processes of the servers, by their addresses."""
    names = [f"server-{i}" for i in range(SERVERS)]
    return {address_of(client, name): pid_of(client, name) for name in names}


def when(
    monkeypatch: pytest.MonkeyPatch, happens: Callable[[Layout, Any], int | None]
) -> threading.Event:
    """Kill a server in the very moment in which the reconciler sees something, before it can act.

    ``happens`` returns the process, once it is so.
    """
    done = threading.Event()

    def mend(layout: Layout, observed: Any, *desired: Any) -> Layout:
        pid = None if done.is_set() else happens(layout, observed)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            done.set()
        return next_layout(layout, observed, *desired)

    monkeypatch.setattr(reconciler, "next_layout", mend)
    return done


def test_a_server_may_die_as_soon_as_a_copy_is_complete(
    whole: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = processes(whole)

    def filled(index: int, place: ShardPlacement, observed: Any) -> bool:
        held = observed[place.primary].holdings.get(index) if place.primary in observed else None
        key = place.syncing.key if place.syncing else ""
        return held is not None and held.replicas.get(key) is ReplicaState.SYNCED

    def complete(layout: Layout, observed: Any) -> int | None:
        just = [each for each in enumerate(layout.placements) if filled(*each, observed)]
        if not just or len(just) + sum(bool(each.synced) for each in layout.placements) < len(
            layout.placements
        ):
            return None  # the server that dies is to have no other shard of which there is no copy
        dying = just[0][1].primary
        assert dying is not None
        return pids[dying.address]

    killed = when(monkeypatch, complete)
    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        assert killed.wait(DEADLINE)
        counter = Counter(strategy)
        counter.wait_for(50)
        wait_until_copied(strategy)
        counter.require_all()
        assert EventKind.SHARDS_LOST not in kinds(strategy)


def test_a_server_may_die_in_the_moment_in_which_a_shard_is_handed_over(
    whole: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = processes(whole)

    def handed_over(layout: Layout, observed: Any) -> int | None:
        for place in layout.placements:
            if place.successor is not None and place.primary is not None:
                return pids[place.primary.address]
        return None

    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        wait_until_copied(strategy)
        counter = Counter(strategy)
        counter.wait_for(50)
        killed = when(monkeypatch, handed_over)
        drained = address_of(whole, "server-0")
        with contextlib.suppress(errors.ServerLostError):  # as it says, it can be called again
            strategy.rebalance(drain=[drained])
        assert killed.is_set()
        counter.wait_for(50)
        wait_until_copied(strategy)
        counter.require_all()
        assert EventKind.SHARDS_LOST not in kinds(strategy)


def process_at(client: Client, address: str) -> int:
    pid: int = client.run(os.getpid, workers=[address])[address]
    return pid


def test_a_server_that_does_not_start_is_not_waited_for(
    whole: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()

    async def hang(servers: Any, addresses: Any) -> list[Any]:
        hanging.set()
        await asyncio.Event().wait()
        return []

    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        wait_until_copied(strategy)
        counter = Counter(strategy)
        counter.wait_for(50)
        monkeypatch.setattr(servers_module.Servers, "start", hang)
        os.kill(pid_of(whole, "server-1"), signal.SIGKILL)
        assert hanging.wait(DEADLINE)
        wait_until_copied(strategy)
        os.kill(pid_of(whole, "server-2"), signal.SIGKILL)
        counter.wait_for(50)
        counter.require_all()
        assert EventKind.SHARDS_LOST not in kinds(strategy)


def test_a_bug_in_one_round_of_the_reconcilers_does_not_end_it(
    harmless: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bugs = [RuntimeError("a bug"), KeyError("another")]
    rounds = [0]

    def mend(layout: Layout, observed: Any, *desired: Any) -> Layout:
        if bugs:
            raise bugs.pop()
        rounds[0] += 1
        return next_layout(layout, observed, *desired)

    with psnb.ParameterServerStrategy(harmless, replicas=1) as strategy:
        wait_until_copied(strategy)
        counter = Counter(strategy)
        counter.wait_for(50)
        monkeypatch.setattr(reconciler, "next_layout", mend)
        wait_until(lambda: rounds[0] >= 3, "it has gone on by itself")
        strategy.rebalance(drain=["server-1"])
        gone = address_of(harmless, "server-1")
        assert gone not in {each.address for each in strategy._core.layout.servers}
        counter.wait_for(50)
        counter.require_all()
    assert "a bug" in caplog.text


def test_there_is_always_a_copy_while_servers_are_drained_and_added(
    harmless: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[Layout] = []
    publish = servers_module.Servers.publish

    async def noted(servers: Any, layout: Layout) -> None:
        published.append(layout)
        await publish(servers, layout)

    with psnb.ParameterServerStrategy(harmless, replicas=1, shards=6) as strategy:
        wait_until_copied(strategy)
        counter = Counter(strategy)
        monkeypatch.setattr(servers_module.Servers, "publish", noted)
        for number in (0, 1, 2, 0):
            counter.wait_for(30)
            strategy.rebalance(drain=[f"server-{number}"])
            gone = address_of(harmless, f"server-{number}")
            assert gone not in {each.address for each in strategy._core.layout.servers}
            counter.wait_for(30)
            strategy.rebalance()
        counter.require_all()
        assert len(published) > 20
        assert all(place.synced for layout in published for place in layout.placements)
        assert EventKind.SERVER_LOST not in kinds(strategy)


def test_a_server_that_was_missing_in_a_rebalance_is_replaced_all_the_same(
    whole: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_but_workers(cluster: dict[str, Any]) -> Roles:
        return Roles({}, roles(cluster).workers)

    with psnb.ParameterServerStrategy(whole, replicas=1) as strategy:
        wait_until_copied(strategy)
        with monkeypatch.context() as patch:
            # The process that nannies start again comes too late for it.
            for module in (reconciler, rebalancing_module):
                patch.setattr(module, "roles", none_but_workers)
            os.kill(pid_of(whole, "server-0"), signal.SIGKILL)
            wait_until(lambda: strategy.num_servers == SERVERS - 1, "it is given up")
            strategy.rebalance()
        wait_until(lambda: strategy.num_servers == SERVERS, "another one takes its place")
        wait_until_copied(strategy)


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_rebalance_that_is_interrupted_can_be_called_again(
    harmless: Client, replicas: int
) -> None:
    with psnb.ParameterServerStrategy(harmless, replicas=replicas, shards=6) as strategy:
        counter = Counter(strategy)
        counter.wait_for(30)
        for patience in (0.0, 0.01, 0.05, 0.2):

            async def interrupted(patience: float = patience) -> None:
                moving = asyncio.create_task(
                    strategy._core.reconciler.arrange(
                        {
                            0: strategy._core.servers.running[-1],
                            1: strategy._core.servers.running[-1],
                        },
                        (),
                    )
                )
                await asyncio.wait({moving}, timeout=patience)
                moving.cancel()
                await asyncio.wait({moving})

            harmless.sync(interrupted)
            counter.wait_for(30)
        strategy.rebalance(drain=["server-0"])
        counter.wait_for(30)
        counter.require_all()
        places = strategy._core.layout.placements
        assert address_of(harmless, "server-0") not in {
            p.primary.address for p in places if p.primary
        }


def test_a_rebalance_to_a_server_that_freezes_ends_in_time_and_can_be_called_again(
    whole: Client,
) -> None:
    with psnb.ParameterServerStrategy(
        whole, num_servers=2, shards=4, heartbeat_timeout=2
    ) as strategy:
        counter = Counter(strategy)
        counter.wait_for(30)
        started = threading.Event()
        begin = Servers._begin_one

        async def start_and_freeze(servers: Servers, server: Any) -> None:
            await begin(servers, server)
            os.kill(pid, signal.SIGSTOP)
            started.set()

        used = set(strategy.server_addresses)
        fresh = next(address for address in processes(whole) if address not in used)
        pid = process_at(whole, fresh)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Servers, "_begin_one", start_and_freeze)
            try:
                with pytest.raises(errors.ServerLostError, match="call rebalance again"):
                    strategy.rebalance()
            finally:
                os.kill(pid, signal.SIGCONT)
        counter.wait_for(30)
        wait_until(lambda: EventKind.SERVER_BACK in kinds(strategy), "it is back")
        assert strategy.rebalance() == 1
        counter.require_all()


def test_servers_are_asked_a_few_times_a_second_while_nothing_changes_but_values(
    harmless: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psnb.ParameterServerStrategy(harmless, replicas=1) as strategy:
        wait_until_copied(strategy)
        coordinator = psnb.ClusterCoordinator(strategy)
        variable, asked, beat = strategy.variable(np.zeros(2)), [0], ServerControl.heartbeat

        async def counted(control: ServerControl, server: ServerAddress, layout: Layout) -> Any:
            asked[0] += 1
            return await beat(control, server, layout)

        coordinator.schedule(variable.assign_add, (np.ones(2),)).fetch(DEADLINE)
        monkeypatch.setattr(ServerControl, "heartbeat", counted)
        begin = time.monotonic()
        while time.monotonic() < begin + 1:
            coordinator.schedule(variable.assign_add, (np.ones(2),)).fetch(DEADLINE)
        # Five, and some for a machine that was asleep.
        assert asked[0] <= SERVERS * (5 * (time.monotonic() - begin) + 5)


def test_servers_are_asked_fifty_times_a_second_while_shards_move(
    harmless: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, beat = [0], ServerControl.heartbeat

    async def counted(control: ServerControl, server: ServerAddress, layout: Layout) -> Any:
        asked[0] += 1
        return await beat(control, server, layout)

    with psnb.ParameterServerStrategy(harmless, 2, shards=4) as strategy:
        strategy.variable(np.zeros(10_000_000))
        monkeypatch.setattr(ServerControl, "heartbeat", counted)
        begin = time.monotonic()
        assert strategy.rebalance() == 1
        assert asked[0] <= SERVERS * (50 * (time.monotonic() - begin) + 10)


def test_servers_are_watched_without_replicas_as_well(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole, heartbeat_timeout=1) as strategy:
        with frozen(pid_of(whole, "server-0")):
            wait_until(lambda: EventKind.SERVER_UNRESPONSIVE in kinds(strategy), "it is told")
        wait_until(lambda: EventKind.SERVER_BACK in kinds(strategy), "it is told")
        os.kill(pid_of(whole, "server-0"), signal.SIGKILL)
        wait_until(lambda: EventKind.SHARDS_LOST in kinds(strategy), "it is told")
        assert strategy.num_servers == SERVERS - 1


def addresses(client: Client) -> set[str]:
    return {address_of(client, f"server-{i}") for i in range(SERVERS)}


def test_two_who_need_a_server_at_once_get_one_in_a_process(harmless: Client) -> None:
    with psnb.ParameterServerStrategy(harmless, num_servers=2) as strategy:
        servers = strategy._core.servers
        (free,) = addresses(harmless) - set(strategy.server_addresses)

        async def start() -> Any:
            return await asyncio.gather(servers.start([free]), servers.start([free]))

        one, other = run_on_loop(harmless.loop.asyncio_loop, start)
        assert one == other
        assert sorted(each.address for each in servers.running) == sorted(addresses(harmless))


def test_a_server_that_has_not_begun_is_not_taken_for_dead(
    harmless: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psnb.ParameterServerStrategy(harmless, num_servers=2) as strategy:
        servers = strategy._core.servers
        (free,) = addresses(harmless) - set(strategy.server_addresses)
        real, looked_after = servers._begin_one, []

        async def begin(server: ServerAddress) -> None:
            looked_after.append(server in servers.running)
            await real(server)

        monkeypatch.setattr(servers, "_begin_one", begin)
        (begun,) = run_on_loop(harmless.loop.asyncio_loop, lambda: servers.start([free]))
        assert looked_after == [False]
        assert begun in servers.running
