"""Tests of hyperparameters that change live, over servers in this process."""

from __future__ import annotations

from collections.abc import Callable

import cloudpickle
import numpy as np
import pytest

from psnb._src.client.arguments import NonFinite
from psnb._src.client.embedding import Embedding
from psnb._src.client.parameter_shards import LiveOptimizer, ParameterShards
from psnb._src.client.requests import Request
from psnb._src.client.variable import Variable
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adam, RMSProp
from psnb._src.server.schedules import CosineDecay
from psnb.errors import ConfigurationError, ServerLostError
from tests.client.in_process import DIM, InProcess, embedding, process_client, variable

__all__ = ["process_client"]

Handle = Variable | Embedding


def _variable(optimizer: Optimizer | None, transport: InProcess) -> Variable:
    return variable(np.zeros((6, DIM), np.float32), 3, optimizer, transport)


def _embedding(optimizer: Optimizer | None, transport: InProcess) -> Embedding:
    return embedding(6, 3, optimizer, transport)


KINDS = pytest.mark.parametrize("make", [_variable, _embedding])
Make = Callable[[Optimizer | None, InProcess], Handle]


def live(handle: Handle) -> LiveOptimizer:
    assert handle.optimizer is not None
    return handle.optimizer


def values(handle: Handle) -> np.ndarray:
    return handle.read() if isinstance(handle, Variable) else handle.lookup(range(6))


def push(handle: Handle) -> None:
    ones = np.ones((6, DIM), np.float32)
    if isinstance(handle, Variable):
        handle.push(ones)
    else:
        handle.push(range(6), ones)


@KINDS
def test_new_rate_counts_from_the_next_update_on_every_shard(make: Make) -> None:
    handle = make(SGD(1.0), InProcess(3))
    push(handle)
    before = values(handle)
    live(handle).learning_rate = 0.25
    push(handle)
    np.testing.assert_allclose(values(handle), before - 0.25, rtol=0, atol=1e-7)
    assert live(handle).learning_rate == 0.25


@KINDS
def test_every_handle_tells_what_another_has_set(make: Make, process_client: InProcess) -> None:
    first = make(Adam(0.1), process_client)
    second = cloudpickle.loads(cloudpickle.dumps(first))
    kept = second.optimizer
    live(first).beta_1 = 0.5
    kept.clipvalue = 3
    for handle in (first, second):
        assert live(handle).current() == Adam(0.1, beta_1=0.5, clipvalue=3.0)


def test_live_optimizer_pickles_by_itself(process_client: InProcess) -> None:
    handle = _variable(SGD(1.0), process_client)
    cloudpickle.loads(cloudpickle.dumps(live(handle))).learning_rate = 0.5
    assert live(handle).learning_rate == 0.5


def test_schedule_can_take_the_place_of_a_number() -> None:
    handle = _variable(SGD(1.0), InProcess(3))
    live(handle).learning_rate = CosineDecay(0.5, 10)
    assert live(handle).learning_rate == CosineDecay(0.5, 10)
    push(handle)
    np.testing.assert_array_equal(values(handle), -0.5)


@KINDS
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("learning_rate", -1.0, "learning_rate=-1.0"),
        ("learning_rate", "fast", "learning_rate='fast'"),
        ("momentum", 0.9, "momentum=0.9 needs"),
        ("centered", True, "centered=True needs"),
        ("learing_rate", 0.1, "has no hyperparameter 'learing_rate'; it has learning_rate, "),
        ("_made", None, "has no hyperparameter '_made'"),
    ],
)
def test_bad_value_is_refused_before_anything_is_sent(
    make: Make, name: str, value: object, message: str
) -> None:
    transport = InProcess(3)
    handle = make(RMSProp(0.1), transport)
    transport.carried.clear()
    with pytest.raises(ConfigurationError, match=message):
        setattr(live(handle), name, value)
    assert not transport.carried
    assert live(handle).current() == RMSProp(0.1)


def test_what_is_no_hyperparameter_is_no_attribute() -> None:
    optimizer = live(_variable(SGD(1.0), InProcess(3)))
    assert not hasattr(optimizer, "momentum")
    assert {"learning_rate", "current"} <= set(dir(optimizer))


@KINDS
def test_parameter_without_optimizer_has_none(make: Make) -> None:
    assert make(None, InProcess(3)).optimizer is None


def test_optimizer_of_a_handle_cannot_be_replaced() -> None:
    with pytest.raises(AttributeError):
        _variable(SGD(1.0), InProcess(3)).optimizer = SGD(2.0)  # type: ignore[misc, assignment]


def test_it_shows_and_describes_the_current_values() -> None:
    optimizer = live(_variable(SGD(1.0), InProcess(3)))
    optimizer.learning_rate = 0.5
    assert repr(optimizer) == repr(SGD(0.5))
    assert optimizer.describe() == SGD(0.5).describe()


class Gone:
    """A transport to servers that are lost."""

    def call(self, requests: list[Request]) -> list[object]:
        raise ServerLostError("gone")


def test_it_can_be_shown_when_its_servers_are_gone() -> None:
    tables = [(InProcess(1).shards[0], "v")]
    shards = ParameterShards("v", SGD(1.0), tables, Gone(), NonFinite.REFUSE)  # type: ignore[arg-type]
    optimizer = LiveOptimizer(shards)
    assert "'v', out of reach; made as SGD(" in repr(optimizer)
    with pytest.raises(ServerLostError):
        _ = optimizer.learning_rate
