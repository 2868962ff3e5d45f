"""Elements in a folder: what `Dataset.save` writes, and `Dataset.load` reads."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnb._src.data.nodes import parts
from psnb._src.data.nodes.saved import SavedPart
from psnb.data import Dataset, Ragged
from psnb.errors import ConfigurationError, DatasetError
from tests.data.chains import fails_at_five, slices
from tests.data.elements import values

D = Dataset


def rows(count: int = 9) -> Dataset:
    return D.range(count).map(
        lambda n: {"n": n, "row": np.arange(n % 3), "even": np.ones(2), "text": (f"{n}\0", b"x")}
    )


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    for dataset in (rows(), slices(), rows().ragged_batch(4), D.range(0)):
        dataset.save(tmp_path / "saved")
        loaded = D.load(tmp_path / "saved")
        assert values(loaded) == values(dataset)
        assert len(loaded) == len(dataset)


def test_arrays_that_came_one_by_one_are_still_not_known_to_be_of_one_shape(tmp_path: Path) -> None:
    for dataset in (rows(), slices()):
        dataset.save(tmp_path / "saved")
        loaded = D.load(tmp_path / "saved")
        assert loaded.element_spec == dataset.element_spec
        assert values(loaded.ragged_batch(2)) == values(dataset.ragged_batch(2))


def test_many_elements_are_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_PART_BYTES", 1)
    D.range(5000).save(tmp_path / "saved")
    assert len(list((tmp_path / "saved").glob("*.npz"))) == 5
    assert values(D.load(tmp_path / "saved")) == list(range(5000))


def test_saving_again_replaces_what_was_saved_also_from_itself(tmp_path: Path) -> None:
    rows().save(tmp_path / "saved")
    D.range(3).save(tmp_path / "saved")
    D.load(tmp_path / "saved").map(lambda n: n + 1).save(tmp_path / "saved")
    assert values(D.load(tmp_path / "saved")) == [1, 2, 3]
    assert [each.name for each in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize(
    ("dataset", "wrong"),
    [
        (D.range(9).map(fails_at_five), "five"),
        (D.range(9).window(2), "save: only arrays, Ragged and text"),
        (D.range(9).map(lambda n: {3.5: n}), "save: a dict cannot be kept"),
    ],
    ids=["an element fails", "datasets", "keys"],
)
def test_what_cannot_be_saved_changes_nothing(dataset: Dataset, wrong: str, tmp_path: Path) -> None:
    D.range(3).save(tmp_path / "saved")
    with pytest.raises(DatasetError, match=wrong):
        dataset.save(tmp_path / "saved")
    assert values(D.load(tmp_path / "saved")) == [0, 1, 2]
    assert [each.name for each in tmp_path.iterdir()] == ["saved"]


def test_a_folder_of_another_user_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    with pytest.raises(DatasetError, match="mine exists, and is not a saved dataset"):
        D.range(3).save(tmp_path / "mine")
    with pytest.raises(DatasetError, match=r"mine is not a folder that Dataset\.save wrote"):
        D.load(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes").read_text() == "mine"


def test_a_folder_with_another_programs_dataset_json_is_left_alone(tmp_path: Path) -> None:
    # Other programs call a file of theirs so, too.
    (tmp_path / "dataset.json").write_text('{"labels": []}')
    with pytest.raises(DatasetError, match="exists, and is not a saved dataset"):
        D.range(3).save(tmp_path)
    assert (tmp_path / "dataset.json").read_text() == '{"labels": []}'


def test_files_that_were_added_to_a_saved_dataset_are_not_removed(tmp_path: Path) -> None:
    D.range(3).save(tmp_path / "saved")
    (tmp_path / "saved" / "notes").write_text("mine")
    with pytest.raises(DatasetError, match="saved holds 'notes', which is not part of a saved"):
        D.range(4).save(tmp_path / "saved")
    assert (tmp_path / "saved" / "notes").read_text() == "mine"
    assert values(D.load(tmp_path / "saved")) == [0, 1, 2]


def test_files_that_come_while_a_dataset_is_saved_again_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    D.range(3).save(tmp_path / "saved")

    def add(number: int) -> int:
        (tmp_path / "saved" / "notes").write_text("mine")
        return number + 1

    D.range(3).map(add).save(tmp_path / "saved")
    assert values(D.load(tmp_path / "saved")) == [1, 2, 3]
    (notes,) = tmp_path.glob("saved.*.old/notes")
    assert notes.read_text() == "mine"
    assert str(notes.parent) in caplog.text


def test_an_interrupt_while_folders_are_swapped_leaves_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    D.range(3).save(tmp_path / "saved")
    rename, calls = os.rename, 0

    def interrupted(old: str, new: str) -> None:
        nonlocal calls
        calls += 1
        rename(old, new)
        if calls == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        D.range(4).save(tmp_path / "saved")
    assert values(D.load(tmp_path / "saved")) == [0, 1, 2]
    assert [each.name for each in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("path", [np.zeros(1000), "s3://bucket/saved", None])
def test_what_is_no_folder_is_refused(path: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^save: .{1,150}$"):
        D.range(3).save(path)
    with pytest.raises(ConfigurationError, match=r"^load: .{1,150}$"):
        D.load(path)


def test_what_never_ends_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="never ends"):
        D.range(3).repeat().save(tmp_path / "saved")
    with pytest.raises(ConfigurationError, match="never ends"):
        D.range(3).repeat().reduce(0, lambda state, _: state)


def test_a_saved_dataset_goes_into_memory(tmp_path: Path) -> None:
    D.from_tensor_slices(Ragged.from_rows([[1], [], [2, 3]], int)).save(tmp_path / "saved")
    assert values(D.load(tmp_path / "saved").cache().repeat(2)) == [[1], [], [2, 3]] * 2


def test_elements_keep_their_numbers_where_reading_begins_in_the_middle(tmp_path: Path) -> None:
    D.range(9).save(tmp_path / "saved")
    (chunk,) = SavedPart().read(str(tmp_path / "saved" / "00000.npz"), 4, 4)
    assert (chunk.first, chunk.count, chunk.next_offset) == (4, 5, 9)


def test_an_entry_that_is_no_array_is_damage(tmp_path: Path) -> None:
    Dataset.from_tensor_slices(np.arange(3)).save(tmp_path / "saved")
    part = tmp_path / "saved" / "00000.npz"
    with zipfile.ZipFile(part) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(part, "w") as file:
        for name, each in entries.items():
            file.writestr(name, b"abc" if name == "0.values.npy" else each)
    with pytest.raises(DatasetError, match="damaged"):
        list(Dataset.load(tmp_path / "saved"))
