"""What tables hold, read and written in segments: on servers in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from psnb._src.client.requests import Request
from psnb._src.placement.layout import ShardId
from psnb._src.server.operations import ReadSegment, ReleaseSnapshot
from psnb._src.server.optimizers import Adagrad, Adam
from psnb._src.server.tables import operations
from psnb._src.server.tables.operations import (
    ClearTable,
    OnTables,
    Operation,
    PutSegment,
    ShardOperation,
    on_table,
)
from psnb.errors import ServerLostError
from tests.client.in_process import InProcess, asked, embedding, variable

SHARDS = pytest.mark.parametrize("shards", [1, 3])


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "SEGMENT", 100)


def carried(transport: InProcess, kind: type[Operation]) -> int:
    found = asked(transport)
    whole = [each.operation if isinstance(each, OnTables) else each for each in found]
    return sum(isinstance(each, kind) for each in whole)


@SHARDS
@pytest.mark.parametrize("shape", [(), (7,), (40, 3)])
def test_a_variable_goes_and_comes_in_segments(shape: tuple[int, ...], shards: int) -> None:
    shards = min(shards, shape[0] if shape else 1)
    transport = InProcess(3)
    value = np.random.default_rng(0).normal(size=shape)
    v = variable(value, shards, Adam(0.1), transport)
    v.push(np.ones(shape))
    saved, before = v._shards.shard_states(), v.read()
    assert carried(transport, ReadSegment) >= value.nbytes * 3 / 100
    v.push(np.ones(shape))
    after = v.read()
    v._shards.load_states(saved)
    np.testing.assert_array_equal(v.read(), before)
    v.push(np.ones(shape))
    np.testing.assert_array_equal(v.read(), after)  # the optimizer's state came back as well
    assert [part["values"].shape[1:] for part in saved] == [shape[1:]] * shards


@SHARDS
@pytest.mark.parametrize("rows", [None, 50])
def test_an_embedding_goes_and_comes_in_segments(rows: int | None, shards: int) -> None:
    transport = InProcess(shards)
    e = embedding(rows, shards, Adagrad(0.1), transport)
    ids = np.arange(50)
    e.push(ids, np.ones((50, 2), np.float32))
    saved, before = e._shards.shard_states(), e.lookup(ids)
    assert carried(transport, ReadSegment) >= 10
    e.push(ids, np.ones((50, 2), np.float32))
    e._shards.load_states(saved)
    np.testing.assert_array_equal(e.lookup(ids), before)
    assert carried(transport, PutSegment) >= 10


def test_an_embedding_without_rows_goes_and_comes() -> None:
    e = embedding(None, 3, Adagrad(0.1))
    saved = e._shards.shard_states()
    e.push([1], np.ones((1, 2), np.float32))
    e._shards.load_states(saved)
    assert e.statistics().rows == 0


class Disturbed(InProcess):
    """Servers of which something else is asked while they are read, so often."""

    def __init__(self, shards: int, asked: Callable[[str], ShardOperation]) -> None:
        super().__init__(shards)
        self._asked = asked

    times = 1

    def attempt(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        first = requests[0]
        if isinstance(first.operation, ReadSegment) and first.operation.start and self.times:
            self.times -= 1
            super().attempt([Request(first.to, self._asked(first.operation.snapshot))], seen)
        return super().attempt(requests, seen)


@pytest.mark.parametrize("asked", [lambda _: on_table("e", ClearTable()), ReleaseSnapshot])
def test_what_is_cleared_or_given_up_while_it_is_read_is_read(
    asked: Callable[[str], ShardOperation],
) -> None:
    transport = Disturbed(2, asked)
    e = embedding(50, 2, Adagrad(0.1), transport)
    e.push(np.arange(50), np.ones((50, 2), np.float32))
    for state in e._shards.shard_states():
        assert (state["slot.accumulator"] > 0).all()


def test_what_is_given_up_again_and_again_cannot_be_read() -> None:
    transport = Disturbed(1, ReleaseSnapshot)
    e = embedding(50, 1, Adagrad(0.1), transport)
    transport.times = 1000
    with pytest.raises(ServerLostError, match=r"what \['e'\] hold could not be read"):
        e._shards.shard_states()
