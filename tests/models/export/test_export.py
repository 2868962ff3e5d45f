"""Tests of writing and loading models: rows, dtypes, scores, ids, and what goes wrong."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import psnb
from psnb._src.models.export import tables
from psnb._src.models.export.exported import RowChunk
from psnb._src.models.export.manifest import ModelFeed
from psnb._src.models.export.tables import ArrayFile
from psnb._src.server.tables.admission import Always, CountFilter, Probability
from psnb._src.server.tables.initializers import Constant, Normal
from psnb.errors import ConfigurationError, ExportError, IdOutOfRangeError, ServerLostError
from tests.models.export.models import random_rows
from tests.models.export.rows_model import Model
from tests.models.placing import InProcessStrategy


def any_ids(count: int = 1000, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.unique(rng.integers(0, 2**64, count, np.uint64, endpoint=False))[::-1].copy()


def chunks(ids: np.ndarray, size: int = 300, scores: bool = False) -> list[RowChunk]:
    rows = random_rows(len(ids), 3)
    given = np.arange(len(ids), dtype=np.float32) if scores else None
    return [
        RowChunk(ids[part], rows[part], None if given is None else given[part])
        for part in (slice(at, at + size) for at in range(0, len(ids), size))
    ]


def looked_up(path: Path, ids: Any) -> np.ndarray:
    found: np.ndarray = psnb.load_model(path).predict(np.asarray(ids).reshape(-1, 2))
    return found.reshape(-1, 3)


def test_rows_of_any_ids_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_AT_A_TIME", 64)  # so they are sorted in several ranges
    monkeypatch.setattr(tables, "_CHUNK", 50)
    ids = any_ids()
    path = psnb.export(tmp_path / "m", Model(*chunks(ids)))
    np.testing.assert_array_equal(looked_up(path, ids.view(np.int64)), random_rows(len(ids), 3))
    stored = load_file(path / "0000-ids.safetensors")["data"]
    np.testing.assert_array_equal(stored, np.sort(ids))  # other libraries read it


@pytest.mark.parametrize("admission", [Always(), Probability(0.5), CountFilter(2)])
def test_unknown_ids_give_what_the_table_gives_for_evaluation(
    tmp_path: Path, admission: Any
) -> None:
    table = InProcessStrategy().embedding("t", 3, None, Normal(stddev=0.1), admission=admission)
    spec, unknown = table._shards.spec, any_ids(64, seed=1)
    options = {"admission": admission, "initializer": spec.initializer, "seed": spec.seed}
    path = psnb.export(tmp_path / "m", Model(*chunks(any_ids(10)), **options))
    expected = table.lookup(unknown, training=False)
    np.testing.assert_array_equal(looked_up(path, unknown.view(np.int64)), expected)


def test_the_padding_gives_zeros_and_ids_outside_are_refused(tmp_path: Path) -> None:
    model = Model(*chunks(np.arange(10, dtype=np.uint64), 4), rows=10, padding_idx=2)
    path = psnb.export(tmp_path / "m", model)
    expected = random_rows(10, 3)
    np.testing.assert_array_equal(looked_up(path, [9, 2]), [expected[9], np.zeros(3)])
    for bad in (10, -1):
        with pytest.raises(IdOutOfRangeError, match=f"found id {bad}"):
            looked_up(path, [0, bad])


def test_an_empty_table_gives_initial_rows(tmp_path: Path) -> None:
    path = psnb.export(tmp_path / "m", Model(initializer=Constant(0.5)))
    np.testing.assert_array_equal(looked_up(path, [3, 4]), np.full((2, 3), 0.5))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_stored_in_fewer_bits_rows_are_within_the_stated_error(tmp_path: Path, dtype: str) -> None:
    ids = any_ids()
    path = psnb.export(tmp_path / "m", Model(*chunks(ids)), dtype=dtype)
    model = psnb.load_model(path)
    error = np.abs(looked_up(path, ids.view(np.int64)) - random_rows(len(ids), 3))
    assert 0 < error.max() == pytest.approx(model.row_errors["t"]["max"])
    assert model.row_errors["t"]["max"] < {"float16": 0.002, "int8": 0.02}[dtype]
    assert model.row_errors["t"]["rms"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-4)


def test_rows_of_zeros_are_stored_in_int8(tmp_path: Path) -> None:
    zeros = RowChunk(np.array([4], np.uint64), np.zeros((1, 3), np.float32))
    path = psnb.export(tmp_path / "m", Model(zeros), dtype={"t": "int8"})
    np.testing.assert_array_equal(looked_up(path, [4, 4]), np.zeros((2, 3)))


@pytest.mark.parametrize(("dtype", "bad"), [("float16", 1e6), ("int8", np.nan)])
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, dtype: str, bad: float) -> None:
    chunk = RowChunk(np.array([4], np.uint64), np.full((1, 3), bad, np.float32))
    with pytest.raises(ConfigurationError, match="table 't': rows"):
        psnb.export(tmp_path / "m", Model(chunk), dtype=dtype)
    assert list(tmp_path.iterdir()) == []


def test_rows_below_a_score_are_left_out(tmp_path: Path) -> None:
    ids = any_ids(100)
    model = Model(*chunks(ids, 7, True), initializer=Constant(9.0))
    path = psnb.export(tmp_path / "m", model, min_score=50)
    found = looked_up(path, ids.view(np.int64))
    np.testing.assert_array_equal(found[50:], random_rows(100, 3)[50:])
    assert (found[:50] == 9).all()
    manifest = json.loads((path / "manifest.json").read_text())
    assert [manifest["tables"][0][each] for each in ("count", "left_out")] == [50, 50]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "int4"}, "dtype must be one of"),
        ({"dtype": {"u": "int8"}}, r"dtype names \['u'\]"),
        ({"min_score": 1.0}, "keeps no score"),
        ({"min_score": "much"}, "min_score must be a number"),
        ({"metadata": {"x": object()}}, "metadata must be what JSON can hold"),
    ],
)
def test_choices_that_cannot_be_are_refused(tmp_path: Path, options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        psnb.export(tmp_path / "m", Model(*chunks(any_ids(10))), **options)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"takes what psnb\.jax\.forward"):
        psnb.export(tmp_path / "m", object())  # type: ignore[arg-type]


def test_metadata_come_back(tmp_path: Path) -> None:
    path = psnb.export(tmp_path / "m", Model(), metadata={"day": 17})
    assert psnb.load_model(path).metadata == {"day": 17}


def test_nothing_is_written_over_a_model(tmp_path: Path) -> None:
    path = psnb.export(tmp_path / "m", Model(*chunks(any_ids(10))))
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    with pytest.raises(ExportError, match="there is something at"):
        psnb.export(path, Model())
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before


def test_of_two_exports_to_one_path_one_is_there_wholly(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    class Slow(Model):
        def _chunks(self) -> Iterator[RowChunk]:
            both.wait(30)  # both have found the path free
            yield from super()._chunks()

    raised: list[ExportError] = []

    def write(seed: int) -> None:
        try:
            psnb.export(tmp_path / "m", Slow(*chunks(any_ids(10, seed))))
        except ExportError as error:
            raised.append(error)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(raised) == 1
    assert len(looked_up(tmp_path / "m", [1, 2])) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    append, calls = ArrayFile.append, iter(range(after))

    def full(self: ArrayFile, rows: np.ndarray) -> None:
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, rows)

    monkeypatch.setattr(ArrayFile, "append", full)
    with pytest.raises(ExportError, match="No space left"):
        psnb.export(tmp_path / "m", Model(*chunks(any_ids(), 500)))
    assert list(tmp_path.iterdir()) == []


def test_a_lost_server_leaves_nothing(tmp_path: Path) -> None:
    class Lost(Model):
        def _chunks(self) -> Iterator[RowChunk]:
            yield from super()._chunks()
            raise ServerLostError("it is gone")

    with pytest.raises(ServerLostError, match="it is gone"):
        psnb.export(tmp_path / "m", Lost(*chunks(any_ids())))
    assert list(tmp_path.iterdir()) == []


def test_an_id_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    ids = np.array([5, 6, 5], np.uint64)
    with pytest.raises(ExportError, match="an id is there twice"):
        psnb.export(tmp_path / "m", Model(*chunks(ids)))
    assert list(tmp_path.iterdir()) == []


def test_rows_are_streamed_in_memory_that_does_not_grow_with_them(tmp_path: Path) -> None:
    # A process of its own, so that its highest memory is that of the export.
    code = """
