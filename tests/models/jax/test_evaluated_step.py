"""Tests of training steps in JAX where nothing is to be trained; servers in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psnb.jax
from psnb._src.client.local.dry_run import writing_nothing
from psnb._src.client.server_client import reaching_by
from psnb._src.server.optimizers import SGD
from psnb._src.worker.context import WorkerContext, entered
from tests.models.placing import InProcessStrategy

BATCH = {"ads": np.array([3, 1, 3]), "y": np.array([1.0, -1.0, 0.5], np.float32)}


@jax.custom_vjp
def underived(x: Any) -> Any:
    return x


def _derived(x: Any) -> Any:
    raise AssertionError("a gradient is computed")


underived.defvjp(_derived, _derived)


def plain_loss(params: Any, rows: Any, batch: Any) -> Any:
    error = jnp.mean((rows["ads"] @ params["w"] - batch["y"]) ** 2)
    return error, {"double": 2 * error}


def underived_loss(params: Any, rows: Any, batch: Any) -> Any:
    return plain_loss(jax.tree.map(underived, params), rows, batch)


class Model:
    """A dense vector, and a table of any id."""

    def __init__(self) -> None:
        self.strategy = InProcessStrategy()
        self.params = psnb.jax.variables(self.strategy, {"w": jnp.arange(3.0)}, SGD(0.05))
        self.ads = self.strategy.embedding("ads", 3, optimizer=SGD(0.05))

    def step(self, loss: Any) -> psnb.jax.TrainStep:
        return psnb.jax.step(loss, params=self.params, tables={"ads": self.ads}, has_aux=True)

    @contextmanager
    def evaluation(self, told: list[dict[str, float]]) -> Iterator[None]:
        context = WorkerContext(0, 1, "w", 1, lambda when, values: told.append(values))
        with reaching_by(self.strategy.transport), entered(context), writing_nothing():
            yield


def test_an_evaluation_computes_and_compiles_no_gradient_and_writes_nothing() -> None:
    model, told = Model(), []  # type: ignore[var-annotated]
    step = model.step(underived_loss)
    model.strategy.calls()
    with model.evaluation(told):
        losses = [step(iter([BATCH])) for _ in range(2)]
    assert model.strategy.calls() == 2  # each reads once
    assert losses[0] == losses[1] == told[0]["loss"] == told[0]["double"] / 2
    assert (told[0]["examples"], told[0]["programs"], step.programs) == (3, 1, 1)
    assert model.ads.statistics().rows == 0
    np.testing.assert_array_equal(model.params.read()["w"], np.arange(3.0))
    with pytest.raises(AssertionError, match="a gradient is computed"):
        step(iter([BATCH]))


def test_an_evaluation_has_the_loss_that_training_begins_with_and_training_goes_on() -> None:
    model, told = Model(), []  # type: ignore[var-annotated]
    step = model.step(plain_loss)
    with model.evaluation(told):
        evaluated = step(iter([BATCH]))
    assert step(iter([BATCH])) == pytest.approx(evaluated, rel=1e-6)
    assert model.ads.statistics().rows == 2
    with model.evaluation(told):
        assert step(iter([BATCH])) < evaluated
    assert step.programs == 2
