"""Strategies whose owner has gone, on clusters that live on."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import errors
from psnb._src.client.handles import shards_of
from psnb._src.client.whole_tables import in_memory, loading
from psnb._src.cluster.roles import identity
from psnb._src.coordinator import resume
from psnb._src.placement.registry import DESCRIBE
from psnb._src.strategy import ownership
from tests.conftest import DEADLINE, connected, wait_until
from tests.forking import Forked
from tests.integration.helpers import CommandLine, address_of, frozen, pid_of
from tests.integration.notebook.owner import parameters_of, step

MAKE = "psnb.ParameterServerStrategy(client, name='mine', partitioner=psnb.FixedShards(2){})"


@pytest.fixture(scope="module")
def cluster_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two servers and two workers from the command line; tests kill the second server alone."""
    cluster = CommandLine(tmp_path_factory.mktemp("dask"))
    with ExitStack() as stack:
        stack.enter_context(cluster.scheduler())
        server, alone = ("--resources", "ps=1"), "--no-nanny"
        stack.enter_context(cluster.worker("--name", "server-0", *server, alone))
        stack.enter_context(cluster.worker("--name", "server-1", *server))
        for name in "ab":
            stack.enter_context(cluster.worker("--name", name, alone))
        with connected(cluster.file) as client:
            client.wait_for_workers(4, timeout=DEADLINE)
        yield cluster.file


@pytest.fixture
def client(cluster_file: str) -> Iterator[Client]:
    """A client of this test's own; nothing lives on the cluster before and after."""
    with connected(cluster_file) as client:
        yield client
        wait_until(lambda: not psnb.attach(client), "all strategies are closed")


class Owner:
    """A process that runs `tests.integration.notebook.owner`."""

    def __init__(self, process: Forked) -> None:
        self.process, self.pid = process, process.pid

    def wait_for(self, closures: int) -> None:
        """Wait until so many closures have had their effect."""
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()) and int(line) < closures:
            pass
        assert line, "it has ended"

    def kill(self) -> None:
        """End it with no word to anybody."""
        self.process.kill()
        self.process.wait(DEADLINE)


@contextmanager
def owner(file: str, make: str, errors_to: Path | None = None) -> Iterator[Owner]:
    """Run an owner until the block ends."""
    with Forked(
        "tests.integration.notebook.owner", file, make, heard=True, errors_to=errors_to
    ) as process:
        try:
            yield Owner(process)
        finally:
            process.kill()


def kill_server(client: Client) -> Callable[[], bool]:
    """Kill the second server; return what tells whether another one has taken its place."""
    old = address_of(client, "server-1")
    os.kill(pid_of(client, "server-1"), signal.SIGKILL)

    def is_back() -> bool:
        workers = identity(client)["workers"]
        return old not in workers and len(workers) == 4

    return is_back


def values(strategy: psnb.ParameterServerStrategy) -> dict[str, np.ndarray]:
    """Return the parameters, after a check that no write is on one of two servers only."""
    found = {}
    for name in ("dense", "direct"):
        variable = strategy.parameters[name]
        assert isinstance(variable, psnb.Variable)
        found[name] = variable.read()
        assert len(set(found[name].tolist())) == 1
    sparse = strategy.parameters["sparse"]
    assert isinstance(sparse, psnb.Embedding)
    even, odd = sparse.lookup(np.arange(100_000)).reshape(-1, 2).T
    assert even.tolist() == odd.tolist()
    return found | {"sparse": even}


def updates(strategy: psnb.ParameterServerStrategy) -> int:
    """Return how often the servers have applied the optimizer whose state counts them."""
    counted = strategy.parameters["counted"]
    assert isinstance(counted, psnb.Variable)
    assert counted.optimizer is not None
    return counted.optimizer.iterations


def whole(strategy: psnb.ParameterServerStrategy) -> int:
    """Return how many closures had their effect, after a check that each had all of it, once."""
    found = values(strategy)
    assert set(found["sparse"].tolist()) == {0.0, -1.0}
    count = updates(strategy)
    assert -found["dense"][0] == -found["sparse"].sum() == count
    return count


