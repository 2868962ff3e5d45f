"""Tests of lookups that leave no trace, through handles; servers in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.embedding import Embedding
from psnb._src.client.updates import Updates, buffered
from psnb._src.server.optimizers import SGD
from psnb._src.server.tables.admission import Admission, Always, CountFilter, Probability
from tests.client.in_process import DIM, KINDS, SHARDS, embedding

IDS = np.array([[0, 5], [2**63, 5]], np.uint64)

LOOKS: dict[str, Callable[..., Any]] = {
    "lookup": lambda e, **how: e.lookup(IDS, **how),
    "lookup_bags": lambda e, **how: e.lookup_bags(IDS.reshape(-1), [0, 3], "sum", **how),
    "pull": lambda e, **how: psnb.pull({e: IDS}, **how)[e],
}


def held(e: Embedding) -> tuple[int, int]:
    return e.statistics().rows, e.statistics().waiting


@SHARDS
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("admission", [Always(), Probability(0.5), CountFilter(1), CountFilter(2)])
def test_a_look_gives_what_training_would_and_leaves_no_trace(
    shards: int, look: str, admission: Admission
) -> None:
    e, trained = (embedding(None, shards, admission=admission) for _ in range(2))
    found = LOOKS[look](e, training=False)
    assert held(e) == (0, 0)
    np.testing.assert_array_equal(found, LOOKS[look](trained))
    np.testing.assert_array_equal(LOOKS[look](trained, training=False), found)


@SHARDS
@pytest.mark.parametrize("look", LOOKS)
def test_a_look_gives_zeros_until_an_id_was_sighted_often_enough(shards: int, look: str) -> None:
    e = embedding(None, shards, admission=CountFilter(2))
    e.lookup(IDS)
    for _ in range(3):
        assert not LOOKS[look](e, training=False).any()
    e.lookup(IDS)
    found = LOOKS[look](e, training=False)
    np.testing.assert_array_equal(found, LOOKS[look](embedding(None, shards)))


@KINDS
def test_a_look_in_a_closure_sees_what_it_has_pushed(rows: int | None) -> None:
    e = embedding(rows, 3, SGD(1.0))
    ids = np.array([[1, 2], [3, 2]]) if rows else IDS
    plain = e.lookup(ids)
    with buffered(Updates()):
        e.push(ids[0], np.ones((2, DIM), np.float32))
        seen = e.lookup(ids, training=False)
    np.testing.assert_allclose(seen, plain - [[[1], [1]], [[0], [1]]], atol=1e-6)


def test_padding_gives_zeros() -> None:
    e = embedding(None)
    e._shards.padding_idx = 5
    assert not e.lookup([5], training=False).any()
    assert e.lookup([6], training=False).any()


def test_pushing_bags_by_max_sights_their_ids_once() -> None:
    e = embedding(None, 3, SGD(1.0), admission=CountFilter(2))
    e.push_bags([1, 2], [0], np.ones((1, DIM), np.float32), "max")
    assert held(e) == (0, 2)
    e.push_bags([1, 2], [0], np.ones((1, DIM), np.float32), "max")
    assert held(e) == (2, 0)
