"""Work: what is scheduled, from the queue to a worker and back. Pure, without Dask."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

from psnb._src.client.local.dry_run import DryRunClient
from psnb._src.client.updates import Round
from psnb._src.coordinator.functions import DependencyFingerprint, changed_elsewhere
from psnb._src.coordinator.remote_value import ClosureStatus, RemoteValue
from psnb._src.coordinator.values import PerWorkerIterator, ResourceRegistry
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.protocol.dask_futures import GivenFutures, captured
from psnb._src.protocol.modules import Uploads
from psnb._src.protocol.packing import InputReference, PerWorkerReference, dumps, loads
from psnb._src.strategy.core import StrategyCore
from psnb._src.utils.checks import integer, is_integer
from psnb._src.utils.text import NAME, error_text, hide_internal_frames, shown, truncate
from psnb._src.utils.threads import Inbox, Lock
from psnb._src.worker.context import InputContext, ReportedStates, WorkerContext, entered
from psnb._src.worker.leasing import NotReplayable, ReplayedInputs
from psnb.errors import ClosureInputError, ConfigurationError, CoordinatorClosedError

# Call: the pickled arguments of a closure, and what they refer to. Pure, without Dask.


class Call:
    """The arguments of one closure.

    Attributes
    ----------
    payload : bytes
        Pickled ``(args, kwargs)``; empty for no arguments.
    references : tuple of PerWorkerReference
        Per-worker values among the arguments, kept alive until the closure has ended.
    held : sequence
        What must stay alive likewise: the futures among the arguments.
    inputs : list
        Remote values among the arguments, each replaced by its pickled value as soon as there is
        one; the event loop's alone once the closure was put.
    """

    __slots__ = ("held", "inputs", "payload", "references")

    def __init__(
        self,
        payload: bytes,
        references: tuple[PerWorkerReference, ...] = (),
        inputs: list[RemoteValue | bytes] | None = None,
        held: Sequence[object] = (),
    ) -> None:
        self.payload = payload
        self.references, self.held = references, held
        self.inputs = [] if inputs is None else inputs

    def missing(self) -> list[tuple[int, RemoteValue]]:
        """Return the inputs whose values are not here yet, each with its index."""
        if not self.inputs:
            return []  # nearly always
        return [(i, each) for i, each in enumerate(self.inputs) if isinstance(each, RemoteValue)]

    def take_inputs(self) -> None:
        """Replace inputs that have completed by their values.

        Raises
        ------
        SerializationError
            If a value was fetched, and cannot be pickled any more.
        """
        for place, remote in self.missing():
            if remote.status is ClosureStatus.COMPLETED:
                packed = remote.packed()
                self.inputs[place] = remote.pack_again() if packed is None else packed


def positional(args: object) -> tuple[Any, ...]:
    """Return a call's positional arguments; None are none.

    Raises
    ------
    ConfigurationError
        If this is a single argument that is not in a tuple.
    """
    if type(args) is tuple:  # nearly always
        return args
    if args is None:
        return ()
    single = isinstance(args, str | bytes | Mapping | Set | PerWorkerReference)
    if single or hasattr(args, "__array__") or not isinstance(args, Iterable):
        hint = "keyword arguments go to kwargs=" if isinstance(args, Mapping) else "mind the comma"
        raise ConfigurationError(
            f"args must be a tuple or list of arguments, found {shown(args)}: write "
            f"args=(value,) for a single one ({hint})"
        )
    return tuple(args)


def keyword(kwargs: object) -> Mapping[str, Any]:
    """Return a call's keyword arguments; ConfigurationError if they are none."""
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise ConfigurationError(
            f"kwargs must be a mapping of names to arguments, found {truncate(repr(kwargs))}"
        )
    return kwargs


NO_ARGUMENTS = Call(b"")
"""Shared by all closures without arguments."""


def pack_call(
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    inbox: Inbox,
    futures: GivenFutures | None = None,
) -> Call:
    """Pickle the arguments of a call.

    Raises
    ------
    SerializationError
        If they cannot be pickled; the message names the part that cannot.
    ConfigurationError
        If a remote value among them belongs to another coordinator (it does not share
        ``inbox``), or a future to another cluster.
    """
    references: list[PerWorkerReference] = []
    inputs: list[InputReference] = []
    reduced = None if futures is None else futures.reduced
    payload = dumps(
        (args, dict(kwargs)), f"a call of {name}", references, ("args", "kwargs"), inputs, reduced
    )
    if futures is not None:
        futures.require_own(name)
    remotes: list[RemoteValue | bytes] = []
    for remote in inputs:
        if not isinstance(remote, RemoteValue) or not remote.shares(inbox):
            raise ConfigurationError(
                f"a remote value among the arguments of {name} belongs to another coordinator: "
                "fetch() it and pass the value"
            )
        remotes.append(remote)
    return Call(payload, tuple(references), remotes, futures.found if futures else ())


