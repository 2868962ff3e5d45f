"""FunctionRegistry: functions, pickled once for all their closures. Thread-safe."""

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

from psnb._src.coordinator.closures.fingerprint import DependencyFingerprint
from psnb._src.coordinator.closures.lost_changes import changed_elsewhere
from psnb._src.protocol.dask_futures import captured
from psnb._src.protocol.modules import Uploads
from psnb._src.protocol.packing import PerWorkerReference, dumps
from psnb._src.utils.text import NAME, truncate

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
