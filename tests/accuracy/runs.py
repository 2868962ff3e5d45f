"""One pass over the flights on two workers and a server, trained in different ways.

With equal seeds all ways begin with the same weights and rows, and have the same batches of 512
flights. An update is always made of the gradients of 512 flights, with the same learning rates; so
what differs is only which updates a batch has seen when it reads its parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
from distributed import Client

import psnb
import psnb.jax
from psnb._src.demo import run
from psnb.demo import flights, model
from tests.accuracy.alone import Parameters, trained_alone
from tests.accuracy.comparison import Pass
from tests.integration.helpers import Killer, wait_until_whole

BATCH, ROUND = 512, 2
"""Flights of an update, and closures of a synchronous round: each has the round's share of them."""

STEPS = flights.TRAINING // BATCH

PROCESSES = 3
"""Of the cluster: two workers and a server."""

MARKS = (1, 10, 100, STEPS)
"""Numbers of steps after which parameters are compared."""


@dataclass(frozen=True)
class Difference:
    """Between two ways: the largest of a number, how many are beyond a limit, and of the losses."""

    parameters: float
    beyond: int
    count: int
    loss: float


@contextmanager
def _placed(
    client: Client, seed: int, mode: psnb.Async | psnb.Sync, dtype: str = "float32"
) -> Iterator[tuple[psnb.Trainer, dict[str, Any], np.ndarray]]:
    """Place the parameters as they begin by a seed; give the ids whose rows it has chosen, too."""
    wait_until_whole(client, PROCESSES)
    with psnb.ParameterServerStrategy(client, mode=mode) as strategy:
        of = run.place(strategy, seed, dtype)
        # By themselves, the rows of a table begin by its name.
        known = np.unique(np.concatenate([part.ids.reshape(-1) for part in run.loaded()]))
        rows = np.random.default_rng(seed).normal(0, 0.01, (len(known), model.DIMENSION))
        of["tables"]["deep"].assign(known, rows.astype(np.float32))
        coordinator = psnb.ClusterCoordinator(strategy)
        yield run.make_trainer(coordinator, of, progress=False), of, known


def _auc(trainer: psnb.Trainer) -> float:
    scores = trainer.infer_from_dataset(run.held_out())
    return float(model.auc(run.loaded()[1].labels, scores))


def asynchronous(
    client: Client,
    seed: int,
    *,
    threads: int | None = None,
    passes: int = 1,
    kill_every: float | None = None,
) -> Pass:
    """Apply updates as they come; in so many threads of each worker, while workers are killed."""
    with _placed(client, seed, psnb.Async()) as (trainer, _, _):
        trainer.worker = psnb.Hogwild(threads)
        killer = None
        if kill_every is not None:
            strategy = trainer.coordinator.strategy
            killer = Killer(client, strategy, seed, STEPS, (kill_every, kill_every))
        begun = time.perf_counter()
        with killer or nullcontext():
            history = trainer.train_from_dataset(run.training(0, passes * STEPS, BATCH, seed))
        seconds = time.perf_counter() - begun
        assert history["batches"] == [passes * STEPS]
        return Pass(_auc(trainer), seconds, 0 if killer is None else killer.kills)


def synchronous(
    client: Client,
    seed: int,
    mark: Callable[[int, float, Parameters], None] | None = None,
    whole: Callable[..., Any] = model.loss,
    dtype: str = "float32",
) -> Pass:
    """Train a pass in rounds of two closures, which have a half of a batch each.

    The servers average a round's gradients, and the model's loss is the *sum* over flights. So a
    closure's loss counts twice: the average of a round is then the gradient of its whole batch.

    With ``mark``, tell after each of `MARKS` the loss of the last step and the parameters. The rows
    of tables are stored as ``dtype``.
    """

    def loss(layers: Any, rows: Any, batch: Any) -> Any:
        found, told = whole(layers, rows, batch)
        return ROUND * found, told

    with _placed(client, seed, psnb.Sync(ROUND), dtype) as (trainer, of, known):
        step, coordinator = psnb.jax.step(loss, has_aux=True, **of), trainer.coordinator

        def train_on(number: int, part: int) -> float:
            share = BATCH // ROUND
            batch = run.loaded()[0].batch(number, BATCH, seed)
            return step.train_on(vars(batch[part * share : (part + 1) * share])) / BATCH

        begun, first = time.perf_counter(), 0
        for stop in MARKS if mark is not None else (STEPS,):
            remotes = [
                coordinator.schedule(train_on, (number, part))
                for number in range(first, stop)
                for part in range(ROUND)
            ]
            coordinator.join()
            first = stop
            if mark is not None:
                last = float(np.mean(coordinator.fetch(remotes[-ROUND:])))
                mark(stop, last, _parameters(of, known))
        return Pass(_auc(trainer), time.perf_counter() - begun)


def _parameters(of: dict[str, Any], known: np.ndarray) -> Parameters:
    tables = {name: table.lookup(known, training=False) for name, table in of["tables"].items()}
    return {"network": of["params"].read(), **tables}


def smooth(layers: Any, rows: Any, batch: Any) -> Any:
    """Return the loss of the model with softplus in place of ReLU.

    Where a hidden unit is zero to rounding, the derivative of ReLU is 0 or 1 by chance.
    """
    with patch("jax.nn.relu", jax.nn.softplus):
        return model.loss(layers, rows, batch)


def differences(
    client: Client, seed: int, loss: Callable[..., Any], limit: float
) -> dict[int, Difference]:
    """Train a pass in synchronous rounds, and beside it in one process, with the same batches.

    Returns
    -------
    dict of int to Difference
        How far they are from each other after each of `MARKS` steps.
    """
    with _placed(client, seed, psnb.Sync(ROUND)) as (_, of, known):
        start = _parameters(of, known)
    data = run.loaded()[0]
    batches = (data.batch(number, BATCH, seed) for number in range(STEPS))
    alone = trained_alone(loss, start, known, batches)
    expected = {}
    for number, (told, parameters) in enumerate(alone, 1):
        if number in MARKS:
            expected[number] = told, jax.tree.map(np.array, parameters)
    found = {}

    def mark(steps: int, told: float, parameters: Parameters) -> None:
        expected_loss, others = expected[steps]
        leaves = zip(jax.tree.leaves(parameters), jax.tree.leaves(others), strict=True)
        apart = np.concatenate([np.abs(one - other).reshape(-1) for one, other in leaves])
        found[steps] = Difference(
            float(apart.max()), int((apart > limit).sum()), len(apart), abs(told - expected_loss)
        )

    synchronous(client, seed, mark, loss)
    return found
