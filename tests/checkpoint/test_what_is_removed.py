"""What a store without locks removes: only what is known to be unneeded, whatever cannot be read.

All ways to remove are crossed with all that may keep a manifest, or what is beside it, from being
read at that moment.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from psnb._src.checkpoint import manifest
from psnb._src.checkpoint.folders import checkpoints_in, is_gone
from psnb._src.checkpoint.local_store import LocalStore
from psnb._src.checkpoint.manifest import KEPT, MANIFEST
from psnb._src.checkpoint.shards import CheckpointReader
from psnb._src.checkpoint.store import CheckpointStore
from psnb._src.checkpoint.writing import write_checkpoint
from psnb._src.utils.paths import AnyPath, RemotePath
from psnb.errors import CheckpointError
from tests.checkpoint.delta_model import forget_memory
from tests.checkpoint.saved import InHand, parameter

ROOT = "memory://checkpoints/run-1"
FIRST = "00000-variables.bin"
DAYS = 2 * 86_400


@pytest.fixture
def remote() -> Iterator[CheckpointStore]:
    made = CheckpointStore(RemotePath(ROOT))
    made.prepare()
    yield made
    forget_memory()


def save(to: CheckpointStore, *, kept: bool = False) -> AnyPath:
    return write_checkpoint(to, InHand([parameter("a")]), {}, kept=kept).path


def everything() -> set[str]:
    return set(fsspec.filesystem("memory").find(ROOT))


def rewrite(path: str, content: str) -> None:
    with fsspec.open(path, "w") as file:
        file.write(content)


def age() -> None:
    """Let all have been begun days ago."""
    for path in everything():
        if path.endswith("/begun"):
            rewrite(f"memory:/{path}", str(time.time() - DAYS))


@pytest.fixture
def run(remote: CheckpointStore) -> list[str]:
    """A checkpoint that stays for ever, three more, and what a killed save has left; all is old."""
    names = [save(remote, kept=number == 0).name for number in range(4)]
    left = remote.root / f"files-{0:032x}"
    left.make_folder()
    (left / "begun").create("0")
    age()
    return names


Break = Callable[[pytest.MonkeyPatch, str], None]
"""Keeps one of the checkpoints from being read from now on."""


def full_disk(patch: pytest.MonkeyPatch, name: str) -> None:
    def full(*given: Any, **more: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(tempfile, "mkstemp", full)


def no_answer(patch: pytest.MonkeyPatch, method: str, part: str) -> None:
    """Let one method of the file system fail where a path has a part, as a store's own error."""
    works = getattr(MemoryFileSystem, method)

    def failing(self: MemoryFileSystem, path: str, *given: Any, **more: Any) -> Any:
        if part in path:
            raise ConnectionError("503 Slow Down")
        return works(self, path, *given, **more)

    patch.setattr(MemoryFileSystem, method, failing)


def changed(name: str, change: Callable[[str], str]) -> None:
    path = f"{ROOT}/{name}/{MANIFEST}"
    with fsspec.open(path, "r") as file:
        text = file.read()
    rewrite(path, change(text))


