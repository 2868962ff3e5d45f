"""Pickling across the wire: functions, arguments, results and exceptions. Pure, without Dask.

Per-worker values travel as references: a `PerWorkerReference`, at any depth and in captured
variables too, is pickled as its owner and number only, and becomes the worker's own value when it
is unpickled there. An `InputReference` among the arguments of a call, a result that may not be
there yet, is pickled as its index; the pickled result is sent along when it is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import io
import pickle
import sys
import threading
import warnings
import weakref
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import CodeType, MethodType
from typing import Any, ClassVar, NamedTuple, NoReturn

import cloudpickle
from distributed import Client, Future, get_client, get_worker

from psnb._src.dask_compat import event_loop, scheduler_address, scheduler_has
from psnb._src.protocol.errors import NOWHERE, RemoteTraceback, completed
from psnb._src.protocol.notebook_only import NotebookOnly, why_here
from psnb._src.utils.ownership import owned
from psnb._src.utils.text import (
    causes,
    error_text,
    hide_internal_frames,
    is_interrupt,
    text_of,
    truncate,
    users_level,
)
from psnb._src.utils.threads import run_on_loop
from psnb.errors import (
    ClosureError,
    ClosureInputError,
    ConfigurationError,
    EndOfDataWarning,
    InternalError,
    SerializationError,
)

# What stays in the process that it is in: closures that have captured it get what raises there.
#
# A model is distributed, and the object that it was made of is still at hand; what a closure
# captures of it would be a copy that nothing learns of. Its use is refused, not
# the capture: an object that holds both captures both.
#
# Threads: any may call.

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


# Classes of a notebook that JAX knows as nodes of trees: they are that on workers, too.
#
# A class that no module has travels by value: cloudpickle makes an empty class, and sets what it
# had. What its decorator or its metaclass has registered with JAX is lost, or registered while the
# class is still empty: so its instances would be leaves on a worker, or have none. Such a class
# brings along how JAX takes it apart and puts it together, and is made with the fields that it
# declares. (Equinox's metaclass, and ``__init_subclass__`` of Flax's ``PyTreeNode``, register what
# they find declared, and keep notes of their own: to make such a class without them would leave
# these out.)
#
# Imports no JAX where there are no such classes. Threads: several may unpickle a class; one at a
# time registers it.

_registering = threading.Lock()
"""Held while a class is looked up and registered, as JAX takes no class twice."""

Reduced = tuple[Any, ...]
"""What ``__reduce__`` returns."""


class Registration(NamedTuple):
    """How JAX takes a class apart and puts it together.

    Attributes
    ----------
    function : str
        Of `jax.tree_util`; it is called with the class.
    arguments : tuple
        What follows the class.
    """

    function: str
    arguments: tuple[Any, ...]


class Declared(NamedTuple):
    """What the body of a dataclass declares of its fields.

    Attributes
    ----------
    annotations : dict
        Those of the class itself, as far as they distinguish fields from what is none.
    fields : dict
        For each field of it the arguments of `dataclasses.field`.
    values : dict
        What it gives to names that are not fields, such as those of a ``ClassVar``.
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
        return Registration("register_dataclass", (data, meta, dropped))
    if hasattr(cls, "tree_flatten_with_keys") and entry.from_iter == cls.tree_unflatten:  # type: ignore[attr-defined]
        return Registration("register_pytree_with_keys_class", ())
    if "flatten_with_keys" in apart:
        arguments = apart["flatten_with_keys"], entry.from_iter
        return Registration("register_pytree_with_keys", arguments)
    # Where keys were given beside a function without, JAX does not say them: children have numbers
    # in paths.
    return Registration("register_pytree_node", tuple(entry))


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
    fields = {name: _options(each) for name, each in known.items()}
    # What is text is looked up in the class's module, which may not be there where it arrives.
    evaluated = {
        name: Any if isinstance(each, str) else each
        for name, each in annotations.items()
        if name in known or not isinstance(each, str)
    }
    return Declared(evaluated, fields, values, own_init)


_OPTIONS = ("default", "default_factory", "init", "repr", "hash", "compare", "kw_only")


def _options(field: dataclasses.Field[Any]) -> dict[str, Any]:
    given = {name: getattr(field, name) for name in _OPTIONS}
    given = {name: each for name, each in given.items() if each is not dataclasses.MISSING}
    return {**given, "metadata": dict(field.metadata)}


def _made(make: Any, arguments: tuple[Any, ...], declared: Declared | None) -> type:
    """Return the class, empty; or as it is, if it has come before or is from here."""
    kind, name, bases, namespace, tracked, *more = arguments
    # cloudpickle makes a class first and looks then: what a metaclass registers would never go.
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


PROTOCOL = 5


Reducer = Callable[[Any], tuple[Any, ...] | None]
"""Returns how an object is pickled, like ``__reduce__``; None if by itself."""

_CLASS = 6
"""Items of what cloudpickle makes a class of that travels by value."""

_INPUT = ""
"""Stands for the owner where an input is pickled."""


