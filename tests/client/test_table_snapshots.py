"""Parameters that servers write as they were at one moment: on servers in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from psnb._src.client.handles import shards_of
from psnb._src.client.requests import Request
from psnb._src.client.snapshots import TableSnapshots, prepare_snapshots
from psnb._src.placement.layout import ServerAddress, ShardId
from psnb._src.server import snapshots
from psnb._src.server.operations import (
    AskFileWork,
    EndFileWork,
    FileProgress,
    PrepareSnapshots,
    ReleaseSnapshot,
    WriteTables,
)
from psnb._src.server.optimizers import SGD
from psnb._src.server.snapshots import CHUNK
from psnb._src.server.tables.saved_files import SealedPart
from psnb.errors import CheckpointError, ServerLostError, ServerUnresponsiveError
from tests.client.in_process import InProcess, embedding, variable
from tests.conftest import DEADLINE


def file_name(server: int, kind: str) -> str:
    return f"{kind}-{server}"


class Scripted(InProcess):
    """Servers of which one may answer something else."""

    answer: Callable[[Request], Any] = staticmethod(lambda request: None)

    def attempt(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        found = []
        for each in requests:
            other = self.answer(each)
            found += super().attempt([each], seen) if other is None else [other]
        return found

    def sent(self, kind: type[Any]) -> list[Any]:
        return [each.to for each in self.carried if isinstance(each.operation, kind)]


@pytest.fixture
def servers() -> Scripted:
    return Scripted(3)


def taken(
    servers: Scripted, known: Iterable[ServerAddress] | None = None, longest_stop: float = DEADLINE
) -> TableSnapshots:
    """Take snapshots of a table on three servers."""
    table = embedding(None, 3, SGD(1.0), servers)
    table.push(np.arange(50), np.ones((50, 2), np.float32))
    there = servers.servers if known is None else known
    made = TableSnapshots(servers, {"e": table._shards}, lambda: there, longest_stop=longest_stop)
    table.push(np.arange(60), np.ones((60, 2), np.float32))
    return made


def test_servers_are_asked_until_they_are_ready_but_for_those_that_are_lost(
    servers: Scripted,
) -> None:
    answers = [iter([False, False, True]), iter([ServerLostError("gone")]), iter([True])]
    asked: list[int] = []

    def answer(request: Request) -> Any:
        assert isinstance(request.operation, PrepareSnapshots)
        asked.append(servers.servers.index(request.to))
        return next(answers[asked[-1]])

    servers.answer = answer
    prepare_snapshots(servers, servers.servers)
    assert asked == [0, 1, 2, 0, 0]


def test_servers_make_memory_ready_for_what_they_have(servers: Scripted) -> None:
    v = variable(np.zeros(3 * CHUNK // 8), 3, SGD(1.0), servers, name="v")
    prepare_snapshots(servers, servers.servers)
    made = TableSnapshots(servers, {"v": shards_of(v)}, lambda: servers.servers)
    with patch.object(snapshots, "_chunk") as new:
        v.assign(np.ones(3 * CHUNK // 8))
        assert not new.called
    made.close()
    for each in servers.servers:
        servers.attempt([Request(each, EndFileWork("nowhere"))])


def test_all_servers_write_what_they_had(servers: Scripted, tmp_path: Path) -> None:
    told: list[float] = []
    found = taken(servers).write(str(tmp_path), file_name, told.append)
    assert sorted(found) == ["server 0", "server 1", "server 2"]
    parts = [found[f"server {number}"]["e", number] for number in range(3)]
    assert [part.file for part in parts] == ["tables-0", "tables-1", "tables-2"]
    opened = [SealedPart(tmp_path / part.file, part) for part in parts]
    assert sorted(np.concatenate([each.read("ids") for each in opened])) == list(range(50))
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert sorted(servers.sent(EndFileWork)) == sorted(servers.servers)


def test_one_that_cannot_write_ends_the_others(servers: Scripted, tmp_path: Path) -> None:
    (tmp_path / "tables-1").write_text("mine")
    with pytest.raises(CheckpointError, match="server 1 cannot write tables-1"):
        taken(servers).write(str(tmp_path), file_name, bool)
    assert sorted(servers.sent(EndFileWork)) == sorted(servers.servers)


@pytest.mark.parametrize(
    ("answer", "told"),
    [(CheckpointError("no"), [0, 1, 2]), (ServerUnresponsiveError("nothing"), [0, 2])],
    ids=["refuses", "says nothing"],
)
def test_those_that_have_begun_are_ended_if_another_one_does_not_begin(
    servers: Scripted, tmp_path: Path, answer: Exception, told: list[int]
) -> None:
    def begun(request: Request) -> Exception | None:
        asked = isinstance(request.operation, WriteTables) and request.to == servers.servers[1]
        return answer if asked else None

    servers.answer = begun
    with pytest.raises(type(answer)):
        taken(servers).write(str(tmp_path), file_name, bool)
    assert sorted(servers.sent(EndFileWork)) == [servers.servers[each] for each in told]


def test_one_that_is_gone_ends_the_others_and_is_not_asked_again(
    servers: Scripted, tmp_path: Path
) -> None:
    gone = servers.servers[1]

    def lost(request: Request) -> Exception | None:
        asked = isinstance(request.operation, AskFileWork) and request.to == gone
        return ServerUnresponsiveError("it says nothing") if asked else None

    servers.answer = lost
    with pytest.raises(ServerUnresponsiveError):
        taken(servers).write(str(tmp_path), file_name, bool)
    assert sorted(servers.sent(EndFileWork)) == [servers.servers[0], servers.servers[2]]


def test_one_that_makes_no_progress_is_named(servers: Scripted, tmp_path: Path) -> None:
    stuck = servers.servers[2]

    def stands(request: Request) -> FileProgress | None:
        asked = isinstance(request.operation, AskFileWork) and request.to == stuck
        return FileProgress(7, None) if asked else None

    servers.answer = stands
    begin = time.monotonic()
    with pytest.raises(CheckpointError, match=r"server 2 could write nothing .* for 0\.05 s"):
        taken(servers, longest_stop=0.05).write(str(tmp_path), file_name, bool)
    assert time.monotonic() - begin < DEADLINE
    assert len(servers.sent(EndFileWork)) == 3


def test_one_that_has_ended_is_reported_and_nothing_is_written(
    servers: Scripted, tmp_path: Path
) -> None:
    made = taken(servers, servers.servers[:2])
    with pytest.raises(ServerLostError, match="server-2"):
        made.write(str(tmp_path), file_name, bool)
    assert list(tmp_path.iterdir()) == []
    made.close()
    assert len(servers.sent(ReleaseSnapshot)) == 3


def test_what_is_not_written_is_released_once(servers: Scripted, tmp_path: Path) -> None:
    made = taken(servers)
    made.close()
    made.close()
    assert len(servers.sent(ReleaseSnapshot)) == 3
    made = taken(servers)
    made.write(str(tmp_path), file_name, bool)
    made.close()
    assert len(servers.sent(ReleaseSnapshot)) == 3
