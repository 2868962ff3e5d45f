"""Checks of numbers that users pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.arguments import as_padding, check_rows
from psnb._src.coordinator.closures.options import ScheduleOptions
from psnb._src.coordinator.scheduling.gates import RoundGate, gate_for
from psnb._src.coordinator.settings import Settings
from psnb._src.data.formats.text import TextLines
from psnb._src.utils.checks import integer, is_number, period, seconds
from psnb.errors import ConfigurationError


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2)])
def test_whole_numbers_become_ints(value: Any) -> None:
    found = integer("x", value, 1)
    assert found == 2
    assert type(found) is int


@pytest.mark.parametrize("value", [True, 1.0, "1", None, np.float32(1), np.array([1, 2]), int])
def test_what_is_not_a_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="x must be 1 or more and whole, found"):
        integer("x", value, 1)


@pytest.mark.parametrize("value", [0, 10, 10**30])
def test_what_is_out_of_bounds_is_refused(value: int) -> None:
    with pytest.raises(ConfigurationError, match=f"x must be 1 to 9, found {value}"):
        integer("x", value, 1, 9)


@pytest.mark.parametrize("value", [True, math.nan, np.float64("nan"), "1", 1j, None])
def test_what_is_not_a_number_is_none(value: Any) -> None:
    assert not is_number(value)


def test_seconds_are_above_0_unless_0_will_do() -> None:
    assert seconds("x", np.float32(0.5)) == 0.5
    assert seconds("x", 0, zero=True) == 0.0
    for value in (0, -1, math.inf, 10**400, True):
        with pytest.raises(ConfigurationError, match="x must be a positive number of seconds"):
            seconds("x", value)


def test_seconds_may_be_infinite_where_that_means_for_ever() -> None:
    assert seconds("x", math.inf, zero=True, infinite=True) == math.inf
    with pytest.raises(ConfigurationError, match="x must be 0 or more seconds"):
        seconds("x", -math.inf, zero=True, infinite=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda: psnb.FixedShards(True),
        lambda: psnb.CountFilter(True),
        lambda: psnb.Probability(True),
        lambda: psnb.CtrAccessor(click_coeff=True),
        lambda: psnb.Sync(True),
        lambda: psnb.local_cluster(workers=True),
        lambda: psnb.data.Dataset.text_lines(__file__, max_record_bytes=True),
        lambda: psnb.data.Dataset.range(3).batch(True),
        lambda: psnb.data.Dataset.range(True),
        lambda: psnb.data.Dataset.range(3).shuffle(3, seed=True),
        lambda: psnb.SGD(True),
        lambda: psnb.SGD(0.1, clipnorm=True),
        lambda: psnb.Constant(True),
        lambda: check_rows("e", True, None),
        lambda: check_rows("e", 1, True),
        lambda: as_padding(True, "e", None),
        lambda: psnb.prefetch([], dict, True),
        lambda: ScheduleOptions(retries=True),
    ],
)
def test_true_is_not_taken_for_1(call: Any) -> None:
    with pytest.raises(ConfigurationError):
        call()


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (psnb.Sync(np.int64(4)), "closures"),
        (psnb.FixedShards(np.uint8(4)), "shards"),
        (psnb.CountFilter(np.int64(4)), "count"),
        (TextLines(max_record_bytes=np.int64(4)), "max_record_bytes"),
        (ScheduleOptions(priority=np.uint8(4)), "priority"),
        (ScheduleOptions(worker=np.int64(4)), "worker"),
        (Settings(max_queue_size=np.int64(4)), "max_queue_size"),
    ],
)
def test_numbers_of_numpy_are_kept_as_those_of_python(made: Any, name: str) -> None:
    assert type(getattr(made, name)) is int


def test_a_round_of_a_number_of_numpy_is_one() -> None:
    assert isinstance(gate_for(psnb.Sync(np.int64(4))), RoundGate)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        *((90, 90), (0.5, 0.5), ("90 s", 90), ("5 min", 300), ("5min", 300), (" 1.5 h ", 5400)),
        ("2 d", 172_800),
    ],
)
def test_a_period_is_seconds_or_a_number_and_its_unit(given: Any, seconds: float) -> None:
    assert period("every", given) == seconds


@pytest.mark.parametrize(
    "given", ["5", "min", "5 m", "5 minutes", "-5 min", "1 h 30 min", "", "1e3 s", "\u0665 s"]
)
def test_another_text_is_no_period_and_the_error_shows_some(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"every must be seconds, or .* '5 min'.* found"):
        period("every", given)


@pytest.mark.parametrize("given", [0, -1, True, None, float("inf"), float("nan"), "0 s"])
def test_a_period_is_positive_and_finite(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="every must be a positive number of seconds"):
        period("every", given)
