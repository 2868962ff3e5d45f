"""What one process holds, and what it sends to others."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from psnb._src.data.block import Block
from psnb._src.data.memory.memory import Memory
from psnb._src.data.memory.shuffle_plan import ShufflePlan
from psnb.data import Dataset, Ragged, splits
from psnb.errors import ConfigurationError, DatasetError

COUNT, PARTITIONS = 400, 4
LAYOUT = ShufflePlan(PARTITIONS)
HERE = [""] * PARTITIONS


class Post:
    """Messages between memories, each at its address."""

    def __init__(self) -> None:
        self.receivers: dict[str, Callable[[bytes], object]] = {}
        self.settled = 0

    def send(self, address: str, data: bytes) -> None:
        self.receivers[address](data)

    def settle(self) -> None:
        self.settled += 1


def memory(
    folder: Path, dataset: Dataset | None = None, address: str = "", post: Post | None = None
) -> Memory:
    sources = splits(Dataset.range(COUNT) if dataset is None else dataset, PARTITIONS)
    sender = None if post is None else lambda: post
    mine = Memory(sources, 1, 10, 1 << 30, str(folder), address, sender)
    if post is not None:
        post.receivers[address] = mine.receive
    return mine


def held(mine: Memory, generation: int, layout: ShufflePlan, number: int) -> list[int]:
    chunk = mine.read(generation, layout, number)
    return [] if chunk is None else chunk.block.whole().tolist()


def everything(mine: Memory, generation: int, layout: ShufflePlan) -> list[list[int]]:
    return [held(mine, generation, layout, number) for number in range(PARTITIONS)]


def test_two_processes_end_with_what_one_would_have(tmp_path: Path) -> None:
    post = Post()
    alone = memory(tmp_path)
    a, b = (memory(tmp_path, address=each, post=post) for each in "ab")
    layout = LAYOUT.shuffled(3)
    for number in range(PARTITIONS):
        alone.load(1, number)
        (a if number < 2 else b).load(1, number)
        alone.scatter(1, number, 2, layout, HERE)
    addresses = ["a", "b", "a", "b"]
    moved = [
        (a if number < 2 else b).scatter(1, number, 2, layout, addresses)
        for number in range(PARTITIONS)
    ]
    assert sum(each.sent for each in moved) == COUNT
    assert post.settled == PARTITIONS
    assert sum(each.survey(2).held.examples for each in (a, b)) == COUNT
    expected = everything(alone, 2, layout)
    assert [held((a, b)[number % 2], 2, layout, number) for number in range(PARTITIONS)] == expected
    assert sorted(n for partition in expected for n in partition) == list(range(COUNT))


def test_a_piece_that_was_lost_is_made_as_it_was(tmp_path: Path) -> None:
    layout = LAYOUT.shuffled(3).shuffled(4, [(0, 1), (2, 3)])
    shuffled = memory(tmp_path)
    for number in range(PARTITIONS):
        shuffled.load(1, number)
    for generation, stage in ((1, LAYOUT.shuffled(3)), (2, layout)):
        for number in range(PARTITIONS):
            shuffled.scatter(generation, number, generation + 1, stage, HERE)
    assert everything(memory(tmp_path), 3, layout) == everything(shuffled, 3, layout)


def test_several_lost_pieces_are_made_in_one_pass(tmp_path: Path) -> None:
    passes: list[int] = []

    def read(n: int) -> int:
        passes.append(int(n))
        return n

    mine = memory(tmp_path, Dataset.range(COUNT).map(read))
    layout = LAYOUT.shuffled(1)
    mine.make(1, layout, [0, 2])
    held(mine, 1, layout, 0)
    held(mine, 1, layout, 2)
    assert sorted(passes) == list(range(COUNT))


def test_threads_that_want_a_lost_piece_at_the_same_time_have_it_made_once(tmp_path: Path) -> None:
    mine, layout = memory(tmp_path), LAYOUT.shuffled(1)
    begin, found = threading.Barrier(4), []

    def want() -> None:
        begin.wait()
        found.append(held(mine, 1, layout, 1))

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [held(memory(tmp_path), 1, layout, 1)] * 4


def test_a_source_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(n: int) -> int:
        if n == 150:
            raise ValueError("no more")
        return n

    mine = memory(tmp_path, Dataset.range(COUNT).map(fail))
    mine.load(1, 0)
    with pytest.raises(DatasetError, match="no more"):
        mine.load(1, 1)
    assert mine.survey(1).held.partitions == (0,)
    assert mine.survey(1).held.examples == 100
    assert mine.survey(1).held.bytes_in_memory == 100 * 16


def test_what_was_read_again_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    mine = memory(tmp_path)
    mine.load(1, 0)
    mine.load(1, 0)
    assert held(mine, 1, LAYOUT, 0) == list(range(100))


def test_shuffles_without_a_seed_in_the_source_give_the_same_each_time(tmp_path: Path) -> None:
    chain = Dataset.range(COUNT).shuffle(50)
    first, again = memory(tmp_path, chain), memory(tmp_path, chain)
    first.load(1, 0)
    again.load(1, 0)
    assert held(first, 1, LAYOUT, 0) == held(again, 1, LAYOUT, 0) != list(range(100))


def test_parts_do_not_get_smaller_with_every_shuffle(tmp_path: Path) -> None:
    mine, layout = memory(tmp_path), LAYOUT
    for number in range(PARTITIONS):
        mine.load(1, number)
    for generation in range(1, 6):
        layout = layout.shuffled(generation)
        for number in range(PARTITIONS):
            mine.scatter(generation, number, generation + 1, layout, HERE)
        chunks = list(mine._store.chunks(generation + 1, 0))
        assert len(chunks) <= PARTITIONS


def roots(block: Block) -> int:
    """Return the bytes that a block keeps alive."""
    found = {}
    for column in block.columns:
        array = column.values if isinstance(column, Ragged) else column
        while isinstance(array.base, np.ndarray):
            array = array.base
        found[id(array)] = array.nbytes
    return sum(found.values())


def test_pieces_keep_no_more_alive_than_they_count(tmp_path: Path) -> None:
    rows = {"n": np.arange(20_000), "many": np.zeros((20_000, 8))}
    chain = Dataset.from_tensor_slices(rows)
    shuffled, made = memory(tmp_path, chain), memory(tmp_path, chain)
    layout = LAYOUT.shuffled(1)
    for number in range(PARTITIONS):
        shuffled.load(1, number)
    for number in range(PARTITIONS):
        shuffled.scatter(1, number, 2, layout, HERE)
    shuffled.keep_only(2)
    made.make(2, layout, [1])
    for mine, numbers in ((shuffled, range(PARTITIONS)), (made, [1])):
        kept = sum(roots(chunk.block) for n in numbers for chunk in mine._store.chunks(2, n))
        assert kept <= 1.01 * mine.survey(2).held.bytes_in_memory


def test_what_arrives_too_late_is_refused_and_not_kept(tmp_path: Path) -> None:
    post, sent = Post(), list[bytes]()
    mine, sender = memory(tmp_path), memory(tmp_path, address="here", post=post)
    post.receivers["there"] = sent.append
    sender.load(1, 0)
    for generation in (2, 4):
        sender.scatter(1, 0, generation, LAYOUT.shuffled(1), ["there"] * PARTITIONS)
    mine.forget(4, 3)
    mine.keep_only(3)
    for data in sent:
        with pytest.raises(DatasetError, match="begin another one"):
            mine.receive(data)
    assert mine.survey(3).held.bytes_in_memory == 0


def test_bytes_of_text_in_ragged_rows_count(tmp_path: Path) -> None:
    words = np.array([b"x" * 1000 for _ in range(COUNT)], object)
    chain = Dataset.from_tensor_slices(Ragged(words, np.arange(COUNT + 1)))
    mine = memory(tmp_path, chain)
    mine.load(1, 0)
    assert mine.survey(1).held.bytes_in_memory > 100 * 1000


def test_batches_come_from_pieces_in_order_and_state_tells_the_layout(tmp_path: Path) -> None:
    mine = memory(tmp_path)
    batches = mine.examples(1, LAYOUT, [1, 3])
    iterator = iter(batches)
    assert next(iterator).tolist() == list(range(100, 110))
    state = iterator.state()
    assert next(mine.examples(1, LAYOUT, [1, 3]).iterator(state)).tolist() == list(range(110, 120))
    with pytest.raises(DatasetError, match="another dataset"):
        mine.examples(1, LAYOUT.shuffled(1), [1, 3]).iterator(state)
    assert np.concatenate(list(batches)).tolist() == [*range(100, 200), *range(300, 400)]


def test_memory_does_not_travel(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="stays in its process"):
        pickle.dumps(memory(tmp_path))
