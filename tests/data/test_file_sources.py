"""Datasets that read files, by the methods that name a format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from psnb import errors
from psnb._src.data.formats.text import TextLines
from psnb._src.data.node import Context
from psnb._src.data.nodes.files import Files, file_ranges
from psnb.data import (
    ArraySpec,
    Dataset,
    FixedLen,
    QueueDataset,
    Ragged,
    Slot,
    TFRecordWriter,
    VarLen,
    encode_example,
)


def test_elements_of_a_file_have_one_text_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    block = Files(TextLines(), file_ranges(tmp_path / "a")).iterate(Context(0)).next_block(2)
    assert block is not None
    assert block.origin is not None
    assert block.origin.files[0] is block.origin.files[1]


def test_text_lines_of_several_files_follow_each_other(tmp_path: Path) -> None:
    for name, text in (("a.txt", "one\ntwo\n"), ("b.txt", "three")):
        (tmp_path / name).write_text(text)
    assert list(Dataset.text_lines(tmp_path / "*.txt")) == ["one", "two", "three"]
    assert list(Dataset.text_lines(tmp_path / "a.txt", encoding=None)) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("method", "content", "options"),
    [
        (Dataset.text_lines, b"one\ntwo\n", {}),
        (Dataset.fixed_length_records, b"abcdef", {"record_bytes": 3}),
        (Dataset.csv, b"a\n1\n2\n", {}),
        (Dataset.multi_slot, b"1 5\n1 7\n", {"slots": [Slot("s")], "batch_size": 1}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_suffix_need_not_say_how_a_file_is_compressed(
    method: Any, content: bytes, options: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "part").write_bytes(gzip.compress(content))
    assert len(list(method(tmp_path / "part", compression="gzip", **options))) == 2


def test_fixed_length_records(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"HHabcdefF")
    found = Dataset.fixed_length_records(tmp_path / "r", 3, header_bytes=2, footer_bytes=1)
    assert list(found) == [b"abc", b"def"]
    assert found.element_spec == ArraySpec((), np.dtype(object))
    (batch,) = found.batch(2)
    assert batch.dtype == object


def test_tfrecords_are_parsed_into_dicts(tmp_path: Path) -> None:
    with TFRecordWriter(str(tmp_path / "t.tfrecord")) as writer:
        for number in range(3):
            writer.write(encode_example({"id": [number], "tags": list(range(number))}))
    features = {"id": FixedLen((), "int64"), "tags": VarLen("int64")}
    dataset = Dataset.tfrecords(tmp_path / "*.tfrecord", features)
    assert [int(each["id"]) for each in dataset] == [0, 1, 2]
    (batch,) = dataset.ragged_batch(3)
    assert isinstance(batch["tags"], Ragged)
    assert [row.tolist() for row in batch["tags"]] == [[], [0], [0, 1]]


def test_csv_and_parquet_give_dicts_by_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,y\n")
    assert [int(each["a"]) for each in Dataset.csv(tmp_path / "t.csv")] == [1, 2]
    table = pyarrow.table({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    found = Dataset.parquet(tmp_path / "t.parquet", ["b"])
    assert [float(each["b"]) for each in found] == [0.5, 1.5, 2.5]


def test_criteo_rows(tmp_path: Path) -> None:
    (tmp_path / "day").write_text("\t".join(["1", *["3"] * 13, *["ff"] * 26]) + "\n")
    (row,) = Dataset.criteo(tmp_path / "day")
    assert sorted(row) == ["dense", "label", "sparse"]
    assert row["sparse"].tolist() == [255] * 26


@pytest.fixture
def slots(tmp_path: Path) -> list[str]:
    """Three files of five lines: a sparse slot of as many ids as the line's number, and a dense."""
    paths = []
    for file in range(3):
        lines = [
            f"{n} {' '.join(str(2**64 - 1 - i) for i in range(n))} 2 {file} {n}"
            for n in range(1, 6)
        ]
        path = tmp_path / f"part-{file}"
        path.write_text("\n".join(lines) + "\n")
        paths.append(str(path))
    return paths


