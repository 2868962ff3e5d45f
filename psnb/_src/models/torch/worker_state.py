"""WorkerState: finds modules whose calls depend on what earlier ones left in one worker. Pure.

A module may leave behind what it likes for its caller. But a call that reads what an earlier one
has left computes something else on each worker. So after the first call psnb looks for what has
changed, and during the next ones it notices whether that is read before it is written. All that
is called in a step, methods too, counts as one call: a step is whole on one worker. Belongs to
one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from psnb.errors import ConfigurationError

_CALLS = 3
"""How many calls are looked at: one leaves something behind, and others find it."""

_MOST_ITEMS, _DEPTH = 256, 3

_OF_TORCH = frozenset(vars(nn.Module()))

Attribute = tuple[str, str]
"""A module's path, and the name of one of its attributes."""


class WorkerState:
    """Watches what calls of a module leave in its plain attributes and in frozen embeddings.

    Parameters
    ----------
    fixed : sequence of str
        Parameters that stay in the module as they were.
    served : collection of str
        The buffers that come from servers.
    """

    def __init__(self, fixed: Sequence[str] = (), served: Collection[str] = ()) -> None:
        self._fixed, self._served = fixed, served
        self._calls = 0
        self._left: set[Attribute] = set()

    @contextmanager
    def calling(self, module: nn.Module) -> Iterator[None]:
        """Look at one call, or at all that is called in a step.

        Raises
        ------
        ConfigurationError
            If it has read what an earlier call left, and leaves something else; or has moved a
            frozen embedding.
        """
        if self._calls == _CALLS:
            yield
            return
        self._calls += 1
        before = _values_of(module, self._served)
        fixed = {name: module.get_parameter(name).detach().clone() for name in self._fixed}
        with _reads(module, self._left) as read:
            yield
        for name, value in fixed.items():
            if not torch.equal(module.get_parameter(name), value):
                raise ConfigurationError(
                    f"{name!r} is the weight of a frozen embedding, or a parameter of integers, "
                    "and a call of the module moves it: each worker would have another one. Let it "
                    "learn (requires_grad_()), or keep what moves in a buffer, in which "
                    "functional.embedding can look up, too: these are on the servers, and come "
                    "with each step as a whole"
                )
        after = _values_of(module, self._served)
        self._left = {key for key, value in after.items() if before.get(key) != value}
        for path, name in sorted(read & self._left):
            where = f"{path}.{name}" if path else name
            raise ConfigurationError(
                f"{where!r} is what a call of the module leaves for the next one. It would be that "
                "of one worker, and the next batch is on another one, or on the same after others. "
                "Compute it in forward; or make it a tensor and register_buffer(...) it, before "
                "psnb.torch.distribute: servers keep buffers, and with persistent=False each "
                "worker has its own"
            )


def _values_of(module: nn.Module, served: Collection[str]) -> dict[Attribute, Any]:
    # Buffers on servers, and constant ones, are known: lists that refer to them are no state of
    # their own.
    own = {id(each) for each in (*module.parameters(), *module.buffers())}
    found = {}
    for path, each in module.named_modules():
        attributes = dict(vars(each))
        for name, value in each._buffers.items():
            # The part of the state that calls have made, or may make, of nothing.
            known = f"{path}.{name}" if path else name
            if known not in served and name not in each._non_persistent_buffers_set:
                attributes[name] = value
        for name in attributes.keys() - _OF_TORCH:
            found[path, name] = _comparable(attributes[name], _DEPTH, own)
    return found


def _comparable(value: Any, depth: int, own: Container[int]) -> tuple[Any, ...]:
    """Return what differs if a value is replaced, or changed in its place."""
    match value:
        case bool() | int() | float() | complex() | str() | bytes() | None:
            return (value,)
        case Tensor():
            # The value itself too, which so stays alive: another one has another id.
            still = id(value) in own or value.is_inference()
            return id(value), -1 if still else value._version, value
        case Mapping() if depth and len(value) <= _MOST_ITEMS:
            return type(value), *value, *_all(value.values(), depth, own)
        case list() | tuple() | set() | deque() if depth and len(value) <= _MOST_ITEMS:
            return type(value), *_all(value, depth, own)
    return id(value), value


def _all(values: Iterable[Any], depth: int, own: Container[int]) -> Iterator[tuple[Any, ...]]:
    return (_comparable(each, depth - 1, own) for each in values)


@contextmanager
def _reads(module: nn.Module, attributes: set[Attribute]) -> Iterator[set[Attribute]]:
    """Yield the set of those attributes that were read before they were written."""
    read: set[Attribute] = set()
    kinds = {path: type(module.get_submodule(path)) for path, _ in attributes}
    for path, kind in kinds.items():
        names = {name for other, name in attributes if other == path}
        module.get_submodule(path).__class__ = _noticing(kind, path, names, read)
    before = {path: module.get_submodule(path) for path in kinds}
    try:
        yield read
    finally:
        for path, kind in kinds.items():
            before[path].__class__ = kind


def _noticing(
    kind: type[nn.Module], path: str, names: set[str], read: set[Attribute]
) -> type[nn.Module]:
    """Return a class like another one, whose object notes which of some attributes it reads."""
    written: set[str] = set()

    def get(self: nn.Module, name: str) -> Any:
        if name in names and name not in written:
            read.add((path, name))
        return kind.__getattribute__(self, name)

    def put(self: nn.Module, name: str, value: Any) -> None:
        written.add(name)
        kind.__setattr__(self, name, value)

    own = {"__getattribute__": get, "__setattr__": put, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), own)
