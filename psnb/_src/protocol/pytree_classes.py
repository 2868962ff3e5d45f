"""Classes of a notebook that JAX knows as nodes of trees: they are that on workers, too.

A class that is in no module travels by value: cloudpickle makes an empty class, and then sets its
attributes. What its decorator or metaclass has registered with JAX is lost, or registered while the
class is still empty: its instances would be leaves on a worker, or have no leaves. So the class
brings its registration along, and is made with the fields that it declares. (Equinox's metaclass,
and ``__init_subclass__`` of Flax's ``PyTreeNode``, register the declared fields, and keep notes of
their own, which a class made without them would lack.)

Imports no JAX where there are no such classes. Threads: several may unpickle a class; one at a
time registers it.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import threading
from typing import Any, NamedTuple

import cloudpickle

_registering = threading.Lock()
"""Held while a class is looked up and registered, as JAX takes no class twice."""

Reduced = tuple[Any, ...]
"""What ``__reduce__`` returns."""


Registration = tuple[str, tuple[Any, ...]]
"""How JAX takes a class apart and puts it together: by a function of `jax.tree_util`, which is
called with the class and these arguments."""


class Declared(NamedTuple):
    """What the body of a dataclass declares of its fields.

    Attributes
    ----------
    annotations : dict
        The class's own, as far as they distinguish fields from other attributes.
    fields : dict
        For each of its fields the arguments of `dataclasses.field`.
    values : dict
        The values of names that are not fields, such as a ``ClassVar``.
    own_init : bool
        Whether it has an ``__init__`` of its own.
    """

    annotations: dict[str, Any]
    fields: dict[str, dict[str, Any]]
    values: dict[str, Any]
    own_init: bool

    def namespace(self) -> dict[str, Any]:
        """Return the body as a metaclass gets it."""
        fields = {name: dataclasses.field(**each) for name, each in self.fields.items()}
        init = {"__init__": _initialized_later} if self.own_init else {}
        return {"__annotations__": dict(self.annotations), **fields, **self.values, **init}


def with_registration(cls: type, reduced: Reduced) -> Reduced:
    """Return what a class is made of that travels by value, with what JAX knows of it.

    Parameters
    ----------
    cls : type
        The class.
    reduced : tuple
        What cloudpickle has it made of: a function and its arguments, a state, and what sets it.
    """
    registration = _registration(cls)
    if registration is None:
        return reduced
    make, arguments, state, items, pairs, complete = reduced
    made_of = make, arguments, _declared(cls)
    return _made, made_of, (complete, state, registration), items, pairs, _completed


def _entry(cls: type) -> Any:
    # There is no public way to ask for the functions that a class is registered with.
    tree_util = sys.modules.get("jax._src.tree_util")
    return getattr(tree_util, "_registry", {}).get(cls)


def _registration(cls: type) -> Registration | None:
    """Return how a class is registered; None if JAX does not know it."""
    if (entry := _entry(cls)) is None:
        return None
    apart, together = _cells(entry.to_iter), _cells(entry.from_iter)
    if {"data_fields", "meta_fields"} <= together.keys():
        data, meta = together["data_fields"], together["meta_fields"]
        all_fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        dropped = [e.name for e in all_fields if e.init and e.name not in (*data, *meta)]
        return "register_dataclass", (data, meta, dropped)
    if hasattr(cls, "tree_flatten_with_keys") and entry.from_iter == cls.tree_unflatten:  # type: ignore[attr-defined]
        return "register_pytree_with_keys_class", ()
    if "flatten_with_keys" in apart:
        return "register_pytree_with_keys", (apart["flatten_with_keys"], entry.from_iter)
    # JAX does not tell the keys when a function without keys was registered as well: children have
    # numbers in paths.
    return "register_pytree_node", tuple(entry)


def _cells(function: Any) -> dict[str, Any]:
    """Return the variables that a function has captured."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or not cells:
        return {}
    return {n: each.cell_contents for n, each in zip(code.co_freevars, cells, strict=True)}


def _declared(cls: type) -> Declared | None:
    """Return what the body of a dataclass declares; None for another class."""
    if not dataclasses.is_dataclass(cls) or "__dataclass_fields__" not in vars(cls):
        return None
    annotations = inspect.get_annotations(cls)
    known = {each.name: each for each in dataclasses.fields(cls) if each.name in annotations}
    own_init = "__init__" in vars(cls) and not cls.__dataclass_params__.init  # type: ignore[attr-defined]
    values = {n: vars(cls)[n] for n in annotations if n not in known and n in vars(cls)}
    fields: dict[str, dict[str, Any]] = {}
    for name, each in known.items():
        given = {option: getattr(each, option) for option in _OPTIONS}
        fields[name] = {k: v for k, v in given.items() if v is not dataclasses.MISSING}
        fields[name]["metadata"] = dict(each.metadata)
    # JAX looks up annotations that are text in the class's module, which the worker may not have.
    evaluated = {
        name: Any if isinstance(each, str) else each
        for name, each in annotations.items()
        if name in known or not isinstance(each, str)
    }
    return Declared(evaluated, fields, values, own_init)


_OPTIONS = ("default", "default_factory", "init", "repr", "hash", "compare", "kw_only")


def _made(make: Any, arguments: tuple[Any, ...], declared: Declared | None) -> type:
    """Return the class, empty; or as it is, if it has come before or is from here."""
    kind, name, bases, namespace, tracked, *more = arguments
    # cloudpickle makes a class before it looks for a known one: the metaclass's registration would
    # stay for ever.
    known = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {}).get(tracked)
    if known is not None:
        found: type = known
        return found
    if declared is not None:
        namespace = {**namespace, **declared.namespace()}
    made: type = make(kind, name, bases, namespace, tracked, *more)
    return made


def _initialized_later(self: Any, *args: Any, **kwargs: Any) -> None:
    """Stand in for the ``__init__`` of a class, until it is set."""


def _completed(cls: type, given: tuple[Any, Any, Registration]) -> type:
    from jax import tree_util

    complete, state, (function, arguments) = given
    complete(cls, state)
    for name, value in [*vars(cls).items()]:
        if isinstance(value, dataclasses.Field):  # no metaclass has taken it
            delattr(cls, name)
    with _registering:
        if _entry(cls) is None:
            getattr(tree_util, function)(cls, *arguments)
    return cls