# ScheduleOptions: how a closure is to be scheduled. Pure; closures may share one.

DEFAULT_RETRIES = 5

WorkerPredicate = Callable[[WorkerStatistics], bool]
"""Returns whether a worker may run a closure."""

Pin = str | int | WorkerPredicate
"""Which worker must run a closure: its name, its index, or a function that chooses."""


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """The options of `ClusterCoordinator.schedule`.

    Attributes
    ----------
    retries : int
        How often the closure may be lost with its worker and run again.
    priority : int
        Higher goes first.
    worker : str, int, callable or None
        Which worker must run it.
    detached : bool
        Only `fetch` raises its error: other closures are not cancelled, and `join` does not raise
        it. It changes no parameters, so it may begin in any update mode.
    slot : int, optional
        The slot of an ordered epoch that it takes from; see `OrderedLeases`.
    steps : int
        How many it may have: see `Work`.
    results : bool
        Whether what steps return is kept. Else it is dropped.

    Raises
    ------
    ConfigurationError
        If one of them is of the wrong kind.
    """

    retries: int = DEFAULT_RETRIES
    priority: int = 0
    worker: Pin | None = None
    detached: bool = False
    slot: int | None = None
    steps: int = 1
    results: bool = True

    def __post_init__(self) -> None:
        integer("retries", self.retries, 0)
        if not is_integer(self.priority):
            raise ConfigurationError(f"priority must be an int, found {shown(self.priority)}")
        index = is_integer(self.worker) and self.worker >= 0  # type: ignore[operator]
        if not (index or self.worker is None or isinstance(self.worker, str)) and not callable(
            self.worker
        ):
            raise ConfigurationError(
                "worker must be a worker's name, its index from 0, or a function that takes a "
                f"psnb.WorkerStatistics and returns a bool, found {shown(self.worker)}"
            )
        for name in ("retries", "priority", "worker"):
            if is_integer(value := getattr(self, name)):  # perhaps numpy's, which may wrap
                object.__setattr__(self, name, int(value))


def options(retries: int, priority: int, worker: Pin | None) -> ScheduleOptions:
    """Return options; equal ones are one object, if they name no worker."""
    if worker is None:
        return _unpinned(retries, priority)
    return ScheduleOptions(retries, priority, worker)


@lru_cache(maxsize=256, typed=True)
def _unpinned(retries: int, priority: int) -> ScheduleOptions:
    return ScheduleOptions(retries, priority)


# Duration: how long the closures of one function take, as known so far. Pure.

_WEIGHT = 0.2
"""Weight of the newest closure in the mean."""


class Duration:
    """An exponential moving average; belongs to the event loop, any thread may read `mean`.

    Attributes
    ----------
    mean : float or None
        Seconds; None before the first closure has ended.
    """

    __slots__ = ("mean",)

    def __init__(self) -> None:
        self.mean: float | None = None

    def add(self, seconds: float) -> None:
        """Add the duration of a closure."""
        old = self.mean
        self.mean = seconds if old is None else old + _WEIGHT * (seconds - old)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Function:
    """A callable, pickled once for all its closures for as long as it stays as it is.

    Attributes
    ----------
    id : str
        Digest of the payload and of what was uploaded: the same function scheduled again, even if
        created again, has the same id.
    name : str
        For messages.
    payload : bytes
        The pickled function.
    references : tuple of PerWorkerReference
        Per-worker values that it captured.
    duration : Duration
        How long its closures take.
    """

    id: str
    name: str
    payload: bytes
    references: tuple[PerWorkerReference, ...]
    duration: Duration = field(default_factory=Duration)


