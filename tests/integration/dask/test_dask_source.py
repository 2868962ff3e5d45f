"""Dask collections as per-worker data: every row once an epoch, where Dask has it."""

from __future__ import annotations

import contextlib
import gc
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, Status, get_worker
from distributed.client import futures_of

import psnb
from psnb._src.worker import partitions
from psnb.data import Dataset, InMemoryDataset
from psnb.errors import ConfigurationError, DatasetError
from tests.conftest import DEADLINE, wait_until
from tests.integration.data.test_leases import numbers, visits_of
from tests.integration.helpers import closure_workers

ROWS = 1000


def frame() -> pd.DataFrame:
    return pd.DataFrame({"id": range(ROWS), "text": [f"t{n % 7}" for n in range(ROWS)]})


def collection(partitions: int = 8) -> Any:
    return dd.from_pandas(frame(), npartitions=partitions)


def persisted(strategy: psnb.ParameterServerStrategy, what: Any) -> Any:
    (found,) = strategy.client.persist([what], workers=strategy.worker_addresses)
    wait_until(lambda: all(each.done() for each in futures_of(found)), "persisted")
    return found


KINDS: dict[str, Callable[[], Any]] = {
    "frame": collection,
    "array": lambda: collection().id.to_dask_array(),  # of chunks of unknown length
    "bag": lambda: db.from_sequence(range(ROWS), npartitions=8),
    "delayed": lambda: [dask.delayed(range)(n, n + 100) for n in range(0, ROWS, 100)],
}


PERSISTED = pytest.param(
    "persisted",
    marks=pytest.mark.second_tier("partitions that are persisted go other ways here, too"),
)


