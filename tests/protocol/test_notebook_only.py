"""What stays in the notebook is refused by name, with what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import psnb
from psnb.errors import SerializationError

STRATEGY = "a strategy stays in the notebook: give the closure the variables"
COORDINATOR = "a coordinator stays in the notebook: a closure returns"
CLIENT = r"a Dask client stays in its process; in a closure distributed\.get_client\(\)"


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


def captures(value: Any) -> Callable[[], Any]:
    return lambda: value


def holds(value: Any) -> Callable[[], Any]:
    holder = Holder(value)
    return lambda: holder


WAYS: dict[str, tuple[Callable[[Any], tuple[Any, ...]], str]] = {
    "captured": (lambda value: (captures(value),), "variable 'value' is <psnb.*|variable 'value'"),
    "in an object": (lambda value: (holds(value),), r"variable 'holder'\.held is <"),
    "argument": (lambda value: (len, (value,)), r"args\[0\] is <"),
    "in an argument": (lambda value: (len, ([{"a": value}],)), r"args\[0\]\[0\]\['a'\] is <"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("which", "remedy"), [(0, STRATEGY), (1, COORDINATOR), (2, CLIENT)])
def test_it_is_refused_by_name(
    coordinator: psnb.ClusterCoordinator, which: int, remedy: str, way: str
) -> None:
    value = (coordinator.strategy, coordinator, coordinator.strategy.client)[which]
    make, where = WAYS[way]
    with pytest.raises(SerializationError, match=rf"cannot be pickled: ({where}).*: {remedy}") as e:
        coordinator.schedule(*make(value))
    assert "_handle_report" not in str(e.value)


def test_a_method_of_it_is_refused(coordinator: psnb.ClusterCoordinator) -> None:
    with pytest.raises(SerializationError, match=f"its object is <psnb.*: {COORDINATOR}"):
        coordinator.schedule(coordinator.statistics)


def test_what_holds_a_coordinator_is_refused(
    coordinator: psnb.ClusterCoordinator, tmp_path: Any
) -> None:
    manager = psnb.CheckpointManager(coordinator, tmp_path)
    with pytest.raises(SerializationError, match=rf"'manager'\._coordinator is .*{COORDINATOR}"):
        coordinator.schedule(lambda: manager.save())