class FunctionRegistry:
    """Pickles each function when it is first scheduled, and when it or what it refers to changed.

    Thread-safe. Functions that neither the caller nor a closure holds any more are forgotten.

    Parameters
    ----------
    uploads : Uploads, optional
        The modules that the workers were sent; after another one, they get all functions again.
    """

    def __init__(self, uploads: Uploads | None = None) -> None:
        self._uploads = Uploads() if uploads is None else uploads
        self._lock = threading.Lock()  # guards the maps, which no thread may see half-set
        self._by_callable: weakref.WeakKeyDictionary[
            Any, tuple[Function, DependencyFingerprint, int]
        ] = weakref.WeakKeyDictionary()
        self._by_id: weakref.WeakValueDictionary[str, Function] = weakref.WeakValueDictionary()
        self._imported: dict[tuple[str, str], CodeType] = {}

    def register(self, function: Callable[..., Any]) -> Function:
        """Return the pickled form of a callable, as it is now.

        Warns, by name, of functions of local modules that have changed here, but not on the
        workers.

        Raises
        ------
        SerializationError
            If it cannot be pickled; the message names what it holds.
        """
        version = self._uploads.version
        try:
            with self._lock:
                known = self._by_callable.get(function)
        except TypeError:  # cannot be hashed or weakly referenced
            known = None
        if known is not None and known[2] == version and known[1].is_unchanged():
            return known[0]
        referred = DependencyFingerprint(function)
        self._warn(referred)
        if known is None and (names := changed_elsewhere(function)):
            warnings.warn(
                f"{', '.join(names)}: a closure changes a copy of it, on its worker, and here it "
                "stays as it is. Return what closures find and fetch() that, or psnb.report it",
                UserWarning,
                stacklevel=4,  # where the user schedules
            )
        references: list[PerWorkerReference] = []
        name = truncate(getattr(function, "__qualname__", type(function).__qualname__), NAME)
        payload = dumps(function, f"closure {name}", references, reduced=captured)
        digest = hashlib.blake2b(payload, digest_size=16, salt=version.to_bytes(8, "little"))
        duration = Duration() if known is None else known[0].duration
        made = Function(digest.hexdigest(), name, payload, tuple(references), duration)
        with self._lock:
            made = self._by_id.setdefault(made.id, made)
            with contextlib.suppress(TypeError):
                self._by_callable[function] = made, referred, version
        return made

    def _warn(self, referred: DependencyFingerprint) -> None:
        with self._lock:
            old = {key: self._imported.get(key, code) for key, code in referred.imported.items()}
            self._imported.update(referred.imported)
        changed = [key for key, code in referred.imported.items() if code != old[key]]
        for module in sorted({module for module, _ in changed}):
            if not self._uploads.is_current(module):
                names = ", ".join(sorted(name for each, name in changed if each == module))
                # With the time: Python shows the same text of the same line once only.
                warnings.warn(
                    f"{names} of module {module} changed here (noticed at {time.strftime('%X')}): "
                    f"strategy.upload({module}) sends it to the workers, which have the old one",
                    UserWarning,
                    stacklevel=5,  # where the user schedules
                )


@dataclass(slots=True, weakref_slot=True)
class Execution:
    """How a closure was executed so far; made when it is first taken, as many more wait.

    It lives as long as a worker may run the closure, as the worker's connection has it.

    Attributes
    ----------
    commit : int
        The number under which its writes are applied, once, whatever the attempt. Not the closure's
        id: what waits for long would make servers remember all that ended meanwhile. That of the
        next step.
    attempt : int
        1 for the first one, one more after each worker that was lost with the closure.
    deaths : int
        During how many of those losses it was probably running; its retries limit that.
    revoked : bool
        Whether it was cancelled while it ran: it counts if it has had its effect, and does
        not run again.
    round : int or None
        The round that it belongs to, if there are rounds.
    kept : dict of int to bytes
        By commit, a pickled result that a worker has sent before it.
    taken : tuple of InputContext and bytes, or None
        Where it has failed, and what it had taken from iterators there, pickled; if that is known.
    done : int
        How many steps are done.
    withdrawn : str
        Why it does not begin any more, if it does not.
    """

    commit: int
    attempt: int = 1
    deaths: int = 0
    revoked: bool = False
    round: int | None = None
    kept: dict[int, bytes] = field(default_factory=dict)
    taken: tuple[InputContext, bytes] | None = None
    done: int = 0
    withdrawn: str = ""


NOT_TAKEN = Execution(-1)
"""Shared by all closures that wait for the first time."""


