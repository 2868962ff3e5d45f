"""Tests of admission, use and removal of rows through handles; servers in this process."""

from __future__ import annotations

from typing import Any

import cloudpickle
import numpy as np
import pytest

import psnb
from psnb._src.client.embedding import EmbeddingStatistics
from psnb._src.client.updates import Updates, buffered
from psnb._src.server.optimizers import SGD, Adagrad
from psnb._src.server.tables.admission import CountFilter, Probability
from psnb._src.server.tables.checks import SavedShard, check_saved, check_saved_parts
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.saved_files import ArraysInMemory
from psnb.errors import ConfigurationError, InvalidArrayError
from tests.client.in_process import DIM, SHARDS, InProcess, embedding
from tests.client.test_updates import commit

IDS = [0, 5, 2**63, 2**64 - 1]
ONES = np.ones((4, DIM), np.float32)


def ctr(shards: int = 3, **more: Any) -> psnb.Embedding:
    return embedding(None, shards, SGD(1.0), accessor=CtrAccessor(), **more)


@SHARDS
def test_shows_and_clicks_are_counted_by_id(shards: int) -> None:
    e = ctr(shards)
    e.push(IDS, ONES, shows=[10, 20, 0, 5], clicks=[1, 2, 0, 5])
    e.push([IDS[:2]], ONES[None, :2])  # a show each, no click
    found = e.row_use([[5, 0], [2**64 - 1, 77]])
    assert found.show.tolist() == [[21, 11], [5, 0]]
    assert found.click.tolist() == [[2, 1], [5, 0]]
    np.testing.assert_allclose(found.score, [[3.9, 2.0], [5.0, 0.0]], rtol=1e-6)
    assert e.statistics().rows == 4  # to ask makes none


@SHARDS
def test_rows_of_a_low_score_or_long_unseen_are_removed(shards: int) -> None:
    e = ctr(shards)
    e.push(IDS, ONES, shows=[100, 100, 1, 100])
    assert e.shrink() == 1
    for _ in range(31):
        e.end_day()
        e.push([0], ONES[:1])
    assert e.row_use([5, 0]).unseen_days.tolist() == [31, 0]
    assert e.shrink(delete_after_unseen_days=31) == 0
    assert e.shrink() == 2
    assert e.statistics().rows == 1
    fresh = embedding(None, 1).lookup([5])
    np.testing.assert_array_equal(e.lookup([5]), fresh)  # starts anew


def test_thresholds_may_be_given() -> None:
    e = ctr()
    e.push(IDS, ONES, shows=[10, 20, 30, 40])
    assert e.shrink(delete_threshold=2.5) == 2
    assert e.shrink(delete_threshold=0, delete_after_unseen_days=0) == 0


@SHARDS
def test_statistics_tell_rows_and_who_waits(shards: int) -> None:
    e = ctr(shards, admission=CountFilter(2))
    e.lookup(range(1000))
    assert (e.statistics().rows, e.statistics().waiting) == (0, 1000)
    e.lookup(range(400))
    found = e.statistics()
    assert isinstance(found, EmbeddingStatistics)
    assert (found.rows, found.waiting) == (400, 600)
    assert found.nbytes - found.index_nbytes == 400 * (DIM * 4 + 12)  # values and use
    e.shrink(forget_waiting=True)
    assert (e.statistics().rows, e.statistics().waiting) == (0, 0)


def test_statistics_tell_what_is_on_disk() -> None:
    e = ctr(storage="disk")
    e.push(range(400), np.ones((400, DIM), np.float32))
    assert e.statistics().disk_nbytes == 400 * (DIM * 4 + 12)
    assert e.statistics().nbytes == e.statistics().index_nbytes
    assert ctr().statistics().disk_nbytes == 0


def test_admission_by_chance_is_the_same_on_any_number_of_servers() -> None:
    few, many = (embedding(None, n, admission=Probability(0.5)) for n in (1, 3))
    ids = np.arange(200) << 40
    found = few.lookup(ids)
    np.testing.assert_array_equal(found, many.lookup(ids))
    admitted = found.any(axis=1)
    assert 50 < admitted.sum() < 150
    np.testing.assert_array_equal(found[admitted], embedding(None, 1).lookup(ids)[admitted])


