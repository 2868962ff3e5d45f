"""Message: a message between psnb's processes, or a part of one. Pure.

Messages travel as plain tuples of a name and fields, which pickle in a tenth of the time: pickle
looks up each class where it is defined, in each message. Both ends have the same classes.

(Encoded by msgspec, with a type for each field, a push takes a quarter of the time, 5 us instead
of 22, and fails where a field is wrong. But most answers of servers, errors, optimizers and the
states of iterators must be pickled all the same, and msgspec loses types: it makes a dict of a
dataclass, and a list of a named tuple. So there would be two encodings.)
"""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import msgspec
import numpy as np
from msgspec.structs import astuple

from psnb._src.transport.half_width import BFLOAT16, codes

_KINDS: dict[str, type[Message]] = {}
"""All messages by the names of their classes."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """The base of all messages. Within others, and in other objects, it pickles by its name."""

    batch: ClassVar[type[msgspec.Struct] | None] = None
    """If the last field has many objects of one class, that class. They travel as tuples, too:
    there may be 25,000 of them a second."""

    nested: ClassVar[bool] = False
    """Whether the last field is a message, or a list of them. They travel as tuples, too, as one
    that travels by itself does."""

    def __init_subclass__(cls) -> None:
        """Note the name, by which it travels."""
        _KINDS[cls.__name__] = cls

    def __reduce__(self) -> tuple[Any, ...]:
        return made, self.wire()

    def wire(self) -> tuple[Any, ...]:
        """Return its name and fields."""
        fields = astuple(self)
        if self.batch is not None:
            fields = *fields[:-1], [astuple(each) for each in fields[-1]]
        elif self.nested and (last := fields[-1]) is not None:
            one = isinstance(last, Message)
            fields = *fields[:-1], last.wire() if one else [each.wire() for each in last]
        return type(self).__name__, *fields


def made(name: str, *fields: Any) -> Message:
    """Return the message of which `Message.wire` has made a tuple."""
    kind = _KINDS[name]
    if kind.batch is not None:
        fields = *fields[:-1], [kind.batch(*each) for each in fields[-1]]
    elif kind.nested and (last := fields[-1]) is not None:
        one = isinstance(last, tuple)
        fields = *fields[:-1], made(*last) if one else [made(*each) for each in last]
    return kind(*fields)


_NUMBERS = {
    **{np.dtype(code): np.dtype(code).str for code in "?bBhHiIlLqQefdFD"},
    BFLOAT16: BFLOAT16.name,
}
"""The names of dtypes whose arrays are their buffers."""


class MessagePickler(pickle.Pickler):
    """Pickles as usual, but arrays in a shorter way, which takes a third of the time to read."""

    def reducer_override(self, found: Any) -> Any:
        """Return what makes an array again, and leave all else to pickle."""
        if type(found) is not np.ndarray or not found.flags.c_contiguous:
            return NotImplemented
        if (dtype := _NUMBERS.get(found.dtype)) is None:
            return NotImplemented
        # Python's buffers do not know bfloat16.
        plain = codes(found) if found.dtype == BFLOAT16 else found
        return np.ndarray, (found.shape, dtype, pickle.PickleBuffer(plain))  # type: ignore[arg-type]


# Float16Message: an array of float32 that travels with 16 bits each. Pure.
#
# All of an array is multiplied by one power of two, so that its largest number is just below 2**15,
# and rounded to float16. So numbers of any size travel, gradients of a mean over many examples too:
# each arrives with a relative error of at most 2**-11, or with an absolute error of at most 2**-39
# of the largest one. A second rounding changes nothing, as when a server forwards a push to a
# replica. (Torchrec and Horovod send float16 without a common power; there small gradients become
# zero.)

_TOP, _MOST = 15, 127
"""Numbers are below two to the power of the first (float16 goes up to 65504), and multiplied by two
to the power of the second at most, which float32 can hold."""


class Float16Message(Message, frozen=True):
    """An array on its way.

    Attributes
    ----------
    halves : float16 numpy.ndarray
        What travels.
    exponent : int
        They are two to the power of this times too large.
    """

    halves: np.ndarray
    exponent: int

    def wide(self) -> np.ndarray:
        """Return the array again."""
        return np.multiply(self.halves, np.float32(2.0**-self.exponent), dtype=np.float32)


def halved(array: np.ndarray) -> Float16Message:
    """Return an array of float32 as it travels; NaN and infinities travel as they are."""
    largest = max(array.max(initial=0), -array.min(initial=0))
    if not np.isfinite(largest):
        largest = np.abs(array[np.isfinite(array)]).max(initial=0)
    exponent = min(_MOST, _TOP - int(np.frexp(largest)[1])) if largest else 0
    return Float16Message((array * np.float32(2.0**exponent)).astype(np.float16), exponent)


class InHalves:
    """An array of float32 that arrives as float32, and is `halved` on its way."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __reduce__(self) -> tuple[Any, ...]:
        return Float16Message.wide, (halved(self._array),)


def as_float32(found: Any) -> Any:
    """Return an array again that has been halved, and all else as it is."""
    return found.wide() if isinstance(found, Float16Message) else found
