"""Servers outlive checkpoints that were made to harm them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import psnb
from psnb._src.client.requests import Request
from psnb._src.server.tables.operations import FinishTable, LookUpRows, on_table
from psnb.errors import CheckpointError, ConfigurationError
from tests.checkpoint.saved import manifest_of, rewrite

State = dict[str, np.ndarray]
IDS = np.arange(8)
FAR = 2**31 + 10**8
"""As occurrences of an id, it becomes a row far behind the last."""


def repeat(state: State) -> None:
    for name, array in state.items():
        if name != "step" and not name.startswith("waiting."):
            state[name] = np.repeat(array[:1], 200_000, axis=0)


def point_far(state: State) -> None:
    state["waiting.frequencies"][:] = FAR


def cast(state: State) -> None:
    state["ids"] = state["ids"].astype(np.float32)


@pytest.mark.parametrize("harm", [repeat, point_far, cast])
def test_servers_and_parameters_outlive_a_hostile_checkpoint(
    strategy: psnb.ParameterServerStrategy, tmp_path: Path, harm: Callable[[State], None]
) -> None:
    first = strategy.variable(1.0, name="first")
    admission = psnb.CountFilter(3)
    table = strategy.embedding("e", 2, optimizer=psnb.SGD(1.0), admission=admission)
    for ids in (IDS, IDS[:4], IDS[:4]):
        table.push(ids, np.ones((ids.size, 2), np.float32))
    manager = psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), tmp_path)
    path = manager.save()
    for shard, _ in enumerate(manifest_of(path).entries["e"].shards):
        rewrite(path, "e", harm, shard)
    first.assign(9.0)
    before = table.lookup(IDS, training=False)
    with pytest.raises(CheckpointError, match=r"00000-tables\.bin is damaged, where 'e' is"):
        manager.restore()
    assert first.read() == 9
    np.testing.assert_array_equal(table.lookup(IDS), before)
    assert not strategy.server_events()


def test_a_server_refuses_by_itself_what_a_checkpoint_must_not_hold(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    table = strategy.embedding("e", 2, optimizer=psnb.SGD(1.0), admission=psnb.CountFilter(3))
    shard = table._shards.shard_ids[0]
    tail = {
        "step": np.array([1]),
        "waiting.ids": np.array([7], np.uint64),
        "waiting.frequencies": np.array([FAR], np.uint32),
    }
    with pytest.raises(ConfigurationError, match=r"waiting\.frequencies of 'e'"):
        strategy._core.server_client.call([Request(shard, on_table("e", FinishTable(tail)))])
    look = Request(shard, on_table("e", LookUpRows(tail["waiting.ids"])))
    (found,) = strategy._core.server_client.call([look])
    assert not found.any()
    assert not strategy.server_events()
