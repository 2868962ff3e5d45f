"""LeaseRegistry: the leases of all epochs of a coordinator's datasets. Pure, thread-safe.

Connections pass workers' questions on, the queue says how closures have ended, and the notebook
reads the progress of an epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from psnb._src.coordinator.closures import Closure, Execution
from psnb._src.coordinator.datasets.leases import EpochLeases, Progress, Turn
from psnb._src.coordinator.datasets.ordered_leases import OrderedLeases
from psnb._src.runtime import session_messages
from psnb._src.threads import Lock


class LeaseRegistry:
    """The `EpochLeases` of all epochs, by number.

    Parameters
    ----------
    seats : int, optional
        How many closures a round has, in which case each epoch is ordered, in so many lanes.

    Attributes
    ----------
    seats : int or None
        As given.
    """

    def __init__(self, seats: int | None = None) -> None:
        self.seats = seats
        self._lock = Lock()  # guards the dicts; held while an epoch's leases change
        self._epochs: dict[int, EpochLeases] = {}
        self._users: dict[int, set[int]] = {}  # the epochs that a closure has taken from
        # Closures that have failed or were cancelled, as long as a worker may run them.
        self._over: WeakValueDictionary[int, Execution] = WeakValueDictionary()
        self._numbers = itertools.count(1)
        self._present: dict[Hashable, str] = {}  # workers' names by their sessions

    def enter(self, holder: Hashable, worker: str) -> None:
        """Note that a worker's session has begun."""
        with self._lock:
            self._present[holder] = worker

    def present(self) -> set[str]:
        """Return the names of the workers that are there; cheap."""
        with self._lock:
            return set(self._present.values())

    def open(
        self,
        splits: int,
        state: Mapping[str, Any] | None = None,
        owners: Mapping[int, str] | None = None,
        dataset: Mapping[str, Any] = MappingProxyType({}),
    ) -> int:
        """Begin an epoch over a number of splits, or go on with one; return the epoch's number.

        Raises
        ------
        ConfigurationError
            If the state does not fit.
        """
        leases = (
            EpochLeases(splits, state, owners, dataset)
            if self.seats is None
            else OrderedLeases(self.seats, splits, state, owners, dataset)
        )
        with self._lock:
            number = next(self._numbers)
            self._epochs[number] = leases
            return number

    def close(self, epoch: int) -> None:
        """Forget an epoch; may be called in the middle of a garbage collection."""
        self._epochs.pop(epoch, None)  # atomic: the lock may be this very thread's

    def state(self, epoch: int) -> dict[str, Any]:
        """Return the part of an epoch that is not used yet."""
        return self._epochs[epoch].state()

    def states(self) -> list[dict[str, Any]]:
        """Return the states of the epochs that are not over, in the order of their beginning."""
        with self._lock:
            epochs = sorted(self._epochs.items())
        return [leases.state() for _, leases in epochs if not leases.progress().over]

    def progress(self, epoch: int) -> Progress:
        """Return the progress of an epoch."""
        return self._epochs[epoch].progress()

    def unread(self, epoch: int) -> bool:
        """Return whether an epoch has examples that no closure has taken."""
        return self._epochs[epoch].unread()

    def lanes(self, epoch: int) -> list[int]:
        """Return the lanes of an ordered epoch in which there is something to read."""
        return self._epochs[epoch].lanes()

    def suits(self, epoch: int, worker: str, lane: int | None = None) -> bool:
        """Return whether closures that read an epoch, or a lane, should go to a worker; cheap."""
        with self._lock:
            present = set(self._present.values())
            return self._epochs[epoch].suits(worker, present, lane)

    def lease(
        self, holder: Hashable, asked: session_messages.AskLease
    ) -> session_messages.Lease | None:
        """Lease a part of an epoch to a worker's session; None if there is nothing to read now."""
        with self._lock:
            leases = self._epochs.get(asked.epoch)
            if leases is None or asked.closure in self._over:
                return None
            worker = self._present.get(holder, "")
            turn = None if asked.lane is None else Turn(asked.lane, asked.closure)
            found = leases.lease(holder, worker, set(self._present.values()), turn)
            if found is None:
                return None
            number, part = found
            owned = leases.owned(worker)
            return session_messages.Lease(number, part.split, part.state, part.count, owned)

    def take(self, holder: Hashable, elements: session_messages.TakeElements) -> bool:
        """Note that a closure is going to use elements of a lease.

        Returns
        -------
        bool
            False if the worker's session does not have the lease (any more), or the closure was
            cancelled: it must not go on.
        """
        with self._lock:
            leases = self._epochs.get(elements.epoch)
            if leases is None:
                return False
            taken = leases.take(
                holder,
                elements.lease,
                elements.closure,
                elements.count,
                elements.before,
                elements.after,
                elements.ended,
            )
            if taken and elements.closure in self._over:
                # It was cancelled while it ran: what it takes is free again.
                leases.end(elements.closure, succeeded=False)
                return False
            if taken:
                self._users.setdefault(elements.closure, set()).add(elements.epoch)
            return taken

    def portions(self, closure: int) -> Sequence[session_messages.Portion]:
        """Return what a closure has taken before."""
        if closure not in self._users:
            return ()
        with self._lock:
            return [
                session_messages.Portion(epoch, part.split, part.state, part.count or 0)
                for epoch in sorted(self._users.get(closure, ()))
                if epoch in self._epochs
                for part in self._epochs[epoch].portions(closure)
            ]

    def end(self, closure: Closure, succeeded: bool) -> None:
        """Note that a closure has ended for good; cheap for those that took nothing."""
        # One that has returned takes nothing any more; another may be taking at this moment.
        number = closure.id
        if succeeded and number not in self._users:
            return
        with self._lock:
            if not succeeded:
                self._over[number] = closure.execution
            for epoch in self._users.pop(number, ()):
                if epoch in self._epochs:
                    self._epochs[epoch].end(number, succeeded=succeeded)

    def lose(self, holder: Hashable) -> None:
        """Note that a worker's session is over."""
        with self._lock:
            self._present.pop(holder, None)
            for leases in list(self._epochs.values()):
                leases.lose(holder)
