"""Metrics that closures report as states: each closure counts once, whoever dies."""

from __future__ import annotations

import time

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.coordinator.coordinator import coordinator_core
from psnb._src.monitor.feed import Feed
from psnb._src.server.operations import PreparePart
from psnb._src.server.tables.operations import Operation
from psnb.metrics import AUC, LogLoss, Mean, MetricState, MetricStates
from tests.conftest import DEADLINE, wait_until
from tests.integration.faults import worker_deaths

BATCH = 512


def measure(number: int) -> dict[str, MetricState]:
    """Return the states of a batch; every number has its own."""
    random = np.random.default_rng(number)
    scores = random.random(BATCH)
    labels = random.random(BATCH) < scores
    return {"auc": AUC()(labels, scores), "log_loss": LogLoss()(labels, scores)}


def all_of(numbers: range) -> MetricStates:
    """Return the states of these batches, measured here."""
    whole: dict[str, MetricState] = {"auc": AUC().empty(), "log_loss": LogLoss().empty()}
    for number in numbers:
        whole = {name: whole[name] + state for name, state in measure(number).items()}
    return MetricStates(whole)


def test_closures_report_and_the_notebook_has_them_merged(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    for number in range(40):
        coordinator.schedule(lambda n: psnb.report(**measure(n)), (number,))
    coordinator.join(DEADLINE)
    mark = coordinator.metrics
    assert mark == all_of(range(40))
    figures = coordinator.statistics().metrics
    assert figures["auc"].last == figures["auc"].smoothed == float(mark["auc"])
    for number in range(40, 50):
        coordinator.schedule(lambda n: psnb.report(**measure(n)), (number,))
    coordinator.join(DEADLINE)
    assert coordinator.metrics.since(mark) == all_of(range(40, 50))
    history = coordinator.history()
    assert history["auc"]["value"][-1] == float(coordinator.metrics["auc"])
    assert len(history["batch_auc"]["value"]) == len(history["auc"]["value"])


def test_a_live_view_gets_the_merged_value_to_the_last_closure(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    for number in range(3):  # the later ones come before the next point is due
        coordinator.schedule(lambda n: psnb.report(**measure(n)), (number,))
        coordinator.join(DEADLINE)
    feed, charted = Feed(), {}

    def up_to_date() -> bool:
        update = feed.next(coordinator_core(coordinator), time.time()) or {}
        charted.update({each["name"]: each["last"] for each in update.get("metrics", [])})
        return charted.get("auc") == float(coordinator.metrics["auc"])

    wait_until(up_to_date, "the last closure is charted")

    def drawn() -> bool:
        coordinator.statistics()  # as a view does
        values = coordinator_core(coordinator).records.history.series("auc")["value"]
        return bool(values[-1] == float(coordinator.metrics["auc"]))

    wait_until(drawn, "the last point is of all closures")
    assert sorted(charted) == ["auc", "batch_auc", "batch_log_loss", "log_loss"]


def test_several_reports_of_a_closure_are_merged_and_its_value_is_its_own(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    def reports_twice() -> str:
        psnb.report(loss=Mean()([1.0, 2.0]), examples=2)
        psnb.report(loss=Mean()([6.0]), examples=1)
        return "value"

    remote = coordinator.schedule(reports_twice)
    length = coordinator.schedule(len, (remote,))
    assert (remote.fetch(DEADLINE), length.fetch(DEADLINE)) == ("value", 5)
    assert coordinator.metrics["loss"] == Mean()([1.0, 2.0, 6.0])
    assert coordinator.statistics().examples == 3


def test_a_closure_that_raises_does_not_count(coordinator: psnb.ClusterCoordinator) -> None:
    def raises() -> None:
        psnb.report(loss=Mean()([1.0]))
        raise ValueError("boo")

    coordinator.schedule(lambda: psnb.report(loss=Mean()([2.0])))
    coordinator.join(DEADLINE)
    coordinator.schedule(raises)
    with pytest.raises(ValueError, match="boo"):
        coordinator.join(DEADLINE)
    assert coordinator.metrics["loss"] == Mean()([2.0])


def test_a_metric_of_the_users_own_is_merged(coordinator: psnb.ClusterCoordinator) -> None:
    class Doubled(Mean):
        def __call__(self, values: object, weights: object = None) -> MetricState:
            return super().__call__(np.asarray(values) * 2, weights)

    doubled = Doubled()
    coordinator.schedule(lambda: psnb.report(loss=doubled([1.0])))
    coordinator.join(DEADLINE)
    assert coordinator.metrics["loss"] == doubled([1.0])


@pytest.mark.parametrize("measures", [1, 30], ids=["small", "large"])
@pytest.mark.parametrize(
    ("operation", "die", "attempt"),
    [
        (PreparePart, worker_deaths.after_one, 2),
        (PreparePart, worker_deaths.after_all, 1),
    ],
)
def test_a_worker_that_dies_in_a_commit_leaves_the_metrics_of_one_attempt(
    whole: Client, operation: type[Operation], die: worker_deaths.Die, attempt: int, measures: int
) -> None:
    # A large outcome is sent to the notebook before the commit, a small one is kept by servers.
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        one, other = (strategy.variable(np.int64(0)) for _ in "ab")

        def writes_and_reports() -> int:
            attempt = psnb.worker_context().attempt
            if attempt == 1:
                worker_deaths.arrange(operation, die)
            for each in range(measures):
                psnb.report(**{f"auc_{each}": measure(each)["auc"]})
            psnb.report(attempt=Mean()([float(attempt)]))
            one.assign_add(np.int64(attempt))
            other.assign_add(np.int64(attempt))
            return attempt

        assert coordinator.schedule(writes_and_reports).fetch(DEADLINE) == attempt
        coordinator.join(DEADLINE)
        assert int(one.read()) == attempt
        states = coordinator.metrics
        assert states["attempt"] == Mean()([float(attempt)])
        for each in range(measures):
            assert states[f"auc_{each}"] == measure(each)["auc"]
