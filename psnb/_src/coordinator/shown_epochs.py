"""What trainers and Keras's ``fit`` show of their epochs in a coordinator's views; for psnb only.

In the thread that trains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from psnb._src.coordinator.coordinator import ClusterCoordinator, progress_shown, view_of
from psnb._src.metrics import MetricStates
from psnb._src.monitor import EpochCount, Share, TrainingClock


@contextmanager
def training_shown(
    coordinator: ClusterCoordinator,
    shown: bool | None,
    clock: TrainingClock,
    share: Callable[[], Share],
    stop: Callable[[], object],
) -> Iterator[None]:
    """Show the progress of a trainer while the block runs, and offer views to stop it."""
    view = view_of(coordinator)
    with view.training(clock), view.stoppable(stop), progress_shown(coordinator, shown, share):
        yield


def clock_shown(
    coordinator: ClusterCoordinator, clock: TrainingClock
) -> AbstractContextManager[None]:
    """Return a context in which views show how far training is."""
    return view_of(coordinator).training(clock)


def epoch_shown(
    coordinator: ClusterCoordinator,
    clock: TrainingClock,
    epoch: int,
    count: Callable[[], EpochCount],
    earlier: MetricStates | None = None,
) -> None:
    """Show that an epoch begins.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        Its closures train.
    clock, epoch, count
        As for `CoordinatorView.begin_epoch`.
    earlier : MetricStates, optional
        What an earlier run had of the epoch's metrics.
    """
    states = MetricStates({}) if earlier is None else earlier
    view_of(coordinator).begin_epoch(clock, epoch, count, states)


def epoch_metrics_shown(
    coordinator: ClusterCoordinator, whole: Mapping[str, float], validation: Mapping[str, float]
) -> None:
    """Show metrics of a whole epoch.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        Its closures have trained.
    whole : mapping of str to float
        Metrics that no closure reports.
    validation : mapping of str to float
        What validation gave, by the names of the metrics.
    """
    now, history = time.time(), view_of(coordinator).records.history
    history.add(now, dict(whole), averaged=False)
    history.add_validation(now, validation)
