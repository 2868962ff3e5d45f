"""Tests of the folder that checkpoints are in, and of those who meet there."""

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from psnb._src.checkpoint import local_store
from psnb._src.checkpoint.folders import checkpoints_in
from psnb._src.checkpoint.local_store import FolderLock, LocalStore
from psnb._src.checkpoint.store import StoredCheckpoint
from psnb.errors import CheckpointError
from tests.checkpoint.saved import manifest_of, names, parameter, read, released, write
from tests.checkpoint.waiting import would_wait


def use(path: Path) -> StoredCheckpoint:
    return LocalStore(path.parent).use(path)


def save(folder: Path, *meanwhile: Callable[[], object], **metadata: Any) -> Path:
    """Save two parameters, and let others do something between them."""

    def all_of_it() -> None:
        for each in meanwhile:
            each()

    return write(folder, [parameter("a"), parameter("b")], metadata, all_of_it)


def is_whole(path: Path) -> bool:
    return all(len(read(path, name)) == 2 for name in "ab")


def partials(folder: Path) -> list[Path]:
    return list(folder.glob(".incomplete-*"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path)


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file system have no locks."""

    def unsupported(file: int, how: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", unsupported)


def test_numbers_go_up(tmp_path: Path) -> None:
    for _ in range(3):
        save(tmp_path)
    assert names(tmp_path) == ["ckpt-000001", "ckpt-000002", "ckpt-000003"]


def test_a_folder_that_was_removed_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LocalStore(tmp_path / "here")
    store.prepare()
    save(store.path)
    assert caplog.text == ""
    shutil.rmtree(store.path)
    with store.partial() as made:
        assert made.folder.parent == store.path
    assert "was gone, with its checkpoints" in caplog.text


def test_the_parents_of_a_folder_are_not_made_anew(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), LocalStore(tmp_path / "disk" / "here").partial():
        pass
    assert not [*tmp_path.iterdir()]


def test_numbers_go_on_past_six_digits(tmp_path: Path) -> None:
    save(tmp_path).rename(tmp_path / "ckpt-999999")
    assert save(tmp_path).name == "ckpt-1000000"
    assert save(tmp_path).name == "ckpt-1000001"
    numbers = [path.name.removeprefix("ckpt-") for path in LocalStore(tmp_path).checkpoints()]
    assert numbers == ["999999", "1000000", "1000001"]


def test_other_things_in_the_folder_are_no_checkpoints(tmp_path: Path) -> None:
    strange = ("ckpt-0000003", "ckpt-\u0661\u0662\u0663\u0664\u0665\u0666", f"ckpt-{10**240}")
    for name in (".incomplete-ckpt-000009", "ckpt-1", "ckpt-000002.bak", "notes", *strange):
        (tmp_path / name).mkdir()
    (tmp_path / "ckpt-000007").write_text("a file")
    (tmp_path / "ckpt-000008").mkdir()
    (tmp_path / "ckpt-999999999999999999").mkdir()
    assert LocalStore(tmp_path).checkpoints() == []
    assert save(tmp_path).name == "ckpt-000001"


def test_a_checkpoint_after_the_last_number_is_refused(tmp_path: Path) -> None:
    save(tmp_path).rename(tmp_path / "ckpt-999999999999999999")
    with pytest.raises(CheckpointError, match="no checkpoint can follow ckpt-999999999999999999"):
        save(tmp_path)
    assert not partials(tmp_path)


def test_missing_folder_has_no_checkpoints(tmp_path: Path) -> None:
    assert LocalStore(tmp_path / "missing").checkpoints() == []


def test_number_is_that_of_the_end_of_a_save(tmp_path: Path) -> None:
    first = save(tmp_path, lambda: save(tmp_path, writer=2), writer=1)
    assert first.name == "ckpt-000002"
    written = [manifest_of(path).metadata["writer"] for path in LocalStore(tmp_path).checkpoints()]
    assert written == [2, 1]


def test_save_that_took_longer_than_others_is_not_removed_at_once(tmp_path: Path) -> None:
    def others() -> None:
        for _ in range(3):
            save(tmp_path)
            LocalStore(tmp_path).prune(1)

    path = save(tmp_path, others)
    LocalStore(tmp_path).prune(1)
    assert is_whole(path)
    assert names(tmp_path) == [path.name] == ["ckpt-000004"]


def test_a_number_cannot_be_taken_between_its_choice_and_the_renaming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, waits = LocalStore.numbers, []

    def choosing(folder: LocalStore) -> list[int]:
        with monkeypatch.context() as undone:
            undone.setattr(LocalStore, "numbers", found)
            waits.append(would_wait(lambda: save(tmp_path)))
        return found(folder)

    monkeypatch.setattr(LocalStore, "numbers", choosing)
    assert save(tmp_path).name == "ckpt-000001"
    assert waits == [True]


def test_checkpoints_are_those_of_one_moment(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, waits = LocalStore.numbers, []

    def looking(folder: LocalStore) -> list[int]:
        waits.append(would_wait(lambda: save(tmp_path)))
        return found(folder)

    monkeypatch.setattr(LocalStore, "numbers", looking)
    assert LocalStore(tmp_path).checkpoints() == [checkpoint]
    assert waits == [True]


def test_number_that_was_taken_nonetheless_stays_its_owners(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ckpt-000002").write_text("a file")
    monkeypatch.setattr(LocalStore, "numbers", lambda folder: [])  # as if both had looked before
    path = write(tmp_path, [parameter("other")], {})
    assert path.name == "ckpt-000003"
    assert list(manifest_of(path).entries) == ["other"]
    assert is_whole(checkpoint)
    assert (tmp_path / "ckpt-000002").read_text() == "a file"


def test_folder_that_cannot_be_renamed_is_an_error_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path, new: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(CheckpointError, match=f"'{tmp_path}'.*Input/output error"):
        save(tmp_path)
    assert names(tmp_path) == []


def test_manager_made_during_a_save_leaves_it_alone(tmp_path: Path) -> None:
    path = save(tmp_path, lambda: LocalStore(tmp_path).prepare())
    assert is_whole(path)


def test_managers_are_made_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, waits = Path.mkdir, []

    def probing(path: Path, *args: Any, **options: Any) -> None:
        mkdir(path, *args, **options)
        if path.name.startswith(".incomplete-"):
            waits.append(would_wait(lambda: LocalStore(tmp_path).prepare()))

    monkeypatch.setattr(Path, "mkdir", probing)
    LocalStore(tmp_path).prepare()
    assert waits == [True]
    assert names(tmp_path) == []


def test_a_partial_folder_is_never_seen_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []

    def locking(path: Path, mode: str, how: int) -> FolderLock:
        if mode == "x":
            waits.append(would_wait(lambda: LocalStore(tmp_path).prepare()))
        return FolderLock(path, mode, how)

    monkeypatch.setattr(local_store, "FolderLock", locking)
    assert is_whole(save(tmp_path))
    assert waits == [True]


def test_a_partial_folder_is_never_seen_after_it_is_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, waits = FolderLock.release, []

    def releasing(lock: FolderLock) -> None:
        last = lock.file.mode == "x" and not lock.file.closed
        release(lock)
        if last:
            waits.append(would_wait(lambda: LocalStore(tmp_path).prepare()))

    monkeypatch.setattr(FolderLock, "release", releasing)
    assert is_whole(save(tmp_path))
    assert waits == [True]


def test_no_file_is_open_in_a_folder_that_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename  # Windows' shares and their like refuse it
    renamed = []

    def renaming(path: Path, new: Path) -> Path:
        renamed.append(path)
        assert not [file for file in psutil.Process().open_files() if str(path) in file.path]
        return rename(path, new)

    monkeypatch.setattr(Path, "rename", renaming)
    save(tmp_path)
    save(tmp_path)
    LocalStore(tmp_path).prune(1)
    assert names(tmp_path) == ["ckpt-000002"]
    assert len(renamed) == 3


def test_partial_folder_cannot_be_read(tmp_path: Path) -> None:
    def look() -> None:
        with pytest.raises(CheckpointError, match="is not a checkpoint"):
            use(partials(tmp_path)[0])

    assert is_whole(save(tmp_path, look))


def test_prepare_makes_the_folder(tmp_path: Path) -> None:
    LocalStore(tmp_path / "a" / "b").prepare()
    assert names(tmp_path / "a") == ["b"]
    assert names(tmp_path / "a" / "b") == []


@pytest.mark.parametrize("files", [[], ["00000-tables.bin"], ["manifest.json"]])
def test_prepare_clears_what_a_killed_writer_left(checkpoint: Path, files: list[str]) -> None:
    left = checkpoint.parent / f".incomplete-{uuid.uuid4().hex}"
    left.mkdir()
    for file in files:
        (left / file).write_bytes(b"half")
    LocalStore(checkpoint.parent).prepare()
    assert names(checkpoint.parent) == [checkpoint.name]


def test_prepare_leaves_what_no_manager_has_made(tmp_path: Path) -> None:
    file, loop, linked, odd = (tmp_path / f".incomplete-{number:032x}" for number in range(4))
    file.write_text("a file")
    loop.symlink_to(loop)
    (tmp_path / "elsewhere").mkdir()
    linked.symlink_to(tmp_path / "elsewhere")
    odd.mkdir()
    os.mkfifo(odd / "manifest.json")
    (tmp_path / ".incomplete-download").mkdir()
    there = names(tmp_path)
    LocalStore(tmp_path).prepare()
    assert names(tmp_path) == there


def test_prune_removes_nothing_of_which_it_is_not_known_whether_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [save(tmp_path) for _ in range(3)]
    lstat = Path.lstat

    def failing(path: Path) -> os.stat_result:
        if path == paths[0] / "kept":
            raise PermissionError(errno.EACCES, "no")
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", failing)
    LocalStore(tmp_path).prune(1)
    assert names(tmp_path) == [paths[0].name, paths[2].name]
    assert caplog.messages == ["an old checkpoint cannot be removed: [Errno 13] no"]


def test_a_checkpoint_that_cannot_be_looked_at_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path)
    lstat = Path.lstat

    def failing(each: Path) -> os.stat_result:
        if each.parent == path:
            raise OSError(errno.EIO, "no")
        return lstat(each)

    monkeypatch.setattr(Path, "lstat", failing)
    with pytest.raises(CheckpointError, match="cannot be read now"):
        checkpoints_in(tmp_path)


@pytest.mark.parametrize("below", ["file", "file/below"])
def test_folder_that_cannot_be_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=f"cannot be written to '.*{below}'"):
        LocalStore(tmp_path / below).prepare()


def test_prune_keeps_the_newest_and_leaves_nothing_else(tmp_path: Path) -> None:
    save(tmp_path).rename(tmp_path / "ckpt-999999")
    for _ in range(3):
        save(tmp_path)
    LocalStore(tmp_path).prune(2)
    assert names(tmp_path) == ["ckpt-1000001", "ckpt-1000002"]


def test_prune_of_fewer_than_are_kept_removes_nothing(checkpoint: Path) -> None:
    LocalStore(checkpoint.parent).prune(3)
    assert names(checkpoint.parent) == [checkpoint.name]


def test_prune_leaves_what_is_read_to_another_time(tmp_path: Path, checkpoint: Path) -> None:
    newer = [save(tmp_path).name, save(tmp_path).name]
    with released(use(checkpoint)), released(use(checkpoint)):
        LocalStore(tmp_path).prune(1)
        assert names(tmp_path) == [checkpoint.name, newer[1]]
        assert is_whole(checkpoint)
    LocalStore(tmp_path).prune(1)
    assert names(tmp_path) == newer[1:]


def test_what_is_about_to_be_removed_cannot_be_opened(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path)
    rename, waits = Path.rename, []

    def renaming(path: Path, new: Path) -> Path:
        waits.append(would_wait(lambda: use(checkpoint)))
        return rename(path, new)

    monkeypatch.setattr(Path, "rename", renaming)
    LocalStore(tmp_path).prune(1)
    assert waits == [True]
    with pytest.raises(CheckpointError, match="ckpt-000001' is not a checkpoint, or was removed"):
        use(checkpoint)


def test_what_another_manager_has_removed_first_is_nothing_to_tell(
    tmp_path: Path,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = [tmp_path / "ckpt-000000", checkpoint, save(tmp_path)]
    monkeypatch.setattr(LocalStore, "checkpoints", lambda folder: seen)
    LocalStore(tmp_path).prune(1)
    assert names(tmp_path) == [seen[2].name]
    assert caplog.messages == []


def test_what_cannot_be_removed_is_reported_and_the_rest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [save(tmp_path) for _ in range(3)]
    rename = Path.rename

    def renaming(path: Path, new: Path) -> Path:
        if path == paths[0]:
            raise PermissionError(errno.EPERM, "no")
        return rename(path, new)

    monkeypatch.setattr(Path, "rename", renaming)
    LocalStore(tmp_path).prune(1)
    assert names(tmp_path) == [paths[0].name, paths[2].name]
    assert caplog.messages == ["an old checkpoint cannot be removed: [Errno 1] no"]


def test_reading_leaves_no_lock_where_no_manager_was(tmp_path: Path) -> None:
    path = save(tmp_path)
    (tmp_path / ".lock").unlink()  # as if the checkpoint had been copied there
    use(path).release()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.usefixtures("without_locks")
def test_without_locks_nothing_is_cleared_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    LocalStore(tmp_path).prepare()
    assert caplog.messages == []
    path = save(tmp_path, lambda: LocalStore(tmp_path).prepare())
    assert is_whole(path)
    (message,) = caplog.messages
    assert f"{tmp_path} has no locks" in message
    assert "remove .incomplete-* there while none does" in message


@pytest.mark.usefixtures("without_locks")
def test_without_locks_checkpoints_are_written_read_and_removed(tmp_path: Path) -> None:
    old, new = save(tmp_path), save(tmp_path)
    with released(use(old)):
        assert is_whole(old)
    LocalStore(tmp_path).prune(1)
    assert names(tmp_path) == [new.name]


def test_a_folder_that_cannot_be_listed_is_not_pruned_and_a_save_is_none_the_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = [save(tmp_path).name for _ in range(2)]

    def failing(folder: LocalStore) -> list[int]:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "numbers", failing)
        LocalStore(tmp_path).prune(1)
    assert names(tmp_path) == there
    assert "nothing old is removed" in caplog.text
