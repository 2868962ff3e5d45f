"""Workers that die while a closure commits: it counts wholly, from one attempt, or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.server.operations import ApplyCommit, CommitParts, PreparePart
from psnb._src.server.tables.operations import Operation
from tests.conftest import DEADLINE
from tests.integration.faults import worker_deaths

HELD_BY_ALL = (PreparePart, worker_deaths.after_all)
"""From here on it is decided."""


class Ledger:
    """Two accounts, one on each server, between which each attempt moves another amount."""

    def __init__(self, strategy: psnb.ParameterServerStrategy) -> None:
        self.coordinator = psnb.ClusterCoordinator(strategy)
        self.accounts = [strategy.variable(np.int64(0)) for _ in "ab"]
        self.rows = strategy.embedding("rows", 2, initializer=0.0, optimizer=psnb.SGD(1.0))

    def move(
        self, operation: type[Operation], die: worker_deaths.Die, again: bool = True
    ) -> psnb.RemoteValue:
        """Schedule a closure whose worker dies in its first attempt."""
        (one, other), rows = self.accounts, self.rows

        def move() -> int:
            attempt = psnb.worker_context().attempt
            if attempt == 1:
                worker_deaths.arrange(operation, die)
            elif not again:
                raise ValueError("the second attempt raises")
            one.assign_add(np.int64(attempt))
            other.assign_sub(np.int64(attempt))
            rows.push(np.arange(10), np.full((10, 2), -attempt, np.float32))
            return attempt

        return self.coordinator.schedule(move)

    def moved(self) -> int:
        """Return by how much; what was moved from the one must be on the other, and in all rows."""
        one, other = (int(account.read()) for account in self.accounts)
        assert one == -other
        assert np.unique(self.rows.lookup(np.arange(10))).tolist() == [one]
        return one


DEATHS = [
    (PreparePart, worker_deaths.before, 2),
    (PreparePart, worker_deaths.after_one, 2),
    (*HELD_BY_ALL, 1),
    (ApplyCommit, worker_deaths.before, 1),
    (ApplyCommit, worker_deaths.before_the_answer, 1),
    (ApplyCommit, worker_deaths.after_all, 1),
]


@pytest.mark.parametrize(
    ("operation", "die", "attempt", "replicas"),
    [
        *((*each, 0) for each in DEATHS),
        (ApplyCommit, worker_deaths.after_one, 1, 0),
        (ApplyCommit, worker_deaths.after_one, 1, 1),
    ],
)
def test_a_commit_to_two_servers_is_of_one_attempt(
    whole: Client, operation: type[Operation], die: worker_deaths.Die, attempt: int, replicas: int
) -> None:
    with psnb.ParameterServerStrategy(whole, replicas=replicas) as strategy:
        ledger = Ledger(strategy)
        remote = ledger.move(operation, die)
        # What it returns is of the very attempt that counts, too.
        assert remote.fetch(DEADLINE) == attempt
        ledger.coordinator.join(DEADLINE)
        assert ledger.moved() == attempt
        statistics = ledger.coordinator.statistics()
        assert (statistics.completed, statistics.failed) == (1, 0)
        assert statistics.retried == (attempt == 2)


def test_an_answer_that_does_not_arrive_leaves_a_commit_that_is_whole(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        ledger = Ledger(strategy)
        attempt = ledger.move(PreparePart, worker_deaths.before_the_answer).fetch(DEADLINE)
        assert ledger.moved() == attempt


@pytest.mark.parametrize(
    ("die", "attempt"),
    [(worker_deaths.before, 2), (worker_deaths.before_the_answer, 1), (worker_deaths.after_all, 1)],
)
def test_a_commit_to_one_server_is_of_one_attempt(
    whole: Client, die: worker_deaths.Die, attempt: int
) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        account = strategy.variable(np.int64(0))

        def add() -> int:
            attempt = psnb.worker_context().attempt
            if attempt == 1:
                worker_deaths.arrange(CommitParts, die)
            account.assign_add(np.int64(attempt))
            return attempt

        assert coordinator.schedule(add).fetch(DEADLINE) == attempt
        coordinator.join(DEADLINE)
        assert int(account.read()) == attempt


def test_a_closure_whose_second_attempt_raises_has_written_nothing(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        ledger = Ledger(strategy)
        ledger.move(PreparePart, worker_deaths.after_one, again=False)
        with pytest.raises(ValueError, match="second attempt"):
            ledger.coordinator.join(DEADLINE)
        assert ledger.moved() == 0


def test_one_whose_first_attempt_was_decided_has_no_second(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        ledger = Ledger(strategy)
        ledger.move(*HELD_BY_ALL, again=False)
        ledger.coordinator.join(DEADLINE)
        assert ledger.moved() == 1


def test_a_large_result_is_that_of_the_attempt_that_counts(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        account = strategy.variable(np.int64(0))

        def add() -> np.ndarray:
            attempt = psnb.worker_context().attempt
            if attempt == 1:
                worker_deaths.arrange(CommitParts, worker_deaths.after_all)
            account.assign_add(np.int64(attempt))
            return np.full(100_000, attempt)

        result = coordinator.schedule(add).fetch(DEADLINE)
        assert np.unique(result).tolist() == [int(account.read())] == [1]


def test_writes_to_another_strategy_are_part_of_the_commit(whole: Client) -> None:
    with (
        psnb.ParameterServerStrategy(whole) as strategy,
        psnb.ParameterServerStrategy(whole) as other,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        foreign = other.variable(np.int64(0))

        def add() -> int:
            attempt = psnb.worker_context().attempt
            if attempt == 1:
                worker_deaths.arrange(CommitParts, worker_deaths.after_all)
            foreign.assign_add(np.int64(attempt))
            return attempt

        assert coordinator.schedule(add).fetch(DEADLINE) == 1
        assert int(foreign.read()) == 1
