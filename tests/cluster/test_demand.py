"""How many workers closures ask for; the clock is a number."""

from __future__ import annotations

import pytest

from psnb._src.cluster.scaling import EXPIRY, Demand, DemandBoard


def _workers(*demands: Demand, threads_per_worker: float = 1, holding: int = 0) -> int:
    board = DemandBoard()
    for number, demand in enumerate(demands):
        board.report(f"coordinator {number}", demand, 0.0)
    return board.workers(0.0, 5.0, threads_per_worker, holding)


@pytest.mark.parametrize(
    ("closures", "occupancy", "workers"),
    [
        (0, 0.0, 0),
        (1, 0.001, 1),
        (1, 0.0, 1),
        (100, 5.0, 1),
        (100, 5.1, 2),
        (100, 50.0, 10),
        (3, 1000.0, 3),  # a few long ones need no more than one thread each
    ],
)
def test_closures_ask_for_the_threads_that_end_them_in_time(
    closures: int, occupancy: float, workers: int
) -> None:
    assert _workers(Demand(closures, occupancy)) == workers


def test_a_worker_counts_for_as_many_closures_as_it_has_threads() -> None:
    assert _workers(Demand(100, 50.0), threads_per_worker=4) == 3


def test_no_fewer_are_wanted_than_hold_closures() -> None:
    assert _workers(Demand(9, 0.1), holding=7) == 7


def test_nothing_is_wanted_without_demand() -> None:
    assert _workers() == 0


def test_long_closures_of_one_coordinator_do_not_multiply_with_short_ones_of_another() -> None:
    assert _workers(Demand(2, 1000.0), Demand(100, 1.0)) == 3


def test_many_coordinators_with_little_to_do_ask_for_little_together() -> None:
    assert _workers(*[Demand(1, 0.1)] * 10) == 1


def test_a_new_report_takes_the_place_of_the_old_one() -> None:
    board = DemandBoard()
    board.report("a", Demand(5, 1.0, frozenset({"x"})), 0.0)
    board.report("a", Demand(1, 1.0, frozenset({"y"})), 1.0)
    assert board.demands(1.0) == [Demand(1, 1.0, frozenset({"y"}))]


def test_one_coordinator_withdraws_its_demand_and_not_that_of_another() -> None:
    board = DemandBoard()
    board.report("a", Demand(5, 1.0, frozenset({"x", "y"})), 0.0)
    board.report("b", Demand(5, 1.0, frozenset({"y", "z"})), 0.0)
    assert board.holding(0.0) == {"x", "y", "z"}
    board.report("a", Demand(), 0.0)
    assert board.holding(0.0) == {"y", "z"}


def test_the_demand_of_a_notebook_that_died_expires_and_that_of_another_stays() -> None:
    board = DemandBoard()
    board.report("dead", Demand(5, 100.0, frozenset({"x"})), 0.0)
    board.report("alive", Demand(1, 1.0), EXPIRY - 1)
    assert len(board.demands(EXPIRY - 0.1)) == 2
    assert board.demands(EXPIRY) == [Demand(1, 1.0)]
    assert board.holding(EXPIRY) == frozenset()