def test_bags_count_their_ids() -> None:
    e = ctr()
    e.push_bags(
        [1, 1, 2, 2, 3], [0, 3], np.ones((2, DIM), np.float32), shows=[10, 1], clicks=[1, 0]
    )
    found = e.row_use([1, 2, 3])
    assert found.show.tolist() == [20, 11, 1]
    assert found.click.tolist() == [2, 1, 0]
    e.push_bags([3], [0], np.ones((1, DIM), np.float32))
    assert e.row_use(3).show == 2


def test_padding_and_gradients_left_out() -> None:
    e = ctr(nonfinite="skip")
    e._shards.padding_idx = 5
    gradients = ONES.copy()
    gradients[0] = np.nan
    e.push(IDS, gradients)
    assert e.row_use(IDS).show.tolist() == [0, 0, 1, 1]  # 0 has no row, 5 is padding
    assert e.skipped() == 1


def test_use_is_pushed_with_others_in_one_round_trip() -> None:
    transport = InProcess(1)
    e = ctr(1, transport=transport)
    transport.carried.clear()
    psnb.push({e: (IDS, ONES, [3] * 4, [1] * 4)})
    e.push(IDS, ONES)
    assert len(transport.carried) == 2
    assert e.row_use(0).show == 4


def test_what_a_closure_pushes_is_counted_once_at_its_end() -> None:
    transport = InProcess(3)
    e = ctr(transport=transport, admission=CountFilter(2))
    e.lookup(IDS)
    updates = Updates()
    with buffered(updates):
        e.push(IDS[:2], ONES[:2])
        assert not e.lookup([2**40]).any()
    assert e.statistics().rows == 0
    for _ in range(2):
        commit(updates, transport)
    assert e.statistics().rows == 2
    assert e.row_use(IDS).show.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (2, 3)])
def test_all_state_loads_onto_any_number_of_servers(before: int, after: int) -> None:
    def made(shards: int) -> psnb.Embedding:
        return embedding(
            None, shards, Adagrad(0.5), admission=CountFilter(3), accessor=CtrAccessor()
        )

    saved, restored = made(before), made(after)
    for number in range(1, 4):
        saved.push(IDS[:number], ONES[:number], [5] * number)
    saved.end_day()
    restored.push([77], ONES[:1])  # is forgotten
    states = saved._shards.shard_states()
    for shard, state in enumerate(states):
        arrays = ArraysInMemory(state)
        saved_shard = SavedShard(shard, before, arrays.forms, arrays.read)
        check_saved(restored._shards.saved_form, saved_shard)
        check_saved_parts(restored._shards.saved_form, [saved_shard])
    restored._shards.load_states(states)
    for e in (saved, restored):
        e.push(IDS, ONES)  # the second id is admitted by it
    assert (restored.statistics().rows, restored.statistics().waiting) == (2, 2)
    np.testing.assert_array_equal(restored.lookup(IDS), saved.lookup(IDS))
    for name in ("show", "click", "unseen_days", "score"):
        found, expected = (getattr(e.row_use(IDS), name) for e in (restored, saved))
        np.testing.assert_array_equal(found, expected)


def test_pickled_handles_keep_admission_and_accessor() -> None:
    e = cloudpickle.loads(cloudpickle.dumps(ctr(admission=CountFilter(2))))
    assert (e.admission, e.accessor) == (CountFilter(2), CtrAccessor())


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.push([1], ONES[:1], shows=[1]),
        lambda e: e.push([1], ONES[:1], clicks=[1]),
        lambda e: e.push_bags([1], [0], ONES[:1], shows=[1]),
        lambda e: e.row_use([1]),
        lambda e: e.end_day(),
        lambda e: e.shrink(),
    ],
)
def test_use_needs_an_accessor(call: Any) -> None:
    e = embedding(None, optimizer=SGD())
    with pytest.raises(ConfigurationError, match=r"make it with accessor=psnb.CtrAccessor\(\)"):
        call(e)
    assert e.statistics().rows == 0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1, 2], r"shows for embedding 'e': expected shape \(4,\), found \(2,\)"),
        ([1, 2, 3, -1], "expected finite numbers not below 0"),
        ([1, 2, 3, float("nan")], "expected finite numbers not below 0"),
        (["a"] * 4, "expected finite numbers not below 0"),
    ],
)
def test_bad_shows_are_refused_before_anything_is_sent(bad: Any, message: str) -> None:
    transport = InProcess(3)
    e = ctr(transport=transport)
    transport.carried.clear()
    with pytest.raises(InvalidArrayError, match=message):
        e.push(IDS, ONES, shows=bad)
    assert not transport.carried
