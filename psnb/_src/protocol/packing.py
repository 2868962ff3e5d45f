"""Pickling across the wire: functions, arguments, results and exceptions. Pure, without Dask.

Per-worker values travel as references: a `PerWorkerReference`, at any depth and in captured
variables too, is pickled as its owner and number only, and becomes the worker's own value when it
is unpickled there. An `InputReference` among the arguments of a call, a result that may not be
there yet, is pickled as its index; the pickled result is sent along when it is there.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections import ChainMap
from collections.abc import Callable, Sequence
from types import CodeType, MethodType
from typing import Any, ClassVar

import cloudpickle

from psnb._src.protocol.notebook_only import NotebookOnly, left_behind, why_here
from psnb._src.protocol.pytree_classes import with_registration
from psnb._src.utils.text import error_text, is_interrupt, shown, text_of
from psnb._src.utils.tracebacks import users_level
from psnb.errors import EndOfDataWarning, InternalError, SerializationError

PROTOCOL = 5


Reducer = Callable[[Any], tuple[Any, ...] | None]
"""Returns how an object is pickled, like ``__reduce__``; None if by itself."""

_CLASS = 6
"""Items of what cloudpickle returns for a class that travels by value."""

_INPUT = ""
"""Stands for the owner where an input is pickled."""


class PerWorkerReference(NotebookOnly):
    """Base of objects that stand for a different value on each worker.

    Attributes
    ----------
    resource_id : int
        The value's number on the workers of its coordinator.
    owner : str
        Which coordinator that is: no other one has this, in whatever process or time.
    """

    resource_id: int
    owner: str


class InputReference(NotebookOnly):
    """Base of objects that stand for the result of another closure."""

    __slots__ = ()


class Nothing:
    """The result of a closure that found its data at their end: None, with a warning when read.

    Parameters
    ----------
    name : str
        The closure's function.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, (self._name,)


def _nothing(name: str) -> None:
    warnings.warn(
        f"closure {name} found its iterator at the end of the data, and did nothing: its result is "
        "None",
        EndOfDataWarning,
        stacklevel=users_level(),
    )


def _code(code: CodeType) -> tuple[Any, ...]:
    """Return what code is made of, with its file's name: where a closure fails, that is shown.

    Since cloudpickle 3.1.3 it travels without.
    """
    make, args = cloudpickle.Pickler.dispatch_table[CodeType](code)
    # A string of its own, as cloudpickle has it: pickles of equal code are equal.
    file = "".join(code.co_filename)
    return make, tuple(file if each == "<dynamic-code>" else each for each in args)


_TRAVELS = (
    "Only data and functions travel; what is bound to one process (locks, files, connections, "
    "generators) is made there, for example with coordinator.create_per_worker_resource"
)


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar[Any] = ChainMap({CodeType: _code}, cloudpickle.Pickler.dispatch_table)

    def __init__(
        self,
        buffer: io.BytesIO,
        references: list[PerWorkerReference],
        inputs: list[InputReference] | None,
        reduced: Reducer | None = None,
    ) -> None:
        super().__init__(buffer, protocol=PROTOCOL)
        self._references, self._inputs, self._reduced = references, inputs, reduced
        self._places: dict[InputReference, int] = {}

    def reducer_override(self, obj: Any) -> Any:
        if why := why_here(obj):
            raise SerializationError(why)
        if (stays := left_behind(obj)) is not None:
            return stays.__reduce__()
        if self._reduced is not None and (reduced := self._reduced(obj)) is not None:
            return reduced
        alone = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(alone, tuple) and len(alone) == _CLASS:
            return with_registration(obj, alone)
        return alone

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        if isinstance(obj, PerWorkerReference):
            self._references.append(obj)
            # With the owner, though the workers need the number alone: functions with the same
            # bytes are one.
            return obj.owner, obj.resource_id
        if self._inputs is not None and isinstance(obj, InputReference):
            place = self._places.setdefault(obj, len(self._inputs))
            if place == len(self._inputs):
                self._inputs.append(obj)
            return _INPUT, place
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, data: bytes, resolve: Callable[[int], Any] | None, inputs: Sequence[bytes]
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._resolve, self._inputs = resolve, inputs
        self._values: dict[int, Any] = {}  # one object for one input, however often it occurs

    def persistent_load(self, pid: Any) -> Any:
        owner, index = pid
        if owner != _INPUT:
            if self._resolve is None:
                raise InternalError(f"per-worker value {index} came back from a worker")
            return self._resolve(index)
        if index not in self._values:
            packed = self._inputs[index]
            self._values[index] = loads(packed) if packed else None
        return self._values[index]


