"""Shared memory between two processes: here both ends are in one, which sees itself."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import shutil
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from psnb._src.transport import shared_memory
from psnb._src.transport.shared_memory import Arena, Mapped, SharedBlock, can_see, probe
from psnb._src.utils.process_memory.limits import MemoryUse
from tests.conftest import wait_until
from tests.utils.process_memory.little import NEAR, Little

LARGE = 1 << 20


def data(fill: int, size: int = LARGE) -> memoryview:
    return memoryview(np.full(size, fill, np.uint8))  # type: ignore[arg-type]


def put(ours: Arena, fill: int, size: int = LARGE) -> SharedBlock:
    block = ours.put([data(fill, size)])
    assert block is not None
    return block


def test_a_buffer_is_read_where_it_lies() -> None:
    ours, theirs = Arena(), Mapped(os.getpid())
    view = theirs.get(put(ours, 7), LARGE)
    assert view.nbytes == LARGE
    assert bytes(view[:3]) == b"\7\7\7"


def test_a_block_is_reused_when_its_arrays_are_released() -> None:
    ours, theirs = Arena(), Mapped(os.getpid())
    first = put(ours, 1)
    array = np.frombuffer(theirs.get(first, LARGE), np.float32)[5:]
    gc.collect()
    assert not theirs.released
    assert put(ours, 2).number != first.number
    assert array.view(np.uint8)[0] == 1
    del array
    assert list(theirs.released) == [first.number]
    ours.take_back(theirs.released.popleft())
    assert put(ours, 3).number == first.number


def lent(ours: Arena, size: int = LARGE) -> np.ndarray:
    view = ours.allocate(size)
    assert view is not None
    return np.frombuffer(view, np.uint8)


def sent(ours: Arena, array: np.ndarray) -> SharedBlock:
    block = ours.put([memoryview(array)])  # type: ignore[arg-type]
    assert block is not None
    return block


def test_what_was_written_into_a_lent_block_is_not_copied() -> None:
    ours, theirs = Arena(), Mapped(os.getpid())
    array = lent(ours)
    array[...] = 3
    view = theirs.get(sent(ours, array), LARGE)
    assert view[5] == 3
    array[5] = 4
    assert view[5] == 4


def test_the_first_bytes_of_a_lent_block_can_be_sent_alone() -> None:
    ours, theirs = Arena(), Mapped(os.getpid())
    array = lent(ours)
    array[...] = 3
    assert bytes(theirs.get(sent(ours, array[:7]), 7)) == b"\3" * 7


def test_what_lies_elsewhere_in_a_lent_block_is_copied() -> None:
    ours, theirs = Arena(), Mapped(os.getpid())
    array = lent(ours)
    array[...] = 3
    view = theirs.get(sent(ours, array[1:]), LARGE - 1)
    array[...] = 4
    assert set(view) == {3}


def test_a_lent_block_that_is_not_sent_is_used_again() -> None:
    ours = Arena()
    array = lent(ours)
    address = array.ctypes.data
    del array
    assert lent(ours).ctypes.data == address


@pytest.mark.parametrize("reader_first", [True, False])
def test_a_lent_block_is_used_again_when_neither_side_holds_it(reader_first: bool) -> None:
    ours = Arena()
    array = lent(ours)
    number = sent(ours, array).number
    if reader_first:
        ours.take_back(number)
        assert put(ours, 1).number != number
        del array
    else:
        del array
        assert put(ours, 1).number != number
        ours.take_back(number)
    assert put(ours, 1).number == number


def test_a_lent_block_that_is_sent_once_more_is_copied() -> None:
    ours, theirs = Arena(), Mapped(os.getpid())
    array = lent(ours)
    array[...] = 3
    first, second = sent(ours, array), sent(ours, array)
    assert first.number != second.number
    theirs.get(first, LARGE)[0] = 9
    assert theirs.get(second, LARGE)[0] == 3


def test_a_lent_block_outlives_the_arena_and_can_be_sent_by_another() -> None:
    ours, other = Arena(), Arena()
    array = lent(ours)
    array[...] = 3
    ours.close()
    view = Mapped(os.getpid()).get(sent(other, array), LARGE)
    assert set(view) == {3}
    del array
    assert ours.allocate(LARGE) is None


def test_a_reader_may_write_into_what_it_got() -> None:
    ours, theirs = Arena(), Mapped(os.getpid())
    array = np.frombuffer(theirs.get(put(ours, 1), LARGE), np.uint8)
    array[...] = 9
    assert (array == 9).all()


def test_an_arena_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MOST_BYTES", 3 * LARGE)
    ours = Arena()
    assert [ours.put([data(0)]) is None for _ in range(4)] == [False, False, False, True]


def test_without_memory_for_another_block_those_that_are_there_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = Arena(), Mapped(os.getpid())
    view = theirs.get(put(ours, 1), LARGE)
    monkeypatch.setattr(shared_memory, "room", Little(0))
    assert ours.put([data(2)]) is None
    del view
    ours.take_back(theirs.released.popleft())
    assert set(theirs.get(put(ours, 2), LARGE)) == {2}


def test_a_reader_without_memory_for_a_block_gives_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = Arena(), Mapped(os.getpid())
    first, second = put(ours, 1), put(ours, 2)
    view = theirs.get(first, LARGE)
    monkeypatch.setattr(shared_memory, "room", Little(0))
    with pytest.raises(MemoryError):
        theirs.get(second, LARGE)
    assert list(theirs.released) == [second.number]
    assert set(view) == {1}


def test_a_reader_short_of_memory_unmaps_what_it_does_not_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = Arena(), Mapped(os.getpid())
    first, second = put(ours, 1), put(ours, 2)
    del first
    mapped = weakref.ref(theirs._maps.setdefault(7, mmap.mmap(-1, LARGE)))

    class Short(Little):
        def lacks(self, nbytes: int, *, lasts: bool) -> MemoryUse | None:
            return NEAR if mapped() is not None else None

    monkeypatch.setattr(shared_memory, "room", Short(0))
    assert set(theirs.get(second, LARGE)) == {2}


def test_half_of_an_arena_is_kept_for_what_is_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MOST_BYTES", 4 * LARGE)
    ours = Arena()
    held = [lent(ours), lent(ours)]
    assert ours.allocate(LARGE) is None
    put(ours, 1)
    held.pop()
    lent(ours)


def test_what_comes_back_to_a_closed_arena_is_of_no_interest() -> None:
    ours = Arena()
    block = put(ours, 1)
    ours.close()
    ours.take_back(block.number)


def test_a_closed_arena_keeps_no_files_open_and_takes_nothing() -> None:
    ours = Arena()
    files = {os.fstat(put(ours, 1, size).fd).st_ino for size in (LARGE, 2 * LARGE)}
    assert files <= open_files()
    ours.close()
    assert not files & open_files()
    assert ours.put([data(1)]) is None


def open_files() -> set[int]:
    """Return the numbers of the files that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, by another thread
            found.add(os.stat(f"/proc/self/fd/{name}").st_ino)
    return found


