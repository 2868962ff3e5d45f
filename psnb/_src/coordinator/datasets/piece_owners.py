"""PieceOwners: which worker has which pieces of a dataset in memory.

The workers are asked anew before each operation: they may die, and come back without pieces. A
piece that no worker has any more is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from psnb._src.coordinator.datasets.partition_statistics import PartitionStatistics
from psnb._src.coordinator.datasets.per_worker import PerWorkerValues
from psnb._src.coordinator.queue import PinnedCalls
from psnb._src.data import ShufflePlan
from psnb._src.runtime import worker_memory
from psnb.errors import CancelledError, InternalError, WorkerLostError

_ATTEMPTS = 5

Calls = Iterable[tuple[str, Callable[..., Any], tuple[Any, ...]]]
"""For each call: a worker's name, a function of `runtime.worker_memory`, and its arguments."""


class PieceOwners:
    """Tells workers what to do with the pieces; for one thread at a time, except `statistics`.

    Parameters
    ----------
    memory : PerWorkerValues
        The `WorkerMemory` of each worker.
    pinned : PinnedCalls
        Calls each worker.
    """

    def __init__(self, memory: PerWorkerValues, pinned: PinnedCalls) -> None:
        self._memory, self._pinned = memory, pinned
        self._found: dict[str, worker_memory.WorkerPieces] = {}

    def statistics(self, pieces: int) -> PartitionStatistics:
        """Return what the workers had at the last call; any thread."""
        found = self._found
        held = {piece for each in found.values() for piece in each.held.pieces}
        workers = {name: each.held for name, each in sorted(found.items())}
        return PartitionStatistics(pieces, pieces - len(held), workers)

    def spread(self, pieces: int) -> dict[int, str]:
        """Return owners for the pieces, spread evenly over the workers."""
        names = sorted(self._found)
        return {piece: names[piece % len(names)] for piece in range(pieces)}

    def tell(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function on all workers, and note what they have; lost workers are left out."""
        names = sorted(self._pinned.worker_names())
        self._found = self._tell((worker, function, args) for worker in names)

    def restore(self, generation: int, layout: ShufflePlan) -> dict[int, str]:
        """Ask which worker has which piece, have lost pieces made again; return the owners.

        Raises
        ------
        WorkerLostError
            If there are no workers, or they are lost several times in a row while they make pieces.
        DatasetError
            If a piece cannot be made.
        """
        for _ in range(_ATTEMPTS):
            self.tell(worker_memory.survey, generation)
            if not self._found:
                raise WorkerLostError("no worker is there that has, or could have, the dataset")
            owners = {
                piece: name for name, each in self._found.items() for piece in each.held.pieces
            }
            lost = [piece for piece in range(layout.pieces) if piece not in owners]
            if not lost:
                return owners
            names = sorted(self._found, key=lambda name: len(self._found[name].held.pieces))
            shares = {name: lost[start :: len(names)] for start, name in enumerate(names)}
            self._tell(
                (name, worker_memory.make, (generation, layout, share))
                for name, share in shares.items()
                if share
            )
        raise WorkerLostError(
            f"{len(lost)} of {layout.pieces} pieces of the dataset could not be made again: each "
            "time workers were lost. If that is for want of memory, use a lower memory_limit, or "
            "more pieces (splits=)"
        )

    def move(
        self,
        old: int,
        owners: Mapping[int, str],
        new: int,
        layout: ShufflePlan,
        targets: Mapping[int, str],
    ) -> None:
        """Fill a new generation from an old one, and check that everything has arrived.

        Raises
        ------
        WorkerLostError
            If a worker is lost, or was started again.
        DatasetError
            If a worker has no room.
        """
        begun = self._ask(
            (worker, worker_memory.begin, (new, numbers))
            for worker, numbers in by_owner(targets).items()
        )
        where = {found.worker: found.address for found in begun}
        to = new, layout, [where[targets[piece]] for piece in range(layout.pieces)]
        moved = self._ask(
            (owner, worker_memory.scatter, (old, [piece], *to)) for piece, owner in owners.items()
        )
        there = self._ask((found.worker, worker_memory.survey, (new,)) for found in begun)
        if {found.part for found in there} != {found.part for found in begun}:
            raise WorkerLostError("a worker was started again while examples were sent to it")
        sent = sum(sum(found.sent.values()) for found in moved)
        arrived = sum(found.held.examples for found in there)
        if arrived != sent:
            raise InternalError(f"of {sent} examples that were sent, {arrived} have arrived")

    def _ask(self, calls: Calls) -> list[worker_memory.WorkerPieces]:
        """Make calls; every worker must answer."""
        named = [(worker, function, (self._memory, *args)) for worker, function, args in calls]
        remotes = self._pinned.run(named, all_or_none=True)
        found, cancelled = [], None
        for (worker, *_), remote in zip(named, remotes, strict=True):
            if remote is None:
                raise WorkerLostError(f"worker {worker!r} has left, with a part of the dataset")
            try:
                found.append(remote.fetch())
            except CancelledError as error:  # because another call failed, which says why
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return found

    def _tell(self, calls: Calls) -> dict[str, worker_memory.WorkerPieces]:
        """Make calls; return the answers of the workers that answered."""
        named = [(worker, function, (self._memory, *args)) for worker, function, args in calls]
        found = {}
        for (worker, *_), remote in zip(named, self._pinned.run(named), strict=True):
            try:
                if remote is not None:
                    found[worker] = remote.fetch()
            except WorkerLostError:
                continue
        return found


def by_owner(owners: Mapping[int, str]) -> dict[str, list[int]]:
    """Return each owner's pieces."""
    pieces: dict[str, list[int]] = {}
    for piece, owner in sorted(owners.items()):
        pieces.setdefault(owner, []).append(piece)
    return pieces
