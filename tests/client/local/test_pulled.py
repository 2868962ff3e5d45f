"""Copies of variables that are pulled anew in another thread."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.local.downpour import PulledVariables
from psnb._src.client.requests import Request
from psnb._src.client.updates import Updates, buffered
from psnb._src.client.variable import Variable
from psnb._src.placement.layout import ShardId
from psnb._src.server.tables.operations import PushGradient, on_table
from psnb.errors import ServerLostError
from tests.client.in_process import InProcess, embedding, variable
from tests.conftest import wait_until


class Gate(InProcess):
    """Servers that answer in the thread of pulls only when they may."""

    def __init__(self) -> None:
        super().__init__(3)
        self.may_answer, self.asked = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        if threading.current_thread().name == "psnb-pull":
            self.asked.set()
            assert self.may_answer.wait(10)
            if self.error is not None:
                raise self.error
        return super().call(requests, seen)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def _in_closure(pulled: PulledVariables) -> Updates:
    return Updates(counted=True, server_client=pulled)


def _travelled(value: Variable) -> Variable:
    """Return the handle as a worker has it: it uses the closure's client."""
    found: Variable = pickle.loads(pickle.dumps(value))
    return found


@pytest.fixture
def value(gate: Gate) -> Variable:
    return _travelled(variable(np.zeros(6), 3, psnb.SGD(1.0), gate))


def _push(gate: Gate) -> None:
    """Change the variable as another worker does."""
    for number, shard in enumerate(gate.shards):
        gate.call([Request(shard, on_table(f"v/{2 * number}", PushGradient(np.ones(2))))])


def test_a_variable_is_asked_for_once(gate: Gate, value: Variable) -> None:
    pulled = PulledVariables(5, gate)
    calls = gate.calls
    with buffered(_in_closure(pulled)):
        assert value.read().tolist() == value.read().tolist() == [0.0] * 6
    assert gate.calls == calls + 1


def test_a_copy_belongs_to_the_caller(gate: Gate, value: Variable) -> None:
    pulled = PulledVariables(5, gate)
    with buffered(_in_closure(pulled)):
        value.read()[:] = 7.0
        assert value.read().tolist() == [0.0] * 6


def test_steps_go_on_with_the_last_copy_while_a_new_one_is_pulled(
    gate: Gate, value: Variable
) -> None:
    pulled = PulledVariables(2, gate)
    with buffered(_in_closure(pulled)):
        pulled.begin_batch()
        value.read()
        _push(gate)
        pulled.begin_batch()
        assert gate.asked.wait(10)
        assert value.read().tolist() == [0.0] * 6
        gate.may_answer.set()
        wait_until(lambda: value.read().tolist() == [-1.0] * 6, "the new copy is there")


def test_nothing_is_pulled_before_it_is_time(gate: Gate, value: Variable) -> None:
    pulled = PulledVariables(3, gate)
    with buffered(_in_closure(pulled)):
        value.read()
        pulled.begin_batch()
        pulled.begin_batch()
        assert not gate.asked.is_set()
        pulled.begin_batch()
        assert gate.asked.wait(10)
    gate.may_answer.set()


def test_the_next_read_raises_the_error_of_a_lost_server(gate: Gate, value: Variable) -> None:
    pulled, gate.error = PulledVariables(1, gate), ServerLostError("gone")
    gate.may_answer.set()
    with buffered(_in_closure(pulled)):
        value.read()
        pulled.begin_batch()
        wait_until(lambda: pulled._error is not None, "the pull has failed")
        with pytest.raises(ServerLostError, match="gone"):
            value.read()
        assert value.read().tolist() == [0.0] * 6


def test_the_staleness_of_a_closure_counts_from_its_copy(gate: Gate, value: Variable) -> None:
    pulled = PulledVariables(9, gate)
    first, second = _in_closure(pulled), _in_closure(pulled)
    with buffered(first):
        value.read()
    _push(gate)
    with buffered(second):
        value.read()
    assert second.seen == first.seen


def test_rows_come_from_the_servers(gate: Gate) -> None:
    rows = pickle.loads(pickle.dumps(embedding(shards=3, transport=gate)))
    calls = gate.calls
    with buffered(_in_closure(PulledVariables(5, gate))):
        rows.lookup([1, 2])
        rows.lookup([1, 2])
    assert gate.calls == calls + 2
