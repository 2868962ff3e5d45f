"""What stays in the notebook: strategies, coordinators, clients, references to values elsewhere.

A closure that has captured one gets no copy of it: it is refused when it is scheduled, with what to
use instead. What is *left behind* is refused only where it is used, as an object may hold both that
and something else: when a model is distributed, the original object is still at hand, and a closure
that captures it would train a copy, to no effect.

Threads: any may call.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from distributed import Client

from psnb.errors import ConfigurationError, SerializationError

_CLIENT = (
    "a Dask client stays in its process; in a closure distributed.get_client() gives that of its "
    "worker"
)


class NotebookOnly:
    """Base of objects that cannot be pickled.

    Attributes
    ----------
    stays : str
        What to do, for the error.
    """

    __slots__ = ()

    stays: ClassVar[str]

    def __reduce__(self) -> NoReturn:
        raise SerializationError(self.stays)


def why_here(value: Any) -> str:
    """Return why a value stays where it is, and what to do; empty if it may travel."""
    if isinstance(value, NotebookOnly):
        return value.stays
    return _CLIENT if isinstance(value, Client) else ""


_left: dict[int, tuple[weakref.ref[Any], str]] = {}


def leave_behind(value: object, why: str) -> None:
    """Let what closures have captured of a value raise ConfigurationError where it is used.

    Parameters
    ----------
    value : object
        Any that can be referred to weakly.
    why : str
        What the error says.
    """
    number = id(value)
    _left[number] = weakref.ref(value, lambda _: _left.pop(number, None)), why


def left_behind(value: object) -> LeftBehind | None:
    """Return what travels in place of a value; None if it does itself."""
    found = _left.get(id(value))
    return LeftBehind(found[1]) if found is not None and found[0]() is value else None


class LeftBehind:
    """Raises when it is used.

    Parameters
    ----------
    why : str
        The message.
    """

    def __init__(self, why: str) -> None:
        vars(self)["_why"] = why

    def __reduce__(self) -> tuple[Any, ...]:
        return LeftBehind, (self._why,)

    def __repr__(self) -> str:
        return f"<not here: {self._why}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what protocols look for
            raise AttributeError(name)
        self._refuse()

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigurationError(self._why)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> NoReturn:
        """Raise: a function of torch was called with one."""
        given = [*args, *(kwargs or {}).values()]
        several = [each for value in given for each in _items(value)]
        next(each for each in several if isinstance(each, cls))._refuse()
        raise AssertionError

    __setattr__ = __call__ = __iter__ = __len__ = __getitem__ = __setitem__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = _refuse
    __rmatmul__ = __truediv__ = __rtruediv__ = __pow__ = __neg__ = __lt__ = __gt__ = _refuse
    __float__ = __array__ = _refuse


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
