"""Partitions that another library holds: their rows, their parts, and that they stay the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

from psnb._src.data.block import Block
from psnb._src.data.nodes.partitions import (
    KnownPartitions,
    Partitions,
    PartRange,
    checksum,
    rows_of_partition,
)
from psnb._src.data.splits import identity
from psnb.data import ArraySpec, Dataset, splits
from psnb.errors import DatasetError


@dataclass
class Source:
    values: list[Any]
    reads: list[int] = field(default_factory=list)

    def read(self, number: int) -> tuple[Block, int]:
        self.reads.append(number)
        return rows_of_partition(self.values[number]), 0

    def spec(self) -> Any:
        return None


def dataset(*values: Any, token: str = "t") -> Dataset:
    parts = tuple(map(PartRange, range(len(values))))
    return Dataset(Partitions(token, parts, Source(list(values))))


NUMBERS = [np.arange(5), np.arange(5, 7), np.empty(0, np.int64), np.arange(7, 16)]


def test_rows_come_in_the_order_of_the_partitions_which_are_read_one_by_one() -> None:
    made = dataset(*NUMBERS)
    iterator = iter(made)
    assert [next(iterator) for _ in range(5)] == list(range(5))
    assert made.node.source.reads == [0]  # type: ignore[attr-defined]
    assert list(iterator) == list(range(5, 16))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 40])
def test_splits_have_every_row_once(count: int) -> None:
    parts = splits(dataset(*NUMBERS).shuffle(3).batch(2), count)
    found = [row for part in parts for batch in part for row in batch.tolist()]
    assert sorted(found) == list(range(16))
    assert len({part.node.fingerprint() for part in parts}) == len(parts)


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_partition_that_has_other_rows_when_it_is_computed_again_is_refused(
    count: int, at: int
) -> None:
    (before, *_) = splits(dataset(*NUMBERS).shuffle(2).batch(1), count)
    with before.iterator() as iterator:
        for _ in range(min(at, 2)):
            next(iterator)
        state = iterator.state()
    for other, same in ((NUMBERS[0], True), (NUMBERS[0] + 1, False), (NUMBERS[0][:-1], False)):
        (again, *_) = splits(dataset(other, *NUMBERS[1:]).shuffle(2).batch(1), count)
        if same:
            again.iterator(state).close()
        else:
            with pytest.raises(DatasetError, match="partition 0 was computed again, and has"):
                again.iterator(state)


@pytest.mark.parametrize(("taken", "within"), [(1, 0), (4, 0), (6, 1)])
def test_what_is_not_cut_goes_on_only_in_the_rows_that_it_was_in(taken: int, within: int) -> None:
    with dataset(*NUMBERS).iterator() as iterator:
        for _ in range(taken):
            next(iterator)
        state = iterator.state()
    values: list[Any] = [each + 1 for each in NUMBERS]
    values[within] = NUMBERS[within]  # nothing was used of those behind it
    rest = np.concatenate(values[within:])[taken - 5 * within :]
    assert list(dataset(*values).iterator(state)) == rest.tolist()
    values[within] = NUMBERS[within] + 1
    with pytest.raises(DatasetError, match=f"partition {within} was computed again, and has"):
        dataset(*values).iterator(state)


def test_what_is_known_of_partitions_stays_as_it_was_when_one_is_refused() -> None:
    known = KnownPartitions([[0, 5, "aa"]])
    known.add([[1, 2, "bb"], [0, 5, "aa"]])
    for other in ([0, 5, "cc"], [0, 4, "aa"]):
        with pytest.raises(DatasetError, match="partition 0 was computed again, and has other"):
            known.add([[2, 1, "dd"], other])
    assert known.listed() == [[0, 5, "aa"], [1, 2, "bb"]]


def test_an_iterator_tells_what_partitions_it_has_read() -> None:
    first, second, *_ = splits(dataset(*NUMBERS).shuffle(2).batch(1), 8)
    found = [each.iterator().partitions() for each in (first, second)]
    assert found[0] == found[1] == [[0, 5, checksum(rows_of_partition(NUMBERS[0]))]]


def test_rows_of_what_partitions_are() -> None:
    frame = pd.DataFrame({"a": [1, 2], "s": ["x", None]})
    for value, rows in (
        (frame, [{"a": 1, "s": "x"}, {"a": 2, "s": None}]),
        (frame["a"], [1, 2]),
        (np.array([3.5]), [3.5]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
        (range(2), [0, 1]),
        ([], []),
        (frame[:0], []),
    ):
        assert list(dataset(value)) == rows
    for wrong in (7, "text", {"a": [1]}):
        with pytest.raises(DatasetError, match="a partition is a table, an array or a list"):
            list(dataset(wrong))


def test_a_partition_that_cannot_be_read_does_not_end_those_after_it() -> None:
    rows = dataset(np.arange(2), 7, np.arange(2, 4)).ignore_errors()
    assert list(rows) == [0, 1, 2, 3]


def test_the_spec_is_that_of_the_first_row_if_the_source_knows_none() -> None:
    assert dataset(*NUMBERS).element_spec == ArraySpec((), np.dtype(np.int64))


def test_another_collection_is_another_dataset() -> None:
    same, other = (splits(dataset(*NUMBERS, token=each), 4) for each in ("t", "u"))
    assert identity(splits(dataset(*NUMBERS), 4)) == identity(same)
    assert identity(same) != identity(other)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6).reshape(3, 2),
        [b"a", b"bc"],
        [{"s": "a"}, {"s": None}, {"s": "bc"}],
        [np.arange(n) for n in range(3)],
        [np.zeros((n, n)) for n in range(3)],
        pd.DataFrame({"s": ["a", None], "t": pd.to_datetime(["2020-01-01", None])}),
    ],
)
def test_a_checksum_is_of_values_not_of_where_they_lie(value: Any) -> None:
    block = rows_of_partition(value)
    apart = Block(block.nesting, tuple(c[::2] for c in block.columns), (block.count + 1) // 2)
    again = block.take(np.arange(0, block.count, 2))
    assert checksum(apart) == checksum(again) != checksum(block)
