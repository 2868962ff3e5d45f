"""Tests of embeddings of half width: what is seen, what travels, what is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnb._src.client.handles import shards_of
from psnb._src.server.optimizers import Adagrad, RowWiseAdagrad
from psnb._src.transport.message import Float16Message
from psnb.errors import CheckpointError, InvalidArrayError
from tests.client.in_process import DIM, InProcess, embedding

IDS = np.arange(30)


class Seen(InProcess):
    """Keeps what servers have answered."""

    answers: list[Any]

    def call(self, requests: Any, *more: Any) -> list[Any]:
        self.answers = super().call(requests, *more)
        return self.answers


@pytest.mark.parametrize("half", [False, True])
def test_rows_are_seen_as_float32_and_travel_in_their_own_width(half: bool) -> None:
    transport = Seen(3)
    made = embedding(None, optimizer=Adagrad(0.1), transport=transport, dtype="bfloat16", half=half)
    found = made.lookup(IDS)
    assert [each.dtype for each in transport.answers] == [np.dtype("bfloat16")] * 3
    assert not any(isinstance(each, Float16Message) for each in transport.answers)
    assert (found.dtype, made.dtype, made.stored_dtype) == (np.float32, np.float32, "bfloat16")
    made.push(IDS, np.ones((30, DIM), np.float32))
    np.testing.assert_allclose(made.lookup(IDS), found - 0.1, atol=2e-3)
    assert "bfloat16" in repr(made)


def test_rows_that_are_assigned_are_the_nearest() -> None:
    made = embedding(None, dtype="float16")
    rows = np.full((30, DIM), 0.1, np.float32)
    made.assign(IDS, rows)
    np.testing.assert_array_equal(made.lookup(IDS), rows.astype(np.float16))


def test_gradients_are_those_of_what_was_looked_up() -> None:
    made = embedding(None, optimizer=Adagrad(0.1), dtype="bfloat16")
    with pytest.raises(InvalidArrayError, match="expected dtype float32, found bfloat16"):
        made.push(IDS, np.ones((30, DIM), "bfloat16"))


def test_bags_are_summed_in_float32() -> None:
    made = embedding(None, dtype="bfloat16")
    found = made.lookup_bags(IDS, [0, 10], combiner="sum")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], made.lookup(IDS)[:10].sum(0), rtol=1e-6)


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_a_checkpoint_has_the_same_bits_in_any_number_of_shards(
    shards: int, tmp_path: Path
) -> None:
    from tests.checkpoint.test_restoring import Model

    how: dict[str, Any] = {"dtype": "bfloat16", "optimizer": RowWiseAdagrad(0.1)}
    old = embedding(None, **how)
    old.push(IDS, np.ones((30, DIM), np.float32))
    Model(tmp_path, e=old).manager.save()
    new = embedding(None, shards, **how)
    Model(tmp_path, e=new).manager.restore()
    np.testing.assert_array_equal(new.lookup(IDS), old.lookup(IDS))
    state = shards_of(new).shard_states()[0]
    assert state["slot.accumulator"].shape == (len(state["ids"]), 1)


@pytest.mark.parametrize("other", [{}, {"dtype": "bfloat16", "slot_dtype": "float16"}])
def test_another_width_is_not_restored(other: dict[str, Any], tmp_path: Path) -> None:
    from tests.checkpoint.test_restoring import Model

    Model(tmp_path, e=embedding(None, dtype="bfloat16", optimizer=Adagrad())).manager.save()
    new = Model(tmp_path, e=embedding(None, optimizer=Adagrad(), **other))
    with pytest.raises(CheckpointError, match="dtype"):
        new.manager.restore()


def test_bags_whose_sums_are_more_bytes_than_rows_of_half_width_travel_as_rows() -> None:
    ids, starts = np.arange(180), np.arange(0, 180, 10)
    answers = {}
    for dtype in ("float32", "bfloat16"):
        transport = Seen(1)
        made = embedding(None, 1, transport=transport, dtype=dtype)
        made.lookup_bags(ids, starts, combiner="sum")
        answers[dtype] = transport.answers[0].shape[0]
    assert answers == {"float32": 18, "bfloat16": 180}
