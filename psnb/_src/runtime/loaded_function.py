"""LoadedFunction: a function from the coordinator, on the worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from psnb._src.runtime.activity import Doing
from psnb._src.runtime.packing import loads
from psnb._src.runtime.resources import Resources


class LoadedFunction:
    """A function from the coordinator, unpickled when it is first called.

    Not on arrival: it may hold per-worker values, which only closure threads may wait for.
    """

    def __init__(self, name: str, payload: bytes, resources: Resources) -> None:
        self.name = name
        self._short = name.rpartition("<locals>.")[2]
        self.activity = f"running {self._short}"
        self._payload, self._resources = payload, resources
        self._lock = threading.Lock()  # unpickle once, though two threads call at the same time
        self._function: Callable[..., Any] | None = None

    def get(self) -> Callable[..., Any]:
        """Return the function; for closure threads."""
        with self._lock:
            if self._function is None:
                with Doing(f"loading {self._short}"):  # with all the modules that it needs
                    self._function = loads(self._payload, self._resources.get)
            return self._function
