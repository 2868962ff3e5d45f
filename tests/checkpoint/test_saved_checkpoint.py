"""Tests of reading a checkpoint without a cluster."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.checkpoint.local_store import LocalStore
from psnb._src.checkpoint.manifest import MANIFEST
from psnb._src.checkpoint.reader import SavedCheckpoint, load
from psnb._src.checkpoint.saved_table import SavedTable
from psnb._src.client.handles import shards_of
from psnb._src.server.tables.admission import CountFilter
from psnb._src.server.tables.row_use import CtrAccessor
from psnb.errors import CheckpointError, ConfigurationError, IdOutOfRangeError
from tests.checkpoint.saved import forge, in_hand, manifest_of, part_of, rewrite, write
from tests.client.in_process import DIM, embedding, variable

W = np.arange(10, dtype=np.float32).reshape(5, 2)
IDS = np.array([2**64 - 1, 5, 2**40, 7], np.uint64)


def saved(directory: Path, shards: int) -> tuple[Path, dict[str, Any]]:
    """Save parameters of every kind in so many shards; return them too."""
    rate = psnb.Adagrad(0.5)
    made: dict[str, Any] = {
        "w": variable(W, shards, rate, name="w"),
        "bias": variable(np.float64(3), 1, name="bias"),
        "fixed": embedding(10, shards, rate),
        "any": embedding(None, shards, rate),
        "waiting": embedding(None, shards, rate, admission=CountFilter(2), accessor=CtrAccessor()),
        "empty": embedding(None, shards, rate),
    }
    for name in ("any", "waiting"):
        made[name].push(IDS, np.arange(4 * DIM, dtype=np.float32).reshape(4, DIM))
    made["waiting"].push(IDS[:2], np.ones((2, DIM), np.float32))
    parameters = [in_hand(name, shards_of(each)) for name, each in made.items()]
    return write(directory, parameters, {"step": 7}), made


@pytest.fixture(params=[1, 3])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[SavedCheckpoint, dict[str, Any]]:
    path, made = saved(tmp_path, request.param)
    return load(str(path)), made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return saved(tmp_path, 3)[0]


Both = tuple[SavedCheckpoint, dict[str, Any]]


def test_variables_are_read_only_arrays(both: Both) -> None:
    checkpoint, _ = both
    np.testing.assert_array_equal(checkpoint["w"], W, strict=True)
    np.testing.assert_array_equal(checkpoint["bias"], np.array(3.0), strict=True)
    assert not checkpoint["w"].flags.writeable
    assert not checkpoint["bias"].flags.writeable


def test_fixed_rows_are_by_their_number(both: Both) -> None:
    checkpoint, made = both
    table = checkpoint["fixed"]
    assert table.ids.tolist() == list(range(10))
    np.testing.assert_array_equal(table.rows, made["fixed"].lookup(range(10)), strict=True)
    assert not table.rows.flags.writeable


def test_rows_of_any_ids_are_in_the_order_of_their_ids(both: Both) -> None:
    checkpoint, made = both
    table = checkpoint["any"]
    assert table.ids.tolist() == [5, 7, 2**40, 2**64 - 1]
    np.testing.assert_array_equal(table.rows, made["any"].lookup(table.ids), strict=True)
    assert checkpoint["waiting"].ids.tolist() == [5, 2**64 - 1]


@pytest.mark.parametrize("name", ["any", "fixed"])
@pytest.mark.parametrize("ids", [[[7, 5], [5, 7]], 7, [], np.array([5], np.int8)])
def test_rows_are_looked_up_by_ids_of_any_shape(both: Both, name: str, ids: Any) -> None:
    checkpoint, made = both
    found = checkpoint[name].lookup(ids)
    asked = np.asarray(ids, np.int64)
    np.testing.assert_array_equal(found, made[name].lookup(asked), strict=True)


def test_negative_ids_are_those_of_the_same_bits(both: Both) -> None:
    checkpoint, made = both
    expected = made["any"].lookup(IDS[:1])
    np.testing.assert_array_equal(checkpoint["any"].lookup([-1]), expected)


def test_ids_of_a_list_keep_their_bits(both: Both) -> None:
    checkpoint, made = both
    expected = made["any"].lookup(IDS[:2])
    np.testing.assert_array_equal(checkpoint["any"].lookup([2**64 - 1, 5]), expected)


@pytest.mark.parametrize(("name", "bad"), [("any", 6), ("fixed", 10), ("fixed", -1)])
def test_ids_without_a_row_are_refused(both: Both, name: str, bad: int) -> None:
    checkpoint, _ = both
    with pytest.raises(IdOutOfRangeError, match=f"'{name}' .* no row of id {bad}, nor of 1 other"):
        checkpoint[name].lookup([bad, 5, bad])
    with pytest.raises(ConfigurationError, match="expected integers, found dtype float64"):
        checkpoint[name].lookup([0.5])


def test_a_table_without_rows_is_empty(both: Both) -> None:
    table = both[0]["empty"]
    assert (len(table), table.rows.shape, table.dim) == (0, (0, DIM), DIM)
    with pytest.raises(IdOutOfRangeError, match="no row of id 5"):
        table.lookup(5)


def test_its_content_is_described(both: Both) -> None:
    checkpoint, made = both
    assert list(checkpoint) == list(made)
    assert len(checkpoint) == 6
    assert "w" in checkpoint
    assert checkpoint.metadata == {"step": 7}
    assert checkpoint.format == 8
    assert (checkpoint.optimizers["w"] or {})["name"] == "Adagrad"
    shown = repr(checkpoint).splitlines()
    assert shown[1].split() == ["name", "kind", "dtype", "size", "files"]
    assert shown[2].split()[:5] == ["w", "variable", "float32", "[5,", "2]"]
    assert f"10 rows of {DIM}" in shown[4]
    assert f"any id of {DIM}" in shown[5]
    assert repr(checkpoint["fixed"]) == f"<psnb.checkpoint.SavedTable 'fixed': 10 rows of {DIM}>"
    with pytest.raises(KeyError, match="has no 'v'; it has 'w', 'bias', 'fixed'"):
        checkpoint["v"]


def test_what_one_server_had_is_mapped_and_not_read(tmp_path: Path) -> None:
    checkpoint = load(saved(tmp_path, 1)[0])
    for array in (checkpoint["w"], checkpoint["fixed"].rows):
        while isinstance(array.base, np.ndarray):
            array = array.base
        assert isinstance(array, np.memmap)


def test_it_needs_no_dask(path: Path) -> None:
    code = (
        "import sys, psnb; psnb.checkpoint.load(sys.argv[1])['w']; "
        "print([m for m in ('dask', 'distributed', 'jax', 'IPython') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_no_manager_removes_it_while_it_is_held(path: Path) -> None:
    write(path.parent, [], {})
    checkpoint = load(path)
    LocalStore(path.parent).prune(1)
    assert checkpoint["w"].shape == (5, 2)
    del checkpoint
    gc.collect()
    LocalStore(path.parent).prune(1)
    assert not path.exists()


def test_one_that_is_refused_is_not_kept_though_the_error_is(path: Path) -> None:
    write(path.parent, [], {})
    (path / MANIFEST).write_bytes((path / MANIFEST).read_bytes()[:-2])
    with pytest.raises(CheckpointError) as raised:
        load(path)
    LocalStore(path.parent).prune(1)
    assert not path.exists()
    assert raised.value.__traceback__ is not None


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\xff"),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "missing": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_raised_when_the_parameter_is_asked_for(path: Path, damage: str) -> None:
    file = part_of(path, "fixed", 1).file
    DAMAGE[damage](path / file)
    checkpoint = load(path)
    assert checkpoint["w"].shape == (5, 2)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=f"{file} is damaged, where 'fixed' is"):
            checkpoint["fixed"]


def test_verify_tells_of_all_damage(path: Path) -> None:
    checkpoint = load(path)
    checkpoint.verify()
    assert checkpoint["w"].shape == (5, 2)
    for name, shard in (("w", 1), ("any", 0)):
        (path / part_of(path, name, shard).file).unlink()
    with pytest.raises(CheckpointError, match=r"where 'w' is:.*\n.*where 'any' is:"):
        checkpoint.verify()


def test_a_damaged_manifest_is_refused_at_once(path: Path) -> None:
    (path / MANIFEST).write_bytes((path / MANIFEST).read_bytes()[:-2])
    with pytest.raises(CheckpointError, match="is not a checkpoint, or is damaged"):
        load(path)
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        load(path.parent / "ckpt-000009")


def says(number: int, **description: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["parameters"][number]["description"].update(description)


FORGED: dict[str, tuple[str, Callable[[dict[str, Any]], object], str]] = {
    "another kind": ("w", says(0, kind="list"), "Invalid value 'list'"),
    "no kind": (
        "w",
        lambda c: c["parameters"][0]["description"].pop("kind"),
        "missing required field `kind`",
    ),
    "more": ("w", says(0, more=1), "unknown field `more`"),
    "a dtype of objects": ("w", says(0, dtype="object"), r"at `\$\.dtype`"),
    "a dtype that is a list": ("w", says(0, dtype=[1]), r"at `\$\.dtype`"),
    "another dtype": ("w", says(0, dtype="float64"), "expected float64"),
    "a shape that is a number": ("w", says(0, shape=5), r"at `\$\.shape`"),
    "a negative shape": ("w", says(0, shape=[-5, 2]), "Expected `int` >= 0"),
    "a shape of floats": ("w", says(0, shape=[5.0, 2]), "Expected `int`, got `float`"),
    "another shape": ("w", says(0, shape=[6, 2]), "is damaged"),
    "no shape": ("w", says(0, shape=[]), "cannot be in 3 shards"),
    "slots in a text": ("w", says(0, slots="x"), r"at `\$\.slots`"),
    "no slots": ("w", says(0, slots=[]), "expected arrays"),
    "too many rows": ("fixed", says(2, rows=2**63), "Expected `int` <= "),
    "more rows": ("fixed", says(2, rows=13), "expected 5 rows, found 4"),
    "no rows": ("fixed", says(2, rows=0), "Expected `int` >= 1"),
    "any rows": ("fixed", says(2, rows=None), "is none of shard"),
    "another dim": ("any", says(3, dim=DIM + 1), "is damaged"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_description_is_refused(path: Path, case: str) -> None:
    name, change, message = FORGED[case]
    forge(path, change)
    with pytest.raises(CheckpointError, match=message):
        load(path)[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(ids=s["ids"].astype("f4")), "expected uint64"),
        (
            lambda s: s.update({k: np.repeat(s[k][:1], 9, axis=0) for k in s if k != "step"}),
            "times",
        ),
        (lambda s: s.update(values=s["values"][:-1]), "values of 'any'"),
    ],
)
def test_a_forged_shard_is_refused(path: Path, change: Any, message: str) -> None:
    parts = [part for shard in manifest_of(path).entries["any"].shards for part in shard]
    rewrite(path, "any", change, [part.arrays["ids"][1] > (0,) for part in parts].index(True))
    with pytest.raises(CheckpointError, match=message):
        load(path)["any"]


def test_rows_are_the_same_in_any_number_of_shards(tmp_path: Path) -> None:
    one, three = (load(saved(tmp_path, shards)[0])["any"] for shards in (1, 3))
    assert isinstance(one, SavedTable)
    np.testing.assert_array_equal(one.rows, three.rows)


@pytest.mark.parametrize("shape", [[2**61, 0], [0] * 100])
def test_a_shape_that_no_array_can_have_is_refused_though_it_takes_no_bytes(
    tmp_path: Path, shape: list[int]
) -> None:
    path, _ = saved(tmp_path, 1)
    rewrite(path, "bias", lambda state: state.update(values=np.empty(0)))

    def claim(content: dict[str, Any]) -> None:
        (entry,) = (each for each in content["parameters"] if each["name"] == "bias")
        entry["description"]["shape"] = entry["shards"][0][0]["arrays"]["values"][1] = shape

    forge(path, claim)
    with pytest.raises(CheckpointError, match="is damaged, where 'bias' is"):
        load(path)["bias"]
