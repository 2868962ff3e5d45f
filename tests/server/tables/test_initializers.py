"""Tests of the first values of rows: reproducible, and of the right distribution."""

import math

import numpy as np
import pytest

from psnb._src.server.tables.initializers import (
    INITIALIZERS,
    Constant,
    Initializer,
    Normal,
    Uniform,
)
from psnb._src.utils.config import from_config
from psnb.errors import ConfigurationError

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MANY = np.arange(20_000, dtype=np.uint64)
RANDOM = [Uniform(), Normal()]


def rows(initializer: Initializer, ids: object, dim: int = 4, seed: int = 1) -> np.ndarray:
    ids = np.asarray(ids, np.uint64)
    out = np.full((ids.size, dim), np.nan, np.float64)
    initializer.fill(out, ids, seed)
    return out


def mix(x: int) -> int:
    """SplitMix64's output function, in whole numbers of Python."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


@pytest.mark.parametrize("initializer", RANDOM)
def test_row_depends_on_seed_and_id_alone(initializer: Initializer) -> None:
    ids = [2**64 - 1, 5, 0, 2**63]
    alone = np.concatenate([rows(initializer, [i]) for i in ids])
    np.testing.assert_array_equal(rows(initializer, ids), alone)


@pytest.mark.parametrize("initializer", RANDOM)
def test_first_columns_are_the_same_in_a_wider_table(initializer: Initializer) -> None:
    np.testing.assert_array_equal(
        rows(initializer, [3, 4], dim=6)[:, :2], rows(initializer, [3, 4], dim=2)
    )


@pytest.mark.parametrize("initializer", RANDOM)
def test_rows_of_different_seeds_differ(initializer: Initializer) -> None:
    assert (rows(initializer, MANY, seed=1) != rows(initializer, MANY, seed=2)).all()


@pytest.mark.parametrize("initializer", RANDOM)
def test_rows_and_columns_differ_from_each_other(initializer: Initializer) -> None:
    values = rows(initializer, MANY)
    assert np.unique(values).size == values.size


def test_uniform_is_splitmix_of_seed_id_and_column() -> None:
    seed, ids = 2**64 - 5, [0, 1, 2**63 + 7]
    keys = [mix(mix((i + GOLDEN) & MASK) ^ seed) for i in ids]
    expected = [[(mix((k + GOLDEN * j) & MASK) >> 11) / 2**53 for j in (1, 2)] for k in keys]
    np.testing.assert_array_equal(rows(Uniform(0, 1), ids, dim=2, seed=seed), expected)


def test_uniform_fills_its_range_evenly() -> None:
    values = rows(Uniform(-2.0, 6.0), MANY)
    assert values.min() >= -2.0
    assert values.max() < 6.0
    counts, _ = np.histogram(values, 16, (-2.0, 6.0))
    assert abs(counts / (values.size / 16) - 1).max() < 0.06  # 4 standard deviations


def test_normal_has_the_mean_and_deviation_asked_for() -> None:
    values = rows(Normal(mean=3.0, stddev=0.5), MANY)
    standard = (values - 3.0) / 0.5
    assert abs(standard.mean()) < 4 / math.sqrt(values.size)
    assert abs((standard**2).mean() - 1) < 4 * math.sqrt(2 / values.size)
    assert abs((standard**4).mean() - 3) < 4 * math.sqrt(96 / values.size)


@pytest.mark.parametrize("initializer", RANDOM)
def test_neighbouring_rows_and_columns_are_uncorrelated(initializer: Initializer) -> None:
    values = rows(initializer, MANY)
    bound = 4 / math.sqrt(len(values))
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < bound
    assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < bound


def test_constant_fills_with_its_value() -> None:
    assert (rows(Constant(2.5), [0, 9]) == 2.5).all()


def test_float32_rows_are_the_float64_rows_rounded() -> None:
    out = np.empty((MANY.size, 4), np.float32)
    Uniform(0, 1).fill(out, MANY, 1)
    np.testing.assert_array_equal(out, rows(Uniform(0, 1), MANY).astype(np.float32))


HUGE = pytest.param(10**400, id="more than a float holds")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "0", None, 1j, HUGE])
@pytest.mark.parametrize("kind", [Constant, Uniform, Normal])
def test_parameter_that_is_no_finite_number_is_refused(kind: type, bad: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"{kind.__name__}\(\w+=.*finite number"):
        kind(bad)


@pytest.mark.parametrize("kind", [Constant, Uniform, Normal])
def test_parameters_of_which_rows_would_be_infinite_are_refused(kind: type) -> None:
    with pytest.raises(ConfigurationError, match=r"\(\w+=-2e\+36\): \w+ must be within ±1e\+36"):
        kind(-2e36)
    out = np.empty((MANY.size, 4), np.float32)
    largest = kind(*[1e36] * len(vars(kind()).keys() - {"seed"}))
    largest.fill(out, MANY, 1)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("kind", [Uniform, Normal])
def test_a_seed_of_its_own_takes_the_place_of_the_tables(kind: type) -> None:
    ids, found = np.arange(5, dtype=np.uint64), np.empty((4, 5, 3))
    for out, seed, table in zip(found, (1, 1, 2, None), (7, 8, 7, 1), strict=True):
        kind(0.0, 1.0, seed=seed).fill(out, ids, table)
    assert (found[0] == found[1]).all()
    assert (found[0] != found[2]).all()
    assert (found[0] == found[3]).all()  # as of a table with this seed
    with pytest.raises(ConfigurationError, match="seed must be 0 to"):
        kind(seed=-1)
    with pytest.raises(ConfigurationError, match="seed must be 0 to"):
        kind(seed="one")


def test_a_description_has_a_seed_only_if_there_is_one() -> None:
    assert Uniform().describe() == {"name": "Uniform", "low": -0.05, "high": 0.05}
    for each in (Uniform(), Normal(seed=3)):
        assert from_config("it", each.describe(), INITIALIZERS) == each