BREAKS: dict[str, Break] = {
    "a full disk": full_disk,
    "no answer to a read": lambda patch, name: no_answer(patch, "cat_file", name),
    "no answer to whether it is there": lambda patch, name: no_answer(
        patch, "info", f"{name}/{MANIFEST}"
    ),
    "no answer to what is there": lambda patch, name: no_answer(patch, "ls", ""),
    "no answer to whether it stays": lambda patch, name: no_answer(patch, "info", f"/{KEPT}"),
    "a newer format": lambda patch, name: changed(
        name, lambda text: json.dumps({**json.loads(text), "format": manifest.FORMAT + 1})
    ),
    "an older psnb here": lambda patch, name: patch.setattr(
        manifest, "FORMAT", manifest.FORMAT - 1
    ),
    "half a manifest": lambda patch, name: changed(name, lambda text: text[: len(text) // 2]),
    "an empty manifest": lambda patch, name: changed(name, lambda text: ""),
    "files elsewhere": lambda patch, name: changed(
        name, lambda text: re.sub("files-", "../", text)
    ),
}

REMOVES: dict[str, Callable[[], object]] = {
    "a manager starts": lambda: CheckpointStore(RemotePath(ROOT)).prepare(),
    "a save prunes": lambda: CheckpointStore(RemotePath(ROOT)).prune(1),
}


@pytest.mark.parametrize("which", [0, 1, 3], ids=["stays", "old", "newest"])
@pytest.mark.parametrize("why", BREAKS)
@pytest.mark.parametrize("remove", REMOVES)
def test_what_cannot_be_read_may_need_anything(
    run: list[str],
    remove: str,
    why: str,
    which: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = everything()
    with monkeypatch.context() as patch:
        BREAKS[why](patch, run[which])
        with suppress(CheckpointError):  # without any answer, nothing can be written, either
            REMOVES[remove]()
    lost = before - everything()
    # What stays is asked only where something is to be removed; all else is known, then.
    known = {f"/checkpoints/run-1/files-{0:032x}/begun"}
    assert lost == (
        known if (why, remove) == ("no answer to whether it stays", "a manager starts") else set()
    )
    if not lost and caplog.messages:
        assert caplog.messages[0].startswith(f"nothing old is removed from {ROOT}, as a checkpoint")


def test_what_is_known_goes_once_all_can_be_read_again(
    remote: CheckpointStore, run: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        full_disk(patch, "")
        remote.prune(1)
        remote.prepare()
        assert len(remote.checkpoints()) == 4
    remote.prune(1)
    remote.prepare()
    assert [each.name for each in remote.checkpoints()] == [run[0], run[3]]
    assert sum(path.endswith("/begun") for path in everything()) == 2


def test_a_checkpoint_that_was_renamed_keeps_its_files(
    remote: CheckpointStore, run: list[str]
) -> None:
    files = fsspec.filesystem("memory")
    files.mv(f"{ROOT}/{run[1]}", f"{ROOT}/best", recursive=True)
    (best,) = remote._folders(remote.path / "best")
    remote.prune(1)
    remote.prepare()
    assert remote.checkpoints()[0].name == run[0]
    assert {
        each.name for each in (remote.path / "best", remote.path / run[1]) if each.exists()
    } == {"best"}
    assert (best / FIRST).exists()


@pytest.mark.parametrize("kept", [False, True])
def test_one_that_was_copied_from_a_disk_goes_alone(
    remote: CheckpointStore, tmp_path: Path, kept: bool
) -> None:
    local = LocalStore(tmp_path)
    local.prepare()
    path = save(local, kept=kept)
    fsspec.filesystem("memory").put(str(path), f"{ROOT}/{path.name}", recursive=True)
    shutil.rmtree(tmp_path)
    newer = [save(remote).name for _ in range(2)]
    remote.prune(1)
    assert [each.name for each in remote.checkpoints()] == [path.name, newer[1]][not kept :]
    for each in remote.checkpoints():
        CheckpointReader(each).release()
        assert remote.use(each).has([FIRST] if each.name == path.name else [])
    assert sum(each.endswith(".bin") for each in everything()) == 2 * (1 + kept)


def test_what_may_be_there_is_not_taken_for_none(
    remote: CheckpointStore, run: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_answer(monkeypatch, "info", run[3])
    with pytest.raises(CheckpointError, match=r"cannot be read now: .*503 Slow Down"):
        checkpoints_in(remote.path)
    assert not is_gone(remote.path / run[3])
    assert is_gone(remote.path / "ckpt-000009")


def test_what_was_saved_stays_though_it_is_not_known_whether_its_base_is_there(
    remote: CheckpointStore, run: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything()
    with remote.partial() as partial:
        partial.share(remote.use(remote.path / run[3]), [])
        with monkeypatch.context() as patch:
            no_answer(patch, "info", f"{run[3]}/{MANIFEST}")
            patch.setattr(CheckpointStore, "numbers", lambda self: [4])
            with pytest.raises(OSError, match="503 Slow Down"):
                partial.finish(manifest.Manifest({}, True, {}, 0, partial.prefix, []), kept=False)
    assert everything() > before
    assert remote.checkpoints()[-1].name == "ckpt-000005"
