"""What the tests of this folder save, and how they look at it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from psnb.checkpoint import store

Parameter = tuple[str, Mapping[str, Any], Mapping[str, Any] | None, list[store.State]]

STATES = [
    {"values": np.ones((3, 2), np.float32), "slot.accumulator": np.full((3, 2), 0.5, np.float32)},
    {"values": np.zeros((1, 2), np.float32), "slot.accumulator": np.ones((1, 2), np.float32)},
]


def parameter(name: str = "v", states: list[store.State] | None = None) -> Parameter:
    return name, {"kind": "variable"}, {"name": "SGD"}, STATES if states is None else states


def names(directory: Path) -> list[str]:
    """Return what is in a folder, but for its lock, which stays."""
    return sorted({path.name for path in directory.iterdir()} - {".lock"})


def read(path: Path, name: str = "v") -> list[store.State]:
    return list(store.read_states(path, store.read_manifest(path).entries[name]))
