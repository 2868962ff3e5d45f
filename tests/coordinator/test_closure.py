"""Closures, functions, remote values and structures, without Dask."""

from __future__ import annotations

import gc
import re
import threading
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from psnb import errors
from psnb._src.coordinator.closures.functions import FunctionRegistry
from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue, check_transition
from psnb._src.coordinator.values import (
    PerWorkerDataset,
    PerWorkerValues,
    ResourceRegistry,
    map_structure,
)
from psnb._src.utils.interrupts import Condition
from psnb._src.worker.resources import make_dataset

ENDED = (ClosureStatus.COMPLETED, ClosureStatus.FAILED, ClosureStatus.CANCELLED)


@pytest.mark.parametrize("old", ENDED)
@pytest.mark.parametrize("new", list(ClosureStatus))
def test_nothing_follows_an_ended_closure(old: ClosureStatus, new: ClosureStatus) -> None:
    with pytest.raises(errors.InternalError, match=f"from {old.value} to {new.value}"):
        check_transition(old, new)


def test_a_queued_closure_cannot_complete_without_running() -> None:
    with pytest.raises(errors.InternalError):
        check_transition(ClosureStatus.QUEUED, ClosureStatus.COMPLETED)


def test_a_function_is_pickled_once() -> None:
    registry = FunctionRegistry()

    def function() -> None: ...

    assert registry.register(function) is registry.register(function)


def test_functions_with_the_same_bytes_are_one() -> None:
    registry = FunctionRegistry()
    first, second = partial(pow, 2), partial(pow, 2)
    assert registry.register(first) is registry.register(second)


def test_functions_with_other_captured_values_are_two() -> None:
    registry = FunctionRegistry()
    made = [registry.register(lambda n=n: n) for n in range(2)]
    assert made[0].id != made[1].id


def test_a_forgotten_function_is_not_kept() -> None:
    registry = FunctionRegistry()
    registry.register(lambda: 0)
    gc.collect()
    assert len(registry._by_id) == 0


def test_a_callable_that_cannot_be_hashed_is_shipped_all_the_same() -> None:
    registry = FunctionRegistry()
    assert registry.register(Unhashable()).name == "Unhashable"


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> None: ...


def test_a_function_that_cannot_be_pickled_is_named_with_what_it_holds() -> None:
    lock = threading.Lock()

    def holds_a_lock() -> bool:
        return lock.locked()

    with pytest.raises(errors.SerializationError, match=r"holds_a_lock.*variable 'lock'"):
        FunctionRegistry().register(holds_a_lock)


def test_a_remote_value_cannot_be_pickled() -> None:
    with pytest.raises(errors.SerializationError, match=r"fetch\(\) it"):
        FunctionRegistry().register(partial(print, RemoteValue(Condition())))


def test_map_structure_keeps_every_kind_of_nesting() -> None:
    pair = namedtuple("pair", "x y")

    @dataclass
    class Point:
        x: Any
        y: Any

    structure = {"a": [1, (2, 3)], "b": pair(4, Point(5, {"c": 6}))}
    mapped = map_structure(lambda leaf: leaf * 10, structure)
    assert mapped == {"a": [10, (20, 30)], "b": pair(40, Point(50, {"c": 60}))}
    assert structure["a"] == [1, (2, 3)]


def test_map_structure_keeps_the_class_and_order_of_dicts() -> None:
    ordered = map_structure(lambda leaf: leaf * 10, OrderedDict(b=1, a=2))
    assert (type(ordered), [*ordered.items()]) == (OrderedDict, [("b", 10), ("a", 20)])
    counted = map_structure(lambda leaf: leaf * 10, defaultdict(list, a=1))
    assert (counted, counted.default_factory) == ({"a": 10}, list)


def test_a_worker_is_sent_what_to_make_in_order_and_what_to_forget() -> None:
    registry = ResourceRegistry()
    first, second = (registry.add(b"", ()) for _ in range(2))
    new, gone = registry.changes({99})
    assert [number for number, _ in new] == [first, second]
    assert gone == [99]
    assert registry.changes({first, second}) == ([], [])


def test_an_unreferenced_per_worker_value_is_released() -> None:
    registry = ResourceRegistry()
    value = PerWorkerValues(registry, len, ((),))
    number = value.resource_id
    del value
    gc.collect()
    assert registry.changes({number}) == ([], [number])


def test_what_a_per_worker_value_is_made_from_lives_as_long() -> None:
    registry = ResourceRegistry()
    base = PerWorkerValues(registry, len, ((),))
    derived = PerWorkerValues(registry, len, (base,))
    numbers = {base.resource_id, derived.resource_id}
    del base
    gc.collect()
    assert registry.changes(numbers) == ([], [])
    del derived
    gc.collect()
    assert registry.changes(numbers)[1] == sorted(numbers)


def test_a_per_worker_value_is_not_made_of_one_of_another_coordinator() -> None:
    other = PerWorkerValues(ResourceRegistry(), len, ((),))
    registry = ResourceRegistry()
    with pytest.raises(errors.ConfigurationError, match="another coordinator"):
        PerWorkerValues(registry, len, (other,))
    assert registry.changes(set()) == ([], [])


def test_functions_that_hold_values_of_the_same_number_are_two() -> None:
    registry = FunctionRegistry()
    mine, other = (PerWorkerValues(ResourceRegistry(), len, ((),)) for _ in range(2))
    assert mine.resource_id == other.resource_id
    first, second = (registry.register(partial(pow, each)) for each in (mine, other))
    assert first.id != second.id


def test_a_per_worker_value_cannot_be_pickled_elsewhere() -> None:
    import pickle

    registry = ResourceRegistry()
    value = PerWorkerValues(registry, len, ((),))
    with pytest.raises(errors.ConfigurationError, match="schedule"):
        pickle.dumps(value)


def test_per_worker_values_say_what_they_are_made_of() -> None:
    registry = ResourceRegistry()

    def load() -> list[int]:
        return []

    dataset = PerWorkerDataset(registry, make_dataset, (load,))
    assert re.fullmatch(r"<psnb.PerWorkerDataset 1: .*load on each worker>", repr(dataset))
    assert repr(iter(dataset)) == "<psnb.PerWorkerIterator 2: iter of 1 on each worker>"
    value = PerWorkerValues(registry, len, ((),))
    assert repr(value) == "<psnb.PerWorkerValues 3: len on each worker>"
    assert "<td" in value._repr_html_()
    assert "fetch() returns the list" in value._repr_html_()
    assert "&lt;locals&gt;.load" in dataset._repr_html_()
