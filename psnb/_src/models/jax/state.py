"""Finds losses that move state of a library, such as averages of BatchNorm: it would be lost.

A loss returns no state. The libraries compute the new one while the loss is traced, and none of
them can know that nobody keeps it; so their setters are watched then.

Threads: each watches what it traces itself.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax

from psnb.errors import ConfigurationError

_local = threading.local()

_lock = threading.Lock()
"""Held while the setters of a library are replaced, once a process."""

_ADVICE = (
    "a loss returns no state, so the new one would be lost, and each step would begin with what "
    "the loss refers to. Take LayerNorm or another layer without state; psnb.torch and psnb.keras "
    "keep averages. Layers that do not train use averages as they are: "
    "equinox.nn.inference_mode, is_training=False, use_running_average=True"
)


class _Tracing:
    """What is known of one trace."""

    def __init__(self, number: Any) -> None:
        self.number = number
        self.made: set[Any] = set()  # in this very trace, which is no state

    def moved(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"the loss moves {what}: {_ADVICE}")


@contextmanager
def kept_state(number: Any = None) -> Iterator[None]:
    """Raise ConfigurationError if a library's state is moved while a function is traced.

    Parameters
    ----------
    number : array, optional
        Of the step. What nnx draws from streams of random numbers that the function refers to is
        another one in each step then: alone, nnx counts on in them.
    """
    _watch()
    before, _local.tracing = getattr(_local, "tracing", None), _Tracing(number)
    try:
        with _of_haiku():
            yield
    finally:
        _local.tracing = before


@contextmanager
def merged_by_copies() -> Iterator[None]:
    """Say what to write where nnx would write to what a function refers to."""
    try:
        yield
    except Exception as error:
        kind = getattr(sys.modules.get("flax.errors"), "TraceContextError", ())
        if not isinstance(error, kind):
            raise
        raise ConfigurationError(
            "a call of an nnx module would change what nnx.split has returned, which is that of "
            "all steps: let the function call nnx.merge(graph, params, rest, copy=True). Flax "
            f"says: {error}"
        ) from error


def _watch() -> None:
    """Replace the setters of the libraries that are imported by now."""
    with _lock:
        for module, kind, name, watching in _SETTERS:
            found: Any = sys.modules.get(module)
            found = getattr(found, kind, None) if kind else found
            setter = getattr(found, name, None)
            if setter is not None and not hasattr(setter, "__psnb_watched__"):
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
        tracing.made.add(key)  # what `sow` gives the caller
    elif key not in tracing.made:
        raise tracing.moved(f"{name!r} of collection {col!r} of Flax")
    return setter(col, name, value)


def _of_nnx(tracing: _Tracing, setter: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
    nnx = sys.modules["flax.nnx"]
    if not isinstance(variable, nnx.RngState | nnx.Intermediate):
        raise tracing.moved(f"nnx.{type(variable).__name__}")
    return setter(*args, **kwargs)


def _of_haiku_function(tracing: _Tracing, setter: Any, name: str, value: Any) -> Any:
    raise tracing.moved(f"state {name!r} of Haiku")


def _drawn_by_nnx(tracing: _Tracing, draw: Any, stream: Any, *args: Any, **kwargs: Any) -> Any:
    # Of a key that is an argument of the function.
    made_here = any(isinstance(each, jax.core.Tracer) for each in jax.tree.leaves(stream.key))
    key = draw(*args, **kwargs)
    if made_here or tracing.number is None:
        return key
    return jax.random.fold_in(key, tracing.number)


_SETTERS: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    ("equinox.nn", "State", "set", _of_equinox),
    ("flax.core.scope", "Scope", "put_variable", _of_linen),
    ("flax.nnx", "Variable", "set_value", _of_nnx),
    ("haiku", "", "set_state", _of_haiku_function),  # outside of modules, which are intercepted
    ("flax.nnx", "RngStream", "__call__", _drawn_by_nnx),
)


def _of_haiku() -> Any:
    haiku = sys.modules.get("haiku")
    if haiku is None:
        return nullcontext()

    def refuse(next_setter: Any, value: Any, context: Any) -> Any:
        raise _local.tracing.moved(f"state {context.full_name!r} of Haiku")

    def intercept(next_method: Any, args: Any, kwargs: Any, context: Any) -> Any:
        with haiku.custom_setter(refuse):
            return next_method(*args, **kwargs)

    return haiku.intercept_methods(intercept)
