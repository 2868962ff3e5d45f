"""Tests of steps that travel: equal ones are one in a process."""

from __future__ import annotations

import threading
from typing import Any

import cloudpickle
import jax.numpy as jnp
import numpy as np
import pytest

import psnb.jax
from psnb._src.client import server_client
from psnb._src.coordinator.closures.functions import FunctionRegistry
from psnb._src.models.jax import batch
from psnb._src.server.optimizers import SGD
from psnb.errors import SerializationError
from tests.models.placing import InProcessStrategy

BATCH = {"x": np.ones(3, np.float32)}


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the clients of this process at the end."""
    monkeypatch.setattr(server_client, "_of_workers", [])


def made(factor: Any, params: Any = None) -> psnb.jax.TrainStep:
    def loss(params: Any, rows: Any, batch: Any) -> Any:
        return (params["w"] * jnp.asarray(factor) * batch["x"]).sum()

    if params is None:
        strategy = InProcessStrategy()
        server_client.add_process_client(strategy.transport)
        params = psnb.jax.variables(strategy, {"w": jnp.ones(())}, SGD(0.1))
    return psnb.jax.step(loss, params=params)


def arrived(step: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(step))


def test_a_step_that_comes_again_is_the_one_that_was_compiled() -> None:
    step = made([2.0])
    first = arrived(step)
    first(iter([BATCH]))
    assert arrived(step) is first
    assert first.programs == 1
    assert step.programs == 0


def test_a_step_whose_loss_refers_to_something_else_is_another_one() -> None:
    factor = [2.0]
    step = made(factor)
    first = arrived(step)
    factor[0] = 3.0
    second = arrived(step)
    assert second is not first
    assert first(iter([BATCH])) == 2 * 3
    assert second(iter([BATCH])) == pytest.approx(3 * 3 * (1 - 0.1 * 6))


def test_a_loss_and_its_predictions_are_two() -> None:
    step = made(1.0)
    predict = psnb.jax.forward(lambda p, r, b: p["w"], params=step._of.params)
    assert type(arrived(predict)) is not type(arrived(step))


def test_a_process_keeps_so_many_steps_and_no_more() -> None:
    params = made(1.0)._of.params
    steps = [made(float(n), params) for n in range(batch.KEPT + 1)]
    first, second = arrived(steps[0]), arrived(steps[1])
    for each in steps[2:]:
        arrived(each)
        assert arrived(steps[0]) is first
    assert len(batch._kept) == batch.KEPT
    assert arrived(steps[1]) is not second


def test_a_step_that_cannot_be_pickled_names_what_cannot_once() -> None:
    with pytest.raises(SerializationError, match=r"step of .* variable 'factor' is <unl") as raised:
        FunctionRegistry().register(made(threading.Lock()))
    assert str(raised.value).count("is <unlocked") == 1


def test_what_is_made_of_the_same_function_stays_of_its_kind() -> None:
    def double(params: Any, rows: Any, x: Any) -> Any:
        return (x * 2).sum()

    forward, stage = psnb.jax.forward(double), psnb.jax.stage(double)
    first, second = (cloudpickle.loads(cloudpickle.dumps(each)) for each in (forward, stage))
    assert (type(first), type(second)) == (type(forward), type(stage))