import sys
import numpy as np, psnb
from psnb._src.models.export.exported import RowChunk
from tests.models.export.rows_model import Model
class Wide(Model):
    def __init__(self, count):
        super().__init__()
        self.count = count
    def _pieces(self):
        for at in range(self.count):
            ids = np.arange(at * 65536, (at + 1) * 65536, dtype=np.uint64)
            yield RowChunk(ids, np.full((65536, 3), at, np.float32))
def peak():  # getrusage also counts what the process that started this one had
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
before = peak()
for count in (128, 384):
    psnb.export(f"{sys.argv[1]}/{count}", Wide(count))
    print((peak() - before) // 1024)
"""
    told = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    used = [int(each) for each in told.stdout.split()]
    # 8 and 25 million rows: 160 and 480 MB. Ids are sorted in memory, 8 bytes of the 20 of a row.
    assert used[1] < used[0] + 128 + 100
    assert used[1] < 600


def test_a_batch_is_taken_in_the_form_of_its_feeds(tmp_path: Path) -> None:
    model = psnb.load_model(psnb.export(tmp_path / "m", Model(*chunks(any_ids(10)))))
    assert model.predict({"ids": np.zeros((4, 2), np.uint8), "more": "text"}).shape == (4, 2, 3)
    assert model.predict([np.zeros((0, 2), int)]).shape == (0, 2, 3)
    for bad, said in (
        ({"x": 1}, r"lacks \['ids'\]"),
        (np.zeros((4, 3), int), r"expected shape \(batch, 2\), found \(4, 3\)"),
        (np.zeros((4, 2)), "feed 'ids': expected integers, found dtype float64"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            model.predict(bad)


def test_integers_that_do_not_fit_a_feed_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected numbers that fit int32, found 1 to"):
        ModelFeed("x", "int32", (None,)).taken(np.array([1, 2**40]))


def test_the_room_imports_neither_dask_nor_a_framework() -> None:
    code = "import psnb; psnb.load_model, psnb.export"
    modules = ["dask", "distributed", "tornado", "jax", "torch", "keras", "psnb._src.client"]
    code += f"; import sys; print([m for m in {modules} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
