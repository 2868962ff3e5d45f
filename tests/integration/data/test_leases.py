"""Leased datasets on real clusters: every example is used exactly once an epoch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from distributed import Client

import psnb
from psnb import data, errors
from psnb._src.client.comm_client import CommServerClient
from psnb._src.cluster.roles import identity
from psnb._src.coordinator.closures.remote_value import StepValues
from psnb._src.coordinator.coordinator import coordinator_core
from psnb._src.coordinator.datasets.epoch import run_epoch
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import Ending, Killer, kill_myself, wait_for_file


def visits_of(strategy: psnb.ParameterServerStrategy, rows: int) -> psnb.Embedding:
    """Return a table that counts: pushing -1 to a row adds one to it."""
    return strategy.embedding("visits", 1, rows=rows, initializer=0.0, optimizer=psnb.SGD(1.0))


def numbers(table: psnb.Embedding, rows: int) -> list[float]:
    return table.lookup(np.arange(rows))[:, 0].tolist()


def wait_until_left(client: Client) -> None:
    """Wait until a retired worker of `whole` has left, before another test uses the cluster."""
    wait_until(lambda: len(identity(client)["workers"]) == 3, "the retired worker has left")


def test_fewer_parts_than_workers_are_told(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    path = str(tmp_path / "part.parquet")
    table = pyarrow.table({"x": np.random.default_rng(0).random(200_000)})
    pyarrow.parquet.write_table(table, path)
    batches = data.Dataset.parquet(path).batch(100)
    with pytest.warns(UserWarning, match="1 part for 2 workers: 1 of them will have nothing to do"):
        coordinator.create_per_worker_dataset(batches, sharding="dynamic")
    pyarrow.parquet.write_table(table, path, row_group_size=50_000)
    coordinator.create_per_worker_dataset(batches, sharding="dynamic")  # would raise a warning


def test_a_table_goes_to_each_worker_once_however_many_epochs_there_are(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    table = data.Dataset.from_table(np.zeros(100_000, [("x", "f8")])).batch(50_000)
    dataset = coordinator.create_per_worker_dataset(table, sharding="dynamic", splits=2)
    for _ in range(2):
        iterator = iter(dataset)
        coordinator.run_epoch(lambda rows: next(rows), iterator)
        (call, _) = coordinator_core(coordinator).resources.made_of(iterator)
        assert len(call) < 10_000


RETIRED = pytest.param(
    "retired",
    marks=pytest.mark.second_tier(
        "as if killed, but for its notice, which test_preemption_notice has"
    ),
)


def test_an_epoch_uses_every_example_once_and_ends_by_itself(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, 1000)
    dataset = coordinator.create_per_worker_dataset(
        data.Dataset.range(1000).shuffle(100).batch(7), sharding="dynamic"
    )

    def step(iterator: object) -> None:
        ids = next(iterator)  # type: ignore[call-overload]
        visits.push(ids, -np.ones((len(ids), 1), np.float32))

    for epoch in (1, 2):
        iterator = iter(dataset)
        end = coordinator.run_epoch(step, iterator)
        assert end.over
        assert iterator.exhausted
        assert (end.done, end.leased, end.left) == (16, 0, 0)
        assert dataset.progress().visits == end.visits
        assert numbers(visits, 1000) == [epoch] * 1000


def test_what_is_slow_to_read_is_read_ahead_and_used_once(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits, ahead = visits_of(strategy, 40), strategy.variable(np.zeros(1, np.float32))

    def read(number: Any) -> Any:
        time.sleep(0.003)  # a file that is far away
        return number, threading.current_thread().name.startswith("psnb-ahead")

    def step(iterator: object) -> None:
        number, is_ahead = next(iterator)  # type: ignore[call-overload]
        visits.push([number], -np.ones((1, 1), np.float32))
        ahead.assign_add(np.full(1, is_ahead, np.float32))

    dataset = coordinator.create_per_worker_dataset(
        data.Dataset.range(40).map(read), sharding="dynamic", splits=8
    )
    assert coordinator.run_epoch(step, iter(dataset)).visits == 40
    assert numbers(visits, 40) == [1] * 40
    # All but the first part that each of two workers reads.
    assert float(ahead.read()[0]) in (30.0, 35.0)


def test_a_closure_takes_as_much_as_it_likes(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, 200)
    dataset = coordinator.create_per_worker_dataset(
        data.Dataset.range(200), sharding="dynamic", splits=5
    )

    def step(iterator: object) -> None:
        for _, number in zip(range(9), iterator, strict=False):  # type: ignore[call-overload]
            visits.push([number], -np.ones((1, 1), np.float32))

    coordinator.run_epoch(step, iter(dataset))
    assert numbers(visits, 200) == [1] * 200


def test_what_a_failed_closure_had_taken_is_used_by_another(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    visits = visits_of(strategy, 100)
    dataset = coordinator.create_per_worker_dataset(
        data.Dataset.range(100).batch(4), sharding="dynamic"
    )
    failed = tmp_path / "failed"

    def step(iterator: object) -> None:
        ids = next(iterator)  # type: ignore[call-overload]
        visits.push(ids, -np.ones((len(ids), 1), np.float32))
        if 50 in ids and not failed.exists():
            failed.touch()
            raise ValueError("bad batch")

    iterator = iter(dataset)
    with pytest.raises(ValueError, match="bad batch"):
        coordinator.run_epoch(step, iterator)
    assert not iterator.exhausted
    coordinator.run_epoch(step, iterator)
    assert numbers(visits, 100) == [1] * 100


def test_an_epoch_goes_on_from_a_checkpoint(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    visits = visits_of(strategy, 300)
    chain = data.Dataset.range(300).shuffle(50, seed=3).batch(4)
    dataset = coordinator.create_per_worker_dataset(chain, sharding="dynamic", splits=6)
    iterator = iter(dataset)

    def step(iterator: object) -> None:
        ids = next(iterator)  # type: ignore[call-overload]
        visits.push(ids, -np.ones((len(ids), 1), np.float32))

    for _ in range(40):
        coordinator.schedule(step, (iterator,))
    coordinator.drain(DEADLINE)
    manager = psnb.CheckpointManager(coordinator, tmp_path)
    manager.save({"epoch": iterator.state()})
    at_the_checkpoint = sum(numbers(visits, 300))
    coordinator.resume()
    coordinator.run_epoch(step, iterator)

    saved = manager.restore()
    assert sum(numbers(visits, 300)) == at_the_checkpoint
    coordinator.run_epoch(step, dataset.iterator(saved["epoch"]))
    assert numbers(visits, 300) == [1] * 300


def test_an_empty_dataset_is_an_epoch_of_nothing(coordinator: psnb.ClusterCoordinator) -> None:
    dataset = coordinator.create_per_worker_dataset(data.Dataset.range(0), sharding="dynamic")
    assert coordinator.run_epoch(lambda iterator: next(iterator), iter(dataset)).visits == 0


def test_an_epoch_that_was_used_is_not_run_again(coordinator: psnb.ClusterCoordinator) -> None:
    dataset = coordinator.create_per_worker_dataset(
        data.Dataset.range(6), sharding="dynamic", splits=1
    )
    iterator = iter(dataset)
    assert coordinator.run_epoch(next, iterator).visits == 6
    with pytest.raises(errors.ConfigurationError, match=r"run_epoch\(step, iter\(dataset\)\)"):
        coordinator.run_epoch(next, iterator)
    # One that was over when its state was saved has nothing left, and is not used twice.
    assert coordinator.run_epoch(next, dataset.iterator(iterator.state())).visits == 6


def test_an_epoch_that_was_cut_short_may_be_run_though_its_closures_have_ended_it(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    iterator = iter(
        coordinator.create_per_worker_dataset(data.Dataset.range(1), sharding="dynamic", splits=1)
    )

    def cut_short() -> None:
        if iterator.exhausted:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coordinator.run_epoch(lambda it: list(it), iterator, watch=cut_short)
    assert coordinator.run_epoch(lambda it: list(it), iterator).over


def test_failures_of_an_interrupted_epoch_are_not_those_of_the_next(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"

    def old(iterator: Iterator[Any]) -> None:
        next(iterator)
        begun.touch()
        wait_for_file(go)
        raise ValueError("of the old step")

    def interrupt() -> None:
        if begun.exists():
            raise KeyboardInterrupt

    dataset = coordinator.create_per_worker_dataset(data.Dataset.range(6), sharding="dynamic")
    with pytest.raises(KeyboardInterrupt):
        coordinator.run_epoch(old, iter(dataset), watch=interrupt)
    go.touch()
    assert coordinator.run_epoch(lambda it: list(it), iter(dataset)).over
    assert "of the old step" in caplog.text


def test_static_sharding_gives_each_worker_its_share(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    dataset = coordinator.create_per_worker_dataset(
        data.Dataset.range(10).batch(10), sharding="static"
    )
    iterator = iter(dataset)
    shares = [
        coordinator.schedule(lambda it: next(it).tolist(), (iterator,), worker=index).fetch(
            DEADLINE
        )
        for index in (0, 1)
    ]
    assert sorted(shares) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_closures_that_come_after_the_end_of_a_share_are_over_without_an_error(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    dataset = coordinator.create_per_worker_dataset(data.Dataset.range(5), sharding="static")
    iterator = iter(dataset)
    with pytest.warns(errors.EndOfDataWarning, match="closure next found its iterator at the end"):
        found = [
            coordinator.schedule(next, (iterator,), worker=index).fetch(DEADLINE)
            for index in (0, 0, 0, 0, 1, 1, 1, 1)
        ]
    coordinator.join(DEADLINE)
    assert found == [0, 2, 4, None, 1, 3, None, None]


def take_two(iterator: Iterator[Any]) -> int:
    return int(next(iterator) + next(iterator))


@pytest.mark.parametrize("sharding", ["none", "static", "dynamic"])
def test_a_step_that_would_lose_what_it_has_taken_at_the_end_is_an_error(
    coordinator: psnb.ClusterCoordinator, sharding: str
) -> None:
    of_each = 3 if sharding != "static" else 6
    dataset = coordinator.create_per_worker_dataset(data.Dataset.range(of_each), sharding=sharding)
    iterator = iter(dataset)
    for _ in range(2):
        coordinator.schedule(take_two, (iterator,), worker=0)
    with pytest.raises(errors.ClosureInputError, match=r"had taken 1 element .*next\(iterator, N"):
        coordinator.join(DEADLINE)


def test_what_a_step_would_have_lost_at_the_end_is_there_for_the_next(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, 7)
    dataset = coordinator.create_per_worker_dataset(data.Dataset.range(7), sharding="dynamic")
    iterator = iter(dataset)

    def count(*ids: Any) -> None:
        visits.push(np.array(ids), -np.ones((len(ids), 1), np.float32))

    with pytest.raises(errors.ClosureInputError, match="would count as used"):
        coordinator.run_epoch(lambda it: count(next(it), next(it)), iterator)

    def two_at_most(it: Iterator[Any]) -> None:
        first, second = next(it), next(it, None)
        count(*(each for each in (first, second) if each is not None))

    coordinator.run_epoch(two_at_most, iterator)
    assert numbers(visits, 7) == [1] * 7


def test_what_goes_on_without_end_may_be_taken_before_the_data(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, 7)
    noise = iter(coordinator.create_per_worker_dataset(data.Dataset.range(3).repeat()))
    iterator = iter(
        coordinator.create_per_worker_dataset(data.Dataset.range(7), sharding="dynamic", splits=1)
    )

    def step(it: Iterator[Any], beside: Iterator[Any]) -> None:
        next(beside)
        visits.push(np.array([next(it)]), -np.ones((1, 1), np.float32))

    coordinator.run_epoch(step, iterator, (noise,))
    assert numbers(visits, 7) == [1] * 7


def test_an_end_that_is_no_datasets_is_an_error(coordinator: psnb.ClusterCoordinator) -> None:
    coordinator.schedule(lambda: next(iter([])))
    with pytest.raises(StopIteration):
        coordinator.join(DEADLINE)


def test_a_chain_that_depends_on_what_came_before_is_refused(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    chain = data.Dataset.range(10).enumerate()
    for sharding in ("static", "dynamic"):
        with pytest.raises(errors.ConfigurationError, match="enumerate"):
            coordinator.create_per_worker_dataset(chain, sharding=sharding)


def test_only_datasets_can_be_sharded(coordinator: psnb.ClusterCoordinator) -> None:
    with pytest.raises(errors.ConfigurationError, match=r"psnb\.data\.Dataset"):
        coordinator.create_per_worker_dataset([1, 2], sharding="dynamic")
    with pytest.raises(errors.ConfigurationError, match="'none', 'static' or 'dynamic'"):
        coordinator.create_per_worker_dataset([1, 2], sharding="both")  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["killed", RETIRED])
def test_a_worker_that_goes_in_the_middle_costs_no_example_and_doubles_none(
    whole: Client, tmp_path: Path, how: str
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        visits = visits_of(strategy, 500)
        dataset = coordinator.create_per_worker_dataset(
            data.Dataset.range(500).shuffle(64).batch(3), sharding="dynamic"
        )
        ending = Ending(coordinator, tmp_path, how)
        wait = ending.wait

        def step(iterator: object) -> None:
            ids = next(iterator)  # type: ignore[call-overload]
            visits.push(ids, -np.ones((len(ids), 1), np.float32))
            if 250 in ids:
                wait()

        with ending:
            end = coordinator.run_epoch(step, iter(dataset))
        if how == "retired":
            wait_until_left(whole)
        assert numbers(visits, 500) == [1] * 500
        assert end.over


def test_a_step_that_takes_less_when_it_runs_again_leaves_the_rest_to_others(
    whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        visits = visits_of(strategy, 20)
        source = data.Dataset.range(20)
        dataset = coordinator.create_per_worker_dataset(source, sharding="dynamic", splits=2)
        iterator, known = iter(dataset), tmp_path / "known"

        def step(iterator: Iterator[int], first: int = 1) -> None:
            fails = psnb.worker_context().attempt == 1 and first > 1
            for _ in range(first if fails else 1):
                visits.push([next(iterator)], -np.ones((1, 1), np.float32))
            if fails:
                wait_for_file(known)
                kill_myself()

        coordinator.schedule(step, (iterator, 3))
        taken = coordinator_core(coordinator).leases._epochs[iterator.epoch]._closures
        wait_until(lambda: len(taken.get(0, ())) == 3, "the notebook knows what it has taken")
        known.touch()
        coordinator.join(DEADLINE)
        assert iterator.progress().visits == 1
        assert coordinator.run_epoch(step, iterator).visits == 20
        assert numbers(visits, 20) == [1] * 20


@pytest.mark.second_tier("a worker that is killed in the middle of an epoch is in the first tier")
def test_a_worker_that_is_killed_within_a_run_costs_no_example_and_doubles_none(
    whole: Client, tmp_path: Path
) -> None:
    rows, deaths = 3000, (800, 1900)
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        visits = visits_of(strategy, rows)
        dataset = coordinator.create_per_worker_dataset(
            data.Dataset.range(rows).shuffle(200).batch(1), sharding="dynamic"
        )

        def step(iterator: object) -> None:
            ids = next(iterator)  # type: ignore[call-overload]
            if ids[0] % 7:  # else it writes nothing, as if all of a batch was masked
                visits.push(ids, -np.ones((len(ids), 1), np.float32))
            psnb.report(examples=len(ids))
            for each in deaths:
                # By then the servers have steps of this run that the notebook does not know of.
                if each in ids and not (tmp_path / str(each)).exists():
                    (tmp_path / str(each)).touch()
                    kill_myself()

        end = coordinator.run_epoch(step, iter(dataset))
        assert all((tmp_path / str(each)).exists() for each in deaths)
        assert numbers(visits, rows) == [float(number % 7 > 0) for number in range(rows)]
        assert end.over
        assert end.visits == rows
        assert coordinator.statistics().metrics["examples"].total == rows


def test_what_the_last_steps_return_comes_though_the_epoch_is_over(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    source = data.Dataset.range(5).batch(1)
    dataset = coordinator.create_per_worker_dataset(source, sharding="dynamic", splits=1)
    iterator, found = iter(dataset), list[int]()

    def step(iterator: Iterator[np.ndarray]) -> int | None:
        batch = next(iterator, None)
        if batch is None or batch[0] == 1:
            wait_for_file(tmp_path / ("over" if batch is None else "more"))
        return None if batch is None else int(batch[0])

    for remote in run_epoch(coordinator_core(coordinator), step, iterator, (), {}, results=True):
        assert isinstance(remote, StepValues)
        found += [each for each in remote.take() if each is not None]
        if found:  # what comes now, comes while this thread does something else
            (tmp_path / "more").touch()
            wait_until(lambda: iterator.progress().over, "all is taken")
            (tmp_path / "over").touch()
    assert sorted(found) == [0, 1, 2, 3, 4]


def test_a_lost_closure_that_had_its_effect_keeps_its_examples_when_another_fails(
    whole: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        visits = strategy.variable(np.zeros(100, np.int64))
        # Two splits: each closure of two that run at the same time has a batch of its own.
        dataset = coordinator.create_per_worker_dataset(
            data.Dataset.range(100).batch(5), sharding="dynamic", splits=2
        )
        began, die, fail = (tmp_path / name for name in ("began", "die", "fail"))

        def step(iterator: object) -> None:
            ids = next(iterator)  # type: ignore[call-overload]
            visits.assign_add(np.isin(np.arange(100), ids).astype(np.int64))
            if 0 in ids and psnb.worker_context().attempt == 1:
                wait_for_file(die)
                die_after_commit()
            if 50 in ids and not fail.exists():
                began.touch()
                wait_for_file(fail)
                raise ValueError("bad batch")

        def watch() -> None:
            wait_until(began.exists, "both workers have begun")
            coordinator.pause()  # or others would end before
            ended = coordinator.statistics().completed
            die.touch()
            wait_until(
                lambda: coordinator.statistics().completed > ended,
                "the lost one had its effect",
            )
            fail.touch()
            wait_until(lambda: coordinator.statistics().failed > 0, "the other has failed")
            coordinator.resume()

        watching = threading.Thread(target=watch)
        watching.start()
        iterator = iter(dataset)
        with pytest.raises(ValueError, match="bad batch"):
            coordinator.run_epoch(step, iterator)
        watching.join(DEADLINE)
        coordinator.run_epoch(step, iterator)
        assert visits.read().tolist() == [1] * 100
        assert iterator.progress().visits == 20


def die_after_commit() -> None:
    """Let this worker end as soon as what the closure has written is on the servers."""
    real = CommServerClient.commit_soon

    def commit(
        transport: CommServerClient,
        commit: Commit,
        parts: Mapping[ShardId, Part],
        ended: Callable[[Any], None],
        *,
        later: bool = False,
    ) -> None:
        real(transport, commit, parts, lambda outcome: kill_myself(), later=later)

    CommServerClient.commit_soon = commit  # type: ignore[method-assign]


@pytest.mark.second_tier("endurance: random kills; one of each kind is above")
@pytest.mark.parametrize(
    ("servers", "threads", "seconds"), [(1, 1, 0.0), (1, 2, 0.0), (2, 2, 0.0), (1, 2, 0.003)]
)
def test_every_example_is_used_once_in_runs_while_workers_are_killed_at_random(
    servers: int, threads: int, seconds: float
) -> None:
    rows, kills = 24_000, 6
    with (
        psnb.local_cluster(workers=3, servers=servers) as client,
        psnb.ParameterServerStrategy(client, num_servers=servers) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.use_threads(threads)
        visits = visits_of(strategy, rows)

        def read(ids: Any) -> Any:
            time.sleep(seconds)  # what takes long is read ahead
            return ids

        dataset = coordinator.create_per_worker_dataset(
            data.Dataset.range(rows).shuffle(500).batch(4).map(read), sharding="dynamic"
        )

        def step(iterator: object) -> None:
            ids = next(iterator)  # type: ignore[call-overload]
            visits.push(ids, -np.ones((len(ids), 1), np.float32))
            psnb.report(examples=len(ids))
            time.sleep(0.001)  # as long as that, a run has many steps

        with Killer(client, strategy, seed=3, most=kills) as killer:
            end = coordinator.run_epoch(step, iter(dataset))
        assert killer.kills
        assert numbers(visits, rows) == [1] * rows
        assert end.visits == rows // 4
        assert coordinator.statistics().metrics["examples"].total == rows


def test_a_saved_dataset_in_buckets_is_leased_part_by_part(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    data.Dataset.range(200).save(tmp_path / "saved")
    loaded = data.Dataset.load(tmp_path / "saved")
    buckets = loaded.bucket_by_sequence_length(lambda n: n % 7, [2, 5], [4, 8, 2])
    dataset = coordinator.create_per_worker_dataset(buckets, sharding="dynamic", splits=5)
    seen = tmp_path / "seen"
    seen.mkdir()

    def step(iterator: Any) -> None:
        batch = next(iterator).tolist()
        assert len({(n % 7 >= 2) + (n % 7 >= 5) for n in batch}) == 1
        for n in batch:
            (seen / str(n)).touch(exist_ok=False)

    coordinator.run_epoch(step, iter(dataset))
    assert len(list(seen.iterdir())) == 200
