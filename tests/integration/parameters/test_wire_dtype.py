"""Parameters that travel with 16 bits, on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb.errors import ConfigurationError
from tests.integration.counting import kill, wait_until_copied

ROUNDED = 2.0**-11
ROWS, DIM = 50_000, 32


@pytest.fixture
def half(cluster: Client) -> Iterator[psnb.ParameterServerStrategy]:
    """A strategy whose floats travel with 16 bits."""
    with psnb.ParameterServerStrategy(cluster, wire_dtype="float16") as strategy:
        yield strategy


def values(shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=shape) * scale).astype(np.float32)


def test_what_is_read_is_rounded_and_what_is_assigned_and_saved_is_exact(
    half: psnb.ParameterServerStrategy, tmp_path: Path
) -> None:
    value = values((100, 3))
    v, e = half.variable(value, name="v"), half.embedding("e", 3, rows=100)
    e.assign(np.arange(100), value)
    for found in (v.read(), e.lookup(np.arange(100)), v.gather(np.arange(100))):
        assert found.dtype == np.float32
        assert not np.array_equal(found, value)
        np.testing.assert_allclose(found, value, rtol=ROUNDED)
    path = psnb.CheckpointManager(psnb.ClusterCoordinator(half), tmp_path).save()
    saved = psnb.checkpoint.load(path)
    np.testing.assert_array_equal(saved["v"], value)
    np.testing.assert_array_equal(saved["e"].lookup(np.arange(100)), value)


@pytest.mark.parametrize(
    ("mode", "share"), [(psnb.Async(), 1), (psnb.Sync(1), 1), (psnb.Geo(1), 1 / 2)]
)
def test_gradients_of_closures_are_applied_as_they_were_rounded(
    cluster: Client, mode: psnb.Async | psnb.Sync | psnb.Geo, share: float
) -> None:
    gradient = values((20, 3), 1e-9)  # too small for float16 by itself
    with psnb.ParameterServerStrategy(cluster, wire_dtype="float16", mode=mode) as half:
        v = half.variable(np.zeros((20, 3), np.float32), optimizer=psnb.SGD(1.0))
        e = half.embedding("e", 3, rows=20, initializer=0.0, optimizer=psnb.SGD(1.0))

        def step() -> None:
            psnb.pull({v: None, e: np.arange(20)})
            psnb.push({v: gradient, e: (np.arange(20), gradient)})

        coordinator = psnb.ClusterCoordinator(half)
        coordinator.schedule(step)
        coordinator.join()
        coordinator.drain()
        for found in (v.read(), e.lookup(np.arange(20))):
            np.testing.assert_allclose(found, -gradient * share, rtol=3 * ROUNDED)


def test_copies_have_what_the_servers_have(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole, wire_dtype="float16", replicas=1) as half:
        e = half.embedding("e", 3, rows=20, initializer=0.0, optimizer=psnb.Adagrad(0.1))
        for seed in range(3):
            e.push(np.arange(20), values((20, 3)) * seed)
        before = e.lookup(np.arange(20))
        wait_until_copied(half)
        kill(whole, half.server_addresses[0])
        np.testing.assert_array_equal(e.lookup(np.arange(20)), before)


def test_integers_and_double_floats_travel_as_they_are(
    half: psnb.ParameterServerStrategy,
) -> None:
    whole = half.variable(np.arange(5) * 100_003)
    double = half.variable(np.array([1.1, 2.2]), dtype=np.float64, optimizer=psnb.SGD(1.0))
    double.push(np.array([0.1, 0.2]))
    assert whole.read().tolist() == [0, 100_003, 200_006, 300_009, 400_012]
    np.testing.assert_array_equal(double.read(), np.array([1.1, 2.2]) - np.array([0.1, 0.2]))


def test_other_types_are_refused(cluster: Client) -> None:
    with pytest.raises(ConfigurationError, match="wire_dtype must be None or 'float16'"):
        psnb.ParameterServerStrategy(cluster, wire_dtype="int8")
