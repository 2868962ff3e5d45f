"""Watched: the side of a coordinator that people see, and the controls in its live views.

Everything here may be used from any thread, while another one is blocked in ``join``. Snapshots are
made from the records; only what the controls do goes to the cluster.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from psnb._src.cluster import add_worker, cannot_add, retire_worker
from psnb._src.coordinator.queue import ClosureQueue
from psnb._src.coordinator.workers import Membership
from psnb._src.excerpt import NAME, excerpt
from psnb._src.monitor import (
    CheckpointStatistics,
    CommandName,
    Event,
    EventKind,
    Failure,
    Identity,
    LiveView,
    PanelLink,
    Records,
    Statistics,
    WorkerStatistics,
    in_notebook,
    kernel_id,
    plot,
    tell_panels,
)
from psnb._src.strategy import ParameterServerStrategy
from psnb._src.threads import uninterrupted
from psnb.errors import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Manager(Protocol):
    """What saves checkpoints."""

    @property
    def status(self) -> CheckpointStatistics:
        """The newest one."""

    def save(self) -> Path:
        """Save one; return where."""


class Watched:
    """What views read and do; a part of `ClusterCoordinator`.

    Attributes
    ----------
    strategy : ParameterServerStrategy
        Whose coordinator it is.
    records : Records
        What its lanes write down; for views.
    """

    strategy: ParameterServerStrategy
    records: Records
    _queue: ClosureQueue
    _membership: Membership

    def _watch_from_now_on(self) -> None:
        self._started, self._began = time.monotonic(), time.time()
        self._elapsed: float | None = None  # when it was closed
        self._last_workers: tuple[WorkerStatistics, ...] | None = None  # likewise
        self._view = LiveView()
        self._managing = threading.Lock()  # guards the next
        self._manager: Manager | None = None
        self._link: PanelLink | None = None

    def _tell_panels(self) -> None:
        """Let panels find it; once all is there that they may ask for."""
        self._link = tell_panels(self, self.strategy.client)

    def _note_end(self) -> None:
        """Keep what is to be told of it for good; before its lanes end."""
        self._elapsed = time.monotonic() - self._started
        self._last_workers = self._membership.statistics()

    def _stop_views(self) -> None:
        self._view.stop()
        if self._link is not None:
            self._link.close()

    def __repr__(self) -> str:
        s = self.statistics()
        ready = sum(worker.state == "ready" for worker in s.workers)
        text = (
            f"<psnb.ClusterCoordinator {s.state}: {s.queued} queued, {s.in_flight} in flight, "
            f"{s.completed} completed, {s.failed} failed, {s.retried} retried; {ready} workers"
        )
        metrics = ", ".join(f"{name} {m.smoothed:.4g}" for name, m in s.metrics.items())
        return f"{text}; {metrics}>" if metrics else f"{text}>"

    def dashboard(self) -> None:
        """Show the live dashboard below this cell, as the coordinator does as a cell's last line.

        It follows the coordinator also while another cell blocks in `join`, and its buttons work
        then. When the coordinator is closed, its final state takes the place. Outside of notebooks
        this prints a line.
        """
        self._view.show(self)

    def _ipython_display_(self) -> None:
        if not in_notebook():
            raise NotImplementedError  # IPython takes the repr then.
        self._view.show(self)

    @property
    def id(self) -> str:
        """What tells it from all other coordinators of the cluster."""
        return self._queue.name

    def statistics(self) -> Statistics:
        """Return a frozen snapshot of queue, workers, servers and metrics; cheap, any thread."""
        queue = self._queue.statistics()
        if queue.closed:
            state = "closed"
        elif queue.failing:
            state = "failing"
        elif queue.paused:
            state = "draining" if queue.in_flight else "paused"
        else:
            state = "running" if queue.queued or queue.in_flight else "idle"
        records = self.records
        workers = tuple(
            replace(each, last_error=records.failures.last_of(each.name)) if each.failed else each
            for each in self._last_workers or self._membership.statistics()
        )
        rate = sum(worker.closures_per_second for worker in workers)
        left = queue.queued + queue.in_flight
        metrics = records.history.metrics()
        with self._managing:
            manager = self._manager
        return Statistics(
            state=state,
            elapsed=time.monotonic() - self._started if self._elapsed is None else self._elapsed,
            queued=queue.queued,
            in_flight=queue.in_flight,
            completed=queue.completed,
            failed=queue.failed,
            cancelled=queue.cancelled,
            retried=queue.retried,
            workers=workers,
            servers=self.strategy.server_statistics(),
            metrics=metrics,
            staleness=records.staleness.statistics(),
            closures_per_second=rate,
            eta=left / rate if left and rate and state == "running" else None,
            examples=metrics["examples"].total if "examples" in metrics else None,
            examples_per_second=records.history.examples_per_second(),
            checkpoint=CheckpointStatistics() if manager is None else manager.status,
        )

    def events(self, since: float = 0.0) -> tuple[Event, ...]:
        """Return what happened to workers, servers and closures, the oldest first; cheap.

        Any thread may call.

        The last ten thousand events are kept. Each is also logged through `logging` under
        ``psnb``: losses as warnings, the rest as information.

        Parameters
        ----------
        since : float
            Only those later than this, in seconds since the epoch.
        """
        both = [*self.records.events.since(since), *self.strategy.server_events(since)]
        return tuple(sorted(both, key=lambda event: event.time))

    def failures(self) -> tuple[Failure, ...]:
        """Return which closures raised and what, the oldest first; any thread may call.

        The last two hundred are kept, whether `join` has raised them or not. Those that failed only
        because an input of theirs did are not among them.
        """
        return self.records.failures.since(0)

    def history(self) -> dict[str, dict[str, np.ndarray]]:
        """Return everything that closures reported with `psnb.report`, by metric.

        Returns
        -------
        dict of str to dict
            Of each metric ``step`` (int64: how many values had been reported), ``time`` (float64,
            seconds since the epoch), ``value`` and ``smoothed`` (float64), each of shape
            ``(points,)``. A series is thinned out evenly when it gets longer than ten thousand
            points, so it always spans the whole run.
        """
        history = self.records.history
        return {name: history.series(name) for name in history.metrics()}

    def plot(self, metrics: Sequence[str] | None = None, *, log: bool = False) -> Figure:
        """Draw what closures reported, for papers; a live view is `dashboard`.

        Parameters
        ----------
        metrics : sequence of str, optional
            Which; all of them if left out.
        log : bool
            Whether the values get a logarithmic axis.

        Returns
        -------
        matplotlib.figure.Figure
            One chart for each metric: raw values pale, smoothed ones strong. Not registered with
            pyplot; ``savefig`` writes it, and as the last line of a cell it is shown.

        Raises
        ------
        ConfigurationError
            If one of the metrics was never reported, or none at all.
        """
        return plot(self.history(), metrics, log=log)

    @property
    def paused(self) -> bool:
        """Whether nothing new is begun, after `pause` or `drain`."""
        return self._queue.statistics().paused

    @uninterrupted
    def pause(self) -> None:
        """Begin no more closures until `resume`; idempotent, returns at once.

        What runs on a worker goes on to its end; what was only sent there comes back to the queue.
        Closures can be scheduled meanwhile. `join` and `fetch` wait for what is paused, too.

        Raises
        ------
        CoordinatorClosedError
            If the coordinator is closed.
        """
        self._queue.pause()
        self._membership.call_back()

    def resume(self) -> None:
        """Go on after `pause` or `drain`; idempotent.

        Raises
        ------
        CoordinatorClosedError
            If the coordinator is closed.
        """
        self._queue.resume()

    def cancel_queued(self) -> int:
        """Cancel all closures that wait in the queue; what workers hold goes on.

        A worker holds short closures ahead of time, too; `pause` has it return what it has not
        begun. To fetch one that was cancelled raises `CancelledError`; for `join` it has ended,
        without an error. What was lost with its worker counts as running until it is known whether
        it has had its effect.

        Returns
        -------
        int
            How many those were.

        Raises
        ------
        CoordinatorClosedError
            If the coordinator is closed.
        """
        return self._queue.cancel_queued()

    def drain(self, timeout: float | None = None) -> None:
        """Pause, and wait until nothing runs: then the parameters stand still until `resume`.

        For a checkpoint of one moment, for example. Errors of closures are left for `join`.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; None waits for as long as it takes.

        Raises
        ------
        TimeoutError
            If it takes longer; the coordinator stays paused.
        ServerSilentError
            If nothing runs, but a server that says nothing must tell what became of closures; the
            coordinator stays paused.
        CoordinatorClosedError
            If the coordinator is closed.
        """
        self.pause()
        self._queue.wait_until_nothing_runs(timeout)

    def checkpoint(self) -> Path:
        """Save all parameters with the `CheckpointManager` that was made last; see its ``save``.

        Returns
        -------
        pathlib.Path
            The new checkpoint.

        Raises
        ------
        CheckpointError
            If no manager was made for this coordinator, or as for `CheckpointManager.save`.
        ServerLostError
            If a server is gone.
        """
        with self._managing:
            manager = self._manager
        if manager is None:
            raise CheckpointError(_NO_MANAGER)
        return manager.save()

    def note_manager(self, manager: Manager) -> None:
        """Have `checkpoint` save with this one; for `CheckpointManager`."""
        with self._managing:
            self._manager = manager

    def set_learning_rate(self, parameter: str, value: float) -> None:
        """Set the learning rate of a parameter's optimizer, from the next update on.

        The same as ``strategy.parameters[parameter].optimizer.learning_rate = value``.

        Raises
        ------
        ConfigurationError
            If there is no such parameter, if it has no optimizer, or if the value is out of range.
        ServerLostError
            If a server is gone; the others may have it already.
        """
        found = self.strategy.parameters.get(parameter)
        optimizer = None if found is None else found.optimizer
        if optimizer is None:
            raise ConfigurationError(f"there is no parameter {parameter!r} with an optimizer")
        optimizer.learning_rate = value

    def add_worker(self) -> None:
        """Have the cluster start one worker more; returns at once, and it joins when it is ready.

        Raises
        ------
        ClusterError
            If this notebook has not started the cluster, or it scales itself.
        """
        add_worker(self.strategy.client)

    def retire_worker(self, worker: str) -> None:
        """Have a worker finish the closures that it has, and leave the cluster.

        Parameters
        ----------
        worker : str
            Its name or its address.

        Raises
        ------
        ConfigurationError
            If there is no such worker, or it is not ready.
        ClusterError
            If it did not leave in a minute.
        """
        for each in self._membership.statistics():
            if worker in (str(each.name), each.address) and each.state == "ready":
                retire_worker(self.strategy.client, each.address)
                return
        raise ConfigurationError(f"there is no worker {worker!r} that is ready")

    def identity(self) -> Identity:
        """Return who it is, for views."""
        client = self.strategy.client
        scheduler = client.scheduler
        return Identity(
            name=excerpt(self.strategy.name, NAME),
            kernel=kernel_id(),
            process=os.getpid(),
            host=socket.gethostname(),
            cluster=scheduler.address if scheduler is not None else "",
            dashboard=client.dashboard_link or "",
            started=self._began,
        )

    def optimizers(self) -> Mapping[str, tuple[str, float | str]]:
        """Return class and learning rate of each optimizer, as last heard; for views."""
        found = {}
        for name, optimizer in self.strategy.optimizers().items():
            rate = optimizer.learning_rate
            told = float(rate) if isinstance(rate, int | float) else repr(rate)
            found[name] = type(optimizer).__name__, told
        return found

    def controls(self) -> dict[CommandName, str]:
        """Return for each control of a view why it cannot be used now; empty if it can."""
        queue = self._queue.statistics()
        closed = "the coordinator is closed" if queue.closed else ""
        with self._managing:
            managed = self._manager is not None
        return {
            "pause": closed or ("it is paused already" if queue.paused else ""),
            "resume": closed or ("" if queue.paused else "it is not paused"),
            "drain": closed,
            "cancel_queued": closed or ("" if queue.queued else "nothing is queued"),
            "checkpoint": closed or ("" if managed else _NO_MANAGER),
            "set_learning_rate": closed,
            "add_worker": closed or cannot_add(self.strategy.client),
            "retire_worker": closed,
        }

    def watch(self) -> None:
        """Keep fresh what takes asking the servers, for some seconds; for views."""
        self.strategy.watch()

    def note_command(self, message: str) -> None:
        """Note that somebody gave a command in a view."""
        self.records.events.add(EventKind.COMMAND_GIVEN, message)


_NO_MANAGER = "there is nothing to save with: make a psnb.CheckpointManager(coordinator, directory)"