@contextmanager
def attached(file: str) -> Iterator[psnb.Attached]:
    """Attach *mine* with a client of its own, which is closed before the strategy."""
    with connected(file) as client:
        found = psnb.attach(client, "mine")
        yield found
    found.strategy.close()


def test_what_killed_notebooks_have_trained_is_there_whole_and_training_goes_on(
    client: Client, cluster_file: str
) -> None:
    done = 0
    for number, make in enumerate((MAKE.format(""), "attach", "attach")):
        with owner(cluster_file, make) as notebook:
            notebook.wait_for(20)
            notebook.kill()
        with attached(cluster_file) as (strategy, coordinator):
            assert (now := whole(strategy)) >= done + 20
            coordinator.schedule(step, (dict(strategy.parameters), number))
            coordinator.join(DEADLINE)
            done = whole(strategy)
            assert done == now + 1
            assert not strategy.server_events()  # no copy has taken over
    psnb.attach(client, "mine").strategy.close()


def test_a_round_of_a_killed_notebook_is_applied_by_all_servers_or_none(
    client: Client, cluster_file: str
) -> None:
    with owner(cluster_file, MAKE.format(", mode=psnb.Sync(2)")) as notebook:
        notebook.wait_for(20)
        notebook.kill()
    strategy, coordinator = psnb.attach(client, "mine")
    with strategy:
        assert strategy.mode == psnb.Sync(2)
        before = values(strategy)
        for number in (1, 2):
            coordinator.schedule(step, (dict(strategy.parameters), number))
        coordinator.join(DEADLINE)
        assert values(strategy)["dense"].tolist() == (before["dense"] - 1).tolist()


def test_a_living_owner_is_named_and_stays_the_owner(client: Client, cluster_file: str) -> None:
    with owner(cluster_file, MAKE.format("")) as notebook:
        notebook.wait_for(1)
        (stored,) = psnb.attach(client)
        assert (stored.name, stored.owned, f"process {notebook.pid} on" in stored.owner) == (
            *("mine", True),
            True,
        )
        with pytest.raises(errors.ClusterError, match=f"process {notebook.pid} on .* owns it"):
            psnb.attach(client, "mine")
        notebook.wait_for(20)  # it goes on
    wait_until(lambda: not psnb.attach(client)[0].owned, "the scheduler knows that it has gone")
    psnb.attach(client, "mine").strategy.close()


def test_attaching_ones_own_strategy_raises(
    cluster: Client, strategy: psnb.ParameterServerStrategy
) -> None:
    with pytest.raises(errors.ClusterError, match="this process itself owns it, and lives"):
        psnb.attach(cluster, strategy.name)


def test_what_lives_on_a_cluster_is_listed(client: Client) -> None:
    assert repr(psnb.attach(client)) == psnb.attach(client)._repr_html_() == "no strategies"
    with psnb.ParameterServerStrategy(client, name="mine", retention="2 h") as strategy:
        strategy.variable(np.zeros(1000), "v")
        with psnb.ParameterServerStrategy(client, name="mine") as other:
            assert other.name == "mine 2"
            stored, second = psnb.attach(client)
            assert (stored.name, stored.parameters, stored.retention) == ("mine", ("v",), 7200)
            assert (second.name, second.parameters) == ("mine 2", ())
            assert stored.nbytes >= 8000
            assert stored.since <= second.since <= time.time()
            assert "mine 2" in repr(psnb.attach(client))
            assert f"process {os.getpid()}" in psnb.attach(client)._repr_html_()


def test_an_unknown_name_is_refused_with_those_that_are_there(client: Client) -> None:
    with (
        psnb.ParameterServerStrategy(client, name="mine"),
        pytest.raises(errors.ConfigurationError, match=r"'yours'.*'mine'"),
    ):
        psnb.attach(client, "yours")


def test_a_client_closed_before_its_strategy_leaves_the_parameters(cluster_file: str) -> None:
    with connected(cluster_file) as before:
        strategy = psnb.ParameterServerStrategy(before, name="mine")
        strategy.variable(np.arange(3), "v").assign_add(np.ones(3, int))
    strategy.close()
    with attached(cluster_file) as (found, _):
        v = found.parameters["v"]
        assert isinstance(v, psnb.Variable)
        assert v.read().tolist() == [1, 2, 3]
        found.close()


