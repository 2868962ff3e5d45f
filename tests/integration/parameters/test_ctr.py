"""Click-through-rate tables on a real cluster: from closures, and over a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb.errors import ConfigurationError
from tests.conftest import DEADLINE

OLD, NEW = 2**64 - 1, 7


def test_a_ctr_table_in_closures_and_over_a_checkpoint(cluster: Client, tmp_path: Path) -> None:
    def made(strategy: psnb.ParameterServerStrategy) -> psnb.Embedding:
        return strategy.embedding(
            "ids",
            4,
            optimizer=psnb.Adagrad(0.5),
            padding_idx=0,
            admission=psnb.CountFilter(4),
            accessor=psnb.CtrAccessor(),
        )

    with psnb.ParameterServerStrategy(cluster) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        e, v = made(strategy), strategy.variable(np.zeros((3, 2)), optimizer=psnb.SGD(1.0))

        def step(ids: list[int]) -> None:
            found = psnb.pull({e: ids, v: None})
            psnb.push({e: (ids, found[e] + 1, [10] * len(ids), [1] * len(ids)), v: found[v] - 1})
            v.scatter_add([2], [[1.0, 1.0]])
            bags = e.lookup_bags(ids, [0], "sum")
            e.push_bags(ids, [0], bags, "sum")

        for _ in range(4):
            coordinator.schedule(step, ([0, OLD],))
        coordinator.schedule(step, ([NEW],))
        coordinator.join(DEADLINE)
        # An id is sighted by two lookups and two pushes of a step. Admission comes with the last.
        assert (e.statistics().rows, e.statistics().waiting) == (2, 0)
        assert e.row_use([OLD]).show > 0
        e.lookup([8])
        e.end_day()
        expected, use = e.lookup([OLD, NEW, 0]), e.row_use([OLD, NEW])
        assert expected[:2].any(axis=1).all()
        assert not expected[2].any()
        saved = psnb.CheckpointManager(coordinator, tmp_path).save()
        coordinator.close()
    with psnb.ParameterServerStrategy(cluster, num_servers=1) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        e = made(strategy)
        psnb.CheckpointManager(coordinator, tmp_path).restore(saved, names=e.name)
        np.testing.assert_array_equal(e.lookup([OLD, NEW, 0]), expected)
        np.testing.assert_array_equal(e.row_use([OLD, NEW]).score, use.score)
        assert (e.statistics().rows, e.statistics().waiting) == (2, 1)
        assert e.shrink(delete_threshold=100, forget_waiting=True) == 2
        assert (e.statistics().rows, e.statistics().waiting) == (0, 0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rows": 10, "admission": psnb.CountFilter(2)}, "admission is for rows=None"),
        ({"rows": 10, "accessor": psnb.CtrAccessor()}, "accessor is for rows=None"),
        ({"admission": 0.5}, "admission must be psnb.Always"),
        ({"accessor": True}, "accessor must be a psnb.CtrAccessor"),
        ({"storage": "ssd"}, "storage must be 'memory' or 'disk', found 'ssd'"),
        ({"padding_idx": 1.5}, "padding_idx must be an id or None"),
        ({"rows": 10, "padding_idx": 10}, "ids are 0 to 9"),
    ],
)
def test_what_an_embedding_cannot_have_is_refused(
    strategy: psnb.ParameterServerStrategy, more: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigurationError, IndexError), match=message):
        strategy.embedding("e", 2, **more)
    assert not strategy.parameters
