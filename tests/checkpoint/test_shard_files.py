"""Tests of checkpoints on disk, without Dask."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xxhash import xxh3_64_hexdigest

from psnb._src.checkpoint.manifest import MANIFEST
from psnb._src.checkpoint.shards import CheckpointReader
from psnb._src.utils import files
from psnb.errors import CheckpointError
from tests.checkpoint.saved import STATES, manifest_of, names, parameter, part_of, read, write

KEYS = frozenset(STATES[0])


def nested(depth: int) -> dict[str, Any]:
    """Return a mapping in a mapping in a mapping."""
    made: dict[str, Any] = {}
    for _ in range(depth):
        made = {"x": made}
    return made


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write(tmp_path, [parameter()], {"step": 3})


def test_states_come_back_bit_by_bit(checkpoint: Path) -> None:
    found = read(checkpoint)
    assert [set(state) for state in found] == [KEYS, KEYS]
    for state, expected in zip(found, STATES, strict=True):
        for key, array in state.items():
            np.testing.assert_array_equal(array, expected[key], strict=True)


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.0, np.float32),
        np.empty((0, 4), np.float64),
        np.array([0, 2**64 - 1], np.uint64),
        np.arange(6, dtype=np.int16).reshape(2, 3).T,
        np.array([np.nan, -np.inf, -0.0]),
        np.ones(3, np.float16),
    ],
)
def test_any_array_comes_back_as_it_was(tmp_path: Path, array: np.ndarray) -> None:
    path = write(tmp_path, [parameter(states=[{"values": array}])], {})
    found = read(path)[0]["values"]
    np.testing.assert_array_equal(found, array, strict=True)
    assert found.flags.writeable


def test_manifest_tells_description_optimizer_and_metadata(checkpoint: Path) -> None:
    manifest = manifest_of(checkpoint)
    assert manifest.metadata == {"step": 3}
    assert list(manifest.entries) == ["v"]
    entry = manifest.entries["v"]
    assert (entry.name, entry.description, entry.optimizer) == (
        "v",
        {"kind": "variable"},
        {"name": "SGD"},
    )


@pytest.mark.parametrize("name", ["a/b", "../x", "", "ü \n"])
def test_names_of_parameters_need_not_suit_files(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, [parameter(name)], {})
    np.testing.assert_array_equal(read(path, name)[0]["values"], STATES[0]["values"])
    assert names(tmp_path) == [path.name]


def test_nothing_in_a_checkpoint_is_pickled(checkpoint: Path) -> None:
    for file in checkpoint.iterdir():
        if file.name == MANIFEST:
            json.loads(file.read_bytes())
        else:  # the bytes of arrays
            parts = [
                part for shard in manifest_of(checkpoint).entries["v"].shards for part in shard
            ]
            assert file.stat().st_size == next(p.stop for p in parts if p.file == file.name)


def fail() -> None:
    raise RuntimeError("the server is gone")


def test_failure_half_way_leaves_what_was_there(checkpoint: Path) -> None:
    with pytest.raises(RuntimeError, match="the server is gone"):
        write(checkpoint.parent, [parameter()], {}, meanwhile=fail)
    assert names(checkpoint.parent) == [checkpoint.name]
    assert len(read(checkpoint)) == 2


def test_checkpoint_bears_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    seen: list[str] = []
    write(tmp_path, [parameter()], {}, meanwhile=lambda: seen.extend(names(tmp_path)))
    assert [name[:12] for name in seen] == [".incomplete-"]


def test_all_of_a_checkpoint_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, synced = os.fsync, {}

    def syncing(file: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        synced[path.name] = path.stat().st_size
        sync(file)

    monkeypatch.setattr(os, "fsync", syncing)
    path = write(tmp_path, [parameter()], {})
    assert {file.name: file.stat().st_size for file in path.iterdir()}.items() <= synced.items()


def test_write_into_a_folder_that_went_away_with_its_parent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be written to '.*gone/saved'"):
        write(tmp_path / "gone" / "saved", [parameter()], {})


@pytest.mark.parametrize(
    "metadata",
    [
        {"x": object()},
        {"x": np.float32(1)},
        {(1, 2): 3},
        [1],
        None,
        {"x": math.nan},
        {"x": [-math.inf]},
        {1: 2, "1": 3},
        nested(100_000),
    ],
)
def test_metadata_that_is_not_json_is_refused_and_nothing_written(
    tmp_path: Path, metadata: Any
) -> None:
    with pytest.raises(CheckpointError, match="metadata"):
        write(tmp_path, [parameter()], metadata)
    assert names(tmp_path) == []


def test_shard_that_vanishes_after_the_check_is_reported(checkpoint: Path) -> None:
    reader, part = CheckpointReader(checkpoint), part_of(checkpoint, "v", 1)
    (checkpoint / part.file).unlink()
    message = f"ckpt-000001': {part.file} is damaged, where 'v' is"
    with pytest.raises(CheckpointError, match=message):
        reader.part(reader.manifest.entries["v"], part)


@pytest.mark.parametrize(("start", "nbytes"), [(0, None), (8, files._CHUNK), (8, 3), (16, 0)])
def test_checksum_is_that_of_all_pieces(tmp_path: Path, start: int, nbytes: int | None) -> None:
    content = np.random.default_rng(0).bytes(files._CHUNK * 2 + 5)
    (tmp_path / "file").write_bytes(content)
    part = content if nbytes is None else content[start : start + nbytes]
    found = files.checksum(tmp_path / "file", bool, start, nbytes)
    assert found == xxh3_64_hexdigest(part)
