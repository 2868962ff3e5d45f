"""Per-worker values: made on each worker, a different one there; datasets and iterators too.

The notebook holds only their numbers. `ResourceRegistry` knows which values each worker must have:
the notebook's threads write it, and the connections read it, in the order of the values' numbers.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from psnb._src.coordinator.closures.failures import raise_together
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.data.spec import Spec
from psnb._src.monitor.html.tables import html_table
from psnb._src.protocol.dask_futures import captured
from psnb._src.protocol.packing import PerWorkerReference, dumps
from psnb._src.utils.foreign_names import SaysWhatToUse
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.text import NAME, truncate
from psnb._src.worker.resources import make_dataset, make_iterator, read_spec
from psnb.errors import ConfigurationError, CoordinatorClosedError, WorkerLostError

_STAYS = (
    "datasets and iterators stay on the workers: take from them in closures, "
    "coordinator.schedule(next, (iterator,))"
)


def as_it_is(value: Any) -> Any:
    """Return a worker's value; errors name this function."""
    return value


class ResourceRegistry:
    """The per-worker values of a coordinator, each as the pickled call that makes it.

    Thread-safe.

    Parameters
    ----------
    ask : callable, optional
        The coordinator's method that calls a function with each worker's value, given value,
        function and timeout. It is held weakly: values do not keep their coordinator alive.

    Attributes
    ----------
    owner : str
        Tells the values from those of all other registries, in whatever process or time.
    on_change : callable
        Called when workers are to make or forget a value; by any thread, also in the middle of a
        garbage collection.
    """

    def __init__(
        self,
        ask: Callable[[PerWorkerValues, Callable[[Any], Any], float | None], list[Any]]
        | None = None,
    ) -> None:
        self.owner = uuid.uuid4().hex
        self.on_change: Callable[[], object] = bool  # no values are made yet
        self._ask = None if ask is None else weakref.WeakMethod(ask)
        # Re-entrant: a garbage collection inside a locked region may release a value. Taken by the
        # main thread in sections only.
        self._lock = threading.RLock()  # guards _live, read by connections while callers add
        self._live: dict[int, tuple[bytes, tuple[PerWorkerReference, ...]]] = {}
        self._numbers = itertools.count(1)

    @uninterrupted
    def add(self, payload: bytes, references: Sequence[PerWorkerReference]) -> int:
        """Add the pickled call that makes a value and return the value's number.

        The values that it refers to live as long as it does: a worker that joins makes them all.

        Raises
        ------
        ConfigurationError
            If these are not of this registry.
        """
        self.require_own(references, "a per-worker value is made of one that")
        with self._lock:
            number = next(self._numbers)
            self._live[number] = (payload, tuple(references))
        self.on_change()
        return number

    def require_own(self, values: Iterable[PerWorkerReference], what: str) -> None:
        """Raise ConfigurationError if one of these values is of another coordinator; cheap.

        That coordinator's workers know its value by the same number as another one here.
        """
        for each in values:
            if each.owner != self.owner:
                raise ConfigurationError(
                    f"{what} belongs to another coordinator: {each!r}. It may be one from before "
                    "the coordinator's cell was run again, or of another strategy, and does not "
                    "exist for this one. Make it again with this coordinator: "
                    "create_per_worker_dataset(...) and iter of that, or "
                    "create_per_worker_resource(...)"
                )

    @uninterrupted
    def release(self, number: int) -> None:
        """Forget a value, and let the workers forget it."""
        with self._lock:
            self._live.pop(number, None)
        self.on_change()

    def made_of(self, value: PerWorkerReference) -> tuple[bytes, tuple[PerWorkerReference, ...]]:
        """Return the pickled call that makes a value, and the values that it refers to."""
        with self._lock:
            return self._live[value.resource_id]

    def ask(
        self,
        value: PerWorkerValues,
        question: Callable[[Any], Any],
        timeout: float | None = None,
    ) -> list[Any]:
        """Return what a function says of each worker's value; see `PerWorkerValues.fetch`."""
        method = None if self._ask is None else self._ask()
        if method is None:
            raise CoordinatorClosedError("the coordinator of these per-worker values is gone")
        return method(value, question, timeout)

    def changes(self, known: set[int]) -> tuple[list[tuple[int, bytes]], list[int]]:
        """Return what a worker that has ``known`` must make, in order, and what it may forget."""
        with self._lock:
            new = [(n, payload) for n, (payload, _) in self._live.items() if n not in known]
            gone = [n for n in known if n not in self._live]
        return new, gone


