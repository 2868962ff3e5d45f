"""Refuses losses that change what they refer to: that would be the state of one worker, or lost.

A compiled function runs in Python only while it is traced, so a counter that it keeps counts
programs, and another one on each worker. A number from `random` or a clock cannot be noticed: it is
traced into the program as a constant.

A loss returns no state of libraries, such as averages of BatchNorm, either. They compute the new
one while the loss is traced, and cannot know that it is not kept; so their setters are watched
meanwhile.

Threads: each watches what it traces itself.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FunctionType
from typing import Any

import jax

from psnb.errors import ConfigurationError


@contextmanager
def pure(function: Callable[..., Any]) -> Iterator[None]:
    """Raise ConfigurationError at the end if a name of the function has another value, or content.

    Its own globals and closure cells, and the items of lists, sets and dicts. Where nnx would write
    to what the function refers to, say what to write instead.
    """
    before = _referred(function)
    try:
        yield
    except getattr(sys.modules.get("flax.errors"), "TraceContextError", ()) as error:
        raise ConfigurationError(
            "a call of an nnx module would change what nnx.split has returned, which is that of "
            "all steps: let the function call nnx.merge(graph, params, rest, copy=True). Flax "
            f"says: {error}"
        ) from error
    after = _referred(function)
    changed = [name for name, (ids, _) in after.items() if ids != before.get(name, ([], []))[0]]
    if changed:
        name = getattr(function, "__qualname__", function)
        raise ConfigurationError(
            f"the function {name!r} changes {', '.join(map(repr, changed))}: that would be "
            "the state of one worker, changed only when a program is compiled. Return it "
            "(has_aux=True), or keep it in params or in a variable of the strategy"
        )


def _referred(function: Any) -> dict[str, tuple[list[int], list[Any]]]:
    """Return for each name the ids of its value and of its items; and these, to keep them alive."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        return {}
    try:
        names = inspect.getclosurevars(function)
    except ValueError:  # one of its names has no value yet
        return {}
    found = {}
    for name, value in {**names.globals, **names.nonlocals}.items():
        parts = [value]
        if isinstance(value, dict):
            parts += [*value, *value.values()]
        elif isinstance(value, list | set):
            parts += value
        found[name] = [*map(id, parts)], parts
    return found


_local = threading.local()

_make = getattr(jax, "make_user_context", None)
_again: Callable[[int], Any] = (lambda number: nullcontext()) if _make is None else _make()
"""Has functions that JAX has compiled before traced again. Older releases of JAX cannot: there, a
loss may call one that moves state if something else has called it before in the process."""

_numbers = itertools.count(1)

_lock = threading.Lock()
"""Held while the setters of a library are replaced, once a process."""

_ADVICE = (
    "a loss returns no state, so the new one would be lost, and each step would begin with what "
    "the loss refers to. Take LayerNorm or another layer without state; psnb.torch and psnb.keras "
    "keep averages. Layers that do not train use averages as they are: "
    "equinox.nn.inference_mode, is_training=False, use_running_average=True"
)


class _Tracing:
    """One trace of a function."""

    def __init__(self, number: Any) -> None:
        self.number = number
        # In this very trace, which is no state; by ids, with what has these.
        self.made: dict[Any, Any] = {}

    def moved(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"the loss moves {what}: {_ADVICE}")


@contextmanager
def kept_state(number: Any = None) -> Iterator[None]:
    """Raise ConfigurationError if a library's state is moved while a function is traced.

    Parameters
    ----------
    number : array, optional
        Of the step. With it, random numbers that nnx draws from captured streams change with each
        step: without it, nnx only counts on in them.
    """
    _watch()
    before, _local.tracing = getattr(_local, "tracing", None), _Tracing(number)
    try:
        with _of_haiku(), _again(next(_numbers)):
            yield
    finally:
        _local.tracing = before


def _watch() -> None:
    with _lock:
        for module, kind, name, watching in _SETTERS:
            found: Any = getattr(sys.modules.get(module), kind, None)
            setter = getattr(found, name, None)
            if found is not None and not hasattr(setter, "__psnb_watched__"):
                setattr(found, name, _watched(setter, watching))


