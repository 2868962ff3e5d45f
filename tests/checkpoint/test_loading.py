"""Tables that are loaded in pieces: by servers that read files, or of what this process sends."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from psnb._src.checkpoint.loading import Checkpoint
from psnb._src.client.handles import shards_of
from psnb._src.client.requests import Request
from psnb._src.client.whole_tables import TableLoad, in_memory, loading
from psnb._src.placement.layout import ShardId
from psnb._src.server import operations as host_ops
from psnb._src.server.operations import FinishSaved, PutSaved
from psnb._src.server.optimizers import Adagrad
from psnb._src.server.tables import checks, operations
from psnb._src.server.tables.operations import MakeRoom, OnTables, PutSegment
from psnb._src.utils import files
from psnb.errors import CheckpointError, ServerMemoryError
from tests.checkpoint.delta_model import Model, assert_same, manager_of
from tests.checkpoint.saved import damage, in_hand, write
from tests.client.in_process import DIM, InProcess, asked, embedding

COUNTS = pytest.mark.parametrize(("saved", "now"), [(2, 2), (2, 3), (3, 2), (1, 3), (3, 1)])


def changes(servers: InProcess, kind: type[Any]) -> list[Any]:
    """Return the changes of tables that were asked for."""
    tables = [each.operation if isinstance(each, OnTables) else each for each in asked(servers)]
    return [each for each in tables if isinstance(each, kind)]


class Forgetful(InProcess):
    """Servers of which it is not kept what they were asked."""

    def attempt(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        found = super().attempt(requests, seen)
        self.carried.clear()
        return found


class BlindServers(InProcess):
    """Servers that do not see the files."""

    def attempt(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        return super().attempt([_elsewhere(each) for each in requests], seen)


class Blind(Model):
    """A model on servers that do not see the files."""

    def __init__(self, shards: int) -> None:
        super().__init__(shards)
        self.servers.__class__ = BlindServers


def _elsewhere(request: Request) -> Request:
    operation = request.operation
    if isinstance(operation, host_ops.CheckFiles):
        shards = [
            msgspec.structs.replace(
                each,
                parts=[
                    msgspec.structs.replace(part, file=f"/of/another/host{part.file}")
                    for part in each.parts
                ],
            )
            for each in operation.shards
        ]
        operation = host_ops.CheckFiles(operation.restore, shards)
    return Request(request.to, operation)


def saved_twice(shards: int, folder: Path) -> tuple[Model, Path]:
    """Return a model, and a delta of it."""
    model = Model(shards)
    model.push(*range(10))
    model.push(*range(10))
    manager = manager_of(model, folder)
    manager.save()
    model.push(3, 5, 8)
    model.waiting.lookup([77, 78, 79])
    path = manager.save()
    assert isinstance(path, Path)
    return model, path


@COUNTS
@pytest.mark.parametrize("kind", [Model, Blind])
def test_files_are_loaded_onto_any_number_of_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Model], saved: int, now: int
) -> None:
    monkeypatch.setattr(operations, "SEGMENT", 100)  # so that each file is several pieces
    monkeypatch.setattr(checks, "_AT_A_TIME", 2)  # and its ids are compared in several passes
    monkeypatch.setattr(checks, "_PIECE", 3)
    model, path = saved_twice(saved, tmp_path)
    other = kind(now)
    other.push(1, 2)
    other.any.push([99], np.ones((1, DIM), np.float32))  # is forgotten
    other.servers.carried.clear()
    Checkpoint(path, other.parameters()).load()
    assert_same(other.content(), model.content())
    sent = len(changes(other.servers, PutSegment))
    assert sent == 0 if kind is Model else sent > 10
    if kind is Model:
        assert len(changes(other.servers, PutSaved)) > 10
        assert changes(other.servers, FinishSaved)


@pytest.mark.parametrize(("one_in", "size"), [(1, 10), (3, 30), (9, 40)])
def test_a_table_takes_about_a_segment_of_a_piece(one_in: int, size: int) -> None:
    part = in_memory({"ids": np.arange(100), "step": np.array([1])}).parts[0]
    load = TableLoad(
        (ShardId("s", 0), "e"), [(part, 0, 100, None)], operations.SEGMENT // 10, {}, one_in=one_in
    )
    pieces = [*load.pieces()]
    assert (pieces[0].stop, pieces[-1].stop) == (size, 100)


def test_a_server_that_cannot_read_one_file_gets_it_from_here(tmp_path: Path) -> None:
    model, path = saved_twice(2, tmp_path)
    other = Model(2)
    checkpoint = Checkpoint(path, other.parameters())
    work = other.servers._hosts[1]._work
    other.servers.carried.clear()
    loading = checkpoint._files.loading(None)
    assert next(loading) == ["still", "w"]
    assert next(loading) == ["fixed"]
    for each in work.values():
        each.parts.clear()  # type: ignore[attr-defined]  # as of a server that was started again
    for _ in loading:
        pass
    assert_same(other.content(), model.content())
    assert changes(other.servers, PutSegment)


def test_what_another_host_has_by_the_same_name_is_not_loaded(tmp_path: Path) -> None:
    """The file changes between the check and the load, as if a server saw another one."""
    _, path = saved_twice(2, tmp_path)
    other = Model(2)
    before = other.content()
    checkpoint = Checkpoint(path, other.parameters())
    for each in other.servers._hosts:
        for key in list(each._work):
            each._end_work(key)
    file = damage(path, "fixed")
    with pytest.raises(CheckpointError, match=f"{file} is damaged, where 'fixed' is: its checksum"):
        checkpoint.load()
    assert_same(other.content(), before)


def test_a_server_without_memory_refuses_before_anything_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = saved_twice(2, tmp_path)
    other = Model(2)
    before = other.content()
    attempt, asked = other.servers.attempt, []

    def short(requests: Sequence[Request], seen: Any = None) -> list[Any]:
        found = attempt(requests, seen)
        for at, each in enumerate(requests):
            change = getattr(each.operation, "operation", None)
            if isinstance(change, MakeRoom) and each.operation.tables == ("waiting",):  # type: ignore[union-attr]
                asked.append(change.rows)
                found[at] = ServerMemoryError("it is full")
        return found

    monkeypatch.setattr(other.servers, "attempt", short)
    with pytest.raises(ServerMemoryError, match="it is full"):
        Checkpoint(path, other.parameters()).load()
    assert_same(other.content(), before)
    assert sum(asked) == 10


@pytest.mark.parametrize("there", [0, 1000, 50_000])
def test_room_is_made_for_what_comes_and_kept_when_the_rows_go(there: int) -> None:
    table = embedding(None, 1, Adagrad(0.1))
    host = table._shards.server_client._hosts[0]  # type: ignore[attr-defined]
    inside = host._hosted[0].shard.table("e")
    if there:
        table.lookup(np.arange(there))
    inside.run(MakeRoom(20_000))
    assert inside.extent == there
    inside.run(operations.ClearTable())
    assert inside.extent == 0
    assert inside._room >= 20_000
    assert inside.index.spare >= 20_000


def test_room_for_what_is_loaded_stays_until_the_end_and_goes_if_another_table_has_none() -> None:
    table = embedding(None, 1, Adagrad(0.1))
    shards = shards_of(table)
    client: Any = shards.server_client
    host, inside = client._hosts[0], client.shard(0).table("e")

    def load(rows: int) -> TableLoad:
        return TableLoad(shards.tables[0], (), 0, {}, rows=rows)

    with loading(client, [load(200_000)]):
        host.tick()
        assert inside._room >= 200_000
    host.tick()
    assert inside._room < 200_000
    with pytest.raises(ServerMemoryError), loading(client, [load(200_000), load(1 << 40)]):
        raise AssertionError("there is no memory for it")
    assert inside._room >= 200_000
    host.tick()
    assert inside._room < 200_000


def test_memory_goes_back_though_each_restore_brings_more_than_half_as_many_rows() -> None:
    table = embedding(None, 1, Adagrad(0.1))
    host = table._shards.server_client._hosts[0]  # type: ignore[attr-defined]
    inside = host._hosted[0].shard.table("e")
    for rows in (50_000, 30_000, 18_000, 11_000):
        inside.run(MakeRoom(rows))
        inside.run(operations.ClearTable())
        table.lookup(np.arange(rows))
    assert inside.index.count + inside.index.spare < 25_000


class ForgetfulBlind(BlindServers, Forgetful):
    """Both."""


@pytest.mark.parametrize("kind", [Forgetful, ForgetfulBlind])
@pytest.mark.parametrize("now", [2, 3])
def test_what_is_in_memory_does_not_depend_on_the_size_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[InProcess], now: int
) -> None:
    monkeypatch.setattr(operations, "SEGMENT", 1 << 14)
    monkeypatch.setattr(checks, "_PIECE", 1 << 11)
    monkeypatch.setattr(files, "_CHUNK", 1 << 14)
    saved = shards_of(embedding(200_000, 2, Adagrad(0.1)))
    path = write(tmp_path, [in_hand("e", saved)], {})
    # Its rows are fixed, so that there is memory for them; the servers share this process.
    other = shards_of(embedding(200_000, now, Adagrad(0.1), kind(now)))
    tracemalloc.start()
    try:
        Checkpoint(path, {"e": other}).load()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20
    assert sum(file.stat().st_size for file in path.iterdir()) > 4 << 20
