"""When a row of the accuracy table counts as met."""

from __future__ import annotations

import pytest

from tests.accuracy.comparison import Comparison, Pass


def compared(aucs: list[float], kills: list[int] | None = None) -> Comparison:
    """Return a comparison of these AUCs with 0.8 for each seed."""

    def train(seed: int) -> Pass:
        return Pass(aucs[seed], 1.0, 0 if kills is None else kills[seed])

    return Comparison("a way", "another", 0.003, train, lambda seed: Pass(0.8, 1.0), bool(kills))


@pytest.mark.parametrize(
    ("aucs", "met"),
    [([0.802, 0.798, 0.8], True), ([0.8, 0.8, 0.7969], False), ([0.804, 0.796, 0.8], False)],
    ids=["all within", "one below", "two that cancel"],
)
def test_a_bar_is_met_if_every_seed_meets_it(aucs: list[float], met: bool) -> None:
    assert compared(aucs).told(range(3))[0] == met


def test_a_run_without_a_kill_does_not_show_that_kills_are_harmless() -> None:
    assert compared([0.8, 0.8], [2, 1]).told(range(2))[0]
    assert not compared([0.8, 0.8], [2, 0]).told(range(2))[0]


def test_a_row_tells_each_seed_the_differences_and_the_kills() -> None:
    _, row = compared([0.801, 0.799], [2, 1]).told(range(2))
    assert row == (
        "| a way (2, 1 kills) | another | 0.8000 (0.8010, 0.7990) | 0.8000 (0.8000, 0.8000) | "
        "+0.0000 | +0.0010 | 0.003 | yes |"
    )
