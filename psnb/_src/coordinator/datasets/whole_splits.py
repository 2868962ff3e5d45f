"""WholeSplits: the splits of a dataset for closures that read one each, from beginning to end.

There are no leases here: what such a closure returns counts once, and if its worker is lost, it
reads its split anew. So it must change nothing but what a second run replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from psnb._src.coordinator.closures import (
    DEFAULT_RETRIES,
    Chooser,
    RemoteValue,
    ScheduleOptions,
)
from psnb._src.coordinator.datasets.dataset_services import DatasetServices
from psnb._src.coordinator.datasets.per_worker import PerWorkerValues
from psnb._src.monitor import Share


class WholeSplits(NamedTuple):
    """The splits of a dataset, in order.

    Attributes
    ----------
    datasets : PerWorkerValues
        On each worker the list of them, as datasets.
    choosers : sequence of callable
        For each split, which workers may read it; no two are the same object.
    """

    datasets: PerWorkerValues
    choosers: Sequence[Chooser]


def map_splits(
    function: Callable[..., Any], splits: WholeSplits, place: DatasetServices, shown: bool | None
) -> list[Any]:
    """Call ``function(datasets, number)`` for each split on some worker; return the results.

    Parameters
    ----------
    function : callable
        A closure that changes no parameters.
    splits : WholeSplits
        What to read.
    place : DatasetServices
        Schedules.
    shown : bool or None
        Whether progress is shown; as for `ClusterCoordinator.join`.

    Raises
    ------
    Exception
        What the first closure that failed raised. Those that have not begun are withdrawn, and
        those that run have ended.
    """
    remotes: list[RemoteValue] = []
    try:
        for number, chooser in enumerate(splits.choosers):
            how = ScheduleOptions(DEFAULT_RETRIES, 0, chooser, detached=True)
            remotes.append(place.schedule(function, (splits.datasets, number), how))

        def share() -> Share:
            return Share(sum(each.done() for each in remotes), len(remotes), "parts")

        with place.progress(shown, share):
            return [each.fetch() for each in remotes]
    except BaseException:
        for chooser in splits.choosers:
            place.pinned.withdraw(chooser, "another part of the dataset failed")
        for each in remotes:
            each.wait()
        raise
