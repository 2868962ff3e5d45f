"""WholeSplits: the splits of a dataset for closures that read one each, from beginning to end.

There are no leases here: what such a closure returns counts once, and if its worker is lost, it
reads its split again. So it must change nothing but what a second run replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from psnb._src.coordinator.closures.options import DEFAULT_RETRIES, ScheduleOptions, WorkerPredicate
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.core import CoordinatorCore
from psnb._src.coordinator.values import PerWorkerValues
from psnb._src.data.node import nothing_in
from psnb._src.data.nodes.partitions import KnownPartitions
from psnb._src.monitor.progress_line import WorkDone
from psnb.errors import ServerUnresponsiveError


class WholeSplits(NamedTuple):
    """The splits of a dataset, in order.

    Attributes
    ----------
    datasets : PerWorkerValues
        On each worker the list of them, as datasets.
    choosers : sequence of callable
        For each split, which workers may read it; no two are the same object.
    files : sequence of str
        What they read, if one file at least must have a record.
    """

    datasets: PerWorkerValues
    choosers: Sequence[WorkerPredicate]
    files: Sequence[str] = ()


def map_splits(
    core: CoordinatorCore, function: Callable[..., Any], splits: WholeSplits, shown: bool | None
) -> list[Any]:
    """Call ``function(datasets, number)`` for each split on some worker; return the results.

    Parameters
    ----------
    core : CoordinatorCore
        Of the coordinator.
    function : callable
        A closure that changes no parameters. Returns a result, which is false if its split has
        nothing, and what partitions it has read.
    splits : WholeSplits
        What to read.
    shown : bool or None
        Whether progress is shown; as for `ClusterCoordinator.join`.

    Raises
    ------
    DatasetError
        If all files are empty, or closures have read a partition that was computed again meanwhile,
        with other rows.
    Exception
        What the first closure that failed raised. Those that have not begun are withdrawn, and
        those that run have ended.
    """
    remotes: list[RemoteValue] = []
    results, partitions = [], KnownPartitions()
    try:
        for number, chooser in enumerate(splits.choosers):
            how = ScheduleOptions(DEFAULT_RETRIES, 0, chooser, detached=True)
            remotes.append(core.schedule(function, (splits.datasets, number), {}, how))

        def share() -> WorkDone:
            return WorkDone(sum(each.done() for each in remotes), len(remotes), "parts")

        with core.progress(shown, share):
            for each in remotes:
                result, read = each.fetch()
                partitions.add(read)
                results.append(result)
    except BaseException:  # an interrupt, too: the other parts are not waited for
        give_up(core, splits.choosers, remotes, "another part of the dataset failed")
        raise
    if splits.files and not any(results):
        raise nothing_in(splits.files)
    return results


def give_up(
    core: CoordinatorCore,
    choosers: Iterable[WorkerPredicate],
    remotes: Iterable[RemoteValue],
    reason: str,
) -> None:
    """Withdraw the closures for which some functions choose, and wait for those that run."""
    for chooser in choosers:
        core.queue.withdraw(chooser, reason)
    for each in remotes:
        with suppress(ServerUnresponsiveError):  # what that one holds up cannot be waited for
            each.wait()
