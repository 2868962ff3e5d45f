"""Cutting datasets into parts that are read apart from each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from psnb.data import Dataset, sharded, splits
from psnb.errors import ConfigurationError

LINES = [f"line {number}" for number in range(100)]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = []
    for part in range(4):
        path = tmp_path / f"part-{part}"
        path.write_text("".join(f"{line}\n" for line in LINES[part * 25 : part * 25 + 25]))
        paths.append(str(path))
    return paths


def elements(parts: list[Dataset]) -> list[object]:
    return [element for part in parts for element in part]


@pytest.mark.parametrize("count", [1, 3, 10, 1000])
@pytest.mark.parametrize(
    "chain",
    [
        Dataset.range(100),
        Dataset.from_tensor_slices(np.arange(100)),
        Dataset.range(100).map(lambda number: number * 2).filter(lambda number: number % 3 == 0),
        Dataset.range(100).shuffle(10).prefetch(2),
        Dataset.range(10).flat_map(lambda number: Dataset.range(int(number))),
        Dataset.from_tensor_slices(np.arange(100).reshape(25, 4)).unbatch(),
        Dataset.range(100).bucket_by_sequence_length(lambda n: n % 9, [3], [4, 6]).unbatch(),
    ],
    ids=["range", "slices", "filter", "shuffle", "flat_map", "unbatch", "buckets"],
)
def test_the_parts_have_together_what_the_whole_has(chain: Dataset, count: int) -> None:
    parts = splits(chain, count)
    assert 1 <= len(parts) <= max(count, 1)
    found = sorted(int(each) for each in elements(parts))
    assert found == sorted(int(each) for each in chain)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_shares_have_together_what_the_whole_has(count: int) -> None:
    chain = Dataset.range(100).shuffle(10).batch(7)
    shares = [sharded(chain, count, index) for index in range(count)]
    found = np.concatenate([batch for share in shares for batch in share])
    assert sorted(found.tolist()) == list(range(100))


def test_only_the_last_batch_of_all_is_smaller_where_the_source_is_indexed() -> None:
    parts = splits(Dataset.range(100).batch(8), 5)
    assert [len(batch) for batch in elements(parts)] == [8] * 12 + [4]


def test_too_few_files_are_cut_into_ranges(files: list[str]) -> None:
    parts = splits(Dataset.text_lines(files), 9)
    assert len(parts) >= 8
    assert sorted(elements(parts)) == sorted(LINES)  # type: ignore[type-var]


@pytest.mark.parametrize("count", [2, 8])
def test_shares_of_files(files: list[str], count: int) -> None:
    shares = [sharded(Dataset.text_lines(files), count, index) for index in range(count)]
    assert sorted(elements(shares)) == sorted(LINES)  # type: ignore[type-var]


@pytest.mark.parametrize("count", [2, 8])
def test_a_saved_dataset_is_cut_and_shared(count: int, tmp_path: Path) -> None:
    Dataset.range(100).save(tmp_path / "saved")
    loaded = Dataset.load(tmp_path / "saved")
    parts = splits(loaded, count)
    assert len(parts) >= count
    assert elements(parts) == list(range(100))
    shares = [sharded(loaded, count, index) for index in range(count)]
    assert sorted(elements(shares)) == list(range(100))  # type: ignore[type-var]


def test_parts_of_nothing_are_one_empty_part() -> None:
    assert elements(splits(Dataset.range(0), 4)) == []


@pytest.mark.parametrize(
    "chain",
    [
        Dataset.range(9).enumerate(),
        Dataset.range(9).take(3),
        Dataset.range(9).repeat(2),
        Dataset.range(9).batch(2).skip(1).map(lambda batch: batch),
        Dataset.range(9).window(3),
        Dataset.range(9).take_while(bool),
        Dataset.range(9).unique(),
        Dataset.from_generator(lambda: iter(range(9))),
        Dataset.zip(Dataset.range(9), Dataset.range(9)),
    ],
    ids=lambda chain: chain.node.name,
)
def test_what_depends_on_what_came_before_cannot_be_cut(chain: Dataset) -> None:
    with pytest.raises(ConfigurationError, match="cannot be cut"):
        splits(chain, 2)