class Work:
    """Calls of one function, one after the other: what waits, is sent to a worker and is settled.

    Each call is a *step*, which has a number and a commit of its own. What `schedule` is given is
    one step. `run_epoch` asks for many: their worker needs nothing of the notebook between them.

    Owned by the scheduler once it was put: only the event loop changes `execution`, the inputs of
    `call`, and the outcome in `remote`. There may be very many, so they share objects where they
    can.

    Attributes
    ----------
    id : int
        Unique within the coordinator; in the order of scheduling.
    first : int
        The number of the first step; the others follow.
    function : Function
        What to call.
    call : Call
        Its arguments.
    options : ScheduleOptions
        How to schedule it.
    granted : int
        How many steps it has. That is decided when a worker takes it first: as many of those that
        are asked for as keep that worker busy for a while.
    execution : Execution
        Its attempts; `NOT_TAKEN` until it is first taken.
    remote : RemoteValue
        What the caller holds.
    """

    __slots__ = ("call", "execution", "first", "function", "granted", "id", "options", "remote")

    def __init__(
        self,
        work_id: int,
        first: int,
        function: Function,
        call: Call,
        options: ScheduleOptions,
        remote: RemoteValue,
    ) -> None:
        self.id, self.first = work_id, first
        self.function, self.call, self.options, self.remote = function, call, options, remote
        self.granted, self.execution = 1, NOT_TAKEN

    @property
    def long(self) -> bool:
        """Whether many steps are asked for: then it waits behind others, and ends before them."""
        return self.options.steps > 1

    @property
    def left(self) -> int:
        """How many steps are granted and not done."""
        return self.granted - self.execution.done

    @property
    def number(self) -> int:
        """The number of the next step."""
        return self.first + self.execution.done

    @property
    def numbers(self) -> range:
        """The numbers of the steps that are not done."""
        return range(self.number, self.first + self.granted)

    @property
    def commits(self) -> range:
        """The numbers of their commits."""
        return range(self.execution.commit, self.execution.commit + self.left)

    def __str__(self) -> str:
        return f"{self.function.name} #{self.number}"


class Numbers:
    """Numbers of steps. Thread-safe.

    Parameters
    ----------
    first : int
        The first one.
    """

    def __init__(self, first: int = 0) -> None:
        self._lock = Lock()  # guards the next one, for a moment each
        self._next = first

    def take(self, count: int = 1) -> int:
        """Reserve ``count`` consecutive numbers; return the first."""
        with self._lock:
            first, self._next = self._next, self._next + count
        return first

    @property
    def next(self) -> int:
        """The first that is not reserved; any thread."""
        return self._next


# Dependents: closures that wait for remote values among their arguments. Pure, without locks.


class Dependents:
    """Closures whose inputs have not all completed; `len` is their number."""

    def __init__(self) -> None:
        self._missing: dict[Work, int] = {}  # how many inputs, in the order of being added
        self._by_input: dict[RemoteValue, list[tuple[Work, int]]] = {}

    def __len__(self) -> int:
        return len(self._missing)

    def add(self, closure: Work) -> None:
        """Let a closure wait for its missing inputs; there must be at least one."""
        missing = closure.call.missing()
        self._missing[closure] = len(missing)
        for place, remote in missing:
            self._by_input.setdefault(remote, []).append((closure, place))

    def complete(self, remote: RemoteValue, packed: bytes) -> list[Work]:
        """Give a value to the closures that wait for it; return those that have all inputs now."""
        ready = []
        for closure, place in self._by_input.pop(remote, ()):
            closure.call.inputs[place] = packed
            self._missing[closure] -= 1
            if not self._missing[closure]:
                del self._missing[closure]
                ready.append(closure)
        return ready

    def remove(self, remote: RemoteValue) -> Work | None:
        """Remove and return the closure of a remote value, if it is here; O(closures)."""
        found = next((each for each in self._missing if each.remote is remote), None)
        if found is not None:
            del self._missing[found]
            for each, waiting in list(self._by_input.items()):
                left = [pair for pair in waiting if pair[0] is not found]
                if left:
                    self._by_input[each] = left
                else:
                    del self._by_input[each]
        return found

    def blocked(self, remote: RemoteValue) -> str:
        """Return what blocks an input of a closure, at any depth, if one is blocked."""
        closures, asked = {each.remote: each for each in list(self._missing)}, [remote]
        for each in asked:  # it grows
            if each is not remote and (text := each.blocked_by()):
                return text
            if (closure := closures.pop(each, None)) is not None:
                asked += [waited for _, waited in closure.call.missing()]
        return ""

    def of(self, remote: RemoteValue) -> list[Work]:
        """Return the closures that wait for a value."""
        return list(dict.fromkeys(closure for closure, _ in self._by_input.get(remote, ())))

    def clear(self) -> list[Work]:
        """Remove and return all closures, each one after those whose results it waits for."""
        closures = list(self._missing)
        self._missing.clear()
        self._by_input.clear()
        return closures


