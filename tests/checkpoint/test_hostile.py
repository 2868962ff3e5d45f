"""Checkpoints that were damaged or made to harm: refused before anything is changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnb._src.checkpoint.loading import Checkpoint
from psnb._src.checkpoint.manifest import MANIFEST
from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.handles import shards_of
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.server.hashing import hash_ids
from psnb._src.server.operations import AskFileWork, CheckFiles, EndFileWork
from psnb._src.server.optimizers import Adagrad
from psnb._src.server.tables.admission import CountFilter
from psnb._src.server.tables.row_use import CtrAccessor
from psnb.errors import CheckpointError
from tests.checkpoint.saved import forge, in_hand, part_of, rewrite, write
from tests.client.in_process import DIM, InProcess, embedding, variable

State = dict[str, np.ndarray]

IDS = np.arange(9)
ONES = np.ones((9, DIM), np.float32)
UNSIGNED = np.array([2**64 - 1, 2**63], np.uint64)


class Model:
    """A variable over three shards, and three tables: fixed, of any ids, and one that waits."""

    def __init__(self) -> None:
        self.variable = variable(np.ones((5, 2), np.float32), 3, Adagrad(0.1), name="w")
        self.tables = {
            "fixed": embedding(10, 3, Adagrad(0.1)),
            "any": embedding(None, 3, Adagrad(0.1)),
            "waiting": embedding(
                None, 1, Adagrad(0.1), admission=CountFilter(3), accessor=CtrAccessor()
            ),
        }

    @property
    def parameters(self) -> dict[str, DenseShards | SparseShards]:
        return {n: shards_of(p) for n, p in {"w": self.variable, **self.tables}.items()}

    def train(self) -> None:
        self.variable.push(np.ones((5, 2), np.float32))
        for table in self.tables.values():
            table.push(IDS, ONES)
        self.tables["waiting"].push(IDS[:4], ONES[:4])
        self.tables["any"].push(UNSIGNED, ONES[:2])

    def states(self) -> list[State]:
        return [state for p in self.parameters.values() for state in p.shard_states()]

    def save(self, directory: Path) -> Path:
        parameters = [in_hand(n, p) for n, p in self.parameters.items()]
        return write(directory, parameters, {})


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def saved(model: Model, tmp_path: Path) -> Path:
    """A checkpoint of the model after two steps; then the model takes another one."""
    model.train()
    model.train()
    path = model.save(tmp_path)
    model.train()
    return path


def assert_same(states: list[State], others: list[State]) -> None:
    for one, other in zip(states, others, strict=True):
        assert one.keys() == other.keys()
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name], strict=True)


def test_good_one_is_loaded(model: Model, saved: Path) -> None:
    Checkpoint(saved, model.parameters).load()
    expected = Model()
    expected.train()
    expected.train()
    for state in (found := model.states()) + (wanted := expected.states()):
        del state["step"]  # shards count on their own, and go on from the highest count
    assert_same(found, wanted)
    np.testing.assert_array_equal(  # "negative" ids are ids like others
        model.tables["any"].lookup(UNSIGNED.view(np.int64)),
        expected.tables["any"].lookup(UNSIGNED),
    )


W, FIXED, ANY, WAITING = "w", "fixed", "any", "waiting"


def repeat(name: str = "ids", times: int = 200_000) -> Callable[[State], object]:
    """Have the first row, or what waits first, so many times."""
    waits = name.startswith("waiting.")

    def change(state: State) -> None:
        for key, array in state.items():
            if key != "step" and key.startswith("waiting.") == waits:
                state[key] = np.repeat(array[:1], times, axis=0)

    return change


def put(name: str, array: Any) -> Callable[[State], object]:
    return lambda state: state.update({name: np.asarray(array)})


def cast(name: str, dtype: str) -> Callable[[State], object]:
    return lambda state: state.update({name: state[name].astype(dtype)})


def cut(name: str) -> Callable[[State], object]:
    return lambda state: state.update({name: state[name][:-1]})


def frequencies(number: int) -> Callable[[State], object]:
    return lambda state: state["waiting.frequencies"].fill(number)


HOSTILE: dict[str, tuple[str, Callable[[State], object], str]] = {
    "one id over and over": (ANY, repeat(), r"id \d+ is there 200000 times"),
    "one fixed id over and over": (FIXED, repeat(times=4), "id 0 is there 4 times"),
    "one waiting id over and over": (WAITING, repeat("waiting.ids"), "is there 200000 times"),
    "a row index of the file's choosing": (WAITING, frequencies(2**31 + 10**8), "found 2247483648"),
    "no occurrences": (WAITING, frequencies(0), "waiting.frequencies of 'e': expected 1"),
    "a short count of occurrences": (
        WAITING,
        cut("waiting.frequencies"),
        "waiting.frequencies of 'e'",
    ),
    "signed occurrences": (WAITING, cast("waiting.frequencies", "i4"), "expected uint32"),
    "an id with a row that waits": (
        WAITING,
        lambda s: s["waiting.ids"].__setitem__(0, s["ids"][0]),
        "ids and waiting.ids",
    ),
    "ids of floats": (ANY, cast("ids", "f4"), "expected uint64"),
    "signed ids": (ANY, cast("ids", "i8"), "expected uint64"),
    "ids of two axes": (ANY, lambda s: s.update(ids=s["ids"][:, None]), "expected uint64"),
    "an id beyond the rows": (FIXED, put("ids", np.array([0, 3, 6, 12], "u8")), "expected 0 to 9"),
    "a negative id in fixed rows": (
        FIXED,
        put("ids", np.array([0, 3, 6, 2**64 - 1], "u8")),
        "expected 0 to 9",
    ),
    "an id of another fixed shard": (
        FIXED,
        put("ids", np.array([0, 3, 6, 8], "u8")),
        "8 is none of shard 0 of 3",
    ),
    "rows that are missing": (
        FIXED,
        lambda s: s.update({k: a[:-1] for k, a in s.items() if k != "step"}),
        "expected 4 rows, found 3",
    ),
    "an id of another shard": (
        ANY,
        lambda s: s["ids"].__setitem__(0, foreign_id()),
        "is none of shard 0 of 3",
    ),
    "short slots": (ANY, cut("slot.accumulator"), r"slot\.accumulator of 'e'"),
    "short values": (ANY, cut("values"), "values of 'e'"),
    "short shows": (WAITING, cut("show"), "show of 'e'"),
    "wide rows": (ANY, lambda s: s.update(values=np.tile(s["values"], 2)), "values of 'e'"),
    "double rows": (ANY, cast("values", "f8"), "values of 'e': expected float32"),
    "w that would broadcast": (W, put("values", np.ones((1, 1), "f4")), r"expected .*\(1, 2\)"),
    "w of one axis": (W, put("values", np.ones(2, "f4")), r"expected .*\(1, 2\)"),
    "w of integers": (W, cast("values", "i4"), "expected float32"),
    "w without an axis": (W, put("values", np.float32(1)), r"expected .*\(1, 2\)"),
    "a slot less": (W, lambda s: s.pop("slot.accumulator"), "expected arrays"),
    "an array more": (W, put("more", [1]), "expected arrays"),
    "steps below 0": (W, put("step", np.array([-1])), "step of 'w': expected 0"),
    "steps without end": (ANY, put("step", np.array([2**63 - 1])), "step of 'e': expected 0"),
    "several steps": (ANY, put("step", np.array([1, 2])), "step of 'e': expected int64"),
    "no steps": (ANY, put("step", np.empty(0, np.int64)), "step of 'e': expected int64"),
    "steps of floats": (ANY, put("step", np.array([1.0])), "step of 'e': expected int64"),
    "a step without an axis": (ANY, put("step", np.int64(1)), "step of 'e': expected int64"),
}


def foreign_id() -> int:
    """Return an id that the first of three shards has not."""
    ids, hashed = np.arange(100, 140, dtype=np.uint64), np.empty(40, np.uint64)
    hash_ids(ids, hashed)
    return int(ids[(hashed >> np.uint64(32)) % np.uint64(3) == 1][0])


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_shard_is_refused_and_nothing_changed(model: Model, saved: Path, case: str) -> None:
    name, change, message = HOSTILE[case]
    file = rewrite(saved, name, change)
    before = model.states()
    said = rf"ckpt-000001': {file} is damaged, where '{name}' is: .*{message}"
    with pytest.raises(CheckpointError, match=said):
        Checkpoint(saved, model.parameters).load()
    assert_same(model.states(), before)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_shard_that_is_left_out_is_missed(model: Model, saved: Path, number: int) -> None:
    forge(saved, lambda content: content["parameters"][number]["shards"].pop(0))
    with pytest.raises(CheckpointError, match="is damaged"):
        Checkpoint(saved, model.parameters)


def test_shards_in_another_order_are_refused(model: Model, saved: Path) -> None:
    def turn(content: dict[str, Any]) -> None:
        entry = content["parameters"][1]
        entry["shards"].reverse()

    forge(saved, turn)
    with pytest.raises(CheckpointError, match=r"is none of shard 0 of 3|expected 4 rows"):
        Checkpoint(saved, model.parameters)


def test_any_flipped_bit_is_noticed(model: Model, saved: Path) -> None:
    file = saved / part_of(saved, WAITING).file
    whole = file.read_bytes()
    for at in range(0, len(whole), 19):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(CheckpointError, match="where 'waiting' is: its checksum is"):
            Checkpoint(saved, model.parameters)


def bytes_read() -> int:
    """Return how many bytes this process has read from files."""
    counts = Path("/proc/self/io").read_text().splitlines()
    return int(dict(each.split(": ") for each in counts)["rchar"])


CLAIMS: dict[str, tuple[str, int, bool]] = {
    "rows that are not in the file": (ANY, 0, False),
    "more rows than the table has": (FIXED, 0, True),
    "wider rows than the table has": (ANY, 1, True),
    "more numbers than the variable has": (W, 0, True),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", CLAIMS)
def test_what_a_manifest_claims_is_refused_before_the_file_is_read(
    model: Model, saved: Path, case: str
) -> None:
    name, axis, longer = CLAIMS[case]
    file = part_of(saved, name).file

    def claim(content: dict[str, Any]) -> None:
        (entry,) = (each for each in content["parameters"] if each["name"] == name)
        entry["shards"][0][0]["arrays"]["values"][1][axis] += 1 << 30

    forge(saved, claim)
    if longer:
        os.truncate(saved / file, 1 << 42)  # without a byte on disk
    before = bytes_read()
    said = f"{file} is damaged, where .* is: (?!its checksum)"
    with pytest.raises(CheckpointError, match=said):
        Checkpoint(saved, model.parameters)
    assert bytes_read() - before < 1 << 20


@pytest.mark.parametrize("damage", ["truncated", "empty", "missing", "text"])
@pytest.mark.parametrize("forged", [False, True])
def test_damaged_shard_is_named(model: Model, saved: Path, damage: str, forged: bool) -> None:
    file = saved / part_of(saved, ANY).file
    if damage == "missing":
        file.unlink()
    else:
        whole = file.read_bytes()
        file.write_bytes({"truncated": whole[:-1], "empty": b"", "text": b"x" * 100}[damage])
        if forged:
            forge(saved)
    with pytest.raises(CheckpointError, match=f"{file.name} is damaged, where 'any' is"):
        Checkpoint(saved, model.parameters)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
@pytest.mark.parametrize("name", [ANY, MANIFEST])
@pytest.mark.timeout(30)
def test_what_is_no_plain_file_is_not_opened(
    model: Model, saved: Path, tmp_path: Path, name: str, kind: str
) -> None:
    file = saved / (name if name == MANIFEST else part_of(saved, name).file)
    elsewhere = file.rename(tmp_path / "elsewhere")
    if kind == "link":
        file.symlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    with pytest.raises(CheckpointError, match="not a regular file"):
        Checkpoint(saved, model.parameters)


def test_unfit_ones_are_found_before_any_is_loaded(model: Model, saved: Path) -> None:
    rewrite(saved, WAITING, cast("ids", "f4"))  # of the last parameter
    carried = len(transport(model).carried)
    with pytest.raises(CheckpointError, match="where 'waiting' is"):
        Checkpoint(saved, model.parameters).load()
    asked = [each.operation for each in transport(model).carried[carried:]]
    assert {type(each) for each in asked} == {CheckFiles, AskFileWork, EndFileWork}


def transport(model: Model) -> InProcess:
    found = model.variable._shards.server_client
    assert isinstance(found, InProcess)
    return found


def test_what_fails_in_the_middle_says_what_is_loaded_and_what_is_not(
    model: Model, saved: Path
) -> None:
    checkpoint = Checkpoint(saved, model.parameters)
    (saved / part_of(saved, ANY).file).unlink()
    with pytest.raises(CheckpointError) as raised:
        checkpoint.load()
    (note,) = raised.value.__notes__
    assert note.endswith("loaded: 'w', 'fixed'; 'any' may be in part; not loaded: 'waiting'")
