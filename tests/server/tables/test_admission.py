"""Tests of which ids get a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb._src.server.tables.admission import Always, CountFilter, Probability
from psnb.errors import ConfigurationError

IDS = np.arange(20_000, dtype=np.uint64)


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("shift", [0, 40])
def test_the_share_that_may_enter_is_the_probability(probability: float, shift: int) -> None:
    entered = Probability(probability).may_enter(IDS << np.uint64(shift), 7).mean()
    assert abs(entered - probability) < 5 * (probability * (1 - probability) / IDS.size) ** 0.5


def test_who_may_enter_depends_on_seed_and_id_alone() -> None:
    chance = Probability(0.5)
    together = chance.may_enter(IDS[:50], 7)
    alone = [chance.may_enter(IDS[i : i + 1], 7)[0] for i in range(50)]
    assert together.tolist() == alone
    other = chance.may_enter(IDS[:50], 8)
    assert 5 < (together != other).sum() < 45


def test_an_id_that_enters_with_less_probability_enters_with_more() -> None:
    less, more = (Probability(p).may_enter(IDS, 7) for p in (0.2, 0.6))
    assert not (less & ~more).any()


def test_everybody_may_enter_with_certainty() -> None:
    for admission in (Always(), Probability(1.0), Probability(1), CountFilter(3)):
        assert admission.may_enter(IDS, 7).all()


@pytest.mark.parametrize("bad", [0, -0.1, 1.1, "1", None, float("nan")])
def test_no_probability_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="probability must be above 0"):
        Probability(bad)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", None, 2**31])
def test_no_count_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="count must be 1 to"):
        CountFilter(bad)
