"""Observed: the part of a coordinator that users watch and control.

All methods may be called from any thread, also while another one is blocked in ``join``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from psnb._src.coordinator.coordinator_view import CoordinatorView
from psnb._src.foreign_names import SaysWhatToUse
from psnb._src.jupyter_internals import in_notebook
from psnb._src.metrics import MetricStates
from psnb._src.monitor import (
    Event,
    Events,
    Failure,
    Failures,
    LiveView,
    Phases,
    Statistics,
    plot,
)
from psnb._src.remote_path import Place
from psnb._src.server import LearningRate
from psnb._src.stages import Stages

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Observed(SaysWhatToUse):
    """What users watch and control of a coordinator; a part of `ClusterCoordinator`."""

    _view: CoordinatorView
    _live: LiveView

    def __repr__(self) -> str:
        return repr(self._view)

    def dashboard(self) -> Any:
        """Show the live dashboard below this cell; the coordinator as a cell's last line does too.

        It is updated, and its buttons work, also while another cell blocks in `join`. When the
        coordinator is closed, its final state is shown. Outside of notebooks this prints a line.

        Returns
        -------
        ipywidgets.DOMWidget or None
            The dashboard, to be placed elsewhere too, as in an ``ipywidgets.VBox``; it does not
            appear a second time if it is the cell's last expression. None if nothing is live. In a
            notebook of marimo, which shows what a cell ends with, its ``mo.ui.anywidget``.
        """
        return self._live.show(self._view)

    def _display_(self) -> Any:
        return self.dashboard()  # marimo calls this for a cell's last expression

    def _ipython_display_(self) -> None:
        if not in_notebook():
            raise NotImplementedError  # IPython takes the repr then.
        self._live.show(self._view)

    @property
    def name(self) -> str:
        """What views call it."""
        return self._view.name

    def statistics(self) -> Statistics:
        """Return a frozen snapshot of queue, workers, servers and metrics; cheap, any thread."""
        return self._view.statistics()

    def events(self, since: float = 0.0) -> tuple[Event, ...]:
        """Return what happened to workers, servers and closures, the oldest first; cheap.

        Any thread may call.

        The last ten thousand events are kept. Each is also logged through `logging` under
        ``psnb``: losses as warnings, the rest as information.

        Parameters
        ----------
        since : float
            Only later events are returned; seconds since the epoch.
        """
        return Events(self._view.events(since))

    def failures(self) -> tuple[Failure, ...]:
        """Return the closures that raised, and what they raised, the oldest first; any thread.

        The last two hundred are kept, whether `join` has raised them or not. Closures that failed
        only because one of their inputs failed are left out.
        """
        return Failures(self._view.records.failures.since(0))

    @property
    def metrics(self) -> MetricStates:
        """What closures reported as states of metrics, merged over all that have returned.

        A frozen mapping from names to `psnb.metrics.MetricState`, as of now, since the coordinator
        was made; any thread may ask. A closure counts exactly once, when it has returned and had
        its effect, also if it ran twice; one that raised does not count. After `join` all are in.

        It is also a mark: ``coordinator.metrics.since(mark)`` has what was merged since then,
        exactly, whoever else reads. So each epoch, or each period of a printed line, has its own::

            mark = coordinator.metrics
            coordinator.run_epoch(step, iterator)
            print(coordinator.metrics.since(mark)["auc"].result())
        """
        return self._view.records.merged.states()

    def phases(self) -> Phases:
        """Return what the time of the closures that have ended went to, by worker; any thread.

        A row is the name of a worker and its `PhaseStatistics`; ``total`` is their sum. Printed, or
        as the last line of a cell, it is a table.
        """
        return Phases.of(self.statistics())

    def stages(self) -> Stages:
        """Return what each part of the datasets has given to closures, and what it took.

        Any thread may call. Of all workers together, as of the last second; see
        `psnb.data.DatasetIterator.stages`. What ``statistics().starved`` says is made of this and
        of `phases`.
        """
        return self.statistics().stages

    def history(self) -> dict[str, dict[str, np.ndarray]]:
        """Return everything that closures reported with `psnb.report`, by metric.

        Returns
        -------
        dict of str to dict
            Of each metric ``step`` (int64: how many values had been reported; of validation, as
            ``val_auc``, how many of its metric), ``time`` (float64, seconds since the epoch),
            ``value`` and ``smoothed`` (float64), each of shape ``(points,)``. A series is thinned
            out evenly when it gets longer than ten thousand points, so it always spans the whole
            run.
        """
        records = self._view.records
        records.merged.draw(time.time(), period=0.0)  # with the very last examples
        history = records.history
        return {name: history.series(name) for name in history.metrics()}

    def plot(self, metrics: Sequence[str] | None = None, *, log: bool = False) -> Figure:
        """Draw what closures reported, for papers; for a live view use `dashboard`.

        Parameters
        ----------
        metrics : sequence of str, optional
            Which metrics; all by default.
        log : bool
            Whether the axis of the values is logarithmic.

        Returns
        -------
        matplotlib.figure.Figure
            One chart for each metric: raw values pale, smoothed ones strong. Not registered with
            pyplot; ``savefig`` writes it, and as the last line of a cell it is shown.

        Raises
        ------
        ConfigurationError
            If one of the metrics was never reported, or no metric was.
        """
        return plot(self.history(), metrics, log=log)

    @property
    def paused(self) -> bool:
        """Whether no new closures are begun, after `pause` or `drain`."""
        return self._view.paused

    def pause(self) -> None:
        """Begin no more closures until `resume`; idempotent, returns at once.

        A closure that runs on a worker goes on to its end; one that has not begun there comes back
        to the queue. Closures can be scheduled meanwhile. `join` and `fetch` wait for paused
        closures, too.

        Raises
        ------
        CoordinatorClosedError
            If the coordinator is closed.
        """
        self._view.pause()

    def resume(self) -> None:
        """Go on after `pause` or `drain`; idempotent.

        Raises
        ------
        CoordinatorClosedError
            If the coordinator is closed.
        """
        self._view.resume()

    def cancel_queued(self) -> int:
        """Cancel all closures that wait in the queue; those that were sent to workers go on.

        Short closures are sent to workers ahead of time; `pause` has workers return those that they
        have not begun. `fetch` of a cancelled closure raises `CancelledError`; for `join` it has
        ended, without an error. A closure that was lost with its worker counts as running until it
        is known whether it has had its effect.

        Returns
        -------
        int
            How many were cancelled.

        Raises
        ------
        CoordinatorClosedError
            If the coordinator is closed.
        """
        return self._view.cancel_queued()

    def drain(self, timeout: float | None = None) -> None:
        """Pause, and wait until no closure runs: the parameters do not change until `resume`.

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
            If no closure runs, but a server that does not respond must say whether closures had
            their effect; the coordinator stays paused.
        CoordinatorClosedError
            If the coordinator is closed.
        """
        self._view.drain(timeout)

    def checkpoint(self) -> Place:
        """Save all parameters with the `CheckpointManager` that was made last; see its ``save``.

        Returns
        -------
        pathlib.Path or RemotePath
            The new checkpoint.

        Raises
        ------
        CheckpointError
            If no manager was made for this coordinator, or as for `CheckpointManager.save`.
        ServerLostError
            If a server is gone.
        """
        return self._view.checkpoint()

    def set_learning_rate(self, parameter: str, value: LearningRate) -> None:
        """Set the learning rate of a parameter's optimizer, from the next update on.

        The same as ``strategy.parameters[parameter].optimizer.learning_rate = value``.

        Raises
        ------
        ConfigurationError
            If there is no such parameter, if it has no optimizer, or if the value is out of range.
        ServerLostError
            If a server is gone; the others may have it already.
        """
        self._view.set_learning_rate(parameter, value)

    def add_worker(self) -> None:
        """Have the cluster start one more worker; returns at once. The worker joins when ready.

        Raises
        ------
        ClusterError
            If this notebook has not started the cluster, or the cluster scales itself.
        """
        self._view.add_worker()

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
        self._view.retire_worker(worker)
