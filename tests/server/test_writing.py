"""Tables that a server writes into files, while they change."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnb._src.server.files import file_work, writing
from psnb._src.server.files.writing import TableWriting
from psnb._src.server.operations import (
    AskFileWork,
    EndFileWork,
    OnShard,
    ReadSegment,
    TakeSnapshot,
    WriteTables,
)
from psnb._src.server.optimizers import Adagrad, Adam
from psnb._src.server.snapshots import snapshot
from psnb._src.server.tables.admission import CountFilter
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.saved_files import FilePart, SealedPart
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import Table
from psnb.errors import CheckpointError, ServerMemoryError
from tests.conftest import wait_until
from tests.server.pair import Pair, now
from tests.server.standby import THREADS
from tests.server.writes import push

FILE = "00000-tables.bin"
ONES = np.ones((40, 2), np.float32)


def sparse(rows: int | None = None, **more: Any) -> SparseTable:
    table = SparseTable("e", 2, rows, 0, 1, "float32", Constant(1.0), 0, Adam(0.1), **more)
    for _ in range(3):
        push(table, np.arange(40, dtype=np.uint64), ONES)
    return table


def dense(shape: tuple[int, ...]) -> DenseTable:
    table = DenseTable("v", np.arange(np.prod(shape), dtype=np.float64).reshape(shape), Adagrad(1))
    push(table, np.ones(shape))
    return table


def waiting() -> SparseTable:
    table = sparse(accessor=CtrAccessor(), admission=CountFilter(3))
    push(table, np.arange(50, 61, dtype=np.uint64), ONES[:11])
    return table


TABLES: dict[str, Callable[[], Table]] = {
    "any id": sparse,
    "fixed rows": lambda: sparse(40),
    "ids that wait": waiting,
    "no row": lambda: SparseTable("e", 2, None, 0, 1, "float32", Constant(1.0), 0, None),
    "matrix": lambda: dense((7, 3)),
    "scalar": lambda: dense(()),
    "nothing": lambda: dense((0, 3)),
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_CHUNK", 100)


def written(
    folder: Path, tables: Mapping[str, Table], soon: writing.Soon = now
) -> Mapping[str, FilePart]:
    """Have all tables written into one file."""
    taken = {name: snapshot(table) for name, table in tables.items()}
    writing = TableWriting("server 0", str(folder), {FILE: taken}, soon, THREADS)
    writing.begin()
    wait_until(lambda: writing.progress().result is not None, "it is written")
    parts = writing.progress().result
    assert parts is not None
    assert not any(table.watchers for table in tables.values())
    return parts


@pytest.mark.parametrize("chunk", [100, 1 << 20])
def test_the_parts_of_a_file_are_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(writing, "_CHUNK", chunk)
    tables = {name: make() for name, make in TABLES.items()}
    found = written(tmp_path, tables)
    assert [*found] == [*tables]
    for name, table in tables.items():
        part, state = SealedPart(tmp_path / FILE, found[name]), table.state()
        part.check()
        arrays = part.mapped()
        assert arrays.keys() == state.keys()
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, state[key], strict=True)
            np.testing.assert_array_equal(part.read(key), state[key], strict=True)
            assert array.flags.aligned
    parts = [*found.values()]
    assert parts[0].start == 0
    assert all(0 <= b.start - a.stop < 8 for a, b in itertools.pairwise(parts))
    assert (tmp_path / FILE).stat().st_size == parts[-1].stop


@pytest.mark.parametrize("rows", [None, 40])
def test_what_changes_between_two_pieces_is_written_as_it_was(
    tmp_path: Path, rows: int | None
) -> None:
    table = sparse(rows)
    before = table.state()
    calls = []

    def change_first(function: Callable[[], object]) -> None:
        calls.append(function)
        push(table, np.arange(len(calls) % 40, 40, dtype=np.uint64), ONES[len(calls) % 40 :])
        function()

    parts = written(tmp_path, {"e": table}, change_first)
    assert len(calls) >= 10
    found = SealedPart(tmp_path / FILE, parts["e"]).mapped()
    assert all(np.array_equal(array, before[name]) for name, array in found.items())


def test_a_missing_folder_is_reported_with_the_servers_name(tmp_path: Path) -> None:
    taken = {FILE: {"e": snapshot(sparse())}}
    writing = TableWriting("server 3", str(tmp_path / "gone"), taken, now, THREADS)
    writing.begin()
    with pytest.raises(CheckpointError, match=r"server 3 cannot write 0000.*: FileNot.*gone'"):
        wait_until(lambda: writing.progress().result is not None, "it fails")
    writing.stop()


def test_a_full_disk_is_reported_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: object, content: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing.NewFile, "write", full)
    with pytest.raises(CheckpointError, match=r"No space left on device.*Make room there"):
        written(tmp_path, {"e": sparse()})


def test_want_of_memory_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: object, content: object) -> None:
        raise MemoryError

    monkeypatch.setattr(writing.NewFile, "write", full)
    with pytest.raises(ServerMemoryError, match=r"server 0 has no memory for writing 0000"):
        written(tmp_path, {"e": sparse()})


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("mine")
    with pytest.raises(CheckpointError, match="FileExistsError"):
        written(tmp_path, {"e": sparse()})
    assert (tmp_path / FILE).read_text() == "mine"


def test_what_is_stopped_ends_and_its_tables_are_free(tmp_path: Path) -> None:
    table, begun, go_on = sparse(), threading.Event(), threading.Event()

    def wait(function: Callable[[], object]) -> None:
        begun.set()
        go_on.wait()
        function()

    writing = TableWriting("server 0", str(tmp_path), {FILE: {"e": snapshot(table)}}, wait, THREADS)
    writing.begin()
    begun.wait()
    writing.stop()
    assert not table.watchers
    go_on.set()
    with pytest.raises(CheckpointError):
        wait_until(lambda: writing.progress().result is not None, "it ends")


class OnHost:
    """A host that writes a table of its own."""

    def __init__(self, folder: Path) -> None:
        self.pair, self.folder = Pair(), str(folder)
        self.host = self.pair.hosts["a"]
        self.name = self.ask(OnShard(0, TakeSnapshot("v"))).snapshot

    def ask(self, operation: Any) -> Any:
        return self.pair.manage("a", operation)

    def write(self) -> None:
        self.ask(WriteTables(self.folder, {FILE: [self.name]}))

    def wait(self) -> None:
        wait_until(lambda: self.ask(AskFileWork(self.folder)).result is not None, "it is written")


def test_a_writing_that_is_asked_for_twice_is_one(tmp_path: Path) -> None:
    on_host = OnHost(tmp_path)
    on_host.write()
    on_host.write()
    on_host.wait()
    assert [each.name for each in tmp_path.iterdir()] == [FILE]
    assert on_host.ask(OnShard(0, ReadSegment(on_host.name, 0, 1))) is None
    on_host.ask(EndFileWork(on_host.folder))


def test_memory_that_was_made_ready_is_given_back_when_nothing_is_written_any_more(
    tmp_path: Path,
) -> None:
    on_host = OnHost(tmp_path)
    room = on_host.host._snapshots._room
    wait_until(lambda: room.want(2), "it is there")
    on_host.write()
    on_host.ask(EndFileWork("of another one"))
    assert len(room._chunks) == 2
    on_host.wait()
    on_host.ask(EndFileWork(on_host.folder))
    assert not room._chunks


@pytest.mark.parametrize("minutes", [1, 2])
def test_a_writing_that_is_not_asked_for_ends_after_minutes(tmp_path: Path, minutes: int) -> None:
    on_host = OnHost(tmp_path)
    on_host.write()
    on_host.wait()
    for _ in range(minutes):
        on_host.host.tick()
    if minutes < file_work.FileWork.ticks:
        on_host.wait()
        on_host.ask(EndFileWork(on_host.folder))
    with pytest.raises(CheckpointError, match=r"a does not work on .* any more"):
        on_host.ask(AskFileWork(on_host.folder))


def test_snapshots_that_are_not_there_any_more_are_reported_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    on_host = OnHost(tmp_path)
    with pytest.raises(CheckpointError, match="does not have the snapshots any more"):
        on_host.ask(WriteTables(on_host.folder, {FILE: [on_host.name, "a/77"]}))
    assert list(tmp_path.iterdir()) == []
    on_host.write()
    on_host.host.close()
    with pytest.raises(CheckpointError):
        on_host.ask(AskFileWork(on_host.folder))
