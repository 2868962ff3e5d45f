"""Files of a dataset: many of them, few, of any sizes, and empty ones."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from psnb._src.data.formats.text import TextLines
from psnb._src.data.splits import balanced
from psnb.data import (
    Dataset,
    FileRange,
    InMemoryDataset,
    QueueDataset,
    Ragged,
    Slot,
    TFRecordWriter,
    sharded,
    splits,
)
from psnb.errors import ConfigurationError, DatasetError

D = Dataset
SLOTS = [Slot("id")]
FIRST = 1000  # numbers have as many bytes each


class Form(NamedTuple):
    """A format: what writes numbers, reads them, and gets them back from an element."""

    write: Callable[[Path, range], object]
    read: Callable[[Any], Dataset]
    number: Callable[[Any], int]


def _lines(line: str) -> Callable[[Path, range], object]:
    return lambda path, numbers: path.write_text("".join(line.format(n) for n in numbers))


def _packed(path: Path, numbers: range) -> None:
    path.write_bytes(gzip.compress("".join(f"{n}\n" for n in numbers).encode()))


def _records(path: Path, numbers: range) -> None:
    with TFRecordWriter(str(path)) as writer:
        for n in numbers:
            writer.write(str(n).encode())


def _table(path: Path, numbers: range) -> None:
    pq.write_table(pa.table({"n": np.array(numbers, np.int64)}), path, row_group_size=5)


def _criteo(path: Path, numbers: range) -> None:
    rest = "\t".join(["", *["1"] * 12, *["a"] * 26])
    path.write_text("".join(f"{n}\t{rest}\n" for n in numbers))


def _fixed(path: Path, numbers: range) -> None:
    path.write_bytes(b"H" + b"".join(n.to_bytes(4, "little") for n in numbers))


FORMS = {
    "text": Form(_lines("{}\n"), D.text_lines, int),
    "gzip": Form(_packed, lambda files: D.text_lines(files, compression="gzip"), int),
    "csv": Form(
        lambda path, numbers: path.write_text("n\n" + "".join(f'"{n}"\n' for n in numbers)),
        lambda files: D.csv(files, dtypes={"n": int}),
        lambda row: int(row["n"]),
    ),
    "parquet": Form(_table, D.parquet, lambda row: int(row["n"])),
    "tfrecord": Form(_records, D.tfrecords, int),
    "multi_slot": Form(
        _lines("1 {}\n"),
        lambda files: QueueDataset(files, SLOTS, 1).dataset.unbatch(),
        lambda row: int(row["id"][0]),
    ),
    "criteo": Form(_criteo, D.criteo, lambda row: int(row["label"])),
    "fixed": Form(
        _fixed,
        lambda files: D.fixed_length_records(files, 4, header_bytes=1),
        lambda record: int.from_bytes(record, "little"),
    ),
    "threads": Form(
        _lines("1 {}\n"),
        lambda files: QueueDataset(files, SLOTS, 8, threads=3).dataset.unbatch(),
        lambda row: int(row["id"][0]),
    ),
    "interleave": Form(
        _lines("{}\n"), lambda files: D.list_files(files).interleave(D.text_lines, 4), int
    ),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
    return FORMS[request.param]


def written(folder: Path, form: Form, sizes: list[int]) -> Dataset:
    """Write files of as many numbers each, from `FIRST` on, and return the dataset of them."""
    begin = FIRST
    for number, size in enumerate(sizes):
        form.write(folder / f"part-{number:03}", range(begin, begin + size))
        begin += size
    return form.read(folder / "part-*")


SIZES = {
    "many": [10] * 40,
    "uneven": [1, 300, 2, 0, 0, 5, 90, 1, 1, 1, 40, 0],
    "few": [100, 30, 70],
    "one": [200],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("count", [0, 1, 3, 8, 300])
def test_parts_have_each_record_once_and_there_are_no_more_than_asked_for(
    form: Form, sizes: list[int], count: int, tmp_path: Path
) -> None:
    dataset = written(tmp_path, form, sizes)
    parts = splits(dataset, count)
    found = [form.number(each) for part in parts for each in part]
    assert sorted(found) == list(range(FIRST, FIRST + sum(sizes)))
    assert 1 <= len(parts) <= max(1, count)
    if len(sizes) == 40 and 1 <= count <= 8:
        assert [len(list(part)) for part in parts] == pytest.approx([400 / count] * count, abs=10)


def test_batches_go_over_files_and_only_the_last_of_a_part_is_short(
    form: Form, tmp_path: Path
) -> None:
    batched = written(tmp_path, form, SIZES["many"]).ragged_batch(32)
    for several in ([batched], splits(batched, 4)):
        for part in several:
            sizes = [_rows(batch) for batch in part]
            assert sizes[:-1] == [32] * (len(sizes) - 1)
            assert sum(sizes) == 400 // len(several)


def _rows(batch: Any) -> int:
    return len(next(iter(batch.values())) if isinstance(batch, dict) else batch)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("queue_size", [None, 1, 100])
def test_only_the_last_batch_of_each_thread_is_short(
    threads: int, queue_size: int | None, tmp_path: Path
) -> None:
    written(tmp_path, FORMS["multi_slot"], [10, 3, 0, 50, 1, 7, 30])
    dataset = QueueDataset(tmp_path / "*", SLOTS, 32, threads, queue_size=queue_size)
    batches = [batch["id"].values.tolist() for batch in dataset]
    # The last one of each thread.
    assert sum(len(batch) < 32 for batch in batches) <= threads
    assert sorted(itertools.chain(*batches)) == list(range(FIRST, FIRST + 101))


@pytest.mark.parametrize("count", [1, 3])
def test_reading_resumes_anywhere_in_a_part(form: Form, count: int, tmp_path: Path) -> None:
    dataset = written(tmp_path, form, [7, 0, 9, 3]).ragged_batch(4)
    for part in splits(dataset, count):
        whole = [_text(batch) for batch in part]
        for taken in range(len(whole) + 1):
            iterator = iter(part)
            begun = [_text(next(iterator)) for _ in range(taken)]
            state = json.loads(json.dumps(iterator.state()))
            assert begun + [_text(batch) for batch in part.iterator(state)] == whole


def _text(batch: Any) -> str:
    if isinstance(batch, dict):
        return str({key: _text(each) for key, each in batch.items()})
    return str(batch.to_list() if isinstance(batch, Ragged) else batch.tolist())


def test_shares_of_many_files_have_each_record_once(form: Form, tmp_path: Path) -> None:
    dataset = written(tmp_path, form, [4, 0, 6, 1])
    found = [form.number(each) for index in range(3) for each in sharded(dataset, 3, index)]
    assert sorted(found) == list(range(FIRST, FIRST + 11))


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_neighbours_weigh_about_the_same(seed: int) -> None:
    random = np.random.default_rng(seed)
    weights = random.integers(0, 100, 200).tolist()
    groups = balanced(weights, 16)
    sums = np.bincount(groups, weights)
    assert (np.diff(groups) >= 0).all()
    assert len(sums) == 16
    # A group ends up to half a thing early or late.
    assert abs(sums - sum(weights) / 16).max() <= max(weights)


def test_one_that_outweighs_all_others_takes_one_group_from_them() -> None:
    weights = [10**9, *[1] * 70]
    sums = np.bincount(balanced(weights, 8), weights)
    assert len(sums) == 8
    assert sums[1:].max() <= 11


def test_what_weighs_nothing_goes_with_a_neighbour() -> None:
    assert balanced([0, 5, 0, 0, 5, 0], 4).tolist() == [0, 0, 0, 0, 1, 1]
    assert balanced([0, 0], 4).tolist() == [0, 0]


def test_a_large_file_among_enough_others_is_cut(tmp_path: Path) -> None:
    dataset = written(tmp_path, FORMS["text"], [5, 5, 10_000, 5, 5, 5])
    sizes = [len(list(part)) for part in splits(dataset, 4)]
    assert max(sizes) < 4000


def test_a_file_that_is_named_twice_or_in_pieces_is_read_so(tmp_path: Path) -> None:
    path = str(tmp_path / "part")
    Path(path).write_text("a\nb\nc\nd\n")
    pieces = [FileRange(path, 0, 2), FileRange(path, 4, 6), FileRange(path, 6), FileRange(path)]
    lines = D.from_files(TextLines(), [path, *pieces])
    for count in (1, 2, 3):
        found = [line for part in splits(lines, count) for line in part]
        assert found == [*"abcd", "a", "c", "d", *"abcd"]


def test_files_that_only_workers_see_are_shared_out_by_their_number() -> None:
    paths = [f"/absent/{number}" for number in range(6)]
    assert len(splits(D.text_lines(paths), 3)) == 3
    with pytest.raises(DatasetError, match="/absent/0: no such file"):
        splits(D.text_lines(paths), 7)


def test_lists_of_files_are_batched_as_they_were(tmp_path: Path) -> None:
    written(tmp_path, FORMS["text"], [10] * 10)
    pairs = D.list_files(tmp_path / "*").batch(4)
    assert [len(batch) for part in splits(pairs, 2) for batch in part] == [4, 4, 2]


# Empty files.


@pytest.mark.parametrize("where", ["first", "between", "last"])
def test_an_empty_file_is_passed_over_and_counted(
    form: Form, where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = {"first": "a", "between": "part-000~", "last": "z"}[where]
    written(tmp_path, form, [3, 4])
    for name in (f"{at}1", f"{at}2"):
        (tmp_path / name).touch()  # without a byte, as `_SUCCESS`
    form.write(tmp_path / f"{at}3", range(0))  # without a record
    iterator = form.read(tmp_path / "*").iterator()
    with caplog.at_level(logging.WARNING, "psnb"):
        assert sorted(form.number(each) for each in iterator) == list(range(FIRST, FIRST + 7))
    assert iterator.empty_files == 3
    assert sum(each.empty_files for each in iterator.stages()) == 3
    assert "empty files" in repr(iterator.stages())
    said = [each.getMessage() for each in caplog.records if "empty" in each.getMessage()]
    assert [
        re.search(f"{at}[123] is empty and passed over", each) is not None for each in said
    ] == [True]


@pytest.mark.parametrize("names", [["only"], ["one", "other"]], ids=len)
def test_nothing_but_empty_files_is_an_error(form: Form, names: list[str], tmp_path: Path) -> None:
    for name in names:
        form.write(tmp_path / name, range(0))
    dataset = form.read(tmp_path / "*")
    said = "/only is empty" if len(names) == 1 else r"all 2 files are empty, from .*/one on"
    for each in (dataset, dataset.filter(bool), dataset.repeat()):
        iterator = iter(each)
        with pytest.raises(DatasetError, match=said):
            next(iterator)
        assert list(iterator) == []  # it is over
    with pytest.raises(DatasetError, match=said):
        dataset.save(tmp_path / "saved")
    memory = InMemoryDataset.of(dataset, 4)
    if "unbatch" not in repr(dataset):  # which may drop what there is
        with pytest.raises(DatasetError, match=said):
            memory.load_into_memory()


def test_files_all_of_which_are_left_out_are_not_empty(form: Form, tmp_path: Path) -> None:
    dataset = written(tmp_path, form, [3, 0])
    assert list(dataset.filter(lambda _: False)) == []
    assert [int(n) for n in D.range(3).concatenate(dataset.filter(lambda _: False))] == [0, 1, 2]
    memory = InMemoryDataset.of(dataset.flat_map(lambda _: D.range(0)), 4)
    memory.load_into_memory()
    assert list(memory) == []


def test_a_part_may_be_empty(tmp_path: Path) -> None:
    form = FORMS["gzip"]  # whose empty files have bytes
    dataset = written(tmp_path, form, [0, 0, 0, 4000])
    parts = splits(dataset, 4)
    assert [len(list(part)) for part in parts] == [0, 0, 0, 4000]
    assert list(sharded(dataset, 2, 0)) == []


def test_what_a_command_makes_nothing_of_is_an_empty_file(tmp_path: Path) -> None:
    written(tmp_path, FORMS["multi_slot"], [3, 4])
    some = QueueDataset(tmp_path / "*", SLOTS, 8, pipe_command="grep -v '[012]$' || true")
    assert [batch["id"].values.tolist() for batch in some] == [[1003, 1004, 1005, 1006]]
    for threads in (1, 2):
        nothing = QueueDataset(tmp_path / "*", SLOTS, 8, threads, pipe_command="true")
        with pytest.raises(DatasetError, match=r"all 2 files are empty, from .*part-000 on"):
            list(nothing)


def test_an_iterator_that_goes_on_behind_the_last_record_finds_no_error(
    form: Form, tmp_path: Path
) -> None:
    dataset = written(tmp_path, form, [2, 0, 0])
    iterator = iter(dataset)
    for _ in range(2):
        next(iterator)
    assert list(dataset.iterator(iterator.state())) == []


@pytest.mark.parametrize("chain", [lambda d: d.batch(4), lambda d: d.shuffle(4)])
def test_files_whose_columns_look_different_say_what_makes_them_alike(
    chain: Callable[[Dataset], Dataset], tmp_path: Path
) -> None:
    for name, price in (("a", "1"), ("b", "2.5")):
        (tmp_path / f"{name}.csv").write_text(f"price\n{price}\n")
    (part,) = splits(chain(D.csv(tmp_path / "*")), 1)
    with pytest.raises(DatasetError, match=r"float64, int64. .* dtypes=.*map\(function\)"):
        list(part)
    (part,) = splits(chain(D.csv(tmp_path / "*", dtypes={"price": "float64"})), 1)
    assert list(part)


def test_a_batch_size_that_cannot_be_is_refused_with_threads_too(tmp_path: Path) -> None:
    written(tmp_path, FORMS["multi_slot"], [3])
    for threads in (1, 2):
        with pytest.raises(ConfigurationError, match="batch_size"):
            QueueDataset(tmp_path / "*", SLOTS, 0, threads)
