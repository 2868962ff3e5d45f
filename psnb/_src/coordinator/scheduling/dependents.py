"""Dependents: closures that wait for remote values among their arguments. Pure, without locks."""

from __future__ import annotations

from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.scheduling.work import Work


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
