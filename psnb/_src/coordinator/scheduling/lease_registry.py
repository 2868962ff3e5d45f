"""LeaseRegistry: the leases of all epochs of a coordinator's datasets. Pure, thread-safe.

Connections pass workers' questions on, the scheduler says how closures have ended, and the
notebook reads the progress of an epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from psnb._src.coordinator.scheduling.leases import EpochLeases, Progress, Turn
from psnb._src.coordinator.scheduling.ordered_leases import OrderedLeases
from psnb._src.coordinator.scheduling.work import Execution, Work
from psnb._src.protocol import messages
from psnb._src.utils.interrupts import Lock
from psnb.errors import DatasetError


class LeaseRegistry:
    """The `EpochLeases` of all epochs, by number.

    Parameters
    ----------
    round_size : int, optional
        Closures a round, in which case each epoch is ordered, in that number of slots.

    Attributes
    ----------
    round_size : int or None
        As given.
    """

    def __init__(self, round_size: int | None = None) -> None:
        self.round_size = round_size
        self._lock = Lock()  # guards the dicts; held while an epoch's leases change
        self._epochs: dict[int, EpochLeases] = {}
        self._users: dict[int, set[int]] = {}  # the epochs that a closure has taken from
        # Closures that have failed or were cancelled, as long as a worker may run them.
        self._over: WeakValueDictionary[int, Execution] = WeakValueDictionary()
        self._numbers = itertools.count(1)
        self._sessions: dict[Hashable, str] = {}  # workers' names by their sessions
        self._present: frozenset[str] = frozenset()  # these names, made anew when they change
        self._watching: dict[int, Callable[[int | None], object]] = {}  # by epoch

    def enter(self, holder: Hashable, worker: str) -> None:
        """Note that a worker's session has begun."""
        with self._lock:
            self._sessions[holder] = worker
            self._present = frozenset(self._sessions.values())

    def present(self) -> frozenset[str]:
        """Return the names of the workers that are there: the same object until others are."""
        return self._present

    def open(
        self,
        splits: int,
        state: Mapping[str, Any] | None = None,
        owners: Mapping[int, str] | None = None,
        dataset: Mapping[str, Any] = MappingProxyType({}),
        order: Sequence[int] | None = None,
    ) -> int:
        """Begin an epoch over a number of splits, or go on with one; return the epoch's number.

        Raises
        ------
        ConfigurationError
            If the state does not fit.
        """
        leases = (
            EpochLeases(splits, state, owners, dataset, order)
            if self.round_size is None
            else OrderedLeases(self.round_size, splits, state, owners, dataset, order)
        )
        with self._lock:
            number = next(self._numbers)
            self._epochs[number] = leases
            return number

    def close(self, epoch: int) -> None:
        """Forget an epoch; may be called in the middle of a garbage collection."""
        self._epochs.pop(epoch, None)  # atomic: the lock may be this very thread's
        self._watching.pop(epoch, None)

    def watch(self, epoch: int, asked: Callable[[int | None], object]) -> None:
        """Have a function called on the event loop each time that a worker has asked for a lease.

        It takes the split that was leased; None if none was.
        """
        self._watching[epoch] = asked

    def place(
        self,
        epoch: int,
        holders: Mapping[int, Set[str]],
        there: Mapping[int, bool] = MappingProxyType({}),
    ) -> None:
        """Note where the data of an epoch's splits is: see `EpochLeases.place`."""
        if (leases := self._epochs.get(epoch)) is not None:
            leases.place(holders, there)

    def needed(self, epoch: int, ahead: int) -> list[int]:
        """Return the splits of an epoch whose data is needed now: see `EpochLeases.needed`."""
        leases = self._epochs.get(epoch)
        return [] if leases is None else leases.needed(ahead)

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

    def slots(self, epoch: int) -> list[int]:
        """Return the slots of an ordered epoch in which there is something to read."""
        return self._epochs[epoch].slots()

    def suits(self, epoch: int, worker: str, slot: int | None = None) -> bool:
        """Return whether closures that read an epoch, or a slot, should go to a worker; cheap."""
        with self._lock:
            return self._epochs[epoch].suits(worker, self._present, slot)

    def lease(self, holder: Hashable, asked: messages.AskLease) -> messages.Lease | None:
        """Lease a part of an epoch to a worker's session; None if there is nothing to read now."""
        with self._lock:
            leases = self._epochs.get(asked.epoch)
            if leases is None or asked.closure in self._over:
                return None
            worker = self._sessions.get(holder, "")
            turn = None if asked.slot is None else Turn(asked.slot, asked.closure)
            found = leases.lease(holder, worker, self._present, turn)
            self._watching.get(asked.epoch, bool)(None if found is None else found[1].split)
            if found is None:
                return None
            number, part = found
            owned = leases.owned(holder, worker)
            return messages.Lease(number, part.split, part.state, part.count, owned)

    def begin(self, holder: Hashable, asked: messages.BeginLease) -> bool | str:
        """Note where a lease of a worker's session begins; see `BeginLease` for the answer."""
        with self._lock:
            leases = self._epochs.get(asked.epoch)
            try:
                return leases is not None and leases.begin(
                    holder, asked.lease, asked.state, asked.partitions
                )
            except DatasetError as error:
                return str(error)

    def return_(self, holder: Hashable, asked: messages.ReturnLease) -> bool:
        """Have what is left of a lease of a worker's session leased again."""
        with self._lock:
            if (leases := self._epochs.get(asked.epoch)) is not None:
                leases.return_(holder, asked.lease)
            return True

    def take(self, holder: Hashable, taken: messages.Taken) -> None:
        """Note what a closure has taken from a lease of a worker's session."""
        with self._lock:
            leases = self._epochs.get(taken.epoch)
            if leases is None:
                return
            leases.take(holder, taken)
            if taken.closure == messages.EFFECTIVE:
                return
            if taken.closure in self._over:
                # It was cancelled while it ran: what it takes is free again.
                leases.end(taken.closure, succeeded=False)
            else:
                self._users.setdefault(taken.closure, set()).add(taken.epoch)

    def note_used(self, used: Iterable[messages.Taken]) -> None:
        """Note what a closure has taken that has had its effect, as servers say."""
        with self._lock:
            for taken in used:
                if taken.epoch in self._epochs:
                    self._epochs[taken.epoch].note_used(taken)

    def again(self, holder: Hashable, steps: range) -> Sequence[messages.TakenRange]:
        """Lease what steps have taken before to the session that does them again: to each its own.

        Steps that do not take all of it leave the rest to others.
        """
        if self._users.keys().isdisjoint(steps):
            return ()
        with self._lock:
            return [
                messages.TakenRange(step, epoch, number, part.split, part.state, part.count or 0)
                for step in steps
                for epoch in sorted(self._users.get(step, ()))
                if epoch in self._epochs
                for number, part in self._epochs[epoch].again(holder, step)
            ]

    def end(self, closure: Work) -> None:
        """Note that a closure has ended for good: steps that are not done have had no effect."""
        if not closure.left:
            return
        with self._lock:
            for number in closure.numbers:
                self._over[number] = closure.execution  # one may be taking at this moment
                self._end(number, False)

    def end_steps(self, closure: Work, steps: int) -> None:
        """Note that the next steps have had their effect; cheap for those that took nothing."""
        if not self._users:
            return
        numbers = closure.numbers[:steps]
        if not self._users.keys().isdisjoint(numbers):
            with self._lock:
                for number in numbers:
                    self._end(number, True)

    def give_back(self, closure: Work) -> None:
        """Have what the next step has taken read again: it wrote nothing, and no more is known."""
        with self._lock:
            self._over[closure.number] = closure.execution  # its worker may say more of it later
            self._end(closure.number, False)

    def _end(self, number: int, succeeded: bool) -> None:
        for epoch in self._users.pop(number, ()):
            if epoch in self._epochs:
                self._epochs[epoch].end(number, succeeded=succeeded)

    def leave(self, holder: Hashable) -> None:
        """Note that a worker's session is over; its leases stay, until `lose`."""
        with self._lock:
            self._sessions.pop(holder, None)
            self._present = frozenset(self._sessions.values())

    def lose(self, holder: Hashable) -> None:
        """Note that all is known that a session's closures have used, which is over."""
        with self._lock:
            for leases in list(self._epochs.values()):
                leases.lose(holder)