class PerWorkerReference(NotebookOnly):
    """Base of what stands for a different value on each worker.

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
    """Base of what stands for the result of another closure."""

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
    def __init__(self, data: bytes, resolve: Callable[[int], Any], inputs: Sequence[bytes]) -> None:
        super().__init__(io.BytesIO(data))
        self._resolve, self._inputs = resolve, inputs
        self._values: dict[int, Any] = {}  # one object for one input, however often it occurs

    def persistent_load(self, pid: Any) -> Any:
        owner, index = pid
        if owner != _INPUT:
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
        named = _Named(zip(names, value, strict=True)) if names else value  # type: ignore[call-overload]
        path, culprit = _find_culprit(named, None if inputs is None else [], reduced)
        why = why_here(culprit)
        raise SerializationError(
            f"{what} cannot be pickled: {path or 'it'} is {_shortened(culprit)}"
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
    return _Unpickler(data, resolve or _unresolvable, inputs).load()


def _unresolvable(resource_id: int) -> Any:
    raise InternalError(f"per-worker value {resource_id} came back from a worker")


def _shortened(value: object, limit: int = 100) -> str:
    text = text_of(value, repr)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shorten_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the arguments of a call as a short text, for messages."""
    parts = [_shortened(a, 60) for a in args]
    parts += [f"{name}={_shortened(value, 60)}" for name, value in kwargs.items()]
    text = " ".join(", ".join(parts).split())  # arrays have lines
    return text if len(text) <= 300 else text[:297] + "..."


def _picklable(value: object, inputs: list[InputReference] | None, reduced: Reducer | None) -> bool:
    try:
        _Pickler(io.BytesIO(), [], inputs, reduced).dump(value)
    except BaseException as error:  # whatever it is, it is the object that we look for
        if is_interrupt(error):
            raise
        return False
    return True


class _Named(dict[str, Any]):
    """Parts of a call by the names that a user knows them by."""


def _parts(value: object) -> list[tuple[str, object]]:
    """Return the named parts of a value, as far as they show what cannot be pickled."""
    if isinstance(value, _Named):
        return list(value.items())
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
    value: object, inputs: list[InputReference] | None, reduced: Reducer | None
) -> tuple[str, object]:
    path = ""
    for _ in range(8):  # deep enough for any message, and cycles end
        if why_here(value):
            break
        for name, part in _parts(value):
            if not _picklable(part, inputs, reduced):
                path, value = path + name, part
                break
        else:
            break
    return path.strip(), value


def pack_error(error: BaseException, where: str = "") -> bytes:
    """Pickle an exception with its traceback as text, so that it can be raised elsewhere.

    Its causes go with it. Of these exceptions, one that cannot be pickled becomes a `ClosureError`
    that says what it was. Whatever its class does meanwhile, this raises nothing.

    Parameters
    ----------
    error : BaseException
        It loses its traceback: frames of another process are of no use here.
    where : str
        A line about what was being done.
    """
    traceback, chain = NOWHERE, [error]
    with contextlib.suppress(BaseException):  # whatever its class may raise
        traceback = RemoteTraceback.of(error)
        chain = causes(error)[:_MOST_CAUSES]
    packed = [(_pickled(each), each.__cause__ is not None) for each in chain]
    for each in chain:
        with contextlib.suppress(BaseException):  # likewise, such as a frozen dataclass
            each.__traceback__ = None
    return pickle.dumps((packed, where, traceback, truncate(error_text(error))), protocol=PROTOCOL)


def packed_text(data: bytes) -> str:
    """Return what a packed exception says, in a line, without making it."""
    text: str = pickle.loads(data)[-1]
    return text


_MOST_CAUSES = 10


class _ErrorPickler(cloudpickle.Pickler):
    """Pickles one exception without what it was raised from, whatever its class has for that.

    The exception stays as it is: other threads may raise the same one.
    """

    def __init__(self, buffer: io.BytesIO, error: BaseException) -> None:
        super().__init__(buffer, protocol=PROTOCOL)
        self._error = error

    def reducer_override(self, obj: Any) -> Any:
        if obj is self._error:
            return obj.__reduce_ex__(PROTOCOL)
        return super().reducer_override(obj)


def _pickled(error: BaseException) -> bytes:
    try:
        buffer = io.BytesIO()
        _ErrorPickler(buffer, error).dump(error)
        packed = buffer.getvalue()
        # Many exceptions pickle, but do not come back, or take nothing that is said about them.
        pickle.loads(packed).add_note("")
    except BaseException:  # again whatever its class, or that of an attribute, may raise
        substitute = ClosureError(f"{type(error).__qualname__}: {_shortened(error, 500)}")
        packed = cloudpickle.dumps(substitute, protocol=PROTOCOL)
    return packed