@pytest.mark.second_tier("owners that died are in the first tier; frozen servers, too")
def test_a_frozen_owner_that_wakes_up_writes_nothing_any_more(
    client: Client, cluster_file: str, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    with owner(cluster_file, MAKE.format(", heartbeat_timeout=2"), said) as notebook:
        notebook.wait_for(20)
        with frozen(notebook.pid):
            wait_until(lambda: not psnb.attach(client)[0].owned, "it has not answered for too long")
            strategy, coordinator = psnb.attach(client, "mine")
            # What workers still had of it is refused, too.
            before = whole(strategy)
            coordinator.schedule(step, (dict(strategy.parameters), 1))
            coordinator.join(DEADLINE)
        assert notebook.process.wait(DEADLINE) == 1
        assert "taken over by process" in said.read_text()
        assert whole(strategy) == before + 1
        strategy.close()


def test_a_server_that_dies_with_the_notebook_loses_nothing_that_had_a_copy(
    client: Client, cluster_file: str
) -> None:
    with owner(cluster_file, MAKE.format(", replicas=1")) as notebook:
        notebook.wait_for(20)
        notebook.kill()
    is_back = kill_server(client)
    strategy, coordinator = psnb.attach(client, "mine")
    with strategy:
        before = whole(strategy)
        coordinator.schedule(step, (dict(strategy.parameters), 1))
        coordinator.join(DEADLINE)
        assert whole(strategy) == before + 1
    wait_until(is_back, "its nanny has started it again")


def test_what_a_dead_server_had_comes_back_after_attaching(
    client: Client, cluster_file: str, tmp_path: Path
) -> None:
    with connected(cluster_file) as before:
        made = psnb.ParameterServerStrategy(
            before, name="mine", partitioner=psnb.FixedShards(2), heartbeat_timeout=3.0
        )
        parameters_of(made)
        step(dict(made.parameters), 1)
        saved = psnb.CheckpointManager(psnb.ClusterCoordinator(made), tmp_path).save()
    made.close()
    is_back = kill_server(client)
    with psnb.attach(client, "mine").strategy as strategy:
        assert set(strategy.parameters) == {"dense", "sparse", "direct", "counted"}
        with pytest.raises(errors.ServerLostError):
            values(strategy)
        strategy.recover(saved)
        assert whole(strategy) == 1
        step(dict(strategy.parameters), 2)
        assert whole(strategy) == 2
    wait_until(is_back, "its nanny has started it again")


def test_what_was_taken_over_can_be_saved(
    client: Client, cluster_file: str, tmp_path: Path
) -> None:
    with connected(cluster_file) as before:
        made = psnb.ParameterServerStrategy(before, name="mine")
        made.variable([7.0], "v")
    made.close()
    strategy, coordinator = psnb.attach(client, "mine")
    with strategy:
        saved = psnb.CheckpointManager(coordinator, tmp_path).save()
    assert psnb.checkpoint.load(saved)["v"].tolist() == [7.0]


@pytest.mark.second_tier("it waits for seventeen seconds")
def test_an_unresponsive_server_is_reported_and_attaching_works_when_it_is_back(
    client: Client, cluster_file: str
) -> None:
    with owner(cluster_file, MAKE.format(", heartbeat_timeout=2")) as notebook:
        notebook.wait_for(20)
        notebook.kill()
    with frozen(pid_of(client, "server-1")), pytest.raises(errors.ServerUnresponsiveError):
        psnb.attach(client, "mine")
    with psnb.attach(client, "mine").strategy as strategy:
        before = whole(strategy)
        step(dict(strategy.parameters), 1)
        assert whole(strategy) == before + 1


def test_one_of_two_who_attach_at_once_becomes_the_owner(client: Client, cluster_file: str) -> None:
    with owner(cluster_file, MAKE.format("")) as notebook:
        notebook.wait_for(1)
        notebook.kill()
    with (
        connected(cluster_file) as other,
        ThreadPoolExecutor(thread_name_prefix="caller") as threads,
    ):
        found = [threads.submit(psnb.attach, each, "mine") for each in (client, other)]
        refused = [each for each in found if isinstance(each.exception(), errors.ClusterError)]
        (attached,) = [each.result() for each in found if each not in refused]
        assert len(refused) == 1
        whole(attached.strategy)
        attached.strategy.close()


@pytest.mark.second_tier("notebooks that are killed are in the first tier")
def test_a_process_that_ends_in_good_order_leaves_the_parameters_too(
    client: Client, cluster_file: str
) -> None:
    script = (
        "import atexit, sys, time; atexit.register(time.sleep, 1); "  # the last of all
        "import psnb, distributed; "
        "client = distributed.Client(scheduler_file=sys.argv[1], set_as_default=False); "
        "strategy = psnb.ParameterServerStrategy(client, name='mine'); "
        "strategy.variable([3.0], 'v'); "
        "psnb.ClusterCoordinator(strategy).schedule(int).fetch()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, cluster_file], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    with psnb.attach(client, "mine").strategy as strategy:
        v = strategy.parameters["v"]
        assert isinstance(v, psnb.Variable)
        assert v.read() == [3.0]


def test_attaching_that_is_interrupted_at_its_end_leaves_the_parameters(
    client: Client, cluster_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(strategy: psnb.ParameterServerStrategy) -> None:
        raise KeyboardInterrupt

    with connected(cluster_file) as before:
        made = psnb.ParameterServerStrategy(before, name="mine")
        made.variable([7.0], "v")
    made.close()
    with monkeypatch.context() as patched:
        patched.setattr(resume, "ClusterCoordinator", interrupted)
        with pytest.raises(KeyboardInterrupt):
            psnb.attach(client, "mine")
    gc.collect()
    with psnb.attach(client, "mine").strategy as strategy:
        assert strategy.parameters["v"].read().tolist() == [7.0]  # type: ignore[union-attr]


def test_a_parameter_that_could_not_be_made_is_none_for_who_attaches(
    client: Client, cluster_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ownership._ask
    lost = [True]

    async def answer_lost(client: Client, handler: str, **told: Any) -> Any:
        answer = await ask(client, handler, **told)
        if handler == DESCRIBE and lost and lost.pop():
            raise errors.ServerLostError("the scheduler does not answer")
        return answer

    monkeypatch.setattr(ownership, "_ask", answer_lost)
    with connected(cluster_file) as before:
        made = psnb.ParameterServerStrategy(before, name="mine")
        with pytest.raises(errors.ServerLostError):
            made.variable([7.0], "v")
        made.variable([8.0], "w")
    made.close()
    with psnb.attach(client, "mine").strategy as strategy:
        assert list(strategy.parameters) == ["w"]


def test_another_client_of_a_local_cluster_attaches(cluster: Client) -> None:
    with Client(cluster.cluster) as before:
        made = psnb.ParameterServerStrategy(before, name="mine")
        made.embedding("e", 2, optimizer=psnb.Adagrad(0.1)).push([7], np.ones((1, 2), np.float32))
        row = made.parameters["e"].lookup([7])  # type: ignore[union-attr]
    made.close()
    with psnb.attach(cluster, "mine").strategy as strategy:
        assert strategy.parameters["e"].lookup([7]).tolist() == row.tolist()  # type: ignore[union-attr]


def test_tables_that_were_being_loaded_when_their_owner_left_are_named_as_such(
    cluster: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(cluster.cluster) as before:
        made = psnb.ParameterServerStrategy(before, name="mine")
        v = made.variable([1.0], "v")
        shards = shards_of(v)
        loads = loading(shards.server_client, shards.loads([in_memory(*shards.shard_states())]))
        loads.__enter__()
    made.close()
    with psnb.attach(cluster, "mine").strategy as strategy:
        assert "a part of what they were to get" in caplog.text
        assert strategy.parameters["v"].read().tolist() == [1.0]  # type: ignore[union-attr]
