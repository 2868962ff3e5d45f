"""How deltas share files with the checkpoints before them, on disks and in stores without locks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from psnb._src.checkpoint.folders import store_at
from psnb._src.checkpoint.store import CheckpointStore
from psnb._src.utils.paths import AnyPath, RemotePath, as_path
from psnb.errors import CheckpointError
from tests.checkpoint.delta_model import (
    MEMORY,
    Model,
    assert_same,
    forget_memory,
    manager_of,
    manifest,
    restored,
)


def test_where_files_cannot_be_linked_they_are_copied_with_a_warning(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_link(file: Path, other: Path) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", no_link)
    manager = manager_of(model, tmp_path, keep=1)
    manager.save()
    model.push(3)
    path = manager.save()
    assert manifest(path).depth == 1
    assert_same(restored(path), model.content())
    (record,) = caplog.records
    assert "no links here" in record.message
    assert "full_every=" in record.message


def test_files_are_linked_and_so_cost_nothing(model: Model, tmp_path: Path) -> None:
    manager = manager_of(model, tmp_path)
    first = manager.save()
    assert isinstance(first, Path)
    second = manager.save()
    assert isinstance(second, Path)
    files = [each.name for each in first.glob("*.bin")]
    assert len(files) == 4  # two for each server
    assert all((first / each).samefile(second / each) for each in files)


def test_the_one_before_is_not_removed_while_a_delta_is_written(
    model: Model, tmp_path: Path
) -> None:
    manager = manager_of(model, tmp_path)
    first = manager.save()
    manager_of(Model(), tmp_path).save()
    model.meanwhile = lambda: store_at(tmp_path).prune(1)
    path = manager.save()
    assert first in manager.checkpoints
    assert manifest(path).depth == 1


@pytest.fixture
def store() -> Iterator[str]:
    yield MEMORY
    forget_memory()


def test_one_whose_base_is_removed_while_it_is_written_is_given_up_and_the_next_is_whole(
    model: Model, store: str
) -> None:
    manager = manager_of(model, store)
    manager.save()
    other = manager_of(Model(), store)
    kept = other.save()
    model.meanwhile = lambda: store_at(as_path(store)).prune(1)
    with pytest.raises(CheckpointError, match="has removed ckpt-000001, on which it was to build"):
        manager.save()
    assert manager.checkpoints == [kept]
    model.meanwhile = bool
    path = manager.save()
    assert manifest(path).depth == 0
    assert_same(restored(path), model.content())


def test_files_that_a_delta_shares_stay_though_it_comes_while_others_are_removed(
    model: Model, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(model, store)
    first = manager.save()
    manager_of(Model(), store).save()
    came: list[AnyPath] = []
    look = CheckpointStore._folders

    def slow(folder: CheckpointStore, path: AnyPath) -> list[RemotePath]:
        found = look(folder, path)
        if path == first and not came:
            came.append(manager.save())
        return found

    monkeypatch.setattr(CheckpointStore, "_folders", slow)
    store_at(as_path(store)).prune(1)
    assert first not in manager.checkpoints
    assert_same(restored(came[0]), model.content())


def test_a_folder_is_not_taken_for_unused_as_its_checkpoints_come_and_go(
    model: Model, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(model, store)
    first = manager.save()
    folder = CheckpointStore(RemotePath(store))
    used = {*folder._folders(first)}
    look, old = CheckpointStore._with_manifest, [True]

    def before(self: CheckpointStore) -> set[str]:
        found = look(self)
        if old and old.pop():  # when it is read, a delta has come and its base has gone
            manager.save()
            (folder.path / first.name).remove()
        return found

    monkeypatch.setattr(CheckpointStore, "_with_manifest", before)
    named = folder._named()
    assert first.name not in named
    assert {each for folders in named.values() for each in folders} >= used
