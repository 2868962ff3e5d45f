"""Dependents: closures that wait for remote values among their arguments. Pure, without locks."""

from __future__ import annotations

from psnb._src.coordinator.closures.closure import Closure
from psnb._src.coordinator.closures.remote_value import RemoteValue


class Dependents:
    """Closures whose inputs have not all completed; `len` tells how many."""

    def __init__(self) -> None:
        self._missing: dict[Closure, int] = {}  # how many inputs, in the order of being added
        self._by_input: dict[RemoteValue, list[tuple[Closure, int]]] = {}

    def __len__(self) -> int:
        return len(self._missing)

    def add(self, closure: Closure) -> None:
        """Let a closure wait for the inputs that it has not got; there is one at least."""
        missing = closure.call.missing()
        self._missing[closure] = len(missing)
        for place, remote in missing:
            self._by_input.setdefault(remote, []).append((closure, place))

    def complete(self, remote: RemoteValue, packed: bytes) -> list[Closure]:
        """Hand a value to those who wait for it and return the closures that have all now."""
        ready = []
        for closure, place in self._by_input.pop(remote, ()):
            closure.call.inputs[place] = packed
            self._missing[closure] -= 1
            if not self._missing[closure]:
                del self._missing[closure]
                ready.append(closure)
        return ready

    def clear(self) -> list[Closure]:
        """Forget all and return them, a closure after those whose results it waits for."""
        closures = list(self._missing)
        self._missing.clear()
        self._by_input.clear()
        return closures
