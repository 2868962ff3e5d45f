"""Tests of pull and push of several handles at once; servers in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.embedding import Embedding
from psnb._src.client.updates import Updates, buffered
from psnb._src.client.variable import Variable
from psnb._src.server.optimizers import SGD
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError
from tests.client.in_process import DIM, SHARDS, InProcess, embedding, variable
from tests.client.test_updates import commit

IDS = [[1, 2, 9], [4, 2, 7]]


def handles(transport: InProcess) -> tuple[Embedding, Variable, Variable]:
    """Return an embedding over all servers, a variable over all and one on the first."""
    return (
        embedding(optimizer=SGD(1.0), transport=transport, shards=len(transport.shards)),
        variable(np.zeros((6, 2)), 3, SGD(1.0), transport, name="v"),
        variable(np.zeros(4), 1, SGD(1.0), transport, name="w"),
    )


def test_pull_returns_what_each_alone_would() -> None:
    e, v, w = handles(InProcess(3))
    v.assign(np.arange(12.0).reshape(6, 2))
    found = psnb.pull({w: None, e: IDS, v: [5, 0]})
    assert list(found) == [w, e, v]
    np.testing.assert_array_equal(found[e], e.lookup(IDS))
    np.testing.assert_array_equal(found[v], v.gather([5, 0]))
    np.testing.assert_array_equal(found[w], w.read())


def test_push_does_what_each_alone_would() -> None:
    e, v, w = handles(InProcess(3))
    before = e.lookup(IDS)
    gradient = np.zeros((2, 3, DIM), np.float32)
    gradient[0] = 2
    psnb.push({e: (IDS, gradient), v: np.ones((6, 2)), w: [1.0, 2.0, 3.0, 4.0]})
    # Id 2 is there twice, with a gradient of 2 and one of 0.
    np.testing.assert_allclose(e.lookup(IDS), before - [[[2]] * 3, [[0], [2], [0]]], atol=1e-6)
    assert (v.read() == -1).all()
    assert w.read().tolist() == [-1, -2, -3, -4]


def test_all_is_asked_and_written_at_once() -> None:
    transport = InProcess(3)
    e, v, w = handles(transport)
    transport.calls = 0
    psnb.pull({e: range(10), v: None, w: None})
    assert transport.calls == 1
    transport.carried.clear()
    psnb.push({e: (range(10), np.ones((10, DIM), np.float32)), v: np.ones((6, 2)), w: np.ones(4)})
    assert transport.calls == 3  # all hold it, and then all apply it
    assert [request.to for request in transport.carried] == 2 * transport.shards


def test_a_closure_sees_what_it_pushed_and_it_is_committed_once() -> None:
    transport = InProcess(3)
    e, v, w = handles(transport)
    before = e.lookup([3])
    updates = Updates()
    with buffered(updates):
        psnb.push({e: ([3], np.ones((1, DIM), np.float32)), v: np.ones((6, 2))})
        found = psnb.pull({e: [3], v: None, w: None})
    np.testing.assert_allclose(found[e], before - 1)
    assert (found[v] == -1).all()
    assert not v.read().any()
    for _ in range(2):
        commit(updates, transport)
    assert (v.read() == -1).all()


@SHARDS
def test_a_closure_sees_what_it_pushed_where_rows_travel_with_16_bits(shards: int) -> None:
    transport = InProcess(shards)
    several = [
        embedding(shards=shards, optimizer=SGD(1.0), transport=transport, name=name, half=half)
        for name, half in (("a", True), ("b", True), ("c", False))
    ]
    before = psnb.pull({each: [3, 4] for each in several})
    with buffered(Updates()):
        psnb.push({e: ([3], np.ones((1, DIM), np.float32)) for e in several[1:]})
        found = psnb.pull({each: [3, 4] for each in several})
    for e, pushed in zip(several, (0, 1, 1), strict=True):
        assert found[e].dtype == np.float32
        np.testing.assert_allclose(found[e], before[e] - [[pushed], [0]], atol=1e-3)


def test_handles_of_several_strategies_go_together() -> None:
    (e, _, _), (_, v, _) = handles(InProcess(3)), handles(InProcess(3))
    psnb.push({e: ([3], np.ones((1, DIM), np.float32)), v: np.ones((6, 2))})
    found = psnb.pull({e: [3], v: None})
    assert (found[v] == -1).all()
    np.testing.assert_array_equal(found[e], e.lookup([3]))


def test_nothing_is_pulled_and_pushed_without_a_request() -> None:
    assert psnb.pull({}) == {}
    psnb.push({})


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (([10], np.ones((1, DIM), np.float32)), IdOutOfRangeError, "found id 10"),
        (([1], np.ones((1, DIM))), InvalidArrayError, "expected dtype float32"),
        (np.ones((1, DIM)), InvalidArrayError, r"expected \(ids, gradients\) for embedding 'e'"),
    ],
)
def test_a_bad_push_is_refused_whole(bad: Any, error: type[Exception], message: str) -> None:
    transport = InProcess(3)
    e, v, _ = handles(transport)
    transport.carried.clear()
    with pytest.raises(error, match=message):
        psnb.push({v: np.ones((6, 2)), e: bad})
    assert not transport.carried


@pytest.mark.parametrize("call", [psnb.pull, psnb.push])
def test_keys_that_are_no_handles_are_refused(call: Any) -> None:
    with pytest.raises(ConfigurationError, match="variables and embeddings as keys, found 'e'"):
        call({"e": [1]})
