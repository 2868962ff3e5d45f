"""What a function refers to is noticed when it changes, and nothing else is."""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from psnb._src.coordinator.closures.fingerprint import DependencyFingerprint
from psnb._src.coordinator.closures.functions import FunctionRegistry
from psnb._src.protocol.modules import Uploads, read_files

CELL = """
BATCH = 512
config = {"rate": 0.1, "layers": [8, 8]}
settings = SimpleNamespace(rate=0.1)
weights = np.zeros(4)
unused = 1

def helper():
    return BATCH

class Model:
    def rate(self):
        return BATCH

def step(size=1):
    def inner():
        return weights.sum(), config, settings
    return helper(), Model, later
"""


@pytest.fixture
def notebook() -> dict[str, Any]:
    """The names of a notebook that has run `CELL`."""
    names: dict[str, Any] = {"__name__": "__main__", "np": np, "SimpleNamespace": SimpleNamespace}
    exec(CELL, names)
    return names


def _replace(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda names: names.update({name: value})


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a global of a function that it calls": _replace("BATCH", 1024),
    "a global that was not there": _replace("later", 1),
    "a function that it calls": lambda names: exec("def helper(): return 2", names),
    "an item of a dict": lambda names: names["config"].update(rate=0.2),
    "a new item of a dict": lambda names: names["config"].update(decay=0.2),
    "an item of a list in a dict": lambda names: names["config"]["layers"].append(8),
    "an attribute": lambda names: setattr(names["settings"], "rate", 0.2),
    "a small array in place": lambda names: names["weights"].fill(1),
    "a method": lambda names: setattr(names["Model"], "rate", lambda self: 1),
    "a default": lambda names: setattr(names["step"], "__defaults__", (2,)),
    "code, as autoreload does": lambda names: setattr(
        names["step"], "__code__", names["helper"].__code__
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(
    notebook: dict[str, Any], change: Callable[[dict[str, Any]], object]
) -> None:
    referred = DependencyFingerprint(notebook["step"])
    assert referred.is_unchanged()
    change(notebook)
    assert not referred.is_unchanged()


def test_what_a_function_does_not_use_may_change(notebook: dict[str, Any]) -> None:
    referred = DependencyFingerprint(notebook["step"])
    notebook["unused"] = 2
    assert referred.is_unchanged()


def test_a_closure_cell_that_changes_is_noticed() -> None:
    count = 1

    def function() -> int:
        return count

    referred = DependencyFingerprint(function)
    count += 1
    assert not referred.is_unchanged()


def test_the_function_of_a_partial_is_looked_into(notebook: dict[str, Any]) -> None:
    function = partial(notebook["step"], 2)
    referred = DependencyFingerprint(function)
    assert referred.is_unchanged()
    notebook["BATCH"] = 1024
    assert not referred.is_unchanged()


def test_a_large_dict_is_left_alone() -> None:
    large = dict.fromkeys(range(10_000))

    def function() -> object:
        return large

    referred = DependencyFingerprint(function)
    large[0] = 1
    assert referred.is_unchanged()


class Slots:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


def _class_with(function: Any) -> type:
    return type("Model", (), {"step": staticmethod(function), "same": property(function)})


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda function: function,
    "a dict": lambda function: {"step": function},
    "a list in a dict": lambda function: {"steps": [function]},
    "a tuple with a dict": lambda function: ({"step": function},),
    "a set": lambda function: {function},
    "a large dict": lambda function: {**dict.fromkeys(range(10_000)), "step": function},
    "another function": lambda function: {"other": lambda: function},
    "a partial": lambda function: {"other": partial(function)},
    "an object": lambda function: SimpleNamespace(step=function),
    "an object with slots": lambda function: {"other": Slots({"step": function})},
    "a method": lambda function: {"other": MethodType(function, {})},
    "a method of C": lambda function: {"other": {"step": function}.__len__},
    "a class": _class_with,
    "a read-only dict": lambda function: MappingProxyType({"step": function}),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_a_function_that_refers_to_what_holds_it_is_forgotten_with_that(
    holder: Callable[[Any], Any],
) -> None:
    class Large:
        pass

    def make() -> tuple[Callable[[], Any], Large]:
        def function() -> Any:
            return held

        large = Large()
        held = {"holder": holder(function), "large": large}
        return function, large

    function, large = make()
    referred = DependencyFingerprint(function)
    weak, weak_large = weakref.ref(function), weakref.ref(large)
    kept = {"referred": referred}
    del function, large, referred
    gc.collect()
    assert weak() is weak_large() is None
    assert not kept["referred"].is_unchanged()


def test_the_registry_forgets_a_function_that_is_in_a_dict_to_which_it_refers() -> None:
    def make() -> Callable[[], Any]:
        def function() -> Any:
            return steps

        steps = {"step": function}
        return function

    registry, function = FunctionRegistry(), make()
    assert registry.register(function) is registry.register(function)
    weak = weakref.ref(function)
    del function
    gc.collect()
    assert weak() is None


def test_a_collection_that_was_replaced_is_noticed_wherever_it_is_made_anew() -> None:
    def function() -> Any:
        return held

    for make in (dict, list, set, tuple, lambda: {1: 2}, lambda: [1], lambda: Slots(1)):
        held = make()  # type: ignore[operator]
        referred = DependencyFingerprint(function)
        assert referred.is_unchanged()
        held = [held]  # of another kind, at another place
        assert not referred.is_unchanged()


def test_a_changed_function_is_pickled_again_and_keeps_how_long_it_takes(
    notebook: dict[str, Any],
) -> None:
    registry = FunctionRegistry()
    notebook["later"] = 0
    before = registry.register(notebook["step"])
    notebook["BATCH"] = 1024
    after = registry.register(notebook["step"])
    assert after.id != before.id
    assert after.duration is before.duration
    assert registry.register(notebook["step"]) is after


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's."""
    (tmp_path / "features_of_mine.py").write_text("def rate():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module("features_of_mine")
    del sys.modules["features_of_mine"]


def _edit(module: ModuleType) -> None:
    Path(str(module.__file__)).write_text("def rate():\n    return 22\n")
    importlib.reload(module)


def _function_using(module: ModuleType) -> FunctionType:
    names = {"__name__": "__main__", "features_of_mine": module}
    exec("def step(): return features_of_mine.rate()", names)
    return names["step"]  # type: ignore[return-value]


def test_an_edited_module_is_warned_of_once_for_each_edit(module: ModuleType) -> None:
    registry, step = FunctionRegistry(), _function_using(module)
    registry.register(step)
    _edit(module)
    with pytest.warns(UserWarning, match=r"rate of module features_of_mine .*strategy\.upload"):
        registry.register(step)
    registry.register(step)  # a warning would be an error


def test_an_edited_function_of_a_module_is_warned_of(module: ModuleType) -> None:
    registry = FunctionRegistry()
    registry.register(module.rate)
    _edit(module)
    with pytest.warns(UserWarning, match="rate of module"):
        registry.register(module.rate)


def test_a_module_that_was_uploaded_is_not_warned_of(module: ModuleType) -> None:
    uploads = Uploads()
    registry, step = FunctionRegistry(uploads), _function_using(module)
    before = registry.register(step)
    _edit(module)
    uploads.note(read_files(module))
    assert registry.register(step).id != before.id
