"""What cannot be pickled here, or not unpickled at the other end, fails its caller at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.comm_client import PATIENCE
from psnb._src.client.requests import Request
from psnb._src.server.tables.operations import (
    AssignValues,
    GatherRows,
    ReadValues,
    on_table,
)
from psnb.errors import SerializationError
from tests.transport.test_stream import Unreadable

MISSING = "'no_such_module'"


@contextmanager
def at_once() -> Iterator[None]:
    """Nobody is patient: that would take longer."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < PATIENCE


def slower(**more: Any) -> psnb.Schedule:
    """Return a schedule of a class of this test's own, with more attributes."""

    class Slower(psnb.Schedule):
        def __call__(self, step: int) -> float:
            return 1 / (1 + step)

    schedule = Slower()
    for name, value in more.items():
        object.__setattr__(schedule, name, value)
    return schedule


@pytest.mark.parametrize("operation", [GatherRows, AssignValues])
def test_a_request_that_the_server_cannot_unpickle_is_the_callers(
    strategy: psnb.ParameterServerStrategy, operation: type[GatherRows | AssignValues]
) -> None:
    v = strategy.variable([1.0, 2.0], name="v")
    request = Request(v._shards.parts[0].shard, on_table("v", operation(Unreadable())))
    with (
        at_once(),
        pytest.raises(SerializationError, match=rf"{operation.__name__} of 'v'.*{MISSING}"),
    ):
        strategy._core.server_client.call([request])
    assert v.read().tolist() == [1, 2]


def test_other_calls_on_that_connection_fail_with_it_and_do_not_wait(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    v = strategy.variable([1.0, 2.0], name="v")
    server = v._shards.parts[0].shard
    ok = Request(server, on_table("v", ReadValues()))
    with at_once(), pytest.raises(SerializationError, match=MISSING):
        strategy._core.server_client.call(
            [Request(server, on_table("v", GatherRows(Unreadable()))), ok]
        )
    assert strategy._core.server_client.call([ok])[0].tolist() == [1, 2]


def test_an_answer_that_cannot_be_unpickled_here_is_the_callers(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    def made(decay: Any, travelled: int) -> Any:
        return __import__("no_such_module") if travelled > 1 else decay(made, travelled)

    def decay(made: Any, travelled: int) -> Any:
        class Decay(psnb.Schedule):
            def __call__(self, step: int) -> float:
                return 1.0

            def __reduce__(self) -> tuple[Any, ...]:
                return made, (decay, travelled + 1)

        return Decay()

    # To its server, and back.
    v = strategy.variable([1.0], name="v", optimizer=psnb.SGD(decay(made, 0)))
    assert v.optimizer is not None
    with at_once(), pytest.raises(SerializationError, match=MISSING):
        v.optimizer.current()
    assert v.read().tolist() == [1]


def test_an_optimizer_of_a_module_that_servers_lack_is_refused_by_name(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    rate = slower(more=Unreadable())
    with at_once(), pytest.raises(SerializationError, match=rf"CreateDense .*{MISSING}"):
        strategy.variable([1.0], name="v", optimizer=psnb.SGD(rate))
    v = strategy.variable([1.0], name="v", optimizer=psnb.SGD(1.0))
    assert v.optimizer is not None
    with at_once(), pytest.raises(SerializationError, match=rf"TuneOptimizer of 'v' .*{MISSING}"):
        v.optimizer.learning_rate = rate
    v.push([1.0])
    assert v.read().tolist() == [0]


def test_an_optimizer_that_cannot_be_pickled_is_refused_in_the_calling_thread(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    rate = slower(lock=threading.Lock())
    with at_once(), pytest.raises(SerializationError, match=r"CreateDense.*cannot be pickled"):
        strategy.variable([1.0], name="v", optimizer=psnb.SGD(rate))
    v = strategy.variable(np.zeros(1), name="v", optimizer=psnb.SGD(slower()))
    v.push(np.ones(1))
    assert v.read().tolist() == [-1]
