"""Checkpoints of what changed: each is restored as it was saved, whatever happened between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import psnb
from psnb._src.checkpoint.checkpoint import Checkpoint
from psnb._src.checkpoint.folder_listing import folder_listing, prune_verified
from psnb._src.checkpoint.folder_manager import FolderManager
from psnb._src.checkpoint.folder_of import folder_of
from psnb._src.checkpoint.manifest import Manifest
from psnb._src.checkpoint.remote_folder import RemoteFolder
from psnb._src.first_rows.initializers import Uniform
from psnb._src.mapped_arrays import mapped_arrays
from psnb._src.parameters import DenseShards, SparseShards, shards_of
from psnb._src.parameters.embedding import Embedding
from psnb._src.parameters.embedding_spec import EmbeddingSpec
from psnb._src.parameters.gradients import NonFinite
from psnb._src.parameters.request_batch import Request
from psnb._src.parameters.table_snapshots import TableSnapshots
from psnb._src.remote_path import Place, RemotePath, as_place
from psnb._src.server.operations import CreateSparse, TakeSnapshot
from psnb._src.server.optimizers.adagrad import Adagrad
from psnb._src.shards import ROW_USE
from psnb.errors import CheckpointError
from tests.checkpoint.saved import forge, released
from tests.parameters.in_process import DIM, InProcess, variable

State = dict[str, np.ndarray]

ROWS, SIZE = 10, (3, 2)


class Model:
    """Variables of which one never changes, and tables of three kinds, as a strategy has them."""

    def __init__(self, shards: int = 2) -> None:
        self.servers = InProcess(3)
        self.still = self._variable("still", shards)
        self.w = self._variable("w", shards)
        use = {"admission": psnb.CountFilter(2), "accessor": psnb.CtrAccessor()}
        self.fixed = self._table("fixed", ROWS, shards)
        self.any = self._table("any", None, shards)
        self.waiting = self._table("waiting", None, shards, **use)
        self.meanwhile: Callable[[], object] = bool

    def _variable(self, name: str, shards: int) -> psnb.Variable:
        return variable(np.ones(SIZE, np.float32), shards, Adagrad(0.1), self.servers, name)

    def _table(self, name: str, rows: int | None, shards: int, **more: Any) -> Embedding:
        spec = EmbeddingSpec(
            name, DIM, rows, np.dtype(np.float32), Adagrad(0.1), NonFinite.REFUSE, **more
        )
        self._create(spec, shards)
        return Embedding(SparseShards(spec, self.servers.shards[:shards], self.servers))

    def _create(self, spec: EmbeddingSpec, shards: int) -> None:
        for index in range(shards):
            creation = CreateSparse(
                *(spec.name, DIM, spec.rows, index, shards, "float32", Uniform(), 3),
                optimizer=spec.optimizer,
                admission=spec.admission,
                accessor=spec.accessor,
            )
            self.servers.call([Request(self.servers.shards[index], creation)])

    @property
    def tables(self) -> tuple[Embedding, ...]:
        return self.fixed, self.any, self.waiting

    def parameters(self) -> dict[str, DenseShards | SparseShards]:
        every = (self.still, self.w, *self.tables)
        return {each.name: shards_of(each) for each in every}

    def snapshots(self, since: Mapping[tuple[str, int], str] | None = None) -> TableSnapshots:
        taken = TableSnapshots(self.servers, self.parameters(), lambda: self.servers.servers, since)
        self.meanwhile()
        return taken

    def note_checkpoint(self, path: Place) -> None:
        """Nobody recovers here."""

    def push(self, *ids: int) -> None:
        self.w.push(np.full(SIZE, 0.5, np.float32))
        for table in self.tables:
            table.push(ids, np.ones((len(ids), DIM), np.float32))

    def move(self, table: Embedding) -> None:
        """Have a table on servers that know nothing of what has changed before."""
        shards = shards_of(table)
        states = shards.shard_states()
        self._create(shards.spec, len(states))
        shards.load_states(states)

    def content(self) -> dict[str, State]:
        return {name: joined(each.shard_states()) for name, each in self.parameters().items()}


def joined(states: list[State]) -> State:
    """Return what is in all shards, the same for any number of them."""
    whole = {key: np.concatenate([state[key] for state in states]) for key in states[0]}
    whole["step"] = whole["step"].max(keepdims=True)
    for ids in ("ids", "waiting.ids"):
        if ids in whole:
            order = np.argsort(whole[ids])
            waits = ids.startswith("waiting.")
            of = [k for k in whole if k != "step" and k.startswith("waiting.") == waits]
            whole |= {key: whole[key][order] for key in of}
    return whole


def assert_same(found: dict[str, State], expected: dict[str, State]) -> None:
    assert found.keys() == expected.keys()
    for name, state in expected.items():
        assert found[name].keys() == state.keys()
        for key, array in state.items():
            np.testing.assert_array_equal(found[name][key], array, err_msg=f"{key} of {name}")


def restored(path: Place, shards: int = 1) -> dict[str, State]:
    model = Model(shards)
    Checkpoint(path, model.parameters()).load()
    return model.content()


def manifest(path: Place) -> Manifest:
    with released(folder_of(path.parent).use(path)) as stored:
        return stored.manifest()


def own_files(path: Place) -> list[str]:
    """Return the parameters of the files that were written for a checkpoint."""
    said = manifest(path)
    return [name for name, each in said.entries.items() for file in each.files if said.own(file)]


def manager_of(
    model: Model, address: str | Path, full_every: int = 4, keep: int = 9, **more: Any
) -> FolderManager:
    return FolderManager(model, address, keep, full_every=full_every, **more)


def forget_memory() -> None:
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


MEMORY = "memory://checkpoints/run"


@pytest.fixture(params=["local", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "run") if request.param == "local" else MEMORY
    forget_memory()


@pytest.fixture
def model() -> Model:
    made = Model()
    made.push(*range(ROWS))
    made.push(*range(ROWS))
    return made


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
    expected: list[tuple[Place, dict[str, State]]] = []
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
    assert own_files(manager.save()) == [
        *("still", "still", "w", "w", "fixed", "fixed", "any", "any", "waiting", "waiting")
    ]
    model.any.push([3, 5], np.ones((2, DIM), np.float32))
    path = manager.save()
    with released(folder_of(path.parent).use(path)) as stored:
        said = stored.manifest()
        files = [file for file in said.entries["any"].files if said.own(file)]
        ids = [mapped_arrays(stored.file(each))["ids"] for each in files]
    assert sorted(np.concatenate(ids)) == [3, 5]
    assert {*own_files(path)} == {"any"}
    assert own_files(manager.save()) == []
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


def test_what_nobody_shares_any_more_goes(model: Model, address: str) -> None:
    manager = manager_of(model, address, 3, 1)
    for number in range(4):
        model.push(number)
        path = manager.save()
    assert manifest(path).depth == 0
    left = {Path(name).name for name in everything(address) if name.endswith(".safetensors")}
    assert left == {f"{n:04d}-{s:05d}.safetensors" for n in range(5) for s in range(2)}
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


def test_they_are_told_with_the_bytes_that_each_has_cost(model: Model, address: str) -> None:
    manager = manager_of(model, address)
    manager.save()
    model.any.push([3], np.ones((1, DIM), np.float32))
    manager.save()
    saved = [psnb.checkpoint.load(path) for path in manager.checkpoints]
    assert saved[0].own_nbytes == saved[0].nbytes
    assert 0 < saved[1].own_nbytes < saved[0].nbytes < saved[1].nbytes
    assert saved[1].nbytes == saved[0].nbytes + saved[1].own_nbytes
    lines = folder_listing(as_place(address), verify=True).text.splitlines()
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
def test_a_file_of_one_before_that_is_missing_or_damaged_is_told_by_name(
    model: Model, address: str, how: str
) -> None:
    manager = manager_of(model, address)
    manager.save()
    model.push(3)
    path = manager.save()
    said = manifest(path)
    name = next(each for each in said.entries["any"].files if not said.own(each))
    with released(folder_of(path.parent).use(path)) as stored:
        file = str(stored.place(name))
    system = fsspec.open(file).fs
    if how == "missing":
        system.rm(file)
    else:
        content = bytearray(system.cat(file))
        content[-1] ^= 1
        with fsspec.open(file, "r+b" if address != MEMORY else "wb") as opened:
            opened.write(bytes(content))
    with pytest.raises(CheckpointError, match=f"{path.name}': shard {name} of 'any' is damaged"):
        psnb.checkpoint.load(path).verify()
    with pytest.raises(CheckpointError, match=f"{path.name}': shard {name} of 'any' is damaged"):
        manager.restore()
    with pytest.raises(CheckpointError, match="nothing was removed"):
        prune_verified(as_place(address), 1)
    shared = 1 if how == "missing" and address != MEMORY else 2  # a name is gone, the file is not
    assert folder_listing(as_place(address), verify=True).damaged == shared


# What is only so on disks, or only without locks and links.


def test_where_files_cannot_be_linked_they_are_copied_which_is_told(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_link(file: Path, other: Path) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", no_link)
    manager = manager_of(model, tmp_path, keep=1)
    manager.save()
    model.push(3)
    path = manager.save()
    assert manifest(path).depth == 1
    assert_same(restored(path), model.content())
    (record,) = caplog.records
    assert "no links here" in record.message
    assert "full_every=" in record.message


def test_files_are_linked_and_so_cost_nothing(model: Model, tmp_path: Path) -> None:
    manager = manager_of(model, tmp_path)
    first = manager.save()
    assert isinstance(first, Path)
    second = manager.save()
    assert isinstance(second, Path)
    files = [each.name for each in first.glob("*.safetensors")]
    assert len(files) == 10
    assert all((first / each).samefile(second / each) for each in files)


def test_the_one_before_is_not_removed_while_a_delta_is_written(
    model: Model, tmp_path: Path
) -> None:
    manager = manager_of(model, tmp_path)
    first = manager.save()
    manager_of(Model(), tmp_path).save()
    model.meanwhile = lambda: folder_of(tmp_path).prune(1)
    path = manager.save()
    assert first in manager.checkpoints
    assert manifest(path).depth == 1


@pytest.fixture
def store() -> Iterator[str]:
    yield MEMORY
    forget_memory()


def test_one_whose_base_is_removed_while_it_is_written_is_given_up_and_the_next_is_whole(
    model: Model, store: str
) -> None:
    manager = manager_of(model, store)
    manager.save()
    other = manager_of(Model(), store)
    kept = other.save()
    model.meanwhile = lambda: folder_of(as_place(store)).prune(1)
    with pytest.raises(CheckpointError, match="has removed ckpt-000001, on which it was to build"):
        manager.save()
    assert manager.checkpoints == [kept]
    model.meanwhile = bool
    path = manager.save()
    assert manifest(path).depth == 0
    assert_same(restored(path), model.content())


def test_files_that_a_delta_shares_stay_though_it_comes_while_others_are_removed(
    model: Model, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(model, store)
    first = manager.save()
    manager_of(Model(), store).save()
    came: list[Place] = []
    look = RemoteFolder._folders

    def slow(folder: RemoteFolder, path: Place) -> list[RemotePath]:
        found = look(folder, path)
        if path == first and not came:
            came.append(manager.save())
        return found

    monkeypatch.setattr(RemoteFolder, "_folders", slow)
    folder_of(as_place(store)).prune(1)
    assert first not in manager.checkpoints
    assert_same(restored(came[0]), model.content())


def test_a_folder_is_not_taken_for_unused_as_its_checkpoints_come_and_go(
    model: Model, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(model, store)
    first = manager.save()
    folder = RemoteFolder(RemotePath(store))
    used = {*folder._folders(first)}
    look, old = RemoteFolder.checkpoints, [True]

    def before(self: RemoteFolder) -> list[Place]:
        found = look(self)
        if old and old.pop():  # when it is read, a delta has come and its base has gone
            manager.save()
            (folder.path / first.name).remove()
        return found

    monkeypatch.setattr(RemoteFolder, "checkpoints", before)
    assert folder._used() >= used


def test_only_its_own_mark_keeps_a_checkpoint(model: Model, address: str) -> None:
    keeping = manager_of(model, address, keep_every=3600.0)
    kept = keeping.save()
    model.push(3)
    keeping.save()
    model.push(4)
    keeping.save()
    folder_of(as_place(address)).prune(1)
    assert [each.name for each in keeping.checkpoints] == [kept.name, "ckpt-000003"]


# Deltas that were made to harm.


@pytest.fixture
def delta(model: Model, tmp_path: Path) -> Path:
    """A delta of one shard, with three ids of ten."""
    model = Model(1)
    model.push(*range(ROWS))
    model.push(*range(ROWS))
    manager = manager_of(model, tmp_path)
    manager.save()
    model.push(3, 5, 8)
    model.waiting.lookup([77])
    path = manager.save()
    assert isinstance(path, Path)
    return path


def rewrite(path: Path, name: str, change: Callable[[State], object]) -> None:
    """Change what a delta has of a parameter, and make the checksums fit."""
    said = manifest(path)
    (file,) = (each for each in said.entries[name].files if said.own(each))
    state = load_file(path / file)
    change(state)
    save_file(state, path / file)
    forge(path)


HOSTILE: dict[str, tuple[str, Callable[[State], object], str]] = {
    "an id twice": ("any", lambda s: s["ids"].fill(3), "id 3 is there 3 times"),
    "an id beyond the rows": ("fixed", lambda s: s["ids"].fill(10), "expected 0 to 9, found 10"),
    "short values": ("any", lambda s: s.update(values=s["values"][:2]), "values of 'any'"),
    "other dtypes": ("any", lambda s: s.update(values=s["values"].astype("f8")), "float32"),
    "a slot less": ("fixed", lambda s: s.pop("slot.accumulator"), "expected arrays"),
    "no use": (
        "waiting",
        lambda s: [s.pop(each) for each in ROW_USE],
        "(expected|different) arrays",
    ),
    "an id that waits and had a row before": (
        "waiting",
        lambda s: s["waiting.ids"].__setitem__(0, 9),
        "ids and waiting.ids of 'waiting': id 9 is there 2 times",
    ),
    "steps below 0": ("any", lambda s: s["step"].fill(-1), "step of 'any'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_delta_is_refused_and_nothing_changed(delta: Path, case: str) -> None:
    name, change, message = HOSTILE[case]
    rewrite(delta, name, change)
    model = Model(1)
    before = model.content()
    with pytest.raises(CheckpointError, match=rf"-01\.safetensors of '{name}' .*{message}"):
        Checkpoint(delta, model.parameters()).load()
    with pytest.raises(CheckpointError, match=rf"-01\.safetensors of '{name}' .*{message}"):
        psnb.checkpoint.load(delta)[name]
    assert_same(model.content(), before)


def test_a_delta_without_what_it_builds_on_is_refused(delta: Path) -> None:
    def alone(content: dict[str, Any]) -> None:
        for entry in content["parameters"]:
            entry["shards"] = [dict([each.popitem()]) for each in entry["shards"]]

    forge(delta, alone)
    with pytest.raises(CheckpointError, match="expected 10 rows, found 3"):
        Checkpoint(delta, Model(1).parameters())


def test_a_variable_in_two_files_is_refused(delta: Path) -> None:
    def two(content: dict[str, Any]) -> None:
        still, w = (entry["shards"][0] for entry in content["parameters"][:2])
        w.update(still)
        content["parameters"].pop(0)

    forge(delta, two)
    with pytest.raises(CheckpointError, match="'w' must be in one file a shard"):
        psnb.checkpoint.load(delta)["w"]
