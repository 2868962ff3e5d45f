"""Callbacks of Keras that look at batches, on a real cluster: what they see is what Keras shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import keras
import numpy as np
import pytest
from distributed import Client

import psnb
import psnb.keras
from psnb._src.models.keras.fit import Passes
from tests.models.keras import nets

pytestmark = [
    # Of Keras itself, with numpy 2 and without 64-bit integers.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]

STEPS = 5


class Watching(keras.callbacks.Callback):
    """Sets the rate of each batch, or round, and keeps the weights that it leaves."""

    def __init__(self, batches: int = 1) -> None:
        super().__init__()
        self.batches, self.seen = batches, []  # type: ignore[var-annotated]

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.5 / (batch // self.batches + 1)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(self.model.get_weights())


def seen_alone(batch: int) -> list[list[np.ndarray]]:
    """Return what Keras alone shows, batches being so large."""
    model, watching = nets.plain(), Watching()
    model.compile(keras.optimizers.SGD(0.5), "mse")
    x, y = nets.joined(nets.data(steps=STEPS))
    model.fit(x, y, batch, shuffle=False, verbose=0, callbacks=[watching])
    return watching.seen


def seen(client: Client, closures: int) -> list[list[np.ndarray]]:
    """Return what is shown in rounds of so many batches."""
    with psnb.ParameterServerStrategy(client, mode=psnb.Sync(closures)) as strategy:
        model = psnb.keras.distribute(nets.plain(), strategy)
        model.compile(keras.optimizers.SGD(0.5), "mse")
        watching = Watching(closures)
        x, y = nets.joined(nets.data(steps=STEPS))
        model.fit(x, y, nets.SIZE, shuffle=False, verbose=0, callbacks=[watching])
        return watching.seen


def test_callbacks_see_the_weights_of_their_batch_and_set_its_rate(cluster: Client) -> None:
    keras.utils.set_random_seed(0)
    expected = seen_alone(nets.SIZE)
    keras.utils.set_random_seed(0)
    found = seen(cluster, 1)
    assert len(found) == len(expected) == STEPS
    for weights, others in zip(found, expected, strict=True):
        for value, other in zip(weights, others, strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def test_callbacks_of_the_batches_of_a_round_see_the_weights_after_it(cluster: Client) -> None:
    keras.utils.set_random_seed(0)
    expected = seen_alone(2 * nets.SIZE)
    keras.utils.set_random_seed(0)
    found = seen(cluster, 2)
    assert len(found) == STEPS
    for number, weights in enumerate(found):
        for value, other in zip(weights, expected[number // 2], strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hold", [False, True])
def test_batches_are_scheduled_ahead_unless_a_callback_looks_at_them(
    cluster: Client, hold: bool
) -> None:
    def take(iterator: Iterator[int]) -> int:
        return next(iterator)

    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(1)) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        begun: list[int] = []
        data = psnb.data.Dataset.range(12)
        run = Passes(coordinator, data).run(take, begun.append, hold=hold)
        with closing(run):  # type: ignore[type-var]
            assert next(run) == 0
            assert begun == [0]
            now = coordinator.statistics()
            scheduled = now.queued + now.in_flight + now.completed
            assert scheduled == 1 if hold else scheduled > 2
            assert list(run) == [*range(1, 12)]
        assert begun == [*range(12)]


def test_an_epoch_starts_over_where_the_steps_of_the_one_before_have_used_all(
    cluster: Client,
) -> None:
    def take(iterator: Iterator[int]) -> int:
        return next(iterator)

    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(1)) as strategy:
        passes = Passes(psnb.ClusterCoordinator(strategy), psnb.data.Dataset.range(6), 3)
        found = [list(passes.run(take, lambda number: None)) for _ in range(3)]
    assert found == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
