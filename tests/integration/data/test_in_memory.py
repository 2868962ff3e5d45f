"""Datasets in memory, in one process and on the workers of a cluster: one suite for both."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psnb
from psnb.data import Dataset, InMemoryDataset, Options, QueueDataset, Ragged, Slot
from psnb.errors import ConfigurationError, DatasetError
from tests.conftest import wait_until
from tests.integration.data.in_memory import Kind, Local, OnWorkers

COUNT = 1000
SLOTS = [Slot("id"), Slot("price", "float32", (1,))]


@pytest.fixture(params=["local", "workers"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if request.param == "local":
        return Local()
    return OnWorkers(request.getfixturevalue("coordinator"), tmp_path)


def examples(count: int = COUNT, **more: Any) -> InMemoryDataset:
    rows = Ragged.from_rows([np.full(n % 4, n) for n in range(count)], np.int64)
    return InMemoryDataset.of(
        Dataset.from_tensor_slices({"n": np.arange(count), "row": rows}), 16, **more
    )


def numbers(batches: list[Any]) -> list[int]:
    """Return the examples of batches, each checked to be whole."""
    for batch in batches:
        assert [row.tolist() for row in batch["row"]] == [[n] * (n % 4) for n in batch["n"]]
    return [n for batch in batches for n in batch["n"].tolist()]


def as_sets(batches: list[Any]) -> set[tuple[int, ...]]:
    return {tuple(batch["n"].tolist()) for batch in batches}


def test_everything_is_loaded_once_and_can_be_gone_through_again(kind: Kind) -> None:
    made = kind.make(examples())
    made.load_into_memory()
    for _ in range(2):
        assert sorted(numbers(kind.batches(made))) == list(range(COUNT))
    assert made.statistics().examples == COUNT
    assert made.statistics().bytes_in_memory > 16 * COUNT
    assert made.statistics().bytes_on_disk == 0


@pytest.mark.parametrize("how", ["global_shuffle", "local_shuffle"])
def test_a_shuffle_keeps_every_example_and_changes_the_order(kind: Kind, how: str) -> None:
    made = kind.make(examples())
    made.load_into_memory()
    before = as_sets(kind.batches(made))
    seen = [before]
    for _ in range(2):
        getattr(made, how)()
        batches = kind.batches(made)
        assert sorted(numbers(batches)) == list(range(COUNT))
        assert not any(as_sets(batches) & other for other in seen)
        seen.append(as_sets(batches))
    assert made.statistics().examples == COUNT


def test_slots_are_shuffled_among_the_examples(kind: Kind) -> None:
    made = kind.make(examples())
    made.load_into_memory()
    made.global_shuffle(1)
    before = dict(exchanged(kind.batches(made)))
    found = []
    for seed in (2, 3, 2):
        made.slots_shuffle(["row"], seed)
        found.append(dict(exchanged(kind.batches(made))))
        # The other slot is as it was, all values are there, and no example has its own.
        assert found[-1].keys() == before.keys()
        assert sorted(found[-1].values()) == sorted(before.values())
        assert all(found[-1][n] != before[n] for n in before if n % 4)
    assert found[0] == found[2] != found[1]
    made.global_shuffle(4)  # an epoch of a Trainer, for example
    after = dict(exchanged(kind.batches(made)))
    assert sum(after[n] != before[n] for n in before) > COUNT / 2
    made.slots_shuffle([])
    assert dict(exchanged(kind.batches(made))) == before


def exchanged(batches: list[Any]) -> list[tuple[int, tuple[int, ...]]]:
    """Return the pairs of the two slots."""
    return [
        (int(n), tuple(row.tolist()))
        for batch in batches
        for n, row in zip(batch["n"], batch["row"], strict=True)
    ]


def test_slots_that_cannot_be_shuffled_are_refused(kind: Kind) -> None:
    made = kind.make(examples())
    with pytest.raises(ConfigurationError, match="nothing is in memory"):
        made.slots_shuffle(["row"])
    made.load_into_memory()
    with pytest.raises(ConfigurationError, match=r"call global_shuffle\(\) first"):
        made.slots_shuffle(["row"])
    made.global_shuffle()
    for slots in ("row", [5], np.zeros(1000)):
        with pytest.raises(
            ConfigurationError, match=r"takes a list of names of slots, found .{1,130}$"
        ):
            made.slots_shuffle(slots)  # type: ignore[arg-type]
    made.slots_shuffle(["price"])
    with pytest.raises(DatasetError, match=r"there is no slot 'price'; there are \['n', 'row'\]"):
        kind.batches(made)


def test_an_iterator_of_shuffled_slots_goes_on_where_it_was() -> None:
    made = examples()
    made.load_into_memory()
    made.global_shuffle(1)
    plain = made.iterator().state()
    made.slots_shuffle(["row"], 2)
    iterator = made.iterator()
    first = [next(iterator) for _ in range(3)]
    rest = exchanged(list(made.iterator(iterator.state())))
    assert exchanged(first) + rest == exchanged(list(made))
    with pytest.raises(DatasetError, match="another dataset"):
        made.iterator(plain)


def test_slots_that_are_shuffled_here_are_not_forgotten_on_the_workers(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    made = examples()
    made.load_into_memory()
    made.global_shuffle()
    made.slots_shuffle(["row"])
    with pytest.raises(ConfigurationError, match="are shuffled in this process only"):
        coordinator.create_per_worker_dataset(made)
    made.slots_shuffle([])
    coordinator.create_per_worker_dataset(made)
    made.slots_shuffle(["row"])
    made.release_memory()
    coordinator.create_per_worker_dataset(made)


def test_examples_that_are_alone_have_no_slots_to_shuffle() -> None:
    made = examples(3)
    made.load_into_memory()
    made.global_shuffle(1)
    made.slots_shuffle(["row"], 2)
    with pytest.raises(DatasetError, match="a partition of the dataset has one example only"):
        list(made)


def test_a_global_shuffle_with_the_same_seed_gives_the_same_batches(kind: Kind) -> None:
    found = []
    for seed in (1, 2, 1):
        made = kind.make(examples())
        made.load_into_memory()
        made.local_shuffle()
        made.global_shuffle(seed)
        found.append(as_sets(kind.batches(made)))
    assert found[0] == found[2] != found[1]


def test_nothing_can_be_done_with_what_is_not_in_memory(kind: Kind) -> None:
    made = kind.make(examples())
    for do in (lambda: iter(made), made.global_shuffle, made.local_shuffle):
        with pytest.raises(ConfigurationError, match="load_into_memory"):
            do()
    with pytest.raises(ConfigurationError, match="preload_into_memory"):
        made.wait_preload_done()


def test_reading_begins_at_once_and_is_waited_for_later(kind: Kind) -> None:
    made = kind.make(examples())
    made.preload_into_memory()
    made.preload_into_memory()
    made.wait_preload_done()
    assert made.statistics().examples == COUNT
    made.preload_into_memory()
    made.global_shuffle()  # waits
    assert sorted(numbers(kind.batches(made))) == list(range(COUNT))


def test_release_forgets_everything_and_it_can_be_read_again(kind: Kind) -> None:
    made = kind.make(examples())
    made.release_memory()
    made.load_into_memory()
    made.release_memory()
    made.release_memory()
    with pytest.raises(ConfigurationError, match="load_into_memory"):
        iter(made)
    made.preload_into_memory()
    made.release_memory()
    made.load_into_memory()
    assert sorted(numbers(kind.batches(made))) == list(range(COUNT))


def test_what_is_beyond_the_limit_is_on_disk_and_comes_all_the_same(kind: Kind) -> None:
    found = []
    for limit in (5000, None):
        made = kind.make(examples(memory_limit=limit))
        made.load_into_memory()
        made.global_shuffle(3)
        found.append(as_sets(kind.batches(made)))
        now = made.statistics()
        assert now.examples == COUNT
        assert (now.bytes_on_disk > 0) == (limit is not None)
        assert limit is None or now.bytes_in_memory <= 2 * limit
    assert found[0] == found[1]


@pytest.mark.parametrize("how", ["load_into_memory", "global_shuffle", "release_memory"])
def test_an_iteration_that_was_overtaken_says_so(kind: Kind, how: str) -> None:
    made = kind.make(examples())
    made.load_into_memory()
    iterator = iter(made)
    kind.some(iterator, 1)
    getattr(made, how)()
    if how == "release_memory" and isinstance(kind, Local):
        return  # nothing is lost to those who go through it here
    with pytest.raises(DatasetError, match="begin another one"):
        kind.batches(made, iterator)


def test_an_epoch_goes_on_where_its_state_was_taken(kind: Kind) -> None:
    made = kind.make(examples())
    made.load_into_memory()
    made.global_shuffle(4)
    iterator = iter(made)
    before = kind.some(iterator, 20)
    state = iterator.state()  # type: ignore[attr-defined]
    again = kind.make(examples())
    again.load_into_memory()
    again.global_shuffle(4)
    after = kind.batches(again, again.iterator(state))
    assert sorted(numbers(before) + numbers(after)) == list(range(COUNT))


def test_a_state_of_another_shuffle_is_refused(kind: Kind) -> None:
    made = kind.make(examples())
    made.load_into_memory()
    made.global_shuffle(1)
    state = iter(made).state()  # type: ignore[attr-defined]
    made.global_shuffle(2)
    with pytest.raises((ConfigurationError, DatasetError), match=r"as it was|the same seed"):
        made.iterator(state)


def lines(first: int, count: int) -> str:
    return "".join(f"2 {n} {2**64 - 1 - n} 1 {n}.5\n" for n in range(first, first + count))


def test_lines_of_multi_slot_are_exact_and_commands_run(kind: Kind, tmp_path: Path) -> None:
    for part in range(3):
        (tmp_path / f"{part}.txt").write_text(lines(100 * part, 100))
    command = "sed s/.5$/.25/"
    made = kind.make(
        InMemoryDataset(str(tmp_path / "*.txt"), SLOTS, 7, threads=2, pipe_command=command)
    )
    made.load_into_memory()
    made.global_shuffle()
    found = [
        (ids.tolist(), price.tolist())
        for batch in kind.batches(made)
        for ids, price in zip(batch["id"], batch["price"], strict=True)
    ]
    assert sorted(found) == [([n, 2**64 - 1 - n], [n + 0.25]) for n in range(300)]


def test_what_cannot_be_read_is_named_and_what_was_in_memory_stays(
    kind: Kind, tmp_path: Path
) -> None:
    for part in range(8):
        (tmp_path / f"{part}.txt").write_text(lines(100 * part, 100))
    made = kind.make(InMemoryDataset(str(tmp_path / "*.txt"), SLOTS, 10))
    made.load_into_memory()
    (tmp_path / "3.txt").write_text(lines(0, 5) + "junk\n")
    with pytest.raises(DatasetError, match=r"3\.txt.*junk"):
        made.load_into_memory()
    assert made.statistics().examples == 800
    found = [n for batch in kind.batches(made) for row in batch["id"] for n in row.tolist()]
    assert sorted(n for n in found if n < 1000) == list(range(800))


def test_an_empty_dataset_is_an_empty_epoch(kind: Kind) -> None:
    made = kind.make(InMemoryDataset.of(Dataset.range(0), 4))
    made.load_into_memory()
    made.global_shuffle()
    assert kind.batches(made) == []
    assert made.statistics().examples == 0


def test_text_can_be_shuffled(kind: Kind) -> None:
    names = np.array([f"é{n}" for n in range(100)], object)
    made = kind.make(InMemoryDataset.of(Dataset.from_tensor_slices((names, np.arange(100))), 8))
    made.load_into_memory()
    made.global_shuffle()
    pairs = [pair for text, n in kind.batches(made) for pair in zip(text, n, strict=True)]
    assert sorted(pairs) == sorted((f"é{n}", n) for n in range(100))


def test_batches_can_be_written_to_without_harm(tmp_path: Path) -> None:
    made = examples()
    made.load_into_memory()
    for batch in made:
        batch["n"][:] = -1
    assert sorted(numbers(list(made))) == list(range(COUNT))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 4, "threads": 0}, "threads"),
        ({"batch_size": 4, "memory_limit": 0}, "memory_limit"),
        ({"batch_size": 4, "memory_limit": "1GB"}, "memory_limit"),
    ],
)
def test_arguments_that_cannot_be_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        InMemoryDataset.of(Dataset.range(3), **arguments)


def test_a_seed_that_is_no_integer_is_refused(kind: Kind) -> None:
    made = kind.make(examples())
    made.load_into_memory()
    with pytest.raises(ConfigurationError, match="seed"):
        made.global_shuffle("a")  # type: ignore[arg-type]


def test_sources_that_may_come_in_another_order_are_refused() -> None:
    chain = Dataset.range(9)
    free = chain.map(abs, num_parallel_calls=2, deterministic=False)
    for each in (free, chain.with_options(Options(deterministic=False)).filter(bool)):
        with pytest.raises(ConfigurationError, match="deterministic"):
            InMemoryDataset.of(each, 2)


def test_sources_that_shuffle_without_a_seed_are_the_same_each_time(kind: Kind) -> None:
    found = []
    for _ in range(2):
        made = kind.make(InMemoryDataset.of(Dataset.range(COUNT).shuffle(100), 10))
        made.load_into_memory()
        found.append({tuple(batch.tolist()) for batch in kind.batches(made)})
    assert found[0] == found[1]


@pytest.mark.second_tier("it waits for a thread that loads slowly")
def test_what_is_dropped_while_it_is_read_is_not_read_to_the_end() -> None:
    go_on, read = threading.Event(), []

    def slowly(n: int) -> int:
        go_on.wait()
        read.append(n)
        return n

    made = InMemoryDataset.of(Dataset.range(COUNT).map(slowly), 10)
    before = set(threading.enumerate())
    made.preload_into_memory()
    loading = set(threading.enumerate()) - before
    assert loading
    del made
    gc.collect()
    go_on.set()
    wait_until(lambda: not any(each.is_alive() for each in loading), "the threads have ended")
    assert len(read) < COUNT


def test_only_datasets_that_can_be_cut_are_kept() -> None:
    with pytest.raises(ConfigurationError, match="enumerate"):
        InMemoryDataset.of(Dataset.range(3).enumerate(), 2).load_into_memory()
    with pytest.raises(ConfigurationError, match=r"psnb\.data\.Dataset"):
        InMemoryDataset.of([1, 2], 2)  # type: ignore[arg-type]


def test_an_in_memory_dataset_is_not_shared_out_statically(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    with pytest.raises(ConfigurationError, match="leave sharding out"):
        coordinator.create_per_worker_dataset(examples(), sharding="static")


def test_a_queue_dataset_streams_here_and_on_workers(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    for part in range(3):
        (tmp_path / f"{part}.txt").write_text(lines(100 * part, 100))
    queue = QueueDataset(str(tmp_path / "*.txt"), SLOTS, 30, threads=2)
    here = sorted(n for batch in queue for n in batch["price"].ravel().tolist())
    assert here == [n + 0.5 for n in range(300)]
    workers = OnWorkers(coordinator, tmp_path)
    shared: Any = coordinator.create_per_worker_dataset(queue, sharding="dynamic")
    there = [n for batch in workers.batches(shared) for n in batch["price"].ravel().tolist()]
    assert sorted(there) == here
