"""Closure: one scheduled call, from the queue to a worker and back. Pure, without Dask."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from psnb._src.coordinator.closures.call import Call
from psnb._src.coordinator.closures.changed_elsewhere import changed_elsewhere
from psnb._src.coordinator.closures.duration import Duration
from psnb._src.coordinator.closures.referred import Referred
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.closures.schedule_options import ScheduleOptions
from psnb._src.excerpt import NAME, excerpt
from psnb._src.runtime import InputContext, PerWorkerReference, Uploads, captured, dumps


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Function:
    """A callable, pickled once for all its closures for as long as it stays as it is.

    Attributes
    ----------
    id : str
        Digest of the payload and of what was uploaded: the same function scheduled again, even if
        made anew, has the same id.
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
        The modules that the workers were sent; after another one, they get all functions anew.
    """

    def __init__(self, uploads: Uploads | None = None) -> None:
        self._uploads = Uploads() if uploads is None else uploads
        self._lock = threading.Lock()  # guards the maps, which no thread may see half-set
        self._by_callable: weakref.WeakKeyDictionary[Any, tuple[Function, Referred, int]] = (
            weakref.WeakKeyDictionary()
        )
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
        referred = Referred(function)
        self._warn(referred)
        if known is None and (names := changed_elsewhere(function)):
            warnings.warn(
                f"{', '.join(names)}: a closure changes a copy of it, on its worker, and here it "
                "stays as it is. Return what closures find and fetch() that, or psnb.report it",
                UserWarning,
                stacklevel=4,  # where the user schedules
            )
        references: list[PerWorkerReference] = []
        name = excerpt(getattr(function, "__qualname__", type(function).__qualname__), NAME)
        payload = dumps(function, f"closure {name}", references, reduced=captured)
        digest = hashlib.blake2b(payload, digest_size=16, salt=version.to_bytes(8, "little"))
        duration = Duration() if known is None else known[0].duration
        made = Function(digest.hexdigest(), name, payload, tuple(references), duration)
        with self._lock:
            made = self._by_id.setdefault(made.id, made)
            with contextlib.suppress(TypeError):
                self._by_callable[function] = made, referred, version
        return made

    def _warn(self, referred: Referred) -> None:
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
        id: a closure that waits for long would make servers remember all that ended meanwhile.
    attempt : int
        1 for the first one, one more after each worker that was lost with the closure.
    deaths : int
        During how many of those losses it was probably running; its retries limit that.
    revoked : bool
        Whether somebody has cancelled it while it ran: it counts if it has had its effect, and does
        not run again.
    round : int or None
        The round that it belongs to, if there are rounds.
    kept : tuple of int and bytes, or None
        An attempt and its pickled result, if a worker has sent that before the commit.
    taken : tuple of InputContext and bytes, or None
        Where it has failed, and what it had taken from iterators there, pickled; if that is known.
    """

    commit: int
    attempt: int = 1
    deaths: int = 0
    revoked: bool = False
    round: int | None = None
    kept: tuple[int, bytes] | None = None
    taken: tuple[InputContext, bytes] | None = None


NOT_TAKEN = Execution(-1)
"""Shared by all closures that wait for the first time."""


class Closure:
    """One call that waits or runs.

    Owned by the queue. Its lock guards what changes: `execution`, the inputs of `call`, and the
    outcome in `remote`. There may be very many closures, so they share objects where they can.

    Attributes
    ----------
    id : int
        Unique within the coordinator.
    function : Function
        What to call.
    call : Call
        Its arguments.
    options : ScheduleOptions
        How to schedule it.
    execution : Execution
        Its attempts; `NOT_TAKEN` until it is first taken.
    remote : RemoteValue
        What the caller holds.
    """

    __slots__ = ("call", "execution", "function", "id", "options", "remote")

    def __init__(
        self,
        closure_id: int,
        function: Function,
        call: Call,
        options: ScheduleOptions,
        remote: RemoteValue,
    ) -> None:
        self.id = closure_id
        self.function = function
        self.call = call
        self.options = options
        self.execution = NOT_TAKEN
        self.remote = remote

    def __str__(self) -> str:
        return f"{self.function.name} #{self.id}"
