"""WorkerNames: names that people can read for workers, each of one worker at a time. Pure.

Whoever starts a worker may name it; else Dask names it by its address, or by a number. Such a
worker is called ``worker-0`` or the like, and so is a second one of the same name.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Collection, Mapping


class WorkerNames:
    """Names workers; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the names and what is connected
        self._names: dict[str, str] = {}  # by address
        self._connected: frozenset[str] = frozenset()

    def of(
        self, workers: Mapping[str, str], connected: Collection[str] | None = None
    ) -> dict[str, str]:
        """Return the names of workers by their addresses, in order; a worker keeps its name.

        Parameters
        ----------
        workers : mapping of str to str
            The names in the Dask cluster of those that are there, by address.
        connected : collection of str, optional
            Addresses of workers whose names are taken although they may have left the cluster: they
            still end what they have. By default those of the call before.
        """
        with self._lock:
            if connected is not None:
                self._connected = frozenset(connected)
            there = self._connected.union(workers)
            self._names = {a: name for a, name in self._names.items() if a in there}
            new = {a: name for a, name in workers.items() if a not in self._names}
            taken = set(self._names.values())
            # First those that have a name, which nobody else must get.
            for address, name in sorted(new.items(), key=lambda each: _is_no_name(*each)):
                found = _wanted(address, name)
                if not found or found in taken:
                    numbered = map("worker-{}".format, itertools.count())
                    found = next(each for each in numbered if each not in taken)
                self._names[address] = found
                taken.add(found)
            return {a: self._names[a] for a in sorted(workers, key=self._in_order)}

    def _in_order(self, address: str) -> tuple[list[str], list[int]]:
        # ``worker-10`` comes after ``worker-9``.
        name = self._names[address]
        return re.split(r"\d+", name), [int(digits) for digits in re.findall(r"\d+", name)]


def _wanted(address: str, name: str) -> str:
    """Return what a worker is to be called if nobody else is; empty for any number."""
    if _is_no_name(address, name):
        return ""
    return f"worker-{int(name)}" if name.isdecimal() else name


def _is_no_name(address: str, name: str) -> bool:
    return name == address or re.match(r"\w+://", name) is not None
