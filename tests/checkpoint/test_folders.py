"""What every folder of checkpoints does, on disk or wherever fsspec writes."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import psnb
from psnb._src.checkpoint.folders import store_at
from psnb._src.checkpoint.listing import folder_listing, prune_verified
from psnb._src.checkpoint.manager import FolderManager
from psnb._src.checkpoint.manifest import MANIFEST
from psnb._src.checkpoint.reader import latest_full
from psnb._src.checkpoint.shards import CheckpointReader
from psnb._src.checkpoint.store import CheckpointStore
from psnb._src.checkpoint.writing import write_checkpoint
from psnb._src.utils.paths import AnyPath, RemotePath, as_path
from psnb.errors import CheckpointError
from tests.checkpoint.fakes import Strategy
from tests.checkpoint.saved import STATES, InHand, parameter, released

MEMORY = "memory://checkpoints/run-1"


@pytest.fixture(params=["local", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "checkpoints") if request.param == "local" else MEMORY
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


@pytest.fixture
def folder(address: str) -> CheckpointStore:
    made = store_at(as_path(address))
    made.prepare()
    return made


def save(
    folder: CheckpointStore,
    meanwhile: Callable[[], object] = bool,
    *,
    kept: bool = False,
    **metadata: Any,
) -> AnyPath:
    taken = InHand([parameter("a"), parameter("b")], meanwhile)
    return write_checkpoint(folder, taken, metadata, kept=kept).path


def names(folder: CheckpointStore) -> list[str]:
    return [path.name for path in folder.checkpoints()]


def is_whole(folder: CheckpointStore, path: AnyPath) -> bool:
    reader = CheckpointReader(path)
    try:
        return all(
            np.array_equal(array, STATES[shard][name])
            for entry in reader.manifest.entries.values()
            for shard, parts in enumerate(entry.shards)
            for part in parts
            for name, array in reader.part(entry, part).mapped().items()
        )
    finally:
        reader.release()


def metadata(folder: CheckpointStore, path: AnyPath) -> Any:
    with released(folder.use(path)) as stored:
        return stored.manifest().metadata


def test_what_was_saved_is_there_with_its_number(folder: CheckpointStore) -> None:
    assert names(folder) == []
    paths = [save(folder, step=step) for step in range(3)]
    assert names(folder) == ["ckpt-000001", "ckpt-000002", "ckpt-000003"]
    assert folder.checkpoints() == paths
    assert all(is_whole(folder, path) for path in paths)
    assert metadata(folder, paths[1]) == {"step": 1}
    assert folder.written(paths[0])[:4] == time.strftime("%Y")


def test_what_is_being_written_is_not_seen(folder: CheckpointStore) -> None:
    seen: list[str] = []
    save(folder, lambda: seen.extend(names(folder)))
    assert seen == []


def test_what_fails_in_the_middle_leaves_nothing(folder: CheckpointStore) -> None:
    def fail() -> None:
        raise RuntimeError("the server is gone")

    first = save(folder)
    before = everything(folder)
    with pytest.raises(RuntimeError, match="the server is gone"):
        save(folder, fail)
    assert everything(folder) == before
    assert is_whole(folder, first)


def everything(folder: CheckpointStore) -> set[str]:
    """Return all files of a folder."""
    if isinstance(folder.path, Path):
        return {str(each) for each in folder.path.rglob("*") if each.name != ".lock"}
    return set(fsspec.filesystem("memory").find(str(folder.path)))


def test_the_number_is_that_of_the_end(folder: CheckpointStore) -> None:
    path = save(folder, lambda: save(folder, writer=2), writer=1)
    assert path.name == "ckpt-000002"
    assert [metadata(folder, each)["writer"] for each in folder.checkpoints()] == [2, 1]


def test_the_newest_stay_and_those_that_are_marked(folder: CheckpointStore) -> None:
    begin = time.time() - 1
    save(folder)
    kept = save(folder, kept=True)
    newer = [save(folder) for _ in range(3)]
    folder.prune(2)
    assert folder.checkpoints() == [kept, *newer[1:]]
    assert begin < folder.last_kept() < time.time() + 1
    assert all(is_whole(folder, path) for path in folder.checkpoints())
    folder.prune(1)
    assert folder.checkpoints() == [kept, newer[2]]
    assert len([each for each in everything(folder) if each.endswith(".bin")]) == 8


def test_without_one_that_is_marked_the_last_was_never(folder: CheckpointStore) -> None:
    save(folder)
    assert folder.last_kept() == -np.inf


def test_what_was_removed_is_reported(folder: CheckpointStore) -> None:
    first = save(folder)
    save(folder)
    folder.prune(1)
    with pytest.raises(CheckpointError, match="ckpt-000001' is not a checkpoint, or was removed"):
        folder.use(first)
    assert folder.written(first) == "removed just now"


def test_managers_save_and_restore_by_address(address: str) -> None:
    strategy = Strategy()
    manager = FolderManager(strategy, address, max_to_keep=2)
    for value in range(3):
        strategy.assign(value)
        manager.save({"value": value})
    strategy.assign(7)
    first, _ = manager.checkpoints
    assert manager.restore(str(first)) == {"value": 1}
    assert strategy.values == [1, 1, 1]
    assert manager.restore() == {"value": 2}
    assert strategy.values == [2, 2, 2]
    assert strategy.noted[-1] == manager.latest_checkpoint
    assert address in repr(manager)
    assert manager.status.path == str(manager.latest_checkpoint)


def test_a_checkpoint_is_listed_and_verified_without_a_cluster(folder: CheckpointStore) -> None:
    save(folder, step=3)
    path = save(folder)
    found = folder_listing(folder.path, verify=False)
    assert [row.split()[0] for row in found.text.splitlines()[1:]] == ["ckpt-000001", "ckpt-000002"]
    assert "step=3" in found.text
    with pytest.raises(CheckpointError, match="'a' is not a parameter that this psnb reads"):
        psnb.checkpoint.load(path).verify()
    with pytest.raises(CheckpointError, match="nothing was removed"):
        prune_verified(folder.path, 1)
    assert len(names(folder)) == 2


def test_another_checksum_is_damage_and_reported_with_the_place(address: str) -> None:
    strategy = Strategy()
    manager = FolderManager(strategy, address, max_to_keep=2)
    path = manager.save()
    (damaged, *_) = psnb.checkpoint.load(path).files
    with fsspec.open(str(damaged), "rb") as file:
        content = file.read()
    with fsspec.open(str(damaged), "wb") as file:
        file.write(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError) as raised:
        manager.restore()
    assert str(path) in str(raised.value)
    assert "is damaged, where 'a' is: its checksum is" in str(raised.value)


def test_a_manifest_that_names_files_elsewhere_is_refused(folder: CheckpointStore) -> None:
    path = save(folder)
    manifest = f"{path}/manifest.json"
    with fsspec.open(manifest, "r") as file:
        content = json.load(file)
    part = content["parameters"][0]["shards"][0][0]
    part["file"] = f"../{part['file']}"
    with fsspec.open(manifest, "w") as file:
        json.dump(content, file)
    with released(folder.use(path)) as stored, pytest.raises(CheckpointError, match="is damaged"):
        stored.manifest()


# What is only so without locks and renaming.


@pytest.fixture
def remote() -> Iterator[CheckpointStore]:
    made = CheckpointStore(RemotePath(MEMORY))
    made.prepare()
    yield made
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


class _Killed(BaseException):
    """Nothing of a process goes on, not even what cleans up."""


def killed_at(step: int, remote: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Save and prune, but for one's death at a step; return whether it came to that."""
    steps = itertools.count()

    def dying(change: Any) -> Any:
        def at_this(*given: Any) -> None:
            now = next(steps) // 2
            if now > step:
                raise _Killed
            change(*given)
            if next(steps) // 2 >= step:
                raise _Killed

        return at_this

    with monkeypatch.context() as patch:
        for name in ("create", "make_folder", "remove"):
            patch.setattr(RemotePath, name, dying(getattr(RemotePath, name)))
        try:
            save(remote, step=step)
            remote.prune(2)
        except _Killed:
            return True
    return False


