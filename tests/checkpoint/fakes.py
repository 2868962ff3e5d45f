"""A strategy without Dask, for tests of managers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psnb._src.client.handles import shards_of
from psnb._src.client.requests import Request
from psnb._src.placement.layout import ShardId
from psnb._src.server.tables.operations import OnTables, PutSegment
from tests.checkpoint.saved import InHand, in_hand
from tests.client.in_process import InProcess, variable


class Servers(InProcess):
    """Servers that read no files, and call a function before they load something."""

    def __init__(self) -> None:
        super().__init__(2)
        self.when_loaded: Callable[[], object] = lambda: None

    def server_of(self, to: ShardId) -> None:
        """Return None: nobody reads for them, as processes that are forked have no threads."""

    def attempt(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        changes = [each.operation for each in requests]
        if any(isinstance(e, OnTables) and isinstance(e.operation, PutSegment) for e in changes):
            self.when_loaded()
        return super().attempt(requests, seen)


class Parameter:
    """A variable in two shards, all of whose values are the same."""

    def __init__(self, name: str) -> None:
        self.servers = Servers()
        self._variable = variable(np.zeros(100), 2, transport=self.servers, name=name)
        self.shards = shards_of(self._variable)
        self.when_saved: Callable[[], object] = lambda: None

    @property
    def value(self) -> int:
        (found,) = np.unique(self._variable.read()).tolist()
        return int(found)

    @value.setter
    def value(self, value: int) -> None:
        self._variable.assign(np.full(100, float(value)))


class Strategy:
    """Some parameters, and what was noted."""

    def __init__(self) -> None:
        self.made = {name: Parameter(name) for name in "abc"}
        self.noted: list[Path] = []
        self.taken: list[InHand] = []
        self.when_prepared: Callable[[], object] = lambda: None
        self.when_taken: Callable[[], object] = lambda: None
        self.settles: Callable[[], bool] = lambda: False

    def parameters(self) -> Mapping[str, Any]:
        return {name: each.shards for name, each in self.made.items()}

    def prepare_snapshots(self) -> None:
        self.when_prepared()

    def snapshots(self, since: object = None) -> InHand:
        def meanwhile() -> None:
            for each in self.made.values():
                each.when_saved()

        self.when_taken()
        taken = [in_hand(name, each.shards) for name, each in self.made.items()]
        self.taken.append(InHand(taken, meanwhile))
        return self.taken[-1]

    def settled(self) -> bool:
        return self.settles()

    def note_checkpoint(self, path: Path) -> None:
        self.noted.append(path)

    @property
    def values(self) -> list[int]:
        return [parameter.value for parameter in self.made.values()]

    def assign(self, value: int) -> None:
        for parameter in self.made.values():
            parameter.value = value
