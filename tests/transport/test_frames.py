"""Messages out of bytes that come in pieces."""

from __future__ import annotations

import gc
import struct
import weakref
from typing import Any

import numpy as np
import pytest

from psnb._src.transport import buffer_pool
from psnb._src.transport import frames as frames_module
from psnb._src.transport.frames import HEAD, SMALL, FrameReader, UnreceivedError
from tests.utils.process_memory.little import Little

MESSAGES = [[b"a", b"bc"], [b"", b"none"], [b"x" * 10, b"y" * (SMALL + 5), b"z"], [b"end"]]


def written(frames: list[bytes]) -> bytes:
    first, *others = frames
    lengths = struct.pack(f"<{len(frames)}Q", *map(len, frames))
    small = b"".join(each for each in others if len(each) < SMALL)
    large = b"".join(each for each in others if len(each) >= SMALL)
    return HEAD.pack(len(frames), 0, False) + lengths + first + small + large


@pytest.mark.parametrize("piece", [1, 7, SMALL, 10 * SMALL])
@pytest.mark.parametrize("before", [0, 5, 60, 10 * SMALL])
def test_messages_arrive_whole_however_they_are_cut(piece: int, before: int) -> None:
    data = b"".join(map(written, MESSAGES))
    read, rest = data[:before], memoryview(data)[before:]
    reader, found, got = FrameReader(read, bool), [], 0
    while len(found) < len(MESSAGES):
        if (frames := reader.advance(got)) is not None:
            found.append([bytes(each) for each in frames])
            got = 0
            continue
        got = min(piece, len(reader.space), len(rest))
        assert got
        reader.space[:got] = rest[:got]
        rest = rest[got:]
    assert found == MESSAGES
    assert not rest
    assert not reader.has_more


def test_it_has_more_as_long_as_something_of_the_next_message_is_here() -> None:
    reader = FrameReader(written([b"one"]) + written([b"two"]), bool)
    assert reader.advance(0) is not None
    assert reader.has_more
    assert reader.advance(0) is not None
    assert not reader.has_more


def test_what_has_come_of_a_message_without_memory_waits_for_no_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: list[weakref.ref[np.ndarray]] = []

    def empty(size: int, dtype: Any) -> np.ndarray:
        if parts:
            raise MemoryError
        memory = np.zeros(size, dtype)
        parts.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(frames_module._received, "allocate", lambda size: None)
    monkeypatch.setattr(frames_module.np, "empty", empty)

    def receive(rest: bytes) -> None:
        reader, got = FrameReader(b"", bool), 0
        while reader.advance(got) is None:
            got = min(len(reader.space), len(rest))
            reader.space[:got] = rest[:got]
            rest = rest[got:]

    gc.disable()
    try:
        with pytest.raises(UnreceivedError):
            receive(written([b"first", b"x" * SMALL, b"y" * SMALL]))
        assert all(each() is None for each in parts)
        assert len(parts) == 1
    finally:
        gc.enable()


def test_a_message_that_there_is_no_memory_for_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (frames_module, buffer_pool):
        monkeypatch.setattr(module, "room", Little(SMALL))
    large = [b"large", b"x" * (2 * SMALL), b"y" * (3 * SMALL)]
    monkeypatch.setattr(frames_module, "_received", buffer_pool.BufferPool())
    rest, reader, got = written(large) + written([b"next"]), FrameReader(b"", bool), 0
    found: list[Any] = []
    while len(found) < 2:
        try:
            frames = reader.advance(got)
        except UnreceivedError as error:
            found.append((error.head, error.nbytes))
            got = 0
            continue
        if frames is not None:
            found.append(frames)
        got = min(len(reader.space), len(rest))
        reader.space[:got] = rest[:got]
        rest = rest[got:]
    assert found == [(b"large", 5 * SMALL), [b"next"]]
