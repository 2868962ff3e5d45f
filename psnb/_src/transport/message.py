"""Message: what psnb's processes say to each other, whole or as a part. Pure.

Messages travel as plain tuples of a name and fields, which pickle in a tenth of the time: pickle
looks up each class where it is defined, in each message. Both ends have the same classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

M = TypeVar("M", bound="Message")

_MAKERS: dict[str, Callable[..., Any]] = {}
"""What makes a message of its fields, by the name of its class."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """The base of all messages. Within other objects it pickles by its name, too."""

    def __init_subclass__(cls) -> None:
        """Note the name, by which it travels."""
        plain = cls.unwired.__func__ is Message.unwired.__func__  # type: ignore[attr-defined]
        _MAKERS[cls.__name__] = cls if plain else cls.unwired

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, self.wire()

    def wire(self) -> tuple[Any, ...]:
        """Return its name and fields; messages among these may have the same form."""
        return type(self).__name__, *msgspec.structs.astuple(self)

    @classmethod
    def unwired(cls, *fields: Any) -> Any:
        """Make one of the fields that `wire` has returned."""
        return cls(*fields)


def _made(name: str, *fields: Any) -> Any:
    return _MAKERS[name](*fields)


def part_unwired(wire: tuple[Any, ...]) -> Any:
    """Return a message within another one that is being `unwired`."""
    return _MAKERS[wire[0]](*wire[1:])


def unwired(wire: tuple[Any, ...], kind: type[M]) -> M:
    """Return the message of a kind of which `Message.wire` has made a tuple.

    Raises
    ------
    ConnectionError
        If there is no such message: the other end has another version of psnb.
    """
    try:
        found = _MAKERS[wire[0]](*wire[1:])
        if isinstance(found, kind):
            return found
        raise TypeError(f"expected {kind.__name__}")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        text = f"not a message of this version of psnb: {str(wire)[:80]}"
        raise ConnectionError(text) from error
