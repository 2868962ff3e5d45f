"""Registry: the names and handles of a strategy's parameters. Thread-safe.

A name is taken before its tables are made, so that two threads cannot take the same one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from psnb._src.client.handles import Handle
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError


class Registry:
    """Variables and embeddings by name, in the order in which the names were taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the dict; not held during requests
        self._parameters: dict[str, Handle | None] = {}  # None: being made

    def __len__(self) -> int:
        """Return how many names are taken."""
        return len(self._parameters)

    @contextmanager
    def reserved(self, name: str | None, kind: str) -> Iterator[str]:
        """Take a name, or make one up; it is free again if the block raises.

        Raises
        ------
        ConfigurationError
            If it is not a valid name, or is taken.
        """
        with self._lock:
            if name is None:
                number = 1
                while (name := f"{kind}_{number}") in self._parameters:
                    number += 1
            if not isinstance(name, str) or not name:
                raise ConfigurationError(
                    f"the name of a {kind} must be a text, found {shown(name)}"
                )
            if name in self._parameters:
                raise ConfigurationError(
                    f"the strategy has {name!r} already: use strategy.parameters[{name!r}], or "
                    "another name"
                )
            self._parameters[name] = None
        try:
            yield name
        except BaseException:  # whatever ends it, an interrupt too: the name is free again
            with self._lock:
                del self._parameters[name]
            raise

    def add(self, parameter: Handle) -> None:
        """Store a handle under its name, which was taken before."""
        with self._lock:
            self._parameters[parameter.name] = parameter

    def all(self) -> Mapping[str, Handle]:
        """Return a read-only snapshot of the parameters that were made."""
        with self._lock:
            made = {name: p for name, p in self._parameters.items() if p is not None}
        return MappingProxyType(made)
