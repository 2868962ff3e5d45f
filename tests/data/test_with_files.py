"""The same chain over other files."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from psnb.data import Dataset, InMemoryDataset, QueueDataset, Slot
from psnb.errors import ConfigurationError, DatasetError

SLOTS = [Slot("ids")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a1", "a2", "b1", "b2"):
        (tmp_path / name).write_text("".join(f"1 {ord(name[0])}{name[1]}\n" for _ in range(2)))
    return tmp_path


def test_a_chain_reads_other_files_in_the_same_way(folder: Path) -> None:
    lines = Dataset.text_lines(folder / "a1").map(str.upper).batch(3)
    assert [list(map(str, b)) for b in lines.with_files(folder / "b*")] == [
        *(["1 981", "1 981", "1 982"], ["1 982"])
    ]
    assert [list(map(str, b)) for b in lines] == [["1 971", "1 971"]]


def test_what_was_kept_of_files_is_not_taken_for_other_files(folder: Path) -> None:
    lines = Dataset.text_lines(folder / "a1").cache()
    assert list(map(str, lines)) == ["1 971", "1 971"]
    assert list(map(str, lines.with_files(folder / "b1"))) == ["1 981", "1 981"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_queue_dataset_reads_other_files_in_the_same_way(folder: Path, threads: int) -> None:
    queue = QueueDataset(folder / "a1", SLOTS, batch_size=2, threads=threads)
    found = queue.with_files([folder / "b1", folder / "b2"])
    assert isinstance(found, QueueDataset)
    assert [batch["ids"].values.tolist() for batch in found] == [[981, 981], [982, 982]]


def test_a_dataset_in_memory_reads_other_files_in_the_same_way(folder: Path) -> None:
    memory = InMemoryDataset(folder / "a1", SLOTS, batch_size=4)
    memory.load_into_memory()
    found = memory.with_files(folder / "b*")
    found.load_into_memory()
    ids = [batch["ids"].values.tolist() for batch in found]
    assert sorted(itertools.chain(*ids)) == [981, 981, 982, 982]


def test_a_source_within_others_is_found(folder: Path) -> None:
    numbered = Dataset.zip({"n": Dataset.range(9), "line": Dataset.text_lines(folder / "a1")})
    found = list(numbered.with_files(folder / "b1"))
    assert [(int(each["n"]), str(each["line"])) for each in found] == [(0, "1 981"), (1, "1 981")]


def test_what_reads_no_files_or_several_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="this one has no source that is files"):
        Dataset.range(3).with_files(folder / "a1")
    both = Dataset.text_lines(folder / "a1").concatenate(Dataset.text_lines(folder / "a2"))
    with pytest.raises(ConfigurationError, match="this one has several sources of files"):
        both.with_files(folder / "b1")
    with pytest.raises(DatasetError, match="c"):
        Dataset.text_lines(folder / "a1").with_files(folder / "c*")