# PickledCall: what is needed to call a failed closure again, in the notebook's process.
#
# All is pickled, as it was when the closure was scheduled: nothing here keeps values on the
# workers, or the strategy, alive.

_TOO_MUCH = "it was too much, or cannot be pickled"
_UNKNOWN = "its worker was lost with it"


@dataclass(frozen=True)
class PickledCall:
    """A closure that has failed.

    Attributes
    ----------
    closure : int
        Its number.
    function, arguments : bytes
        What is called; no arguments are empty.
    inputs : tuple of bytes
        The pickled results of other closures among the arguments.
    values : mapping
        The calls that make the per-worker values that it uses, by their numbers; None is an
        iterator, of which it gets what it had taken.
    taken : bytes or None
        That, pickled; empty if it was not kept, None if it is not known.
    attempt : int
        The one that failed.
    round : int or None
        The round that it took part in.
    worker : str
        Where it ran; empty if unknown.
    place : InputContext
        That worker's place among the others.
    strategy : weakref to StrategyCore
        The way to the parameters.
    """

    closure: int
    function: bytes
    arguments: bytes
    inputs: tuple[bytes, ...]
    values: Mapping[int, bytes | None]
    taken: bytes | None
    attempt: int
    round: int | None
    worker: str
    place: InputContext
    strategy: Callable[[], StrategyCore | None]

    @property
    def parts(self) -> list[bytes]:
        """What it keeps."""
        values = filter(None, self.values.values())
        return [self.function, self.arguments, self.taken or b"", *self.inputs, *values]

    def __call__(self) -> Any:
        """Call it; see `Failure.rerun`."""
        strategy = self.strategy()
        if strategy is None:
            raise CoordinatorClosedError("the strategy of the closure is gone")
        strategy.check_open()
        in_round = None if self.round is None else Round(strategy.name, self.round)
        place = self.place
        context = WorkerContext(
            *(place.worker_index, place.num_workers, self.worker, self.attempt),
            send_report=lambda when, values: None,
            closure=self.closure,
            states=ReportedStates(),
        )
        made: dict[int, Any] = {}

        def resolve(number: int) -> Any:
            if number not in made:
                made[number] = self._value(number, resolve)
            return made[number]

        def call() -> Any:
            function = loads(self.function, resolve)
            args, kwargs = (
                loads(self.arguments, resolve, self.inputs) if self.arguments else ((), {})
            )
            return function(*args, **kwargs)

        try:
            with entered(context):
                return DryRunClient(strategy.server_client).run(call, in_round)
        except Exception as error:  # the user's function may raise anything
            hide_internal_frames(error)
            raise

    def _value(self, number: int, resolve: Callable[[int], Any]) -> Any:
        payload = self.values[number]
        if payload is None:
            if not self.taken:
                return NotReplayable(_UNKNOWN if self.taken is None else _TOO_MUCH)
            return ReplayedInputs(loads(self.taken).get(number))
        try:
            function, args, kwargs = loads(payload, resolve)
            return function(*args, **kwargs)
        except Exception as error:  # the user's function may raise anything
            raise ClosureInputError(
                f"a per-worker value that the closure uses could not be made here: "
                f"{error_text(error)}"
            ) from error


def pickled_call(
    worker: str,
    closure: Work,
    resources: ResourceRegistry,
    strategy: Callable[[], StrategyCore | None],
) -> PickledCall:
    """Return what is needed to call a closure again that has just failed on a worker.

    Its per-worker values must still be alive.
    """
    function, execution = closure.function, closure.execution
    values: dict[int, bytes | None] = {}

    def add(references: Iterable[PerWorkerReference]) -> None:
        for each in references:
            if isinstance(each, PerWorkerIterator):
                values[each.resource_id] = None
            elif each.resource_id not in values:
                values[each.resource_id], further = resources.made_of(each)
                add(further)

    add((*function.references, *closure.call.references))
    place, taken = execution.taken or (InputContext(1, 0), None)
    return PickledCall(
        closure.number,
        function.payload,
        closure.call.payload,
        tuple(each for each in closure.call.inputs if isinstance(each, bytes)),
        values,
        taken,
        execution.attempt,
        execution.round,
        worker,
        place,
        strategy,
    )
