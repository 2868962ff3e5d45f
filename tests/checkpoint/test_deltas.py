"""Checkpoints of what changed: each is restored as it was saved, whatever happened between them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import psnb
from psnb._src.checkpoint.folders import store_at
from psnb._src.checkpoint.listing import folder_listing, prune_verified
from psnb._src.checkpoint.manager import FolderManager
from psnb._src.server.operations import TakeSnapshot
from psnb._src.server.tables.saved_files import SealedPart
from psnb._src.utils.paths import AnyPath, as_path
from psnb.errors import CheckpointError
from tests.checkpoint.delta_model import (
    MEMORY,
    ROWS,
    Model,
    State,
    assert_same,
    forget_memory,
    manager_of,
    manifest,
    own_parts,
    restored,
)
from tests.checkpoint.saved import released
from tests.client.in_process import DIM

IDS = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=3, unique=True)
NEW = st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True)
STEP = st.one_of(
    st.tuples(st.sampled_from(["push", "look", "assign"]), IDS),
    st.tuples(st.sampled_from(["grow", "see"]), NEW),
    st.tuples(st.sampled_from(["move", "fail"]), st.integers(0, 2)),
    st.tuples(st.sampled_from(["day", "shrink", "restore", "another"]), st.none()),
)


def take(model: Model, manager: FolderManager, what: str, value: Any) -> None:
    match what:
        case "push":
            model.push(*value)
        case "look":
            model.any.lookup(value)
        case "assign":
            model.fixed.assign(value, np.full((len(value), DIM), 7, np.float32))
        case "grow":
            model.any.push(value, np.ones((len(value), DIM), np.float32))
        case "see":
            model.waiting.lookup(value)
        case "move":
            model.move(model.tables[value])
        case "fail":
            fail(model, manager)
        case "day":
            model.waiting.end_day()
        case "shrink":
            model.waiting.shrink(0.15)
        case "restore":
            manager.restore(manager.checkpoints[0])
        case "another":  # another consumer asks
            model.snapshots({}).close()


def fail(model: Model, manager: FolderManager) -> None:
    """Let a save fail after the snapshots were taken."""

    def broken() -> None:
        raise CheckpointError("the disk is full")

    model.meanwhile = broken
    with pytest.raises(CheckpointError, match="the disk is full"):
        manager.save()
    model.meanwhile = bool


@settings(max_examples=25, deadline=None)
@given(
    local=st.booleans(),
    shards=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    saves=st.lists(st.lists(STEP, max_size=4), min_size=2, max_size=7),
)
def test_each_is_restored_as_it_was_saved(
    local: bool, shards: tuple[int, int], saves: list[list[tuple[str, Any]]]
) -> None:
    model = Model(shards[0])
    model.push(*range(ROWS))
    expected: list[tuple[AnyPath, dict[str, State]]] = []
    try:
        with TemporaryDirectory() as folder:
            manager = manager_of(model, folder if local else MEMORY, 4)
            path = manager.save()
            expected.append((path, model.content()))
            for steps in saves:
                for what, value in steps:
                    take(model, manager, what, value)
                path = manager.save()
                expected.append((path, model.content()))
            assert [manifest(each).depth for each, _ in expected].count(0) >= len(expected) // 4
            for path, content in expected:
                assert_same(restored(path, shards[1]), content)
            psnb.checkpoint.load(path).verify()
    finally:
        forget_memory()


def test_only_rows_that_changed_are_written(model: Model, address: str) -> None:
    manager = manager_of(model, address)
    assert own_parts(manager.save()) == [
        *("still", "still", "w", "w", "fixed", "fixed", "any", "any", "waiting", "waiting")
    ]
    model.any.push([3, 5], np.ones((2, DIM), np.float32))
    path = manager.save()
    with released(store_at(path.parent).use(path)) as stored:
        said = stored.manifest()
        parts = [shard[-1] for shard in said.entries["any"].shards if said.own(shard[-1].file)]
        opened = [SealedPart(stored.file(each.file), each) for each in parts]
        ids = np.concatenate([each.read("ids") for each in opened])
    assert sorted(ids) == [3, 5]
    assert {*own_parts(path)} == {"any"}
    assert own_parts(manager.save()) == []
    assert manifest(manager.latest_checkpoint).depth == 2  # type: ignore[arg-type]


def test_one_of_so_many_is_whole(model: Model, address: str) -> None:
    manager = manager_of(model, address, full_every=3)
    assert [manifest(manager.save()).depth for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_without_a_wish_all_are_whole_and_servers_note_nothing(model: Model, address: str) -> None:
    manager = FolderManager(model, address, 3)
    assert [manifest(manager.save()).depth for _ in range(3)] == [0, 0, 0]
    asked = [each.operation for each in model.servers.carried]
    assert {each.since for each in asked if isinstance(each, TakeSnapshot)} == {None}


@pytest.mark.parametrize("keep", [1, 2])
def test_those_that_are_kept_are_whole_without_those_that_were_removed(
    model: Model, address: str, keep: int
) -> None:
    manager = manager_of(model, address, 9, keep)
    for number in range(6):
        model.push(number)
        manager.save()
        content = model.content()
    assert len(manager.checkpoints) == keep
    found = manager.latest_checkpoint
    assert found is not None
    assert manifest(found).depth == 5
    assert_same(restored(found), content)


def test_what_is_not_shared_any_more_is_removed(model: Model, address: str) -> None:
    manager = manager_of(model, address, 3, 1)
    for number in range(4):
        model.push(number)
        path = manager.save()
    assert manifest(path).depth == 0
    left = {Path(name).name for name in everything(address) if name.endswith(".bin")}
    assert left == {f"0000{n}-{kind}.bin" for n in range(2) for kind in ("variables", "tables")}
    if address == MEMORY:
        assert len([each for each in everything(address) if each.endswith("begun")]) == 1


def everything(address: str) -> list[str]:
    system, root = fsspec.url_to_fs(address)
    return [str(each) for each in system.find(root)]


def test_when_another_manager_has_removed_the_last_the_next_is_whole(
    model: Model, address: str
) -> None:
    manager, other = manager_of(model, address), manager_of(Model(), address, keep=1)
    manager.save()
    other.save()
    path = manager.save()
    assert manifest(path).depth == 0
    assert_same(restored(path), model.content())


def test_when_a_file_of_the_last_is_gone_the_next_is_whole(model: Model, address: str) -> None:
    manager = manager_of(model, address)
    (gone, *_) = psnb.checkpoint.load(manager.save()).files
    fsspec.open(str(gone)).fs.rm(str(gone))
    path = manager.save()
    assert manifest(path).depth == 0
    assert_same(restored(path), model.content())


def test_a_new_manager_begins_with_a_whole_one(model: Model, address: str) -> None:
    manager_of(model, address).save()
    assert manifest(manager_of(model, address).save()).depth == 0


def test_two_managers_build_each_on_its_own(model: Model, address: str) -> None:
    one, two = manager_of(model, address), manager_of(model, address + "-2")
    expected = []
    for number in range(3):
        for manager in (one, two):
            model.push(number)
            expected.append((manager.save(), model.content()))
    assert [manifest(path).depth for path, _ in expected] == [0, 0, 1, 1, 2, 2]
    for path, content in expected:
        assert_same(restored(path), content)
    forget_memory()


def test_a_shard_that_moved_or_changed_mostly_is_written_whole_the_others_not(
    model: Model, address: str
) -> None:
    manager = manager_of(model, address)
    manager.save()
    model.move(model.any)
    model.fixed.push(range(6), np.ones((6, DIM), np.float32))
    model.waiting.push([1], np.ones((1, DIM), np.float32))
    said = manifest(manager.save())
    parts = {name: [len(shard) for shard in each.shards] for name, each in said.entries.items()}
    assert parts["any"] == [1, 1]
    assert parts["fixed"] == [1, 1]
    assert parts["still"] == [1, 1]
    assert sorted(parts["waiting"]) == [1, 2]


def test_a_parameter_that_is_new_does_not_get_the_name_of_a_shared_file(
    model: Model, address: str
) -> None:
    manager = manager_of(model, address)
    manager.save()
    parameters = model.parameters()
    del parameters["still"]  # so that all others have another place
    model.parameters = lambda: parameters  # type: ignore[method-assign]
    model.push(3)
    model.push(4)
    said = manifest(path := manager.save())
    assert said.depth == 1
    loaded = psnb.checkpoint.load(path)
    np.testing.assert_array_equal(loaded["any"].lookup([3, 4]), model.any.lookup([3, 4]))


def test_they_are_listed_with_the_bytes_that_each_has_cost(model: Model, address: str) -> None:
    manager = manager_of(model, address)
    manager.save()
    model.any.push([3], np.ones((1, DIM), np.float32))
    manager.save()
    saved = [psnb.checkpoint.load(path) for path in manager.checkpoints]
    assert saved[0].own_nbytes == saved[0].nbytes
    assert 0 < saved[1].own_nbytes < saved[0].nbytes < saved[1].nbytes
    assert saved[1].nbytes == saved[0].nbytes + saved[1].own_nbytes
    lines = folder_listing(as_path(address), verify=True).text.splitlines()
    assert [line.split()[4:6] for line in lines[1:]] == [
        [f"{each.nbytes:,}", f"{each.own_nbytes:,}"] for each in saved
    ]


def test_a_table_is_read_without_a_cluster(model: Model, address: str) -> None:
    manager = manager_of(model, address)
    manager.save()
    model.push(3, 8)
    model.any.push([50], np.ones((1, DIM), np.float32))
    loaded = psnb.checkpoint.load(manager.save())
    for name, table in (("fixed", model.fixed), ("any", model.any)):
        ids = [*range(ROWS)] + [50] * (name == "any")
        np.testing.assert_array_equal(loaded[name].ids, ids)
        np.testing.assert_array_equal(loaded[name].rows, table.lookup(ids))
        np.testing.assert_array_equal(loaded[name].lookup(ids[::-1]), table.lookup(ids[::-1]))


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_missing_or_damaged_file_of_an_earlier_one_is_named(
    model: Model, address: str, how: str
) -> None:
    manager = manager_of(model, address)
    manager.save()
    model.push(3)
    path = manager.save()
    said = manifest(path)
    part = said.entries["any"].shards[0][0]
    assert not said.own(part.file)
    with released(store_at(path.parent).use(path)) as stored:
        file = str(stored.place(part.file))
    system = fsspec.open(file).fs
    if how == "missing":
        system.rm(file)
    else:
        content = bytearray(system.cat(file))
        content[part.stop - 1] ^= 1
        with fsspec.open(file, "r+b" if address != MEMORY else "wb") as opened:
            opened.write(bytes(content))
    wrong = f"{path.name}': {part.file} is damaged, where 'any' is"
    with pytest.raises(CheckpointError, match=wrong):
        psnb.checkpoint.load(path).verify()
    with pytest.raises(CheckpointError, match=wrong if how == "damaged" else part.file):
        manager.restore()
    with pytest.raises(CheckpointError, match="nothing was removed"):
        prune_verified(as_path(address), 1)
    shared = 1 if how == "missing" and address != MEMORY else 2  # a name is gone, the file is not
    assert folder_listing(as_path(address), verify=True).damaged == shared


def test_only_its_own_mark_keeps_a_checkpoint(model: Model, address: str) -> None:
    keeping = manager_of(model, address, keep_every=3600.0)
    kept = keeping.save()
    model.push(3)
    keeping.save()
    model.push(4)
    keeping.save()
    store_at(as_path(address)).prune(1)
    assert [each.name for each in keeping.checkpoints] == [kept.name, "ckpt-000003"]
