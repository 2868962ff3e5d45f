"""Elements of one instance become one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnb.data import Dataset, QueueDataset, Ragged, Slot
from psnb.errors import ConfigurationError, DatasetError
from tests.data.elements import plain

IDS = ["b", "a", "b", "c", "a", "b"]
ROWS = [[1, 2], [3], [2, 4], [7, 7], [5, 3], [1]]
LABELS = [0.0, 1.0, 0.0, 1.0, 1.0, 0.0]


def source(labels: list[float] = LABELS) -> Dataset:
    columns = {
        "id": np.array(IDS, object),
        "ids": Ragged.from_rows(ROWS, np.uint64),
        "weight": Ragged.from_rows([[len(row) / 2] for row in ROWS]),
        "label": np.array(labels),
    }
    return Dataset.from_tensor_slices(columns)


def merged(**how: Any) -> list[Any]:
    return [plain(each) for each in source().merge_by("id", **how)]


def test_rows_are_joined_in_the_order_of_the_first_elements() -> None:
    assert merged() == [
        {"id": "b", "ids": [1, 2, 4], "weight": [1.0, 1.0, 0.5], "label": 0.0},
        {"id": "a", "ids": [3, 5], "weight": [0.5, 1.0], "label": 1.0},
        {"id": "c", "ids": [7, 7], "weight": [1.0], "label": 1.0},
    ]


def test_ids_that_occur_again_may_stay() -> None:
    assert [each["ids"] for each in merged(erase_duplicates=False)] == [
        [1, 2, 2, 4, 1],
        [3, 5, 3],
        [7, 7],
    ]


def test_what_is_too_little_to_be_merged_stays_as_it_is_or_is_left_out() -> None:
    assert [(each["id"], each["ids"]) for each in merged(min_merge_size=3)] == [
        ("b", [1, 2, 4]),
        ("a", [3]),
        ("c", [7, 7]),
        ("a", [5, 3]),
    ]
    assert [each["id"] for each in merged(min_merge_size=3, keep_unmerged=False)] == ["b"]
    assert merged(min_merge_size=4, keep_unmerged=False) == []


def test_instances_that_contradict_themselves_are_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = list(source([0.0, 1.0, 0.5, 1.0, 1.0, 0.0]).merge_by("id"))
    assert [each["id"] for each in found] == ["a", "c"]
    assert "1 instances are left out, whose elements differ in ['label']" in caplog.text


def test_it_resumes_at_the_next_element() -> None:
    dataset = source().merge_by("id")
    iterator = dataset.iterator()
    next(iterator)
    again = dataset.iterator(iterator.state())
    assert [plain(each) for each in again] == merged()[1:]


def test_an_error_of_the_input_costs_its_element_alone() -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == "c":
            raise ValueError("c")
        return row

    dataset = source().map(fails).merge_by("id")
    with pytest.raises(DatasetError, match="ValueError: c"):
        list(dataset)
    iterator = dataset.ignore_errors().iterator()
    assert next(iterator)["id"] == "b"
    rest = dataset.ignore_errors().iterator(iterator.state())
    assert [each["id"] for each in rest] == ["a"]


@pytest.mark.parametrize("key", ["ids", "none"])
def test_a_key_must_be_one_value_of_each_element(key: str) -> None:
    with pytest.raises(DatasetError, match=f"'{key}'"):
        list(source().merge_by(key))


def test_a_size_below_one_is_refused_and_it_cannot_be_cut() -> None:
    with pytest.raises(ConfigurationError, match="min_merge_size"):
        source().merge_by("id", 0)


def test_instances_of_multi_slot_files_are_merged_over_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 x 2 7 8\n1 y 1 5\n")
    (tmp_path / "b").write_text("1 x 1 9\n")
    lines = QueueDataset(
        [tmp_path / "a", tmp_path / "b"], [Slot("id", "bytes", ()), Slot("ids")], 2
    )
    (batch,) = lines.dataset.unbatch().merge_by("id").ragged_batch(8)
    assert batch["id"].tolist() == [b"x", b"y"]
    assert [row.tolist() for row in batch["ids"]] == [[7, 8, 9], [5]]
