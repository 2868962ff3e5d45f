"""Memory for large messages, used again."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap

import numpy as np
import pytest

from psnb._src.transport import buffer_pool
from psnb._src.transport.buffer_pool import BufferPool
from psnb._src.utils import memory
from tests.utils.process_memory.little import Little

LARGE = 1 << 20


def lent(ours: BufferPool, size: int = LARGE) -> np.ndarray:
    view = ours.allocate(size)
    assert view is not None
    return np.frombuffer(view, np.uint8)


def test_memory_is_reused_when_its_arrays_are_released() -> None:
    ours = BufferPool()
    first = lent(ours)
    part, address = first[5:], first.ctypes.data
    del first
    gc.collect()
    assert lent(ours).ctypes.data != address
    del part
    assert lent(ours).ctypes.data == address


def test_it_knows_what_it_has_lent() -> None:
    ours = BufferPool()
    array = lent(ours)
    assert ours.has_allocated(memoryview(array))  # type: ignore[arg-type]
    assert ours.has_allocated(memoryview(array[:10]))  # type: ignore[arg-type]
    assert not ours.has_allocated(memoryview(array[1:]))  # type: ignore[arg-type]
    assert not ours.has_allocated(memoryview(bytes(LARGE)))


def test_there_is_no_more_than_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "MOST_BYTES", 3 * LARGE)
    ours = BufferPool()
    held = [lent(ours) for _ in range(3)]
    assert ours.allocate(LARGE) is None
    held.pop()
    assert ours.allocate(LARGE) is not None


def test_what_is_kept_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "MOST_BYTES", 3 * LARGE)
    monkeypatch.setattr(buffer_pool, "KEPT_BYTES", 2 * LARGE)
    ours = BufferPool()
    held = [lent(ours) for _ in range(3)]
    held.clear()
    assert lent(ours, LARGE // 2).size == LARGE // 2  # what is not kept has made room


def test_very_large_memory_is_given_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, made = BufferPool(), []

    class Memory(mmap):
        def __new__(cls, *arguments: int, **flags: int) -> Memory:
            memory = super().__new__(cls, *arguments, **flags)
            made.append(weakref.ref(memory))
            return memory

    monkeypatch.setattr(memory.mmap, "mmap", Memory)
    for size, kept in ((1 << 24, True), ((1 << 24) + 1, False)):
        array = lent(ours, size)
        del array
        gc.collect()
        assert (made.pop()() is not None) is kept


def test_threads_never_get_the_same_memory() -> None:
    ours = BufferPool()

    def work(number: int) -> bool:
        good = True
        for _ in range(300):
            array = lent(ours, 4096)
            array[...] = number
            good &= bool((array == number).all())
        return good

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_without_memory_there_is_none_to_lend_and_later_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: int, **__: int) -> None:
        raise OSError("cannot allocate memory")

    monkeypatch.setattr(buffer_pool, "MOST_BYTES", LARGE)
    ours = BufferPool()
    with monkeypatch.context() as patch:
        patch.setattr(memory.mmap, "mmap", refused)
        assert ours.allocate(LARGE) is None
    assert ours.allocate(LARGE) is not None


def test_without_memory_for_another_block_none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = BufferPool()
    first = lent(ours)
    monkeypatch.setattr(buffer_pool, "room", Little(0))
    assert ours.allocate(LARGE) is None
    del first
    assert ours.allocate(LARGE) is not None


FORKING = """
import os
import numpy as np
from psnb._src.transport.buffer_pool import BufferPool

ours = BufferPool()
np.frombuffer(ours.allocate(100_000), np.uint8)[...] = 1
child = os.fork()
found = np.frombuffer(ours.allocate(100_000), np.uint8)
if not child:
    found[...] = 2
    os._exit(0)
os.waitpid(child, 0)
assert (found == 1).all()
"""


def test_a_forked_process_does_not_write_to_its_parents_messages() -> None:
    subprocess.run([sys.executable, "-c", FORKING], check=True)