def test_a_process_killed_at_any_step_leaves_whole_checkpoints(
    remote: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(remote)
    last = save(remote)
    for step in itertools.count():
        if not killed_at(step, remote, monkeypatch):
            break
        newest = remote.checkpoints()[-1]
        assert newest >= last
        last = newest
        assert len(remote.checkpoints()) >= 2
        assert all(is_whole(remote, path) for path in remote.checkpoints())
    assert step > 5
    assert len({each.split("/")[3] for each in everything(remote) if "files-" in each}) > 3
    CheckpointStore(remote.path, left_after=0.0).prepare()
    assert len({each.split("/")[3] for each in everything(remote) if "files-" in each}) == 2
    assert all(is_whole(remote, path) for path in remote.checkpoints())


def test_what_another_has_begun_today_is_left_alone(remote: CheckpointStore) -> None:
    path = save(remote, remote.prepare)
    assert is_whole(remote, path)


def test_a_checkpoint_whose_last_answer_was_lost_keeps_its_files(
    remote: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = RemotePath.create

    def lost(path: RemotePath, text: str) -> None:
        create(path, text)
        if path.name == MANIFEST:
            raise TimeoutError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(RemotePath, "create", lost)
        with pytest.raises(CheckpointError, match="no answer"):
            save(remote)
    assert [is_whole(remote, path) for path in remote.checkpoints()] == [True]


def test_of_two_that_end_at_once_each_gets_its_own_number(
    remote: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(remote, writer=1)
    monkeypatch.setattr(CheckpointStore, "numbers", lambda self: [])  # as if both had looked before
    second = save(remote, writer=2)
    assert (first.name, second.name) == ("ckpt-000001", "ckpt-000002")
    assert [metadata(remote, each)["writer"] for each in (first, second)] == [1, 2]


def test_copies_on_this_machine_go_with_the_last_reference(
    remote: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stored = remote.use(save(remote))
    stored.manifest()
    assert list(tmp_path.iterdir())
    del stored
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("where", "reason"),
    [("s3x://bucket/a", "Protocol not known: s3x"), ("http://127.0.0.1:9/a", "cannot be written")],
)
def test_a_store_that_cannot_be_written_is_reported(where: str, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason) as raised:
        store_at(as_path(where)).prepare()
    assert f"checkpoints cannot be written to '{where}'" in str(raised.value)


@pytest.mark.parametrize("where", ["s3x://bucket/a", "http://127.0.0.1:9/a"])
def test_a_store_that_cannot_be_read_is_reported_to_who_resumes_from_it(where: str) -> None:
    with pytest.raises(CheckpointError, match=f"'{where}' cannot be read now: "):
        latest_full(as_path(where))


@pytest.mark.parametrize("where", ["/a/b", "file:///a/b"])
def test_an_address_on_this_machine_is_a_path(where: str) -> None:
    assert as_path(where) == Path("/a/b")


def test_an_address_has_parts_as_a_path_has() -> None:
    path = as_path("s3://bucket/a/ckpt-000001/")
    assert isinstance(path, RemotePath)
    assert (path.name, str(path.parent)) == ("ckpt-000001", "s3://bucket/a")
    assert path.parent / "ckpt-000001" == path
    assert as_path(path) == path
    assert {path: 1}[RemotePath("s3://bucket/a/ckpt-000001")] == 1
