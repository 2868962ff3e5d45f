"""What the tests of this folder save, and how they look at it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_hexdigest

from psnb._src.checkpoint import shard_files
from psnb._src.checkpoint.checkpoint_folder import MANIFEST
from psnb._src.checkpoint.manifest import read_manifest
from psnb._src.whole_files import checksum

Parameter = tuple[str, Mapping[str, Any], Mapping[str, Any] | None, list[shard_files.State]]

STATES = [
    {"values": np.ones((3, 2), np.float32), "slot.accumulator": np.full((3, 2), 0.5, np.float32)},
    {"values": np.zeros((1, 2), np.float32), "slot.accumulator": np.ones((1, 2), np.float32)},
]


def parameter(name: str = "v", states: list[shard_files.State] | None = None) -> Parameter:
    return name, {"kind": "variable"}, {"name": "SGD"}, STATES if states is None else states


def names(directory: Path) -> list[str]:
    """Return what is in a folder, but for its lock, which stays."""
    return sorted({path.name for path in directory.iterdir()} - {".lock"})


def read(path: Path, name: str = "v") -> list[shard_files.State]:
    return list(shard_files.read_states(path, read_manifest(path).entries[name]))


def forge(path: Path, change: Callable[[dict[str, Any]], object] = lambda content: None) -> None:
    """Change what a manifest says, and make all checksums fit: a sum stops nobody."""
    content = json.loads((path / MANIFEST).read_text())
    del content["xxh3"]
    for entry in content["parameters"]:
        for file in entry["files"]:
            entry["files"][file] = checksum(path / file)
    change(content)
    sealed = {**content, "xxh3": xxh3_64_hexdigest(json.dumps(content).encode())}
    (path / MANIFEST).write_text(json.dumps(sealed))
