"""Files of a checkpoint that a server checks and reads itself."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import numpy as np
import pytest

from psnb._src.placement.layout import ShardPlacement
from psnb._src.server.files import reading
from psnb._src.server.files.reading import FileChecking
from psnb._src.server.messages import Done, Failed, PendingReply, ServerAnswer
from psnb._src.server.operations import (
    AskFileWork,
    CheckedParts,
    CheckFiles,
    CreateSparse,
    EndFileWork,
    HostOperation,
    HostShards,
    OnShard,
    PutSaved,
    SavedParts,
)
from psnb._src.server.server import Host
from psnb._src.server.tables import checks
from psnb._src.server.tables.checks import ExpectedRows
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import LookUpRows, OnTables
from psnb._src.server.tables.saved_files import FilePart, SealedPart
from psnb._src.server.tables.sharding import Owner
from psnb._src.utils.files import NewFile
from tests.checkpoint.saved import write_part
from tests.client.in_process import nowhere
from tests.conftest import wait_until
from tests.server.pair import now
from tests.server.standby import THREADS

STATE = {
    "ids": np.array([7, 3, 5], np.uint64),
    "values": np.arange(6, dtype=np.float32).reshape(3, 2),
    "step": np.array([4]),
}
FORM = ExpectedRows("e", np.dtype(np.float32), (), (2,), None, uses=False, waits=False)


class Server:
    """A server with an empty table of any id."""

    def __init__(self) -> None:
        self.host = Host("server-0", "server 0", now, THREADS, THREADS)
        self.ask(HostShards({0: ShardPlacement(None)}, []))
        creation = CreateSparse("e", 2, None, 0, 1, "float32", Constant(0.0), 3, None)
        self.ask(OnShard(0, creation))

    def ask(self, operation: HostOperation) -> Any:
        answers: list[ServerAnswer] = []
        self.host.run([operation], PendingReply(answers.extend), nowhere)
        (answer,) = answers
        if isinstance(answer, Failed):
            raise answer.error
        assert isinstance(answer, Done)
        return answer.result

    def check(self, part: FilePart, form: ExpectedRows | None = FORM) -> Any:
        self.ask(CheckFiles("a restore", [SavedParts(form, 0, 1, [part], 1)]))
        wait_until(lambda: self.ask(AskFileWork("a restore")).result is not None, "it is checked")
        return self.ask(AskFileWork("a restore")).result[0]

    def put(self, part: FilePart) -> None:
        self.ask(OnShard(0, PutSaved("e", "a restore", "", part.key, 0, 3, None, None)))

    def rows(self) -> list[float]:
        ids = LookUpRows(STATE["ids"], training=False)
        return [*self.ask(OnShard(0, OnTables(("e",), ids)))[:, 0]]


@pytest.fixture
def server() -> Server:
    return Server()


def written(folder: Path, **other: np.ndarray) -> FilePart:
    """Write a file of two parts, and return the second one."""
    with NewFile(str(folder), "file") as file:
        write_part(file, "file", {"values": np.ones(3, np.int8)})
        return write_part(file, str(folder / "file"), STATE | other)


@pytest.fixture
def part(tmp_path: Path) -> FilePart:
    return written(tmp_path)


def test_rows_of_a_checked_part_are_read(server: Server, part: FilePart) -> None:
    found = server.check(part)
    assert isinstance(found, CheckedParts)
    assert (found.counts, found.rows, found.step) == ([3], [3], 4)
    server.put(part)
    assert server.rows() == [0.0, 2.0, 4.0]


def test_a_file_that_is_elsewhere_is_copied_and_the_copy_goes_in_the_end(
    server: Server, part: FilePart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    fsspec.filesystem("memory").pipe_file("/reading/file", Path(part.file).read_bytes())
    there = msgspec.structs.replace(part, file="memory://reading/file")
    server.check(there)
    server.put(there)
    assert server.rows() == [0.0, 2.0, 4.0]
    assert [*(tmp_path / "copies").iterdir()]
    server.ask(EndFileWork("a restore"))
    wait_until(lambda: not [*(tmp_path / "copies").iterdir()], "the copy has gone")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the arrays that are read from now on."""
    found: list[str] = []
    read = SealedPart.read

    def noted(*args: Any, **how: Any) -> np.ndarray:
        found.append(args[1])
        return read(*args, **how)

    monkeypatch.setattr(SealedPart, "read", noted)
    return found


def test_ids_are_compared_in_a_few_passes(
    server: Server, part: FilePart, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_AT_A_TIME", 1)  # in a notebook, four passes
    monkeypatch.setattr(reading, "_PASSES", 2)
    server.check(part)
    assert names.count("ids") == 1 + 2


def test_rows_of_which_several_shards_take_theirs_are_read_once(
    server: Server, part: FilePart, names: list[str]
) -> None:
    server.check(part)
    names.clear()
    for start, stop in ((0, 2), (2, 3)):
        for number in (1, 0):
            owner = Owner(number, 2, growing=True)
            put = PutSaved("e", "a restore", "", part.key, start, stop, None, owner)
            server.ask(OnShard(0, put))
    assert server.rows() == [0.0, 2.0, 4.0]
    assert names == ["ids", "values"] * 2


def test_rows_for_other_shards_go_before_the_next_are_read(
    server: Server, part: FilePart, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.check(part)
    work, kept = server.host._work["a restore"], []
    read = SealedPart.read

    def noted(*args: Any, **how: Any) -> np.ndarray:
        kept.append(work._read[1])  # type: ignore[attr-defined]
        return read(*args, **how)

    monkeypatch.setattr(SealedPart, "read", noted)
    for start in range(3):
        owner = Owner(0, 2, growing=True)
        put = PutSaved("e", "a restore", "", part.key, start, start + 1, None, owner)
        server.ask(OnShard(0, put))
    assert kept == [{}] * 6


@pytest.mark.parametrize(
    "damage", ["its checksum", "and must have", "FileNotFoundError", "not a regular file"]
)
def test_a_part_that_is_damaged_or_not_there_is_not_read(
    server: Server, part: FilePart, damage: str
) -> None:
    file = Path(part.file)
    if damage == "its checksum":
        part = msgspec.structs.replace(part, checksum="0" * 16)
    elif damage == "and must have":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.rename(file.with_name("other"))
        if damage == "not a regular file":
            file.symlink_to(file.with_name("other"))
    assert damage in server.check(part)
    with pytest.raises(Exception, match="has not checked"):
        server.put(part)
    assert server.rows() == [0.0, 0.0, 0.0]


def test_what_is_in_a_part_is_checked_too(server: Server, tmp_path: Path) -> None:
    part = written(tmp_path, ids=np.array([7, 3, 7], np.uint64))
    assert "id 7 is there 2 times" in server.check(part)


def test_a_restore_that_nobody_asks_for_is_forgotten(server: Server, part: FilePart) -> None:
    server.check(part, None)
    for _ in range(FileChecking.ticks - 1):
        server.host.tick()
    server.put(part)  # counts as a question
    for _ in range(FileChecking.ticks):
        server.host.tick()
    with pytest.raises(Exception, match="has not checked what it is to read"):
        server.put(part)
