"""Tests of what tells processes and threads who uses a folder."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from psnb._src.checkpoint.local_store import AT_ONCE, EXCLUSIVE, SHARED, FolderLock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").touch()
    return tmp_path / "file"


@pytest.mark.parametrize("first", [EXCLUSIVE, SHARED])
@pytest.mark.parametrize("second", [EXCLUSIVE, SHARED])
def test_only_those_that_share_it_have_it_at_the_same_time(
    path: Path, first: int, second: int
) -> None:
    with FolderLock(path, "r+b", first) as lock:
        assert lock.real
        if first == second == SHARED:
            FolderLock(path, "r+b", second | AT_ONCE).release()
        else:
            with pytest.raises(BlockingIOError):
                FolderLock(path, "r+b", second | AT_ONCE)
    FolderLock(path, "r+b", second | AT_ONCE).release()


def test_released_lock_is_not_held_on_by_a_process_forked_meanwhile(path: Path) -> None:
    lock = FolderLock(path, "r+b", EXCLUSIVE)
    forked = os.dup(lock.file.fileno())  # what a fork has: another number of the same opening
    lock.release()
    FolderLock(path, "r+b", EXCLUSIVE | AT_ONCE).release()
    os.close(forked)


def test_releasing_twice_is_releasing_once(path: Path) -> None:
    lock = FolderLock(path, "r+b", EXCLUSIVE)
    lock.release()
    with FolderLock(path, "r+b", EXCLUSIVE):
        lock.release()
        with pytest.raises(BlockingIOError):
            FolderLock(path, "r+b", EXCLUSIVE | AT_ONCE)


def test_file_system_without_locks_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(file: int, how: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with FolderLock(path, "r+b", EXCLUSIVE) as one, FolderLock(path, "r+b", EXCLUSIVE) as other:
        assert not one.real
        assert not other.real
    assert one.file.closed


@pytest.mark.parametrize("how", ["rb", "ab"])
@pytest.mark.parametrize("kind", ["pipe", "link", "dangling link", "folder"])
def test_what_is_no_plain_file_is_refused_without_waiting(
    tmp_path: Path, kind: str, how: str
) -> None:
    path, elsewhere = tmp_path / ".lock", tmp_path / "elsewhere"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to(elsewhere)
            if kind == "link":
                elsewhere.touch()
    with pytest.raises(OSError, match=str(path)):
        FolderLock(path, how, EXCLUSIVE)
    assert elsewhere.exists() == (kind == "link")