def _watched(setter: Any, watching: Callable[..., Any]) -> Any:
    @functools.wraps(setter)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        tracing: _Tracing | None = getattr(_local, "tracing", None)
        if tracing is None:
            return setter(self, *args, **kwargs)
        return watching(tracing, functools.partial(setter, self), self, *args, **kwargs)

    watched.__psnb_watched__ = True  # type: ignore[attr-defined]
    return watched


def _of_equinox(tracing: _Tracing, setter: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    raise tracing.moved("state of Equinox (BatchNorm, SpectralNorm)")


def _of_linen(tracing: _Tracing, setter: Any, scope: Any, col: str, name: str, value: Any) -> Any:
    key = id(scope.root), scope.path_text, col, name
    if not scope.has_variable(col, name):
        tracing.made[key] = scope.root  # what ``sow`` gives the caller
    elif key not in tracing.made:
        raise tracing.moved(f"{name!r} of collection {col!r} of Flax")
    return setter(col, name, value)


def _of_nnx(tracing: _Tracing, setter: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
    if _is_nnx_state(tracing, variable):
        raise tracing.moved(f"nnx.{type(variable).__name__}")
    return setter(*args, **kwargs)


def _of_nnx_attribute(tracing: _Tracing, setter: Any, variable: Any, name: str, new: Any) -> Any:
    # Parameters may become what the loss computes of them: for a step within it (MAML), say.
    if name in _VALUES and not _by_transform() and not _is_param(variable):
        return _of_nnx(tracing, setter, variable, name, new)
    return setter(name, new)


def _of_nnx_module(tracing: _Tracing, setter: Any, module: Any, name: str, new: Any) -> Any:
    old, key = vars(module).get(name), (id(module), name)
    state = isinstance(old, jax.Array) or (_is_nnx_state(tracing, old) and not _is_param(old))
    if not state or old is new or key in tracing.made:
        tracing.made[key] = module
    elif not _by_transform():
        raise tracing.moved(f"{name!r} of {type(module).__name__}")
    return setter(name, new)


def _made_by_nnx(tracing: _Tracing, init: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
    tracing.made[id(variable)] = variable
    init(*args, **kwargs)


def _is_nnx_state(tracing: _Tracing, value: Any) -> bool:
    nnx = sys.modules["flax.nnx"]
    still = isinstance(value, nnx.RngState | nnx.Intermediate)
    return isinstance(value, nnx.Variable) and not still and id(value) not in tracing.made


def _is_param(value: Any) -> bool:
    return isinstance(value, sys.modules["flax.nnx"].Param)


_VALUES = ("_raw_value", "raw_value", "value")
_PASSED = ("flax.nnx.variablelib", "flax.nnx.graphlib", "flax.nnx.graph", "contextlib", "jax.")


def _by_transform() -> bool:
    """Return whether a transform of nnx sets what a function has left, whose own sets are seen."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        name = frame.f_globals.get("__name__", "")
        if name.startswith(("flax.nnx.transforms", "flax.nnx.extract")):
            return True
        if name != __name__ and not name.startswith(_PASSED):
            return False
    return False


def _drawn_by_nnx(tracing: _Tracing, draw: Any, stream: Any, *args: Any, **kwargs: Any) -> Any:
    key = draw(*args, **kwargs)
    if id(stream.key) in tracing.made or tracing.number is None:
        return key  # of a seed, or a key, that the function gives
    return jax.random.fold_in(key, tracing.number)


_SETTERS: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    ("equinox.nn", "State", "set", _of_equinox),
    ("flax.core.scope", "Scope", "put_variable", _of_linen),
    ("flax.nnx", "Variable", "__init__", _made_by_nnx),
    ("flax.nnx", "Variable", "set_value", _of_nnx),
    ("flax.nnx", "Variable", "__setattr__", _of_nnx_attribute),
    ("flax.nnx", "Pytree", "__setattr__", _of_nnx_module),
    ("flax.nnx", "Module", "__setattr__", _of_nnx_module),
    ("flax.nnx", "RngStream", "__call__", _drawn_by_nnx),
)


def _of_haiku() -> Any:
    haiku = sys.modules.get("haiku")
    if haiku is None:
        return nullcontext()

    def refuse(next_setter: Any, value: Any, context: Any) -> Any:
        raise _local.tracing.moved(f"state {context.full_name!r} of Haiku")

    # Haiku makes it within a transformed function alone, and it holds for all of the thread.
    return haiku.transform(lambda: haiku.custom_setter(refuse)).apply({}, None)
