"""Parameters fetched ahead: when, and what is in them. Servers in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.embedding import Embedding
from psnb._src.client.requests import Request
from psnb._src.client.updates import Updates, buffered
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit
from psnb._src.server.optimizers import SGD
from psnb.errors import ConfigurationError, InvalidArrayError, ServerLostError
from tests.client.in_process import DIM, KINDS, InProcess, embedding, variable

DEPTHS = pytest.mark.parametrize("depth", [0, 1, 3])


def work_through(steps: Iterator[tuple[Any, Any]]) -> tuple[list[Any], Exception | None]:
    """Return the batches that came, and the error after them."""
    done = []
    try:
        for batch, _ in steps:
            done.append(batch)
    except Exception as error:
        return done, error
    return done, None


def prefetch_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("psnb-prefetch")]


@DEPTHS
@KINDS
def test_batches_come_in_order_with_what_pull_returns(rows: int | None, depth: int) -> None:
    transport = InProcess(3)
    e, v = embedding(rows, transport=transport), variable(np.arange(6.0), transport=transport)
    batches = [[1, 2], [3], [], [2, 2, 9]]
    seen = []
    for batch, found in psnb.prefetch(batches, lambda batch: {e: batch, v: None}, depth):
        seen.append(batch)
        np.testing.assert_array_equal(found[e], e.lookup(np.array(batch, np.int64)))
        np.testing.assert_array_equal(found[v], v.read())
    assert seen == batches


@DEPTHS
def test_no_batches_are_no_steps(depth: int) -> None:
    assert list(psnb.prefetch([], dict, depth)) == []


@DEPTHS
@pytest.mark.parametrize("held_back", [True, False])
def test_writes_are_seen_that_were_made_before_a_batch_was_asked_for(
    depth: int, held_back: bool
) -> None:
    e = embedding(shards=1, optimizer=SGD(1.0))
    before = e.lookup([4])
    updates, moved = Updates(), []
    with buffered(updates):
        for _, found in psnb.prefetch(range(6), lambda _: {e: [4]}, depth):
            moved.append(round(float((found[e] - before)[0, 0])))
            e.push([4], -np.ones((1, DIM), np.float32), immediate=not held_back)
    if held_back or depth == 0:
        assert moved == [max(0, step - depth) for step in range(6)]
    else:
        assert all(max(0, step - depth) <= each <= step for step, each in enumerate(moved))
    updates.commit(e._shards.server_client, Commit("a", 0))
    np.testing.assert_allclose(e.lookup([4]) - before, 6, rtol=1e-6)


class Watched(InProcess):
    """Notes each call, and fails from a certain one on."""

    def __init__(self) -> None:
        super().__init__(1)
        self.called = threading.Condition()
        self.fails_from = 1000

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        with self.called:
            found = super().call(requests, seen)
            self.called.notify_all()
            if self.calls >= self.fails_from:
                raise ServerLostError("gone")
            return found

    def wait_for_calls(self, count: int) -> bool:
        with self.called:
            return self.called.wait_for(lambda: self.calls >= count, 10)


@pytest.fixture
def watched() -> tuple[Watched, Embedding]:
    transport = Watched()
    made = embedding(shards=1, transport=transport)
    transport.calls = 0
    return transport, made


@DEPTHS
def test_so_many_batches_are_asked_for_while_one_is_worked_on(
    watched: tuple[Watched, Embedding], depth: int
) -> None:
    transport, e = watched
    for step, _ in psnb.prefetch(range(6), lambda _: {e: [1]}, depth):
        expected = min(6, step + 1 + depth)
        assert transport.wait_for_calls(expected)
        assert transport.calls == expected


def test_the_error_of_a_lost_server_is_raised_when_the_batch_is_due(
    watched: tuple[Watched, Embedding],
) -> None:
    transport, e = watched
    transport.fails_from = 3
    done, error = work_through(psnb.prefetch(range(6), lambda _: {e: [1]}, 2))
    assert isinstance(error, ServerLostError)
    assert done == [0, 1]
    assert not prefetch_threads()


@DEPTHS
def test_an_error_of_the_dataset_is_raised_after_the_batches_before(depth: int) -> None:
    def batches() -> Iterator[int]:
        yield from range(3)
        raise KeyError("torn file")

    e = embedding(shards=1)
    done, error = work_through(psnb.prefetch(batches(), lambda _: {e: [1]}, depth))
    assert isinstance(error, KeyError)
    assert done == [0, 1, 2]


@DEPTHS
def test_the_error_of_a_batch_is_raised_when_it_is_due(depth: int) -> None:
    e = embedding(shards=1)
    done, error = work_through(
        psnb.prefetch(range(4), lambda i: {e: [0.5] if i == 2 else [1]}, depth)
    )
    assert isinstance(error, InvalidArrayError)
    assert done == [0, 1]


def test_batches_are_taken_and_asked_about_in_the_thread_of_the_loop() -> None:
    e, threads = embedding(shards=1), set()

    def batches() -> Iterator[int]:
        for step in range(3):
            threads.add(threading.current_thread())
            yield step

    def wanted(_: int) -> dict[Embedding, list[int]]:
        threads.add(threading.current_thread())
        return {e: [1]}

    list(psnb.prefetch(batches(), wanted))
    assert threads == {threading.current_thread()}


def test_its_thread_ends_when_the_loop_is_left() -> None:
    e = embedding(shards=1)
    for _ in psnb.prefetch(range(100), lambda _: {e: [1]}):
        assert len(prefetch_threads()) == 1
        break
    assert not prefetch_threads()


def test_its_thread_ends_when_it_is_closed() -> None:
    e = embedding(shards=1)
    ahead = psnb.prefetch(range(100), lambda _: {e: [1]})
    next(ahead)
    assert len(prefetch_threads()) == 1
    ahead.close()  # type: ignore[attr-defined]
    assert not prefetch_threads()


@pytest.mark.parametrize("depth", [-1, 0.5, None])
def test_a_bad_depth_is_refused_at_once(depth: Any) -> None:
    with pytest.raises(ConfigurationError, match="0 or more"):
        psnb.prefetch([], dict, depth)
