"""What the tests of this folder save, and how they look at it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_hexdigest

from psnb._src.checkpoint.local_store import LocalStore
from psnb._src.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from psnb._src.checkpoint.shards import CheckpointReader, State
from psnb._src.checkpoint.store import StoredCheckpoint
from psnb._src.checkpoint.writing import write_checkpoint
from psnb._src.server.operations import SnapshotHeader
from psnb._src.server.tables.saved_files import FilePart, SealedPart
from psnb._src.utils.files import NewFile, checksum
from psnb._src.utils.sealed_json import typed

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


def write_part(file: NewFile, name: str, state: State) -> FilePart:
    """Write a part of a file, as a server does."""
    start = file.begin_part()
    for array in state.values():
        file.write(memoryview(np.asarray(array, order="C").tobytes()))
    arrays = {key: (array.dtype.name, array.shape) for key, array in state.items()}
    return FilePart(name, start, file.checksum, arrays)


class InHand:
    """Parameters whose states this process has: it writes them as servers do, a file for a shard.

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
        file_name: Callable[[int, str], str],
        told: Callable[[float], object] = bool,
    ) -> Mapping[str, Mapping[tuple[str, int], FilePart]]:
        found = {}
        for number, key in enumerate(self.taken):
            name = file_name(number, "variables")
            with NewFile(folder, name) as file:
                found[key] = write_part(file, name, self.parameters[key[0]].tables[key[1]])
            told((number + 1) / len(self.taken))
            if number + 1 == max(1, len(self.taken) // 2):
                self._meanwhile()
        return {"this process": found}

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
    parts = [reader.part(entry, part) for shard in entry.shards for part in shard]
    return [{key: each.read(key) for key in each.forms} for each in parts]


def part_of(path: Path, name: str, shard: int = 0, at: int = -1) -> FilePart:
    """Return one of the parts of a shard, the newest by default."""
    return manifest_of(path).entries[name].shards[shard][at]


def damage(path: Path, name: str, shard: int = 0, at: int = -1) -> str:
    """Flip the last bit of a part; return the name of its file."""
    part = part_of(path, name, shard, at)
    with open(path / part.file, "r+b") as file:
        file.seek(part.stop - 1)
        last = file.read(1)[0]
        file.seek(part.stop - 1)
        file.write(bytes([last ^ 1]))
    return part.file


def arrays_of(path: Path, part: FilePart) -> State:
    """Return copies of the arrays of a part, whatever its checksum."""
    return {key: array.copy() for key, array in SealedPart(path / part.file, part).mapped().items()}


def rewrite(
    path: Path, name: str, change: Callable[[State], object], shard: int = 0, at: int = -1
) -> str:
    """Change what a part holds, and make the checksums fit; return the name of its file.

    What was there stays, in front of what is there now.
    """
    part = part_of(path, name, shard, at)
    change(state := arrays_of(path, part))
    content = b"".join(np.asarray(array, order="C").tobytes() for array in state.values())
    whole = (path / part.file).read_bytes()
    whole += bytes(-len(whole) % 8)
    (path / part.file).unlink()  # other checkpoints may have it, too
    (path / part.file).write_bytes(whole + content)

    def say(manifest: dict[str, Any]) -> None:
        (entry,) = (each for each in manifest["parameters"] if each["name"] == name)
        arrays = {key: [np.asarray(a).dtype.name, np.shape(a)] for key, a in state.items()}
        new = {"start": len(whole), "arrays": arrays, "checksum": xxh3_64_hexdigest(content)}
        entry["shards"][shard][at].update(new)

    forge(path, say)
    return part.file


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
            for part in shard:
                said = typed(part, FilePart)
                start, nbytes = said.start, said.stop - said.start
                part["checksum"] = checksum(path / said.file, bool, start, nbytes)
    change(content)
    content = json.loads(json.dumps(content))
    sealed = {**content, "xxh3": xxh3_64_hexdigest(json.dumps(content).encode())}
    (path / MANIFEST).write_text(json.dumps(sealed))