SLOTS = [Slot("ids"), Slot("dense", "float32", (2,))]


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_multi_slot_batches_by_any_number_of_threads(slots: list[str], threads: int) -> None:
    dataset = Dataset.multi_slot(slots, SLOTS, batch_size=5, threads=threads)
    batches = list(dataset)
    lines = np.concatenate([each["dense"] for each in batches])
    assert sorted(map(tuple, lines.tolist())) == [(f, n) for f in range(3) for n in range(1, 6)]
    for batch in batches:
        assert batch["ids"].values.dtype == np.uint64
        assert [len(row) for row in batch["ids"]] == batch["dense"][:, 1].tolist()
        assert batch["ids"].values.max() == 2**64 - 1


def test_multi_slot_goes_on_where_its_state_was_taken(slots: list[str]) -> None:
    dataset = Dataset.multi_slot(slots, SLOTS, batch_size=2, threads=2)
    iterator = iter(dataset)
    for _ in range(3):
        next(iterator)
    state = json.loads(json.dumps(iterator.state()))
    rest = [each["dense"].tolist() for each in iterator]
    assert [each["dense"].tolist() for each in dataset.iterator(state)] == rest


def test_multi_slot_through_a_command(slots: list[str]) -> None:
    dataset = Dataset.multi_slot(slots[0], SLOTS, 10, pipe_command="head -n 2")
    (batch,) = dataset
    assert batch["dense"][:, 1].tolist() == [1, 2]


def test_what_is_wrong_in_a_file_names_it_and_the_line(slots: list[str]) -> None:
    Path(slots[1]).write_text("1 5 2 0 1\n3 5\n")
    with pytest.raises(errors.DatasetError, match=r"part-1.*line 2"):
        list(Dataset.multi_slot(slots, SLOTS, 5))


def test_no_file_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(errors.DatasetError, match="no file matches"):
        Dataset.text_lines(tmp_path / "*.txt")


def test_records_and_lines_of_bytes_make_batches_of_bytes(tmp_path: Path) -> None:
    rows = [b"", b"one\x00", b"three"]  # of several lengths; zeros at the end are kept
    with TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for row in rows:
            writer.write(row)
    (tmp_path / "a.txt").write_bytes(b"\n".join(rows))
    for dataset in (
        Dataset.tfrecords(tmp_path / "a.tfrecord"),
        Dataset.text_lines(tmp_path / "a.txt", encoding=None),
    ):
        assert list(dataset) == rows
        assert dataset.shuffle(2).batch(3).element_spec == ArraySpec((None,), object)
        (batch,) = dataset.batch(3)
        assert batch.dtype == object
        assert batch.tolist() == rows


def test_batches_of_multi_slot_files_are_read_ahead_if_wished(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 7\n" * 10)
    slots = [Slot("a")]
    for queue_size in (None, 3):
        queue = QueueDataset(tmp_path / "a.txt", slots, 4, queue_size=queue_size)
        assert [len(batch["a"]) for batch in queue] == [4, 4, 2]
        assert ("prefetch" in repr(queue)) == (queue_size is not None)
    with pytest.raises(errors.ConfigurationError, match="queue_size"):
        QueueDataset(tmp_path / "a.txt", slots, 4, queue_size=0)


DOORS: dict[str, Callable[[Any], object]] = {
    "csv": lambda columns: Dataset.csv("x.csv", columns=columns),
    "parquet": lambda columns: Dataset.parquet("x.parquet", columns=columns),
    "from_table": lambda columns: Dataset.from_table({"user": np.arange(2)}, columns),
    "from_dask": lambda columns: Dataset.from_dask(None, columns),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("columns", ["user", 3, [3]])
def test_columns_are_a_list_of_names(door: str, columns: Any) -> None:
    with pytest.raises(errors.ConfigurationError, match=r"a list of names, as in columns="):
        DOORS[door](columns)


def test_dtypes_are_a_dict() -> None:
    with pytest.raises(errors.ConfigurationError, match="dtypes must be a dict"):
        Dataset.csv("x.csv", dtypes="float32")  # type: ignore[arg-type]