class PerWorkerValues(PerWorkerReference):
    """A value made once on each worker, also on those that join later.

    As an argument of a closure, at any depth, or captured by it, it is replaced by the value of the
    worker that runs the closure. The workers forget it when nothing in the notebook holds it any
    more.

    Parameters
    ----------
    registry : ResourceRegistry
        The coordinator's.
    function : callable
        Makes the value.
    args, kwargs
        Its arguments.

    Raises
    ------
    SerializationError
        If that call cannot be pickled.
    ConfigurationError
        If it has per-worker values of another coordinator.
    """

    _use = "an argument of closures stands for the worker's own; fetch() returns the list of all"

    def __init__(
        self,
        registry: ResourceRegistry,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._registry = registry
        self._origin = _origin(function, args)
        references: list[PerWorkerReference] = []
        call = (function, args, dict(kwargs or {}))
        payload = dumps(
            call, "a per-worker value", references, ("fn", "args", "kwargs"), reduced=captured
        )
        with uninterrupted:  # otherwise it might never be released
            self.owner, self.resource_id = registry.owner, registry.add(payload, references)
            weakref.finalize(self, registry.release, self.resource_id)

    def fetch(self, timeout: float | None = None) -> list[Any]:
        """Return the values of all current workers, in the order of the workers' index.

        They are read before queued closures, as soon as each worker has a free thread. A worker
        that leaves, or dies, before its value is read is left out.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; None waits for as long as it takes.

        Raises
        ------
        ClosureInputError
            If the value could not be made on a worker.
        SerializationError
            If it cannot be pickled; the message names the part that cannot.
        WorkerLostError
            If a worker is lost while its value is read.
        TimeoutError
            If it takes longer; nothing is left behind.
        ClosureCancelledError
            If another closure fails meanwhile: fetch again.
        Exception
            What an *earlier* closure raised, once, as from `ClusterCoordinator.schedule`.
        CoordinatorClosedError
            If the coordinator is closed.
        """
        return self._registry.ask(self, as_it_is, timeout)

    def __repr__(self) -> str:
        return f"<psnb.{type(self).__name__} {self.resource_id}: {self._origin} on each worker>"

    def _repr_html_(self) -> str:
        rows = [(str(self.resource_id), type(self).__name__, self._origin, self._use)]
        return html_table("values", ("number", "on each worker", "made by", "use"), rows)

    stays = (
        "per-worker values exist on the workers of their coordinator only: pass them to its "
        "schedule(...), not elsewhere"
    )


def _origin(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Return what the user made a value of, in a word."""
    users = args[0] if function in (make_dataset, make_iterator) else function
    if isinstance(users, PerWorkerReference):
        return f"iter of {users.resource_id}"
    return truncate(getattr(users, "__qualname__", type(users).__qualname__), NAME)


class PerWorkerIterator(PerWorkerValues, SaysWhatToUse):
    """An iterator on each worker; closures take from it with ``next``.

    If a closure finds it at its end, and raises the StopIteration before it has written anything,
    the closure ends without an error and returns None; `fetch` warns of it (`EndOfDataWarning`). In
    TensorFlow it fails with an OutOfRangeError.
    """

    _use = "coordinator.schedule(step, (iterator,)), where step calls next(iterator)"

    def fetch(self, timeout: float | None = None) -> NoReturn:
        """Refuse: an iterator stays where it is."""
        raise ConfigurationError(_STAYS)

    def __init__(self, *made_by: Any, spec: Callable[[], Spec]) -> None:
        super().__init__(*made_by)
        self._spec = spec

    @property
    def element_spec(self) -> Spec:
        """Shapes and dtypes of the elements; see `PerWorkerDataset.element_spec`."""
        return self._spec()

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> NoReturn:
        raise ConfigurationError(
            "next() works inside a closure only, where this is the worker's own iterator: "
            "coordinator.schedule(step, args=(iterator,))"
        )


class PerWorkerDataset(PerWorkerValues):
    """A dataset on each worker; ``iter`` of it makes an iterator on each worker."""

    _use = "iter(dataset) makes an iterator on each worker"

    def fetch(self, timeout: float | None = None) -> NoReturn:
        """Refuse: a dataset stays where it is."""
        raise ConfigurationError(_STAYS)

    def __iter__(self) -> PerWorkerIterator:
        return PerWorkerIterator(
            self._registry, make_iterator, (self,), spec=lambda: self.element_spec
        )

    @property
    def element_spec(self) -> Spec:
        """Shapes and dtypes of the elements, as in `psnb.data.Dataset.element_spec`.

        Asked of the workers, where the dataset is made; waits for a free thread of each.

        Raises
        ------
        ConfigurationError
            If it is no `psnb.data.Dataset`, or differs between the workers.
        WorkerLostError
            If there are no workers.
        ClosureInputError, DatasetError
            If the dataset cannot be made there, or has no first element.
        """
        specs = self._registry.ask(self, read_spec)
        if not specs:
            raise WorkerLostError("there are no workers to ask for the elements' shapes and dtypes")
        if any(each != specs[0] for each in specs):
            raise ConfigurationError(
                f"the workers' datasets have elements of different shapes or dtypes: {specs}"
            )
        return specs[0]


def map_structure(function: Callable[[Any], Any], structure: Any) -> Any:
    """Apply a function to every leaf of nested tuples, named tuples, lists, dicts and dataclasses.

    Returns
    -------
    object
        A new copy of the nesting; the argument is not changed.
    """
    if isinstance(structure, tuple):
        items = [map_structure(function, item) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    if isinstance(structure, list):
        return [map_structure(function, item) for item in structure]
    if isinstance(structure, dict):
        made = copy.copy(structure)  # of its class, such as an OrderedDict
        made.update({key: map_structure(function, item) for key, item in structure.items()})
        return made
    if dataclasses.is_dataclass(structure) and not isinstance(structure, type):
        values = {
            field.name: map_structure(function, getattr(structure, field.name))
            for field in dataclasses.fields(structure)
            if field.init
        }
        return dataclasses.replace(structure, **values)
    return function(structure)


def fetched(structure: Any) -> Any:
    """Replace remote and per-worker values; if one raises, the others' errors so far go with it."""
    remotes: list[RemoteValue] = []

    def value(leaf: Any) -> Any:
        return leaf.fetch() if isinstance(leaf, RemoteValue | PerWorkerValues) else leaf

    try:
        return map_structure(value, structure)
    except Exception as error:  # the closure's own, of any class
        map_structure(
            lambda leaf: remotes.append(leaf) if isinstance(leaf, RemoteValue) else None, structure
        )
        raise_together(error, remotes)
        raise
