"""Tests of files that rows lie in: what is promised, what a full disk does, what is mapped."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnb._src.server import disk as disk_module
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.disk import DiskSpace, RowFile
from psnb._src.server.memory import DiskFullError
from psnb._src.server.operations import CreateSparse, PreparePart
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adagrad, Adam, RowWiseAdagrad
from psnb._src.server.shard import ParameterShard
from psnb._src.server.snapshots import snapshot
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import Admission, Always, Probability
from psnb._src.server.tables.growing_array import GrowingArray
from psnb._src.server.tables.initializers import Uniform
from psnb._src.server.tables.operations import on_table
from psnb._src.server.tables.sparse import SparseTable
from psnb.errors import ConfigurationError, ServerMemoryError
from tests.conftest import wait_until
from tests.utils.small_disk import small_disk

DIM, F4, MB = 256, np.dtype("f4"), 1 << 20
ROW = 4 * DIM


def table(folder: Path, rows: int | None = None) -> SparseTable:
    place = DiskSpace(str(folder))
    return SparseTable(
        *("e", DIM, rows, 0, 1, "float32", Uniform(), 7, Adam(0.1)), storage="disk", disk=place
    )


def ids(start: int, stop: int) -> np.ndarray:
    return np.arange(start, stop, dtype=np.uint64)


def rows(count: int) -> np.ndarray:
    return np.ones((count, DIM), F4)


@contextmanager
def most_in_a_file(nbytes: int) -> Iterator[None]:
    """Have a disk that is full when a file has so many bytes."""
    real = os.posix_fallocate

    def allocate(number: int, start: int, length: int) -> None:
        real(number, start, max(1, min(length, nbytes - start)))  # systems do that, too
        if start + length > nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", allocate)
        yield


def allocated(file: RowFile) -> int:
    """Return the bytes of a file that have a place on the disk."""
    return os.fstat(file._number).st_blocks * 512


def file_of(array: GrowingArray) -> RowFile:
    assert array._file is not None
    return array._file


def test_what_is_reserved_has_a_place_on_the_disk(tmp_path: Path) -> None:
    array = GrowingArray(DIM, F4, disk=DiskSpace(str(tmp_path)))
    array.reserve(5000)
    assert len(array.whole) >= 5000
    assert allocated(file_of(array)) >= array.whole.nbytes


def test_files_have_no_name(tmp_path: Path) -> None:
    made = table(tmp_path)
    made.lookup(ids(0, 1000))
    assert made.disk_nbytes() == 3 * 1000 * ROW
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from psnb._src.server.disk import DiskSpace;"
        "import numpy as np; file = DiskSpace(sys.argv[1]).file(None);"
        "file.rows((4096, 256), np.dtype('f4'))[:] = 1; print('made', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"made\n"
        process.kill()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["lookup", "push", "put"])
def test_a_full_disk_changes_nothing(tmp_path: Path, how: str) -> None:
    made = table(tmp_path)
    some, more = ids(0, 1000), ids(500, 9000)
    made.lookup(some)
    before = made.state()
    operation = {
        "lookup": ops.LookUpRows(more, None, True),
        "push": ops.PushRows(more, rows(more.size)),
        "put": ops.PutRows(more, rows(more.size)),
    }[how]
    with most_in_a_file(4 * MB), pytest.raises(MemoryError):
        made.run(operation)
    after = made.state()
    assert all((before[name] == after[name]).all() for name in before)
    made.run(operation)  # there is space again
    assert made.index.count == 9000


def test_a_part_that_did_not_fit_is_given_back(tmp_path: Path) -> None:
    array = GrowingArray(DIM, F4, disk=DiskSpace(str(tmp_path)))
    array.grow(1000)
    file = file_of(array)
    before = file.allocated
    with most_in_a_file(4 * MB), pytest.raises(DiskFullError):
        array.grow(9000)
    assert (file.allocated, len(array.rows)) == (before, 1000)
    assert allocated(file) < before + MB


def test_a_full_disk_is_told_with_table_bytes_and_what_to_do(tmp_path: Path) -> None:
    place = DiskSpace(str(tmp_path))
    shard = ParameterShard("shard 3 on server 1", lambda creation: table(tmp_path))
    shard.run(CreateSparse("e", DIM, None, 0, 1, "float32", Uniform(), 7, Adam(0.1)))
    part = Part([on_table("e", ops.PushRows(ids(0, 9000), rows(9000)))])
    with most_in_a_file(4 * MB), pytest.raises(ServerMemoryError) as caught:
        shard.run(PreparePart(Commit("w", 0), part))
    for told in ("shard 3 on server 1", "'e'", f"{9000 * ROW:,} bytes", place.folder, "--local-di"):
        assert told in str(caught.value)


def test_the_error_arrives_where_errors_bring_their_context_along() -> None:
    """Of those that it knows, Dask has pickles hold what was handled as they were raised."""
    error = DiskFullError(5_000, "here", "No space left")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "no 5,000 bytes more for rows in here: No space left"
    assert again.nbytes == 5_000


def test_a_folder_that_is_not_there_is_no_memory(tmp_path: Path) -> None:
    with pytest.raises(MemoryError, match="No such file"):
        table(tmp_path / "none")


def test_a_system_that_cannot_allocate_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with pytest.raises(ConfigurationError, match="needs a server on Linux"):
        table(tmp_path)


def test_rows_that_are_removed_give_their_place_back(tmp_path: Path) -> None:
    array = GrowingArray(DIM, F4, disk=DiskSpace(str(tmp_path)))
    array.grow(9000)
    array.rows[:] = np.arange(9000)[:, None]
    which = np.arange(9000) % 9 == 0
    array.keep(which, 0)
    assert (array.rows[:, 0] == np.flatnonzero(which)).all()
    assert allocated(file_of(array)) < 2 * MB
    array.grow(9000)
    array.rows[1000:] = 1
    assert (array.rows[:1000, 0] == np.flatnonzero(which)).all()


def test_addresses_that_are_scarce_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = GrowingArray(DIM, F4, disk=DiskSpace(str(tmp_path)))
    real = disk_module.mmap.mmap

    def scarce(number: int, size: int) -> object:
        if size > 64 * MB:
            raise OSError(12, "Cannot allocate memory")
        return real(number, size)

    monkeypatch.setattr(disk_module.mmap, "mmap", scarce)
    for count in (10, 1000, 9000, 30_000):
        start = len(array.rows)
        array.grow(count)
        array.rows[start:] = np.arange(start, count)[:, None]
        assert (array.rows == np.arange(count)[:, None]).all()
    with pytest.raises(DiskFullError):
        array.grow(70_000)
    assert (array.rows == np.arange(30_000)[:, None]).all()


def test_a_snapshot_keeps_what_changes_in_files(tmp_path: Path) -> None:
    made = table(tmp_path)
    made.lookup(ids(0, 2000))
    before = made.state()
    taken = snapshot(made)
    made.run(ops.PutRows(ids(0, 2000), rows(2000)))
    copies = taken._kept.values()  # type: ignore[attr-defined]
    assert sum(each.disk_nbytes for each in copies) == sum(each.rows.nbytes for each in copies) > 0
    found = taken.read(0, 2000)
    assert all((found[name] == before[name]).all() for name in found)


def resident() -> int:
    return disk_module._resident()[1]


def test_pages_are_unmapped_before_there_are_too_many(tmp_path: Path) -> None:
    base = resident()
    place = DiskSpace(str(tmp_path), limit=1000 * MB)
    file = place.file(None)
    made = file.rows((64 * 1024, DIM), F4)
    made[:] = np.arange(len(made))[:, None]
    assert resident() > base + 50 * MB
    place._limit = 10 * MB  # far less than the process has: most of them go
    place.trim()
    assert resident() < base + 10 * MB
    assert (made[::1000, 0] == np.arange(0, len(made), 1000)).all()
    place.close()


def test_a_thread_sees_to_it_until_it_is_closed(tmp_path: Path) -> None:
    base, place = resident(), DiskSpace(str(tmp_path), limit=10 * MB)
    file = place.file(None)
    file.rows((64 * 1024, DIM), F4)[:] = 1
    wait_until(lambda: resident() < base + 10 * MB, "pages are unmapped")
    place.close()
    wait_until(lambda: not watching(), "the thread has ended")


def watching() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "psnb-pages"]


def test_without_a_limit_there_is_no_thread(tmp_path: Path) -> None:
    DiskSpace(str(tmp_path)).file(None)
    assert not watching()


FEW = 64
"""Rows that are touched together where there is next to no memory."""


@pytest.mark.parametrize(
    ("optimizer", "admission"),
    [
        (Adagrad(0.1), Always()),
        (Adagrad(0.1, clipnorm=1.0), Always()),
        (Adagrad(0.1, clipnorm=1.0, maximize=True), Probability(0.5)),
        (RowWiseAdagrad(lambda step: 0.1 / (step + 1)), Probability(0.5)),
    ],
    ids=repr,
)
def test_rows_that_are_touched_some_at_a_time_are_those_of_memory(
    optimizer: Optimizer, admission: Admission, tmp_path: Path
) -> None:
    def made(**where: Any) -> SparseTable:
        how = "t", 4, None, 0, 1, "bfloat16", Uniform(), 1, optimizer, admission
        return SparseTable(*how, **where)

    place = DiskSpace(str(tmp_path), limit=1 * MB)
    disk, memory = made(storage="disk", disk=place), made()
    assert disk.paging is not None
    assert disk.paging.rows == FEW
    some = np.random.default_rng(0).permutation(3 * FEW + 7).astype(np.uint64)
    for step in range(3):
        gradients = np.random.default_rng(step).normal(size=(some.size, 4)).astype(np.float32)
        for each in (disk, memory):
            each.run(ops.PushRows(some, gradients))
            each.run(ops.PutRows(some[:100], gradients[:100]))
    for name, array in memory.state().items():
        assert disk.state()[name].tobytes() == array.tobytes()
    assert disk.lookup(some).tobytes() == memory.lookup(some).tobytes()
    place.close()


def test_pages_are_counted_between_some_rows(tmp_path: Path) -> None:
    place = DiskSpace(str(tmp_path), limit=1 * MB)
    counted: list[None] = []
    place.trim = lambda: counted.append(None)  # type: ignore[method-assign]
    how = "t", 4, None, 0, 1, "float32", Uniform(), 1, SGD()
    made = SparseTable(*how, storage="disk", disk=place)
    some = ids(0, 10 * FEW)
    made.lookup(some)
    looked_up = len(counted)
    assert looked_up >= 10
    made.run(ops.PushRows(some, np.ones((some.size, 4), np.float32)))
    assert len(counted) >= looked_up + 10
    place.close()


@pytest.mark.second_tier("needs leave to mount; most_in_a_file is the same in short")
@pytest.mark.parametrize("how", [ops.LookUpRows, ops.PushRows, ops.PutRows, ops.MakeRoom])
def test_a_disk_that_is_really_full_changes_nothing(tmp_path: Path, how: Any) -> None:
    with small_disk(tmp_path, 8) as place:
        made = table(place)
        made.lookup(ids(0, 1000))
        before, more = made.state(), ids(500, 9000)
        operation = {
            ops.LookUpRows: lambda: ops.LookUpRows(more, None, True),
            ops.MakeRoom: lambda: ops.MakeRoom(9000),
        }.get(how, lambda: how(more, rows(more.size)))()
        left = os.statvfs(place).f_bavail
        for _ in range(3):
            with pytest.raises(MemoryError, match="No space left"):
                made.run(operation)
        after = made.state()
        assert all((before[name] == after[name]).all() for name in before)
        assert left - os.statvfs(place).f_bavail < 3 * MB // 4096  # of three files, in steps
        made.run(ops.PushRows(ids(0, 1000), rows(1000)))  # their pages are there
        made.lookup(ids(1000, 1010))
        assert made.index.count == 1010
        del made, before, after
