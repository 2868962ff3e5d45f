"""Files of a checkpoint that a server checks and reads itself."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from safetensors.numpy import save

from psnb._src.placement.layout import ShardPlacement
from psnb._src.server.messages import Done, Failed, PendingReply, ServerAnswer
from psnb._src.server.operations import (
    AskFileWork,
    CheckedFiles,
    CheckFiles,
    CreateSparse,
    EndFileWork,
    HostOperation,
    HostShards,
    OnShard,
    PutSaved,
    SavedFiles,
)
from psnb._src.server.reading import FileChecking
from psnb._src.server.server import Host
from psnb._src.server.tables.checks import ExpectedRows
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import LookUpRows, OnTables
from psnb._src.utils.files import checksum
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

    def check(self, address: str, expected: str, form: ExpectedRows | None = FORM) -> Any:
        self.ask(CheckFiles("a restore", [SavedFiles(form, 0, 1, {address: expected}, 1)]))
        wait_until(lambda: self.ask(AskFileWork("a restore")).result is not None, "it is checked")
        return self.ask(AskFileWork("a restore")).result[0]

    def put(self, address: str) -> None:
        self.ask(OnShard(0, PutSaved("e", "a restore", "", address, 0, 3, None, None)))

    def rows(self) -> list[float]:
        ids = LookUpRows(STATE["ids"], training=False)
        return [*self.ask(OnShard(0, OnTables(("e",), ids)))[:, 0]]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shard"
    path.write_bytes(save(STATE))
    return path


def test_rows_of_a_checked_file_are_read(server: Server, file: Path) -> None:
    found = server.check(str(file), checksum(file))
    assert isinstance(found, CheckedFiles)
    assert (found.counts, found.rows, found.step) == ([3], [3], 4)
    server.put(str(file))
    assert server.rows() == [0.0, 2.0, 4.0]


def test_a_file_that_is_elsewhere_is_copied_and_the_copy_goes_in_the_end(
    server: Server, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    fsspec.filesystem("memory").pipe_file("/reading/shard", file.read_bytes())
    server.check("memory://reading/shard", checksum(file))
    server.put("memory://reading/shard")
    assert server.rows() == [0.0, 2.0, 4.0]
    assert [*(tmp_path / "copies").glob("*/*")]
    server.ask(EndFileWork("a restore"))
    wait_until(lambda: not [*(tmp_path / "copies").iterdir()], "the copy has gone")


@pytest.mark.parametrize("damage", ["its checksum", "FileNotFoundError", "not a regular file"])
def test_a_file_that_is_damaged_or_not_there_is_not_read(
    server: Server, file: Path, damage: str
) -> None:
    expected = checksum(file)
    if damage == "its checksum":
        expected = "0" * 16
    else:
        file.rename(file.with_name("other"))
        if damage == "not a regular file":
            file.symlink_to(file.with_name("other"))
    assert damage in server.check(str(file), expected)
    with pytest.raises(Exception, match="has not checked"):
        server.put(str(file))
    assert server.rows() == [0.0, 0.0, 0.0]


def test_what_is_in_a_file_is_checked_too(server: Server, file: Path) -> None:
    file.write_bytes(save({**STATE, "ids": np.array([7, 3, 7], np.uint64)}))
    assert "id 7 is there 2 times" in server.check(str(file), checksum(file))


def test_a_restore_that_nobody_asks_for_is_forgotten(server: Server, file: Path) -> None:
    server.check(str(file), checksum(file), None)
    for _ in range(FileChecking.ticks - 1):
        server.host.tick()
    server.put(str(file))  # counts as a question
    for _ in range(FileChecking.ticks):
        server.host.tick()
    with pytest.raises(Exception, match="has not checked what it is to read"):
        server.put(str(file))
