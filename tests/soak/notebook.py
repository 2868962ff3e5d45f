"""Notebook: trains, saves, restores, rebalances, recovers, and keeps a ledger of it.

All of that in the thread that calls `Notebook.train`; harm is done meanwhile by `Chaos`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from distributed import Client

import psnb
from psnb import EventKind, errors
from tests.soak.exposure import Exposure
from tests.soak.ledger import Ledger, Pushes
from tests.soak.model import DeliberateError, Model
from tests.soak.table import Row

PATIENCE = 2.0
"""Seconds of silence that notebooks bear with, of servers and of workers."""

DEADLINE = 180.0
"""Seconds after which something counts as hanging, whatever harm is done meanwhile."""

logger = logging.getLogger(__name__)

_AHEAD = 60
_FAILING = 1 / 400
_MAY_LACK = "may lack updates"
"""What an event says of a copy that took over while it was being let go."""

_PUSHES = {psnb.Async: Pushes.EXACT, psnb.Sync: Pushes.AVERAGED, psnb.Geo: Pushes.MAY_BE_LOST}
_EXCHANGE_LOST = "what closures of a worker had learned together was lost"

_FAILURES = DeliberateError, errors.ClosureCancelledError, errors.ServerLostError
"""What closures may raise, having written nothing."""

T = TypeVar("T")


class ViolationError(Exception):
    """Something that is promised does not hold."""


class Notebook:
    """A strategy with a model, and what its user does; ``options`` are the strategy's.

    Checkpoints go to one folder of its own and to one that other notebooks save to as well. Unless
    it is told of all kills, each loss is taken for allowed. Raises ServerLostError if something is
    lost before it was saved for the first time.
    """

    def __init__(
        self,
        client: Client,
        folder: Path,
        shared: Path,
        rng: np.random.Generator,
        row: Row,
        mode: psnb.Mode,
        is_told: bool = True,
        **options: Any,
    ) -> None:
        self._rng, self._row, self._mode = rng, row, mode
        self.strategy = psnb.ParameterServerStrategy(
            client, mode=mode, heartbeat_timeout=PATIENCE, **options
        )
        self._coordinator = psnb.ClusterCoordinator(self.strategy, heartbeat_timeout=PATIENCE)
        self.exposure = Exposure(self.strategy, is_told)
        self._model = Model(self._coordinator, folder / "era", rng, mode)
        self._ledger = Ledger(_PUSHES[type(mode)])
        self._shared = psnb.CheckpointManager(self._coordinator, shared, max_to_keep=2)
        self._manager = psnb.CheckpointManager(self._coordinator, folder / "saved")
        self._remotes: list[psnb.RemoteValue] = []
        self._recovered = 0.0
        self._exchanges_lost = 0  # in mode `Geo`, as far as that was raised
        self._ended = time.monotonic()
        self._saved: list[Path] = []
        self._save()
        if not self._saved:
            raise errors.ServerLostError("it was lost before it was saved")

    def train(self, seconds: float, told: Callable[[], bool] = lambda: False) -> None:
        """Do what users do, at random, for so long or until told to end."""
        begin = time.monotonic()
        acts = [self._check, self._save, self._save_live, self._restore, self._rebalance]
        chances = np.array([3, 2, 1, 1, 2]) / 9
        act_at, pause = 0.0, threading.Event()
        self._ended = begin
        while time.monotonic() < begin + seconds and not told():
            self._schedule()
            self._collect()
            if self._is_lossy():
                self._recover()
            elif time.monotonic() > act_at:
                act = acts[self._rng.choice(len(acts), p=chances)]
                logger.info("notebook: %s", act.__name__)
                act()
                logger.info("notebook: %s ended", act.__name__)
                act_at = time.monotonic() + self._rng.uniform(0.5, 4.0)
            pause.wait(0.01)
        self._row.seconds += time.monotonic() - begin

    def finish(self) -> None:
        """Wait until all is done, and check it; and that there is a copy again of each shard."""
        self._ended = time.monotonic()
        end = self._ended + DEADLINE
        while True:
            if self._is_lossy():
                self._recover()
            try:
                self._coordinator.join(max(0.0, end - time.monotonic()), progress=False)
            except TimeoutError as error:
                raise ViolationError(f"join does not end: {self._state()}") from error
            except _FAILURES as error:
                self._note(error)
                continue
            if self._check():
                break
            if time.monotonic() > end:
                raise ViolationError(f"it does not come to rest: {self._state()}")
        layout = self.strategy._core.layout
        while layout.replicas and not all(place.synced for place in layout.placements):
            if time.monotonic() > end:
                raise ViolationError(f"shards have no copies: {layout.placements}")
            threading.Event().wait(0.1)
            layout = self.strategy._core.layout
        kinds = [event.kind for event in self.strategy.server_events()]
        self._row.failovers += kinds.count(EventKind.SHARDS_TAKEN_OVER)

    def _schedule(self) -> None:
        if self._coordinator.statistics().queued > _AHEAD // 2:
            return
        fails = self._rng.random(_AHEAD) < _FAILING
        for each in fails:
            try:
                remote = self._coordinator.schedule(
                    self._model.move, self._model.arguments(bool(each)), retries=1000
                )
            except _FAILURES as error:
                self._note(error)
                continue  # an earlier closure's
            self._remotes.append(remote)

    def _note(self, error: BaseException) -> None:
        """Count exchanges that were lost, as the error says, and those that came with it."""
        found = [error, *getattr(error, "other_errors", ())]
        self._exchanges_lost += sum(_EXCHANGE_LOST in str(each) for each in found)

    def _collect(self) -> None:
        """Write down what closures have done that have ended."""
        ended = [remote for remote in self._remotes if remote.done()]
        found = set(ended)  # others end in this very moment
        self._remotes = [remote for remote in self._remotes if remote not in found]
        now = time.monotonic()
        for remote in ended:
            try:
                written = remote.fetch(0)
            except (TimeoutError, errors.ServerUnresponsiveError):
                # Its round is not applied yet, or waits for a server; it has written all the same.
                self._remotes.append(remote)
                continue
            except _FAILURES as error:
                self._note(error)
                continue
            self._ledger.count(written)
            self._row.closures += 1
            self._row.stall, self._ended = max(self._row.stall, now - self._ended), now
        if now - self._ended > DEADLINE:
            raise ViolationError(f"no closure has ended for {DEADLINE} s: {self._state()}")

    def _is_quiet(self) -> bool:
        """Wait until nothing runs; return whether that came about."""
        try:
            self._coordinator.drain(DEADLINE)
            self._coordinator.done()  # raises what `drain` found out: that an exchange was lost
        except TimeoutError as error:
            raise ViolationError(f"drain does not end: {self._state()}") from error
        except errors.ServerUnresponsiveError:
            return False
        except _FAILURES as error:
            self._note(error)
        self._collect()
        return not self._is_lossy()

    def _check(self) -> bool:
        try:
            return self._is_quiet() and self._compare()
        finally:
            self._coordinator.resume()

    def _compare(self) -> bool:
        """Return whether all is there; False if something was lost meanwhile."""
        found = self._insist(lambda: self._model.found(self._ledger.numbers))
        if found is None or self._is_lossy():
            return False
        lost = 0
        if isinstance(self._mode, psnb.Geo):
            kinds = [event.kind for event in self._coordinator.events()]
            # Those that it has ended since its last exchange; or those of an exchange that a server
            # was lost or unresponsive in, which is raised.
            lost = self._mode.closures * (kinds.count(EventKind.WORKER_LOST) + self._exchanges_lost)
        if wrong := self._ledger.differences(found, lost):
            raise ViolationError("; ".join(wrong))
        return True

    def _save(self) -> None:
        try:
            if self._is_quiet() and self._compare():
                saved = self._insist(lambda: self._manager.save(self._ledger.saved()))
                if saved and not self._is_lossy():
                    self._saved = [path for path in (*self._saved, saved) if path.exists()]
                    self._row.saves += 1
        finally:
            self._coordinator.resume()

    def _save_live(self) -> None:
        """Save while closures run."""
        if self._insist(self._shared.save):
            self._row.saves += 1

    def _restore(self) -> None:
        path = self._saved[self._rng.integers(len(self._saved))]
        try:
            if not self._is_quiet():
                return
            saved = self._insist(lambda: self._manager.restore(path))
            if saved is None:  # lost in the middle: half of it may be there
                self._recover(path)
                return
            self._begin_era(saved)
            self._row.restores += 1
        finally:
            self._coordinator.resume()

    def _rebalance(self) -> None:
        servers = self.strategy.server_addresses
        drain = [str(self._rng.choice(servers))] if servers and self._rng.random() < 0.5 else []
        try:
            self.strategy.rebalance(drain=drain)
            self._row.rebalances += 1
        except (errors.ServerLostError, errors.ConfigurationError):
            pass  # too few servers at the moment, or one that was killed

    def _is_lossy(self) -> bool:
        """Return whether something is lost; that is a violation if it was not allowed."""
        if unexplained := self.exposure.unexplained():
            events = [event.message for event in self.strategy.server_events()[-20:]]
            raise ViolationError(
                f"shards {unexplained} are lost, but copies of them lived: {events}"
            )
        return bool(self.exposure.lost()) or any(
            _MAY_LACK in event.message for event in self.strategy.server_events(self._recovered)
        )

    def _recover(self, path: Path | None = None) -> None:
        path = path or self._saved[-1]
        logger.info("notebook: recover from %s", path)
        end = time.monotonic() + DEADLINE
        self._coordinator.pause()
        while True:
            self._recovered, kills = time.time(), self.exposure.kills()
            try:
                saved = self.strategy.recover(path)
            except (errors.ServerLostError, errors.ClusterError) as error:
                if time.monotonic() > end:
                    raise ViolationError(f"recover does not succeed: {self._state()}") from error
                continue
            break
        self._collect()
        logger.info("notebook: recovered")
        self.exposure.forget(kills)
        self._begin_era(saved)
        self._row.recoveries += 1
        self._coordinator.resume()

    def _begin_era(self, saved: Any) -> None:
        self._ledger = self._ledger.restored(saved)
        self._model.begin_era(self._ledger.era)

    def _insist(self, ask: Callable[[], T]) -> T | None:
        """Ask again for as long as servers say nothing; None if something is lost."""
        end = time.monotonic() + DEADLINE
        while True:
            try:
                return ask()
            except errors.ServerLostError as error:
                if self._is_lossy():
                    return None
                if time.monotonic() > end:
                    raise ViolationError(f"servers do not answer: {self._state()}") from error

    def _state(self) -> str:
        events = [*self._coordinator.events(), *self.strategy.server_events()]
        latest = sorted(events, key=lambda event: event.time)[-20:]
        said = "\n".join(f"  {event.time:.3f} {event.message}" for event in latest)
        return f"{self._coordinator!r}\n{self.strategy._core.layout}\n{said}"