def in_dev_shm() -> set[str]:
    """Return what is there, but the semaphores that other programs make and remove meanwhile."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


def test_what_was_read_outlives_the_arena() -> None:
    ours, theirs = Arena(), Mapped(os.getpid())
    view = theirs.get(put(ours, 5), LARGE)
    ours.close()
    assert view[0] == 5


def test_a_process_sees_itself_and_not_one_that_is_not_there() -> None:
    mine = probe()
    assert mine is not None
    assert can_see(mine)
    pid, fd, token = mine
    assert not can_see((pid, fd, b"x" * len(token)))
    assert not can_see((2**22 + 1, fd, token))
    assert not can_see(None)


def test_what_another_process_has_open_under_the_same_numbers_is_not_read() -> None:
    reading, writing = os.pipe()
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(can_see, (os.getpid(), reading, b"x" * 16))
            try:
                # Reading it would wait for ever, or take what is not ours.
                assert asked.result(5) is False
            finally:
                os.close(writing)
    finally:
        os.close(reading)


def test_two_processes_see_each_others_blocks_and_nothing_is_left_in_dev_shm() -> None:
    before = in_dev_shm()
    ours = Arena()
    block = put(ours, 42)
    code = (
        "from psnb._src.transport.shared_memory import *\n"
        f"assert can_see({probe()!r})\n"
        f"block = SharedBlock(*{(block.number, block.fd, block.capacity)})\n"
        f"view = Mapped({os.getpid()}).get(block, 4)\n"
        "view[1] = 43\n"
        "print(view[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "42\n"
    assert Mapped(os.getpid()).get(block, 4)[1] == 43
    # What others make meanwhile goes as they end; what an arena left would be there all along.
    made = in_dev_shm() - before
    wait_until(lambda: not made & in_dev_shm(), f"nothing is left in /dev/shm of {made}")


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare (util-linux) is missing")
def test_a_container_with_processes_of_its_own_does_not_see_us() -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let its users make namespaces (unshare --user --pid)")
    code = f"from psnb._src.transport.shared_memory import can_see; print(can_see({probe()!r}))"
    done = subprocess.run(
        [*unshare, sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_user_cannot_open_what_is_shared() -> None:
    block = put(Arena(), 7)
    path = f"/proc/{os.getpid()}/fd/{block.fd}"
    read = ["head", "-c", "1", path]
    assert subprocess.run(read, capture_output=True, check=True).stdout == b"\7"
    theirs = subprocess.run(read, capture_output=True, check=False, user=65534, extra_groups=[])
    assert b"Permission denied" in theirs.stderr
    assert not theirs.stdout