def dumps(
    value: object,
    what: str,
    references: list[PerWorkerReference] | None = None,
    names: tuple[str, ...] = (),
    inputs: list[InputReference] | None = None,
    reduced: Reducer | None = None,
) -> bytes:
    """Pickle by value what the other side cannot import.

    Parameters
    ----------
    value : object
        Anything.
    what : str
        What it is, for the message.
    references : list, optional
        Gets the per-worker values in it, which must stay alive for as long as the bytes.
    names : tuple of str
        What the items of a tuple are called in messages.
    inputs : list, optional
        Gets the results of other closures in it, whose pickled values must be there when it is
        unpickled; without this list they are refused.
    reduced : callable, optional
        Returns how an object is pickled that travels in another way than by itself, or None.

    Raises
    ------
    SerializationError
        If it cannot be pickled; the message names the part that cannot.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, [] if references is None else references, inputs, reduced).dump(value)
    except BaseException as error:  # each class may raise its own while it is pickled
        if is_interrupt(error):
            raise
        parts = [*zip(names, value, strict=True)] if names else _parts(value)  # type: ignore[call-overload]
        path, culprit = _find_culprit(value, parts, None if inputs is None else [], reduced)
        why = why_here(culprit)
        raise SerializationError(
            f"{what} cannot be pickled: {path or 'it'} is {shown(culprit)}"
            + (f": {why}" if why else f" ({error_text(error)}). {_TRAVELS}")
        ) from error
    return buffer.getvalue()


def loads(
    data: bytes, resolve: Callable[[int], Any] | None = None, inputs: Sequence[bytes] = ()
) -> Any:
    """Unpickle.

    Parameters
    ----------
    data : bytes
        From `dumps`.
    resolve : callable, optional
        Turns the number of a per-worker value into the value.
    inputs : sequence of bytes
        The pickled values of the inputs that `dumps` listed, in that order; empty for None.
    """
    return _Unpickler(data, resolve, inputs).load()


def shorten_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the arguments of a call as a short text, for messages."""
    parts = [("", each) for each in args] + [(f"{name}=", each) for name, each in kwargs.items()]
    text = ", ".join(name + _cut(text_of(value, repr), 60) for name, value in parts)
    return _cut(" ".join(text.split()), 300)  # arrays have lines


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _picklable(value: object, inputs: list[InputReference] | None, reduced: Reducer | None) -> bool:
    try:
        _Pickler(io.BytesIO(), [], inputs, reduced).dump(value)
    except BaseException as error:  # whatever it is, it is the object that we look for
        if is_interrupt(error):
            raise
        return False
    return True


def _parts(value: object) -> list[tuple[str, object]]:
    """Return the named parts of a value, as far as they show what cannot be pickled."""
    if isinstance(value, dict):
        return [(f"[{text_of(key, repr)}]", item) for key, item in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, MethodType):
        return [(" its object", value.__self__)]
    code = getattr(value, "__code__", None)
    if code is not None:
        cells = getattr(value, "__closure__", None) or ()
        captured = [
            (f" variable {name!r}", cell.cell_contents)
            for name, cell in zip(code.co_freevars, cells, strict=True)
        ]
        scope = getattr(value, "__globals__", {})
        return captured + [(f" global {n!r}", scope[n]) for n in code.co_names if n in scope]
    return [(f".{name}", item) for name, item in getattr(value, "__dict__", {}).items()]


def _find_culprit(
    value: object,
    parts: list[tuple[str, object]],
    inputs: list[InputReference] | None,
    reduced: Reducer | None,
) -> tuple[str, object]:
    path = ""
    for _ in range(8):  # deep enough for any message, and cycles end
        if why_here(value):
            break
        bad = next((each for each in parts if not _picklable(each[1], inputs, reduced)), None)
        if bad is None:
            break
        path, value = path + bad[0], bad[1]
        parts = _parts(value)
    return path.strip(), value
