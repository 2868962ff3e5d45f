"""What the tests of this folder save, and how they look at it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save
from xxhash import xxh3_64_hexdigest

from psnb._src.checkpoint.local_store import LocalStore
from psnb._src.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from psnb._src.checkpoint.shards import CheckpointReader, State
from psnb._src.checkpoint.store import StoredCheckpoint
from psnb._src.checkpoint.writing import write_checkpoint
from psnb._src.server.operations import SnapshotHeader
from psnb._src.utils.files import NewFile, WrittenFile, checksum

Parameter = tuple[str, Mapping[str, Any], Mapping[str, Any] | None, list[State]]

STATES = [
    {"values": np.ones((3, 2), np.float32), "slot.accumulator": np.full((3, 2), 0.5, np.float32)},
    {"values": np.zeros((1, 2), np.float32), "slot.accumulator": np.ones((1, 2), np.float32)},
]


class Saved:
    """A parameter that is saved."""

    def __init__(self, to_config: Parameter) -> None:
        self.name, self._description, optimizer, self.tables = to_config
        self.optimizer = None if optimizer is None else Saved((self.name, optimizer, None, []))

    def describe(self) -> Mapping[str, Any]:
        return self._description


def in_hand(name: str, shards: Any) -> Parameter:
    """Return what the shards of a parameter hold."""
    optimizer = shards.optimizer and shards.optimizer.describe()
    return name, shards.describe(), optimizer, shards.shard_states()


class InHand:
    """Parameters whose states this process has: it writes them as servers do.

    When half of the files are written, it calls ``meanwhile``.
    """

    def __init__(
        self, parameters: Sequence[Parameter], meanwhile: Callable[[], object] = bool
    ) -> None:
        self.parameters = {each[0]: Saved(each) for each in parameters}
        self.taken = {
            (name, number): SnapshotHeader("taken", 0, 0, {}, {})
            for name, each in self.parameters.items()
            for number, _ in enumerate(each.tables)
        }
        self._meanwhile, self.released = meanwhile, False

    def write(
        self,
        folder: str,
        files: Mapping[tuple[str, int], str],
        told: Callable[[float], object] = bool,
    ) -> Mapping[str, WrittenFile]:
        states = [state for each in self.parameters.values() for state in each.tables]
        found = {}
        for number, (name, state) in enumerate(zip(files.values(), states, strict=True), 1):
            content = save({key: np.asarray(array, order="C") for key, array in state.items()})
            with NewFile(folder, name) as file:
                file.write(memoryview(content))
            found[name] = file.written("this process")
            told(number / len(files))
            if number == max(1, len(files) // 2):
                self._meanwhile()
        return found

    def close(self) -> None:
        self.released = True


def write(
    directory: Path,
    parameters: Sequence[Parameter],
    metadata: Any,
    meanwhile: Callable[[], object] = bool,
) -> Path:
    """Write the next checkpoint."""
    taken = InHand(parameters, meanwhile)
    return write_checkpoint(LocalStore(directory), taken, metadata).path


def parameter(name: str = "v", states: list[State] | None = None) -> Parameter:
    return name, {"kind": "variable"}, {"name": "SGD"}, STATES if states is None else states


def names(directory: Path) -> list[str]:
    """Return what is in a folder, but for its lock, which stays."""
    return sorted({path.name for path in directory.iterdir()} - {".lock"})


def manifest_of(path: Path) -> Manifest:
    return read_manifest(path, path.joinpath)


def read(path: Path, name: str = "v") -> list[State]:
    reader = CheckpointReader(path)
    entry = reader.manifest.entries[name]
    files = [
        reader.file(entry, number, file)
        for number, shard in enumerate(entry.shards)
        for file in shard
    ]
    return [{key: each.read(key) for key in each.forms} for each in files]


@contextmanager
def released(stored: StoredCheckpoint) -> Iterator[StoredCheckpoint]:
    """Release a checkpoint in the end."""
    try:
        yield stored
    finally:
        stored.release()


def forge(path: Path, change: Callable[[dict[str, Any]], object] = lambda content: None) -> None:
    """Change what a manifest says, and make all checksums fit: a sum stops nobody."""
    content = json.loads((path / MANIFEST).read_text())
    del content["xxh3"]
    for entry in content["parameters"]:
        for shard in entry["shards"]:
            for file in shard:
                shard[file] = checksum(path / file)
    change(content)
    sealed = {**content, "xxh3": xxh3_64_hexdigest(json.dumps(content).encode())}
    (path / MANIFEST).write_text(json.dumps(sealed))