def _raisable(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    wrapped = ClosureError(
        f"the closure raised {error_text(error)}. That would end the notebook, or cancel what "
        "waits there: a closure ends with return, or with an exception such as RuntimeError"
    )
    wrapped.__cause__ = error
    return wrapped


def _chained(packed: Sequence[tuple[bytes, bool]]) -> Any:
    """Return the first exception, with those that it was raised from."""
    first, *rest = packed
    error = upper = pickle.loads(first[0])
    is_cause = first[1]
    with suppress(Exception):  # a cause that this process cannot unpickle ends the chain
        for each, next_is_cause in rest:
            lower = pickle.loads(each)
            if is_cause:
                upper.__cause__ = lower
            else:
                upper.__context__ = lower
            upper, is_cause = lower, next_is_cause
    return error


def unpack_error(data: bytes) -> BaseException:
    """Return what `pack_error` packed; a `ClosureError` if its type cannot be imported here.

    What would end or cancel the caller (SystemExit, KeyboardInterrupt, the
    CancelledError of asyncio) becomes the cause of a `ClosureError`.

    Its notes say where it was raised, with the user's frames. Its attribute ``full_traceback`` has
    all frames.
    """
    where, traceback = "", NOWHERE
    try:
        packed, where, traceback, _ = pickle.loads(data)
        error = _chained(packed)
    except BaseException as failure:  # likewise; most often ImportError
        if is_interrupt(failure):
            raise
        error = ClosureError(
            "a closure failed with an exception that this process cannot unpickle: "
            + truncate(text_of(failure, repr))
        )
    if not isinstance(error, BaseException):
        raise InternalError(f"a closure failed with {error!r}, which is not an exception")
    error = completed(_raisable(error))
    if note := "\n".join(filter(None, (where, traceback.text()))):
        error.add_note(note)
    with contextlib.suppress(Exception):  # its class may allow no attributes
        error.full_traceback = traceback.full()  # type: ignore[attr-defined]
    return hide_internal_frames(error)


# Dask's futures among the arguments of a closure: the worker fetches their results.
#
# A closure gets what a task of Dask's would get: results in the place of futures, at any depth.
# They go from the worker that has them to the one that needs them, and not through the notebook.
# What a function has captured is refused where it is used: Dask makes nothing of it there either.

_CAPTURED = (
    "a Dask future that a function has captured, or that a per-worker value is made with, stays in "
    "the notebook: pass it among the arguments of schedule(...), where its result takes its place"
)

_AGAIN = 0.02
"""Seconds after which the scheduler is asked again whether a graph has arrived."""


def captured(value: Any) -> tuple[Any, ...] | None:
    """Return how a future is pickled that is not an argument; None for other values."""
    return LeftBehind(_CAPTURED).__reduce__() if isinstance(value, Future) else None


class GivenFutures:
    """The futures among the arguments of one call.

    Parameters
    ----------
    client : distributed.Client
        The coordinator's.

    Attributes
    ----------
    found : list of distributed.Future
        They must stay alive until the closure has ended: else Dask drops the results.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.found: list[Future] = []

    def reduced(self, value: Any) -> tuple[Any, ...] | None:
        """Return how a future is pickled; None for any other value."""
        if not isinstance(value, Future):
            return None
        self.found.append(value)
        return _result, (value.key,)

    def require_own(self, name: str) -> None:
        """Raise ConfigurationError if one among a function's arguments is of another cluster."""
        mine = scheduler_address(self._client)
        for future in self.found:
            theirs = future.client  # None: it was unpickled, and has no client
            if theirs is None or scheduler_address(theirs) != mine:
                raise ConfigurationError(
                    f"a Dask future among the arguments of {name} is of another cluster: take its "
                    "result(), and pass that"
                )

    def await_tasks(self) -> None:
        """Wait until the scheduler has the tasks of all that are pending.

        To a worker that asks earlier it would say that they are lost: a large graph takes seconds
        to arrive, and a closure that is sent after it does not.
        """
        if any(future.status == "pending" for future in self.found):
            # Without a scheduler, the closure finds out.
            with suppress(AttributeError, OSError):
                run_on_loop(event_loop(self._client), self._arrival)

    async def _arrival(self) -> None:
        while keys := [future.key for future in self.found if future.status == "pending"]:
            if await scheduler_has(self._client, keys):
                return
            await asyncio.sleep(_AGAIN)


def _result(key: Any) -> Any:
    """Return the result of a future; in a closure thread, or where its client is."""
    client = get_client()
    future: Future = Future(key, client)
    try:
        # Dask informs a client of its own tasks only, so the future is given to one. It runs here:
        # elsewhere, on a parameter server above all, the result would only take memory.
        found = client.submit(_same, future, workers=_here(), pure=False).result()
    except Exception as error:  # whatever the task has raised, or why it was lost
        raise ClosureInputError(
            f"a Dask future among the closure's arguments has no result: {error_text(error)}"
        ) from error
    return owned(found)  # Dask hands out the very object that others get, too


def _here() -> list[str] | None:
    try:
        return [get_worker().address]
    except ValueError:  # in the notebook, where a closure that has failed is called again
        return None


def _same(value: Any) -> Any:
    return value
