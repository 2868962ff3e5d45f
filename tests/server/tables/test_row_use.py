"""Tests of how the use of rows is scored: defaults are Paddle's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb._src.server.tables.row_use import CtrAccessor, RowUse
from psnb.errors import ConfigurationError


def recorded(shows: list[float], clicks: list[float]) -> RowUse:
    use = RowUse(CtrAccessor())
    use.grow(len(shows))
    rows = np.arange(len(shows))
    use.record(rows, np.array(shows, np.float32), np.array(clicks, np.float32))
    return use


def test_a_click_counts_ten_shows() -> None:
    score = CtrAccessor().score(np.array([10.0, 1.0, 5.0]), np.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(score, [1.0, 1.0, 2.3])


def test_shows_of_equal_rows_add_up() -> None:
    use = recorded([0.0], [0.0])
    use.record(np.zeros(3, np.int64), np.ones(3, np.float32), np.zeros(3, np.float32))
    assert use.of(np.array([0])).tolist() == [[3, 0, 0]]


def test_a_day_takes_two_percent_and_a_push_ends_the_days_unseen() -> None:
    use = recorded([100.0, 100.0], [10.0, 10.0])
    for _ in range(2):
        use.end_day()
    none = np.zeros(1, np.float32)
    use.record(np.array([1]), none, none)
    np.testing.assert_allclose(
        use.of(np.array([0, 1, -1])), [[96.04, 9.604, 2], [96.04, 9.604, 0], [0, 0, 0]], rtol=1e-6
    )


def test_rows_stay_at_the_thresholds_and_go_beyond() -> None:
    use = recorded([8.1, 7.9, 100.0], [0.0, 0.0, 0.0])
    assert use.kept(0.8, 30).tolist() == [True, False, True]
    use.end_day()
    assert use.kept(0, 1).tolist() == [True] * 3
    use.end_day()
    assert not use.kept(0, 1).any()


@pytest.mark.parametrize("bad", [-1, float("nan"), "1", None])
def test_what_is_no_number_from_zero_is_refused(bad: Any) -> None:
    for name in vars(CtrAccessor()):
        with pytest.raises(ConfigurationError, match=f"{name} must be a number"):
            CtrAccessor(**{name: bad})


def test_what_decays_does_not_grow() -> None:
    with pytest.raises(ConfigurationError, match="show_click_decay_rate must be 1 at most"):
        CtrAccessor(show_click_decay_rate=1.1)
