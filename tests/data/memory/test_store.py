"""Partitions in memory and on disk."""

from __future__ import annotations

import gc
import stat
import threading
from pathlib import Path

import numpy as np
import pytest

from psnb._src.data.block import Block, block_of
from psnb._src.data.memory.shuffle_plan import ShufflePlan, numbered
from psnb._src.data.memory.store import MemoryStore, NumberedExamples
from psnb.data import Ragged
from psnb.errors import DatasetError

LAYOUT = ShufflePlan(4)


def chunk(first: int, count: int = 10) -> NumberedExamples:
    values = np.arange(first, first + count)
    rows = Ragged.from_rows([np.full(value % 3, value) for value in values], np.int64)
    text = np.array([f"é{value}" for value in values], object)
    return NumberedExamples(
        numbered(0, first, count), block_of({"a": values, "r": rows, "t": text})
    )


def values(block: Block) -> list[int]:
    whole = block.whole()
    assert [row.tolist() for row in whole["r"]] == [[a] * (a % 3) for a in whole["a"].tolist()]
    assert whole["t"].tolist() == [f"é{value}" for value in whole["a"].tolist()]
    return list(whole["a"].tolist())


def read(store: MemoryStore, number: int, layout: ShufflePlan = LAYOUT) -> list[int]:
    found = store.read(1, number, layout)
    return [] if found is None else values(found.block)


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore:
    return MemoryStore(1 << 30 if request.param == "memory" else 1, str(tmp_path))


def test_a_piece_has_its_chunks_in_the_order_of_the_layout(store: MemoryStore) -> None:
    store.put(1, 0, chunk(20))
    store.put(1, 0, chunk(0))
    store.put(1, 1, chunk(10))
    assert read(store, 0) == [*range(10), *range(20, 30)]
    assert read(store, 1) == list(range(10, 20))
    store.put(1, 0, chunk(40))
    assert read(store, 0) == [*range(10), *range(20, 30), *range(40, 50)]


def test_a_shuffled_piece_is_in_the_order_of_its_seed(store: MemoryStore) -> None:
    layout = LAYOUT.shuffled(3)
    for first in (10, 0):
        store.put(1, 0, chunk(first))
    expected = np.arange(20)[layout.order(numbered(0, 0, 20))].tolist()
    assert read(store, 0, layout) == expected
    assert read(store, 0, layout) == expected


def test_a_piece_may_be_empty(store: MemoryStore) -> None:
    store.begin(1, 2)
    assert store.has(1, 2)
    assert not store.has(1, 3)
    assert read(store, 2) == []
    assert store.statistics(1).partitions == (2,)


def test_other_generations_are_not_seen_and_can_be_dropped(store: MemoryStore) -> None:
    store.put(1, 0, chunk(0))
    store.put(2, 0, chunk(10))
    assert read(store, 0) == list(range(10))
    store.keep_only(2)
    assert not store.has(1, 0)
    assert store.statistics(2).examples == 10
    store.forget(2)
    assert store.statistics(2).examples == 0
    assert store.statistics(2).bytes_in_memory == store.statistics(2).bytes_on_disk == 0


def test_what_was_dropped_is_an_error_not_empty(store: MemoryStore) -> None:
    store.put(1, 0, chunk(0))
    chunks = store.chunks(1, 0)
    store.drop(1, 0)
    with pytest.raises(DatasetError, match="begin another one"):
        next(chunks)
    with pytest.raises(DatasetError, match="begin another one"):
        store.read(1, 0, LAYOUT)


def test_chunks_come_each_once_though_they_are_written_meanwhile(tmp_path: Path) -> None:
    store = MemoryStore(1 << 30, str(tmp_path))
    for first in range(0, 50, 10):
        store.put(1, 0, chunk(first))
    chunks = store.chunks(1, 0)
    found = values(next(chunks).block)
    store._limit = 1
    store.put(1, 1, chunk(100))  # makes room
    assert store.statistics(1).bytes_in_memory == 0
    for each in chunks:
        found += values(each.block)
    assert sorted(found) == list(range(50))


def test_memory_stays_within_the_limit_and_the_rest_is_on_disk(tmp_path: Path) -> None:
    limit = 3 * chunk(0).nbytes
    store = MemoryStore(limit, str(tmp_path))
    for first in range(0, 1000, 10):
        store.put(1, first // 10 % 4, chunk(first))
        assert store.statistics(1).bytes_in_memory <= limit
    found = store.statistics(1)
    assert found.examples == 1000
    assert found.bytes_on_disk > 0
    assert sorted(value for number in range(4) for value in read(store, number)) == list(
        range(1000)
    )
    assert store.statistics(1).bytes_in_memory <= limit


def test_the_files_are_gone_with_the_pieces_and_the_folder_with_the_store(tmp_path: Path) -> None:
    store = MemoryStore(1, str(tmp_path))
    store.put(1, 0, chunk(0))
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.iterdir())) == 1
    store.drop(1, 0)
    assert not list(folder.iterdir())
    del store
    gc.collect()
    assert not folder.exists()


def test_other_users_cannot_read_or_replace_the_files(tmp_path: Path) -> None:
    store = MemoryStore(1, str(tmp_path))  # the files are pickles
    store.put(1, 0, chunk(0))
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_file_that_cannot_be_written_says_what_to_do_and_loses_nothing(tmp_path: Path) -> None:
    store = MemoryStore(1 << 30, str(tmp_path))
    store.put(1, 0, chunk(0))
    assert not list(tmp_path.iterdir())
    tmp_path.rmdir()
    store._limit = 1
    with pytest.raises(DatasetError, match="raise memory_limit"):
        store.put(1, 0, chunk(10))
    store._limit = 1 << 30
    assert read(store, 0) == list(range(20))


def test_a_file_that_was_cut_off_says_that_it_cannot_be_read(tmp_path: Path) -> None:
    store = MemoryStore(1, str(tmp_path))
    store.put(1, 0, chunk(0))
    (file,) = next(tmp_path.iterdir()).iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(DatasetError, match="cannot be read any more"):
        store.read(1, 0, LAYOUT)


def test_several_threads_may_fill_one_piece(tmp_path: Path) -> None:
    store = MemoryStore(4 * chunk(0).nbytes, str(tmp_path))
    begin = threading.Barrier(4)

    def fill(start: int) -> None:
        begin.wait()
        for first in range(start, start + 500, 10):
            store.put(1, 0, chunk(first))

    threads = [threading.Thread(target=fill, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(store, 0) == [1000 * n + i for n in range(4) for i in range(500)]
