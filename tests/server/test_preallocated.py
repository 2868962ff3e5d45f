"""Memory that is there before somebody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from psnb._src.server import snapshots
from psnb._src.server.optimizers import Adam
from psnb._src.server.snapshots import CHUNK, TICKS, PreallocatedPages, chunks_wanted
from psnb._src.server.tables.dense import DenseTable
from psnb._src.utils.standby import StandbyThreads
from tests.conftest import wait_until
from tests.server.standby import THREADS

FULL = np.arange(CHUNK // 8)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the threads that have had memory made."""
    names: list[str] = []
    make = snapshots._chunk

    def chunk() -> np.ndarray:
        names.append(threading.current_thread().name)
        return make()

    monkeypatch.setattr(snapshots, "_chunk", chunk)
    return names


@pytest.fixture
def room() -> Iterator[PreallocatedPages]:
    made = PreallocatedPages(THREADS)
    yield made
    made.clear()


def ready(room: PreallocatedPages, chunks: int) -> None:
    wait_until(lambda: room.want(chunks), "it is there")


def test_copies_are_made_in_memory_that_is_there(room: PreallocatedPages, made: list[str]) -> None:
    ready(room, 3)
    copies = room.copies([FULL, FULL + 1, FULL[: FULL.size // 2]])
    assert [name.rpartition("-")[0] for name in made] == ["standby"] * 3
    assert [copy.tolist() for copy in (copies[0][:3], copies[1][:3], copies[2][-1:])] == [
        *([0, 1, 2], [1, 2, 3], [FULL.size // 2 - 1])
    ]


def test_what_is_more_than_was_wanted_is_copied_too(
    room: PreallocatedPages, made: list[str]
) -> None:
    ready(room, 1)
    first, second = room.copies([FULL, FULL])
    assert not np.shares_memory(first, second)
    assert (first == FULL).all()
    assert (second == FULL).all()
    assert len(made) == 2


@pytest.mark.parametrize(("processors", "shared"), [(2, True), (1, False)])
def test_many_are_copied_in_their_order_by_several_threads(
    room: PreallocatedPages,
    monkeypatch: pytest.MonkeyPatch,
    processors: int,
    shared: bool,
) -> None:
    sharing = []

    def share(*arguments: Any) -> Any:
        sharing.append(1)
        return StandbyThreads.share(THREADS, *arguments)

    monkeypatch.setattr("os.cpu_count", lambda: processors)
    monkeypatch.setattr(THREADS, "share", share)
    copies = room.copies([FULL + number for number in range(8)])
    assert all((copy == FULL + number).all() for number, copy in enumerate(copies))
    assert bool(sharing) is shared


def test_small_ones_take_no_piece(room: PreallocatedPages, made: list[str]) -> None:
    (copy,) = room.copies([np.arange(9.0)])
    assert copy.tolist() == [*range(9)]
    assert made == []


@pytest.mark.parametrize(
    ("size", "chunks"), [(10, 0), (CHUNK // 8, 3), (CHUNK // 8 + 10, 3), (CHUNK // 8 * 3 // 2, 6)]
)
def test_as_much_is_wanted_as_a_snapshot_of_a_changed_variable_takes(
    size: int, chunks: int
) -> None:
    assert chunks_wanted(DenseTable("v", np.zeros(size), Adam(0.1))) == chunks


def minutes(room: PreallocatedPages) -> None:
    for _ in range(TICKS):
        room.tick()


@pytest.mark.parametrize("give_back", [PreallocatedPages.clear, minutes])
def test_what_was_not_taken_is_given_back(
    room: PreallocatedPages, made: list[str], give_back: Callable[[PreallocatedPages], None]
) -> None:
    ready(room, 2)
    give_back(room)
    room.copies([FULL])
    assert len(made) == 3


def test_what_is_given_back_while_it_is_made_is_not_kept(
    room: PreallocatedPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    make = snapshots._chunk

    def chunk() -> np.ndarray:
        begun.set()
        go_on.wait()
        return make()

    monkeypatch.setattr(snapshots, "_chunk", chunk)
    assert not room.want(5)
    begun.wait()
    room.clear()
    go_on.set()
    wait_until(lambda: not room._fills, "the thread ends")
    assert not room._chunks
