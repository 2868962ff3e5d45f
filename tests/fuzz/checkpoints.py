"""Checkpoints for the fuzzer: what is loaded of a changed one is used, and all else is refused."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zlib
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins

from psnb._src.checkpoint.loading import Checkpoint
from psnb._src.checkpoint.manifest import MANIFEST
from psnb._src.checkpoint.reader import SavedCheckpoint
from psnb._src.checkpoint.saved_table import SavedTable
from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.variable import Variable
from psnb._src.server.optimizers import Adagrad, Adam
from psnb._src.server.tables.admission import CountFilter
from psnb._src.server.tables.initializers import Uniform
from psnb._src.server.tables.operations import PushRows, Segment
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.saved_files import FilePart
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.utils.files import NewFile
from psnb._src.utils.sealed_json import typed
from psnb.errors import CheckpointError, ConfigurationError
from tests.checkpoint.saved import (
    arrays_of,
    forge,
    in_hand,
    manifest_of,
    part_of,
    rewrite,
    write,
    write_part,
)
from tests.client.in_process import DIM, embedding, variable

BETWEEN = b"\n\0=====\0\n"
"""What stands between the files of a checkpoint, where they are one."""

FILES = [
    MANIFEST,
    *(f"{shard:05d}-variables.bin" for shard in range(6)),
    *(f"{shard:05d}-variables-01.bin" for shard in range(2, 6)),
]
UNREADABLE = OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError
"""What `forge` raises of a manifest whose sums cannot be mended."""

IDS = np.arange(3, dtype=np.uint64)
ONES = np.ones((3, DIM), np.float32)


class Model:
    """A variable, a table of fixed rows, and one of any ids that wait for rows."""

    def __init__(self) -> None:
        more: dict[str, Any] = {"admission": CountFilter(3), "accessor": CtrAccessor()}
        self.parameters: dict[str, Variable | Embedding] = {
            "w": variable(np.ones((3, 2), np.float32), 2, Adam(0.1), name="w"),
            "fixed": embedding(5, 2, Adagrad(0.1)),
            "any": embedding(None, 2, Adagrad(0.1), **more),
        }

    def shards(self) -> dict[str, DenseShards | SparseShards]:
        """Return what is saved."""
        return {name: shards_of(handle) for name, handle in self.parameters.items()}

    def use(self) -> None:
        """Have all loops go over what there is."""
        w, fixed, growing = self.parameters.values()
        assert isinstance(w, Variable)
        assert isinstance(fixed, Embedding)
        assert isinstance(growing, Embedding)
        w.push(np.ones((3, 2), np.float32))
        fixed.push(IDS, ONES)
        ids = [growing_ids(state) for state in growing._shards.shard_states()]
        known = np.concatenate([IDS, *ids])
        for _ in range(3):
            growing.push(known, np.ones((known.size, DIM), np.float32))
        assert growing.lookup(known).shape == (known.size, DIM)
        assert growing.statistics().waiting == 0
        growing.shrink(1.0)


def growing_ids(state: Segment) -> np.ndarray:
    return np.concatenate([state["ids"], state["waiting.ids"]])


@cache
def _place() -> tuple[Model, Path]:
    folder = Path(tempfile.mkdtemp(prefix="psnb-fuzz-"))  # nobody else's
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Model(), folder


def seeds() -> list[bytes]:
    """Return a checkpoint of a model without rows, one with, and a delta."""
    made, model = [], Model()
    for number in range(3):
        with tempfile.TemporaryDirectory() as folder:
            parameters = [in_hand(n, p) for n, p in model.shards().items()]
            path = write(Path(folder), parameters, {"step": 1})
            if number == 2:
                forge(path, partial(_add_changes, path))
            files = [path / name for name in FILES]
            made.append(BETWEEN.join(each.read_bytes() for each in files if each.exists()))
        model.parameters["any"].push(IDS, ONES)
    return made


def _add_changes(path: Path, content: dict[str, Any]) -> None:
    """Have a checkpoint of which the first row of each shard of both tables came later."""
    content["depth"] = 1
    for entry in content["parameters"][1:]:
        for parts in entry["shards"]:
            (part,) = (typed(each, FilePart) for each in parts)
            changes = part.file.replace(".bin", "-01.bin")
            state = arrays_of(path, part)
            count = state["ids"].size
            state = {n: a[:1] if len(a) == count and n != "step" else a for n, a in state.items()}
            with NewFile(str(path), changes) as file:
                parts.append(to_builtins(write_part(file, changes, state)))


def check(content: bytes) -> None:
    """Load a checkpoint as it is, with sums that fit, and each of its shards into a table alone.

    Then once more with an array of a shard bent: few changes of bytes leave a whole file.
    """
    model, folder = _place()
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    parts = content.split(BETWEEN, len(FILES) - 1)
    for name, part in zip(FILES, parts, strict=False):
        (folder / name).write_bytes(part)
    _load(model, folder)
    _load_forged(model, folder)
    random = np.random.default_rng(zlib.crc32(content))
    try:
        entries = manifest_of(folder).parameters
    except CheckpointError:
        return
    before = {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}
    for entry in entries:
        for shard, saved in enumerate(entry.shards):
            for at, each in enumerate(saved):
                with suppress(OSError, ValueError, CheckpointError):  # a file may be too short
                    _load_alone(arrays_of(folder, each))
                    rewrite(folder, entry.name, partial(_bend, random), shard, at)
                    _load_alone(arrays_of(folder, part_of(folder, entry.name, shard, at)))
                    _load(model, folder)
                for name, content in before.items():
                    (folder / name).write_bytes(content)


def _bend(random: np.random.Generator, state: Segment) -> None:
    """Make one of the arrays longer, shorter, of another dtype, or some of its bytes extreme."""
    name = random.choice(sorted(state))
    array = np.atleast_1d(state[name])
    match random.integers(8):
        case 0:
            array = array[:-1]
        case 1:
            array = np.repeat(array, 2, axis=0)
        case 2:
            array = array.view(random.choice(["i", "u", "f"]) + str(max(2, array.itemsize)))
        case _ if array.size:
            array = array.copy()
            number = array.reshape(-1)[random.integers(array.size) :][:1].view(np.uint8)
            number[random.integers(number.size) :] = random.choice([0, 1, 0x7F, 0x80, 0xFF])
    state[name] = np.ascontiguousarray(array)


def _load_forged(model: Model, folder: Path) -> None:
    with suppress(*UNREADABLE):
        forge(folder)
    _load(model, folder)


def _load(model: Model, folder: Path) -> None:
    _read(folder)
    try:
        saved = Checkpoint(folder, model.shards())
    except CheckpointError:
        return
    saved.load()  # what was checked can be loaded
    model.use()


def _read(folder: Path) -> None:
    """Read it without a strategy: whatever its manifest says that there is."""
    with suppress(CheckpointError):
        saved = SavedCheckpoint(folder)
        for name in saved:
            with suppress(CheckpointError):
                found = saved[name]
                rows = found.lookup(found.ids) if isinstance(found, SavedTable) else found
                assert np.array_equal(getattr(found, "rows", rows), rows, equal_nan=True)


def _load_alone(state: Segment) -> None:
    table = SparseTable(
        *("e", DIM, None, 0, 1, "float32", Uniform(), 3, Adagrad(0.1)),
        admission=CountFilter(3),
        accessor=CtrAccessor(),
    )
    table.run(PushRows(IDS, ONES))
    before = table.state()
    try:
        table.load(state)
    except ConfigurationError:
        after = table.state()
        assert all(np.array_equal(before[name], after[name]) for name in before)
        return
    known = growing_ids(table.state())
    for _ in range(3):
        table.run(PushRows(known, np.ones((known.size, DIM), np.float32)))
    table.shrink(1.0, 1, False)
