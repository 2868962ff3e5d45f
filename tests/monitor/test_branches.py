"""Which points of a history that went back lead to the present parameters."""

from __future__ import annotations

import numpy as np
import pytest

from psnb._src.monitor.branches import cuts, kept_points, parts
from psnb._src.monitor.history import POINT, Rewind


def kept(*rewinds: tuple[float, float]) -> list[float]:
    """Return until when branches are kept, by the times of rewinds and to where they went."""
    return [each.kept for each in cuts([Rewind(0, time, 0.0, back) for time, back in rewinds])]


def test_what_came_after_the_moment_to_which_it_went_is_abandoned() -> None:
    assert kept() == []
    assert kept((9.0, 5.0)) == [5.0]
    assert kept((9.0, 5.0), (20.0, 5.0)) == [5.0, 0.0]  # a second try from the same mark
    assert kept((9.0, 5.0), (20.0, 12.0)) == [5.0, 12.0]
    assert kept((9.0, 5.0), (20.0, 3.0)) == [3.0, 0.0]


def test_a_mark_of_an_abandoned_branch_brings_it_back() -> None:
    assert kept((30.0, 10.0), (40.0, 20.0)) == [20.0, 0.0]
    # To a branch that began with a rewind itself.
    assert kept((10.0, 5.0), (30.0, 2.0), (40.0, 20.0)) == [5.0, 20.0, 0.0]


def test_a_checkpoint_of_another_run_leaves_nothing() -> None:
    assert kept((9.0, 5.0), (20.0, 0.0)) == [0.0, 0.0]


def test_a_series_has_a_line_for_each_branch_that_has_points() -> None:
    rewinds = [Rewind(0, 4.0, 0.0, 2.0), Rewind(0, 4.5, 0.0, 2.0), Rewind(0, 9.0, 0.0, 7.0)]
    found = parts(np.arange(1.0, 11.0), cuts(rewinds))
    assert [(each.points.start, each.points.stop, each.abandoned) for each in found] == [
        (0, 2, False),
        (1, 4, True),  # from the point where it leaves the others
        (4, 7, False),
        (6, 9, True),
        (9, 10, False),
    ]
    assert parts(np.empty(0), cuts(rewinds)) == []


@pytest.mark.parametrize(("back", "times"), [(2.0, [1.0, 2.0, 4.0]), (0.0, [4.0])])
def test_points_of_abandoned_branches_are_left_out(back: float, times: list[float]) -> None:
    points = np.zeros(4, POINT)
    points["time"] = [1.0, 2.0, 3.0, 4.0]
    assert kept_points(points, cuts([Rewind(3, 3.5, 0.0, back)]))["time"].tolist() == times