def mixed(visits: psnb.Embedding) -> Callable[[Iterator[Any]], None]:
    """Return a step that counts rows, and wants those of several partitions in a batch."""

    def step(iterator: Iterator[Any]) -> None:
        ids = next(iterator)["id"]
        assert len(ids) < 10 or len({id_ // 125 for id_ in ids.tolist()}) > 1
        visits.push(ids, -np.ones((len(ids), 1), np.float32))

    return step


def ids_of(batch: Any) -> Any:
    return batch["id"] if isinstance(batch, dict) else batch


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [PERSISTED, "computed"])
def test_an_epoch_uses_every_row_once(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    kind: str,
    how: str,
) -> None:
    visits, rows = visits_of(strategy, ROWS), KINDS[kind]()
    if how == "persisted":
        several = rows if isinstance(rows, list) else [rows]
        several = [persisted(strategy, each) for each in several]
        rows = several if isinstance(rows, list) else several[0]
    dataset = coordinator.create_per_worker_dataset(
        Dataset.from_dask(rows).shuffle(50).batch(30), sharding="dynamic"
    )
    several = rows = None  # the dataset holds what it reads

    def step(iterator: Iterator[Any]) -> None:
        ids = np.asarray(ids_of(next(iterator)), np.int64)
        visits.push(ids, -np.ones((len(ids), 1), np.float32))

    for epoch in (1, 2):
        coordinator.run_epoch(step, iter(dataset))
        assert numbers(visits, ROWS) == [epoch] * ROWS
    wait_until(lambda: gc.collect() >= 0 and not held(strategy.client, how), "nothing is held")


def held(client: Client, how: str) -> int:
    """Return how many of Dask's tasks the notebook wants that no collection here does."""
    return 0 if how == "persisted" else len(client.futures) - servers(client)


def servers(client: Client) -> int:
    return sum("psnb" in str(key).lower() or "Parameter" in str(key) for key in client.futures)


def test_partitions_are_read_where_they_lie_and_moved_only_from_one_that_is_busy(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    first, second = strategy.worker_addresses
    here = strategy.client.persist(collection(6), workers=[first])
    wait_until(lambda: all(each.done() for each in futures_of(here)), "persisted")
    (name, other) = (closure_workers(strategy)[each] for each in (first, second))
    data = Dataset.from_dask(here, columns=["id"]).batch(10)
    dataset = coordinator.create_per_worker_dataset(data, sharding="dynamic")
    table = visits_of(strategy, 2 * ROWS)

    def step(iterator: Iterator[Any]) -> None:
        ids = next(iterator)["id"] + (ROWS if psnb.worker_context().worker_name == other else 0)
        table.push(ids, -np.ones((len(ids), 1), np.float32))

    def stage() -> Any:
        return next(each for each in coordinator.stages() if each.name == "from_dask")

    for _ in range(30):  # until the other worker has found the first one busy
        coordinator.run_epoch(step, iter(dataset))
        if stage().moved:
            break
    visits = np.array(numbers(table, 2 * ROWS)).reshape(2, ROWS)
    assert set(visits.sum(0)) == {visits.sum() / ROWS}
    assert visits[0].sum() > 0
    size = sum(8 * ROWS // 6 for _ in range(1))
    assert (stage().moved > size) == (visits[1].sum() > 0)
    assert ("moved" in str(coordinator.stages())) == bool(stage().moved)
    assert name != other


def test_a_closure_that_waits_for_a_partition_leaves_dask_the_threads_to_compute_it(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    # Each partition is computed only when closures wait on both workers, which have a thread each.
    first = dask.delayed(_when_waited)
    dataset = coordinator.create_per_worker_dataset(
        Dataset.from_dask([first(n) for n in range(4)]).batch(10), sharding="dynamic"
    )
    _waiting.clear()

    def step(iterator: Iterator[Any]) -> None:
        _note_waiting(psnb.worker_context().worker_name)
        next(iterator)

    progress = coordinator.run_epoch(step, iter(dataset))
    assert progress.visits == 4


_waiting: set[str] = set()


def _note_waiting(name: str) -> None:
    _waiting.add(name)


def _when_waited(number: int) -> list[int]:
    wait_until(lambda: len(_waiting) == 2, "closures wait on both workers")
    return [number]


def test_partitions_are_computed_on_workers_a_few_ahead_and_let_go(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    _places.clear()
    delayed = [dask.delayed(_placed)(n) for n in range(40)]
    dataset = coordinator.create_per_worker_dataset(
        Dataset.from_dask(delayed).batch(5), sharding="dynamic"
    )

    def step(iterator: Iterator[Any]) -> None:
        _note_read(int(next(iterator)[0]))

    before, held = len(strategy.client.futures), []
    coordinator.run_epoch(
        step, iter(dataset), watch=lambda: held.append(len(strategy.client.futures))
    )
    assert max(held) - before <= 20  # leased, in closures that may run again, and a few ahead
    assert sorted(_places) == list(range(40))
    assert {place[0] for place in _places.values()} <= {*strategy.worker_addresses}
    assert max(ahead - number for number, (_, ahead) in _places.items()) <= 12


_places: dict[int, Any] = {}


def _note_read(number: int) -> None:
    _places[number] = (*_places[number], max(_places))


def _placed(number: int) -> list[int]:
    _places[number] = (get_worker().address,)
    return [number] * 5


def test_an_epoch_goes_on_from_its_state_in_another_dataset_of_the_same_collection_only(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, ROWS)

    def made(rows: Any) -> Any:
        data = Dataset.from_dask(rows).shuffle(20, seed=1).batch(10)
        return coordinator.create_per_worker_dataset(data, sharding="dynamic")

    def step(iterator: Iterator[Any]) -> None:
        ids = next(iterator)["id"]
        visits.push(ids, -np.ones((len(ids), 1), np.float32))

    begun = iter(made(collection()))
    for _ in range(17):
        coordinator.schedule(step, (begun,))
    coordinator.join()
    state = json.loads(json.dumps(begun.state()))
    with pytest.raises(ConfigurationError, match="the state is of an epoch over another dataset"):
        made(collection(5)).iterator(state)
    again = made(persisted(strategy, collection()))
    coordinator.run_epoch(step, again.iterator(state))
    assert numbers(visits, ROWS) == [1] * ROWS


def test_rounds_have_the_same_rows_wherever_partitions_lie(cluster: Client) -> None:
    found = []
    for rows in (collection(), cluster.persist(collection())):
        with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(2)) as strategy:
            coordinator = psnb.ClusterCoordinator(strategy)
            value = strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))
            data = Dataset.from_dask(rows).shuffle(20, seed=1).batch(10)
            dataset = coordinator.create_per_worker_dataset(data, sharding="dynamic")

            def step(iterator: Iterator[Any], value: psnb.Variable = value) -> None:
                value.push(value.read() * 0.1 + float(next(iterator)["id"].sum()))

            coordinator.run_epoch(step, iter(dataset))
            found.append(value.read().tolist())
    assert found[0] == found[1] != [0.0]


def test_a_whole_collection_is_shuffled_in_the_workers_memory(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    rows = persisted(strategy, collection())
    dataset = coordinator.create_per_worker_dataset(
        InMemoryDataset.of(Dataset.from_dask(rows, ["id"]), 50)
    )
    dataset.load_into_memory()
    dataset.global_shuffle(1)
    visits = visits_of(strategy, ROWS)
    coordinator.run_epoch(mixed(visits), iter(dataset))
    assert numbers(visits, ROWS) == [1] * ROWS


def test_what_the_notebook_reads_itself_it_computes_as_dask_does() -> None:
    with dask.config.set(scheduler="synchronous"):
        rows = list(Dataset.from_dask(collection().id, None))
        assert rows == list(range(ROWS))
        (first, *_) = Dataset.from_dask(collection(), ["text"])
    assert first == {"text": "t0"}
    spec = Dataset.from_dask(collection()).element_spec
    assert (spec["id"].dtype, spec["text"].dtype) == (np.dtype(np.int64), np.dtype(object))


def test_what_cannot_be_read_is_refused_with_what_to_do(
    cluster: Client, strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    def make(rows: Any, sharding: Any = "dynamic", of: Callable[[Any], Any] = lambda d: d) -> None:
        coordinator.create_per_worker_dataset(of(Dataset.from_dask(rows)), sharding=sharding)

    with Client(cluster.scheduler.address, set_as_default=False) as other:
        theirs = other.persist(collection())
        with pytest.raises(ConfigurationError, match=f"another client, .*{other.id}.*{cluster.id}"):
            make(theirs)
    for sharding in ("none", "static"):
        with pytest.raises(ConfigurationError, match="use sharding='dynamic'"):
            make(persisted(strategy, collection()), sharding)
    with pytest.raises(ConfigurationError, match=r"persist\(\) the collection first"):
        make(collection(), "none", lambda data: InMemoryDataset.of(data, 10))
    gone = persisted(strategy, collection())
    cluster.cancel(futures_of(gone))
    wait_until(lambda: all(each.cancelled() for each in futures_of(gone)), "cancelled")
    with pytest.raises(ConfigurationError, match="not on the cluster any more"):
        make(gone)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (frame(), "from_dask takes a DataFrame, Series, Array or Bag of Dask"),
        ([], "this has no partition"),
        ([1, 2], "a list of delayed objects"),
        (da.zeros((4, 4), chunks=(2, 2)), "cut along other axes, too"),
    ],
)
def test_what_is_no_collection_of_rows_is_refused(rows: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Dataset.from_dask(rows)


def test_columns_that_are_not_there_are_refused() -> None:
    for columns in ("id", ["id", "x"]):
        with pytest.raises(ConfigurationError, match="columns"):
            Dataset.from_dask(collection(), columns)
    with pytest.raises(ConfigurationError, match="columns are those of a DataFrame"):
        Dataset.from_dask(da.zeros(3), ["x"])


def test_partitions_that_share_tasks_are_warned_of() -> None:
    shuffled = collection(10).shuffle("text", shuffle_method="tasks", npartitions=10)
    with pytest.warns(UserWarning, match=r"persist\(\) it first"):
        Dataset.from_dask(shuffled)


def test_a_collection_that_is_cancelled_meanwhile_ends_the_waiting(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partitions, "GONE_SECONDS", 0.1)
    rows = persisted(strategy, collection())
    dataset = coordinator.create_per_worker_dataset(Dataset.from_dask(rows), sharding="dynamic")
    futures = futures_of(rows)
    strategy.client.cancel(futures)
    wait_until(lambda: all(each.cancelled() for each in futures), "it is gone")
    with pytest.raises(DatasetError, match=r"no partition \d any more.*Persist it again"):
        coordinator.run_epoch(next, iter(dataset))


def test_predictions_for_a_persisted_collection_come_in_its_order(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    trainer = psnb.Trainer(coordinator, print, predict=lambda batch: batch["id"] * 2)
    rows = collection()
    with pytest.raises(ConfigurationError, match=r"persist\(\) it first"):
        trainer.infer_from_dataset(Dataset.from_dask(rows).batch(30))
    found = trainer.infer_from_dataset(Dataset.from_dask(persisted(strategy, rows)).batch(30))
    assert found.tolist() == list(range(0, 2 * ROWS, 2))


def test_predictions_are_a_frame_with_partitions_and_index_of_their_input(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    trainer = psnb.Trainer(coordinator, print, predict=lambda batch: batch["id"] * 2)
    rows = collection()
    few = rows[(rows.id % 3 == 0) & (rows.id > 200)]
    few = few.map_partitions(lambda part: part.set_index("text", drop=False))
    for frame in (persisted(strategy, rows), persisted(strategy, few)):
        data = Dataset.from_dask(frame, columns=["id"])
        found = trainer.infer_dask(data.batch(30), str(tmp_path / "p" / "*.parquet"))
        both = frame.assign(twice=found.prediction)
        assert (found.npartitions, found.divisions) == (frame.npartitions, frame.divisions)
        assert (both.twice == 2 * both.id).compute().all()
        assert len(both) == len(found) == len(frame)


def test_predictions_beside_what_is_no_whole_frame_are_refused(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    to, rows = str(tmp_path / "*.parquet"), persisted(strategy, collection())
    trainer = psnb.Trainer(coordinator, print, predict=lambda batch: batch["id"])
    for wrong in (Dataset.range(3), Dataset.from_dask(persisted(strategy, KINDS["bag"]()))):
        with pytest.raises(ConfigurationError, match="of a DataFrame or Series"):
            trainer.infer_dask(wrong.batch(2), to)
    batches = Dataset.from_dask(rows).batch(30)
    with pytest.raises(ConfigurationError, match=r"\.parquet files"):
        trainer.infer_dask(batches, str(tmp_path / "*.csv"))
    with pytest.raises(ConfigurationError, match="order"):
        trainer.infer_dask(batches.shuffle(3), to)
    with pytest.raises(DatasetError, match="no row"):
        trainer.infer_dask(Dataset.from_dask(persisted(strategy, rows[rows.id < 0])).batch(3), to)
    odd = Dataset.from_dask(rows).filter(lambda row: row["id"] % 2 == 1).batch(30)
    with pytest.raises(DatasetError, match=r"125 rows has 6[23] predictions.*before from_dask"):
        trainer.infer_dask(odd, to).compute()


def test_partitions_that_dask_has_spilled_to_disk_are_read_once_as_well() -> None:
    # The process itself is larger than its limit: that pauses nothing here.
    off = {f"distributed.worker.memory.{each}": False for each in ("spill", "pause", "terminate")}
    with (
        dask.config.set({**off, "distributed.worker.memory.target": 0.5}),
        LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            processes=False,
            memory_limit="2MB",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
        psnb.ParameterServerStrategy(client, num_servers=1) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        visits = visits_of(strategy, ROWS)
        wide = da.from_array(np.arange(ROWS), chunks=50)[:, None] + da.zeros((ROWS, 1000))
        rows = persisted(strategy, wide.rechunk((50, 1000)))
        spilled = sum(len(worker.data.slow) for worker in cluster.workers.values())
        assert spilled > 0

        def step(iterator: Iterator[Any]) -> None:
            ids = next(iterator)[:, 0].astype(np.int64)
            visits.push(ids, -np.ones((len(ids), 1), np.float32))

        dataset = coordinator.create_per_worker_dataset(
            Dataset.from_dask(rows).batch(10), sharding="dynamic"
        )
        coordinator.run_epoch(step, iter(dataset))
        assert numbers(visits, ROWS) == [1] * ROWS


@pytest.mark.parametrize("how", ["persisted", "computed"])
def test_a_worker_that_dask_has_paused_for_memory_loses_nothing(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    visits, rows = visits_of(strategy, ROWS), KINDS["delayed"]()
    if how == "persisted":
        rows = [persisted(strategy, each) for each in rows]
    workers = strategy.client.cluster.workers.values()
    paused = next(each for each in workers if each.address == strategy.worker_addresses[0])
    monkeypatch.setattr(paused.memory_manager, "memory_pause_fraction", False)  # it would go on
    data = Dataset.from_dask(rows).batch(10)
    dataset = coordinator.create_per_worker_dataset(data, sharding="dynamic")

    def set_status(status: Status) -> None:
        async def set_() -> None:
            paused.status = status

        strategy.client.sync(set_)

    def step(iterator: Iterator[Any]) -> None:
        ids = np.asarray(next(iterator), np.int64)
        visits.push(ids, -np.ones((len(ids), 1), np.float32))

    set_status(Status.paused)
    try:
        coordinator.run_epoch(step, iter(dataset))
        assert paused.status is Status.paused
    finally:
        set_status(Status.running)
    assert numbers(visits, ROWS) == [1] * ROWS


@pytest.mark.parametrize("how", ["persisted", "computed"])
def test_with_fewer_splits_the_rows_of_several_partitions_are_mixed(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, how: str
) -> None:
    visits, rows = visits_of(strategy, ROWS), collection()
    data = Dataset.from_dask(persisted(strategy, rows) if how == "persisted" else rows)
    dataset = coordinator.create_per_worker_dataset(
        data.shuffle(ROWS).batch(30), sharding="dynamic", splits=3
    )
    coordinator.run_epoch(mixed(visits), iter(dataset))
    assert numbers(visits, ROWS) == [1] * ROWS


def test_a_trainer_reads_it_ahead_in_threads_of_its_own(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, ROWS)

    def step(iterator: Iterator[Any]) -> None:
        ids = next(iterator)["id"]
        visits.push(ids, -np.ones((len(ids), 1), np.float32))

    trainer = psnb.Trainer(coordinator, step, worker=psnb.Downpour())
    trainer.train_from_dataset(Dataset.from_dask(collection()).batch(10).prefetch(2), epochs=2)
    assert numbers(visits, ROWS) == [2] * ROWS


def test_parts_of_a_partition_without_an_order_are_refused_where_it_is_computed_again(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, ROWS)
    _orders.clear()
    parts = [dask.delayed(_in_another_order)(n) for n in range(0, ROWS, 250)]

    def made() -> Any:
        data = Dataset.from_dask(parts).batch(25)
        return coordinator.create_per_worker_dataset(data, sharding="dynamic", splits=16)

    def step(iterator: Iterator[Any]) -> None:
        ids = next(iterator)
        visits.push(ids, -np.ones((len(ids), 1), np.float32))

    begun = iter(made())
    for _ in range(5):
        coordinator.schedule(step, (begun,))
    coordinator.join()
    state = json.loads(json.dumps(begun.state()))
    assert 0 < sum(numbers(visits, ROWS)) <= 125
    begun = None  # what Dask has computed for it is let go
    wait_until(lambda: gc.collect() >= 0 and not held(strategy.client, "computed"), "let go")
    with pytest.raises(DatasetError, match=r"partition \d was computed again, and has other rows"):
        coordinator.run_epoch(step, made().iterator(state))
    assert max(numbers(visits, ROWS)) == 1


_orders: list[int] = []


def _in_another_order(start: int) -> list[int]:
    _orders.append(start)
    ids = list(range(start, start + 250))
    return ids if _orders.count(start) == 1 else ids[::-1]


def test_an_evaluation_whose_partition_changes_meanwhile_is_refused(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    _shared[:] = range(16)
    kept = persisted(strategy, dask.delayed(_shared_rows)())
    dataset = coordinator.create_per_worker_dataset(
        Dataset.from_dask([kept]).batch(2), sharding="dynamic", splits=8
    )

    def step(iterator: Iterator[Any]) -> None:
        next(iterator)
        _turn_round()

    with pytest.raises(DatasetError, match="partition 0 was computed again"):
        psnb.Trainer(coordinator, step).evaluate(dataset)


def test_what_is_loaded_into_memory_of_a_partition_that_changes_meanwhile_is_refused(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    _shared[:] = range(64)
    (kept,) = dask.persist(dask.delayed(_shared_rows)(), scheduler=strategy.client)
    wait_until(futures_of(kept)[0].done, "computed")
    rows = Dataset.from_dask([kept]).map(_turned)
    dataset = coordinator.create_per_worker_dataset(InMemoryDataset.of(rows, 4), splits=8)
    with pytest.raises(DatasetError, match="partition 0 was computed again"):
        dataset.load_into_memory()
    _shared[:] = range(64)
    with pytest.raises(DatasetError, match="partition 0 was computed again"):
        InMemoryDataset.of(rows, 4).load_into_memory()


def _turned(row: Any) -> Any:
    _turn_round()
    return row


_shared: list[int] = []


def _shared_rows() -> list[int]:
    return _shared


def _turn_round() -> None:
    _shared.sort(reverse=True)


def test_parts_of_a_partition_are_read_side_by_side_so_that_it_is_computed_once(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    _orders.clear()
    parts = [dask.delayed(_in_another_order)(n) for n in range(0, ROWS, 100)]
    data = Dataset.from_dask(parts).shuffle(20, seed=1).batch(25)
    dataset = coordinator.create_per_worker_dataset(data, sharding="dynamic", splits=60)
    coordinator.run_epoch(next, iter(dataset))
    assert sorted(_orders) == list(range(0, ROWS, 100)) != _orders


@pytest.mark.parametrize("mode", [psnb.Async(), psnb.Sync(1)], ids=["async", "sync"])
def test_a_partition_that_failed_is_computed_again_after_its_error_was_raised(
    cluster: Client, mode: Any
) -> None:
    _stumbling.set()
    parts = [dask.delayed(_stumbles)(n) for n in range(6)]
    with psnb.ParameterServerStrategy(cluster, mode=mode) as strategy:
        coordinator, visits = psnb.ClusterCoordinator(strategy), visits_of(strategy, 6)
        dataset = coordinator.create_per_worker_dataset(
            Dataset.from_dask(parts).batch(1), sharding="dynamic"
        )

        def step(iterator: Iterator[Any]) -> None:
            visits.push(next(iterator), -np.ones((1, 1), np.float32))

        iterator = iter(dataset)
        with pytest.raises(DatasetError, match="could not compute partition 3: OSError: stumbled"):
            coordinator.run_epoch(step, iterator)
        _stumbling.clear()
        with contextlib.suppress(DatasetError):  # of one that began before
            coordinator.join(DEADLINE)
        wait_until(lambda: not _erred(cluster), "Dask keeps no failure")
        coordinator.run_epoch(step, iterator)
        assert numbers(visits, 6) == [1] * 6


_stumbling = threading.Event()


def _stumbles(number: int) -> list[int]:
    if number == 3 and _stumbling.is_set():
        raise OSError("stumbled")
    return [number]


def _erred(client: Client) -> list[Any]:
    def erred(dask_scheduler: Any) -> list[Any]:
        return [key for key, task in dask_scheduler.tasks.items() if task.state == "erred"]

    found: list[Any] = client.run_on_scheduler(erred)
    return found
