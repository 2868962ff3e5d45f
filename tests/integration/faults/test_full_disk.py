"""Servers whose disk is full: what has no place there is refused, and all else goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pytest

import psnb
from psnb import errors
from tests.conftest import DEADLINE
from tests.utils.small_disk import small_disk

pytestmark = pytest.mark.second_tier("tests/server/test_disk.py has a disk that is full")

DIM, SOME, MANY = 64, 2_000, 200_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, 16) as place:
        yield place


def free(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_push_that_the_disk_has_no_place_for_changes_nothing(small: Path, replicas: int) -> None:
    with (
        dask.config.set({"temporary-directory": str(small)}),
        psnb.local_cluster(workers=1, servers=2) as client,
        psnb.ParameterServerStrategy(client, replicas=replicas) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        count = strategy.variable(np.int64(0), "count")
        table = strategy.embedding("t", DIM, optimizer=psnb.Adagrad(0.1), storage="disk")

        def step(first: int, stop: int) -> None:
            count.assign_add(np.int64(1))
            table.push(range(first, stop), np.ones((stop - first, DIM), np.float32))

        coordinator.schedule(step, (0, SOME)).fetch(DEADLINE)
        before, left = table.lookup(range(SOME)), free(small)
        for _ in range(2):
            with pytest.raises(errors.ServerMemoryError, match=r"of 't'.*--local-directory"):
                coordinator.schedule(step, (SOME, SOME + MANY)).fetch(DEADLINE)
            with pytest.raises(errors.ServerMemoryError):
                coordinator.join(DEADLINE)
        with pytest.raises(errors.ServerMemoryError):
            table.lookup(range(SOME, SOME + MANY))
        assert int(count.read()) == 1
        assert table.statistics().rows == SOME
        np.testing.assert_array_equal(table.lookup(range(SOME), training=False), before)
        # What was promised for the first may be left for the next.
        assert free(small) > left - (4 << 20)
        coordinator.schedule(step, (SOME, SOME + 100)).fetch(DEADLINE)
        coordinator.join(DEADLINE)
        assert table.statistics().rows == SOME + 100
        assert strategy.replicas_complete
