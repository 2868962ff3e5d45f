"""Tests of several managers in one folder, without Dask."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import psnb._src.checkpoint.manager as managing
from psnb._src.checkpoint.loading import Checkpoint
from psnb._src.checkpoint.manager import FolderManager
from psnb._src.checkpoint.store import CheckpointStore
from psnb.errors import CheckpointError, InternalError
from tests.checkpoint.fakes import Strategy
from tests.checkpoint.saved import manifest_of, names, part_of
from tests.conftest import DEADLINE
from tests.coordinator.queues import in_thread
from tests.interrupting import interrupt_when


@pytest.fixture
def strategy() -> Strategy:
    return Strategy()


@pytest.fixture
def manager(strategy: Strategy, tmp_path: Path) -> FolderManager:
    return FolderManager(strategy, tmp_path, max_to_keep=1)


def test_save_is_whole_though_another_manager_is_made_in_the_middle(
    strategy: Strategy, manager: FolderManager, tmp_path: Path
) -> None:
    strategy.assign(7)
    strategy.made["b"].when_saved = lambda: FolderManager(Strategy(), tmp_path, 3)
    path = manager.save()
    strategy.assign(0)
    manager.restore(path)
    assert strategy.values == [7, 7, 7]


def test_what_save_returns_is_there_though_others_were_faster(
    strategy: Strategy, manager: FolderManager, tmp_path: Path
) -> None:
    other = FolderManager(Strategy(), tmp_path, max_to_keep=1)
    strategy.made["b"].when_saved = other.save
    path = manager.save()
    assert manager.latest_checkpoint == path
    assert names(tmp_path) == [path.name]


def test_checkpoint_is_not_removed_before_it_was_loaded(
    strategy: Strategy, manager: FolderManager, tmp_path: Path
) -> None:
    strategy.assign(1)
    saved = Checkpoint(manager.save(), strategy.parameters())
    strategy.assign(2)
    second = manager.save()
    saved.load()
    assert strategy.values == [1, 1, 1]
    assert names(tmp_path) == [saved.path.name, second.name]
    del saved
    third = manager.save()
    assert names(tmp_path) == [third.name]


def test_newer_one_is_restored_if_the_latest_was_removed_meanwhile(
    strategy: Strategy,
    manager: FolderManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager.save({"save": 1})
    others = [lambda: manager.save({"save": 2})]

    def late(path: Path, *given: Any, **options: Any) -> Checkpoint:
        while others:
            others.pop()()
        return Checkpoint(path, *given, **options)

    monkeypatch.setattr(managing, "Checkpoint", late)
    assert manager.restore() == {"save": 2}
    assert strategy.noted[-1] == tmp_path / "ckpt-000002"


def test_latest_that_is_there_and_damaged_is_reported(
    strategy: Strategy, manager: FolderManager
) -> None:
    path = manager.save()
    file = path / part_of(path, "b").file
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{file.name} is damaged, where 'b' is"):
        manager.restore()


def test_chosen_one_that_was_removed_is_reported_and_nothing_changed(
    strategy: Strategy, manager: FolderManager
) -> None:
    strategy.assign(1)
    first = manager.save()
    strategy.assign(2)
    manager.save()
    with pytest.raises(CheckpointError, match="ckpt-000001' is not a checkpoint, or was removed"):
        manager.restore(first)
    assert strategy.values == [2, 2, 2]


def test_failed_save_leaves_nothing_behind(
    strategy: Strategy, manager: FolderManager, tmp_path: Path
) -> None:
    def fail() -> None:
        raise InternalError("gone")

    strategy.made["b"].when_saved = fail
    with pytest.raises(InternalError):
        manager.save()
    assert names(tmp_path) == []
    assert [taken.released for taken in strategy.taken] == [True]


def test_a_manager_shows_its_checkpoints_the_newest_first(
    manager: FolderManager, tmp_path: Path
) -> None:
    manager.save()
    path = manager.save()
    assert repr(manager) == f"<psnb.FolderManager {str(tmp_path)!r}, 1 checkpoints>"
    page = manager._repr_html_()
    assert path.name in page
    assert page.count("<tr>") == 2  # the head, and one that is kept


def test_closures_are_held_until_snapshots_are_taken_and_the_manifest_says_so(
    strategy: Strategy, tmp_path: Path
) -> None:
    told: list[object] = []

    @contextmanager
    def held(timeout: float | None) -> Iterator[None]:
        told.append(timeout)
        yield
        told.append("let go")

    def state() -> dict[str, int]:
        return {"told": len(told), "step": 1}

    strategy.when_prepared = lambda: told.append("prepared")
    strategy.when_taken = lambda: told.append("taken")
    strategy.made["b"].when_saved = lambda: told.append("written")
    manager = FolderManager(strategy, tmp_path, 3, barrier=held, state=state)
    path = manager.save({"step": 2}, timeout=5.0)
    assert told == ["prepared", 5.0, "taken", "let go", "written"]
    manifest = manifest_of(path)
    assert (manifest.consistent, manifest.metadata) == (True, {"told": 2, "step": 2})
    assert manager.status.held > 0


def test_without_a_way_to_hold_closures_the_manifest_says_so(manager: FolderManager) -> None:
    assert not manifest_of(manager.save()).consistent
    assert manager.status.held == 0


def test_metadata_of_others_are_saved_while_their_block_runs(manager: FolderManager) -> None:
    with manager.also_saving(lambda: {"epoch": 4}):
        assert manifest_of(manager.save()).metadata == {"epoch": 4}
    assert manifest_of(manager.save()).metadata == {}


def test_state_that_json_cannot_hold_is_an_error_and_nothing_is_written(
    strategy: Strategy, tmp_path: Path
) -> None:
    manager = FolderManager(strategy, tmp_path, 3, state=lambda: {"a": object()})
    with pytest.raises(CheckpointError, match="must be a mapping that JSON can hold"):
        manager.save()
    assert names(tmp_path) == []
    assert manager.status.state == "failed"


def test_of_each_period_one_checkpoint_stays_whichever_manager_removes_old_ones(
    strategy: Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FolderManager(Strategy(), tmp_path, max_to_keep=1)
    keeping = FolderManager(strategy, tmp_path, max_to_keep=1, keep_every=3600.0)
    begin = time.time()
    for minute in range(0, 150, 20):
        monkeypatch.setattr(time, "time", lambda now=begin + 60 * minute: now)
        path = keeping.save()
        if (path / "kept").exists():
            os.utime(path / "kept", times=(time.time(), time.time()))
    other.save()
    assert names(tmp_path) == ["ckpt-000001", "ckpt-000004", "ckpt-000007", "ckpt-000009"]
    (tmp_path / "ckpt-000004" / "kept").unlink()
    other.save()
    assert names(tmp_path) == ["ckpt-000001", "ckpt-000007", "ckpt-000010"]


def test_a_folder_that_is_not_reached_any_more_is_reported_when_it_is_saved(
    strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(folder: CheckpointStore) -> float:
        raise OSError("the network is away")

    manager = FolderManager(strategy, "memory://unreached", max_to_keep=1, keep_every=3600.0)
    monkeypatch.setattr(CheckpointStore, "last_kept", unreachable)
    with pytest.raises(CheckpointError, match="cannot be read now: the network is away"):
        manager.save()


def test_an_interrupted_restore_ends_in_the_background_and_what_is_saved_then_is_whole(
    strategy: Strategy, manager: FolderManager
) -> None:
    strategy.assign(7)
    manager.save()
    strategy.assign(0)
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(DEADLINE)

    strategy.made["b"].servers.when_loaded = wait
    with interrupt_when(begun.is_set), pytest.raises(KeyboardInterrupt):
        manager.restore()
    assert strategy.values == [7, 0, 0]
    saved = threading.Thread(target=manager.save)
    saved.start()
    saved.join(0.1)
    assert saved.is_alive()
    go_on.set()
    saved.join(DEADLINE)
    strategy.assign(0)
    strategy.made["b"].servers.when_loaded = lambda: None
    manager.restore()
    assert strategy.values == [7, 7, 7]


def test_a_restore_that_fails_when_no_call_waits_any_more_is_reported(
    strategy: Strategy, manager: FolderManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager.save()
    begun, go_on = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        assert go_on.wait(DEADLINE)
        raise InternalError("the server has gone")

    strategy.made["b"].servers.when_loaded = fail
    with interrupt_when(begun.is_set), pytest.raises(KeyboardInterrupt):
        manager.restore()
    go_on.set()
    manager.save()
    assert "is restored in part: the server has gone" in caplog.text


def test_no_lock_is_held_while_servers_write_what_is_restored(
    strategy: Strategy, manager: FolderManager
) -> None:
    manager.save()
    locked: list[str] = []

    def look() -> None:
        found = vars(manager).items()
        locked.extend(name for name, each in found if getattr(each, "locked", bool)())

    strategy.made["b"].servers.when_loaded = look
    manager.restore()
    assert locked == []


def test_restores_of_several_threads_come_one_after_the_other(
    strategy: Strategy, manager: FolderManager
) -> None:
    manager.save()
    begun, under_way, go_on = threading.Semaphore(0), list[int](), threading.Event()

    def wait() -> None:
        under_way.append(1)
        begun.release()
        assert go_on.wait(DEADLINE)
        assert under_way.pop()
        assert not under_way

    strategy.made["b"].servers.when_loaded = wait
    restoring = [in_thread(manager.restore) for _ in range(3)]
    assert begun.acquire(timeout=DEADLINE)
    go_on.set()
    for each in restoring:
        each.result(DEADLINE)
    assert begun.acquire(blocking=False)
    assert begun.acquire(blocking=False)
