"""A strategy without Dask, for tests of managers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psnb._src.server.tables.checks import SavedShard
from psnb.errors import InvalidArrayError
from tests.checkpoint.saved import InHand


class Parameter:
    """One of two shards, all of whose values are the same."""

    optimizer = None

    def __init__(self) -> None:
        self.value = 0
        self.when_saved: Callable[[], object] = lambda: None
        self.when_loaded: Callable[[], object] = lambda: None

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "fake"}

    def check_state(self, saved: SavedShard) -> None:
        if saved.forms != {"values": (np.dtype(np.int64), (50,))}:
            raise InvalidArrayError(f"found {saved.forms}")

    def states(self) -> list[dict[str, np.ndarray]]:
        return [{"values": np.full(50, self.value)} for _ in range(2)]

    def load_states(
        self, states: Sequence[dict[str, np.ndarray]], only: frozenset[int] | None = None
    ) -> None:
        assert len(states) == 2
        self.when_loaded()
        (self.value,) = np.unique([state["values"] for state in states]).tolist()


class Strategy:
    """Some parameters, and what was noted."""

    def __init__(self) -> None:
        self.made = {name: Parameter() for name in "abc"}
        self.noted: list[Path] = []
        self.taken: list[InHand] = []
        self.when_prepared: Callable[[], object] = lambda: None
        self.when_taken: Callable[[], object] = lambda: None
        self.settles: Callable[[], bool] = lambda: False

    def parameters(self) -> Mapping[str, Parameter]:
        return self.made

    def prepare_snapshots(self) -> None:
        self.when_prepared()

    def snapshots(self, since: object = None) -> InHand:
        def meanwhile() -> None:
            for each in self.made.values():
                each.when_saved()

        self.when_taken()
        taken = [(n, p.describe(), None, p.states()) for n, p in self.made.items()]
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
