"""What a process knows of layouts, and how it comes to know it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.placement.layout_cache import LayoutCache
from psnb.errors import ServerLostError

A, B = ServerAddress("tcp://a", "a"), ServerAddress("tcp://b", "b")
FIRST = Layout(
    "s",
    1,
    1,
    10.0,
    (ShardPlacement(A, (B,)), ShardPlacement(B, syncing=A), ShardPlacement(A, (B,), successor=B)),
)
SECOND = FIRST.with_placements(
    [ShardPlacement(B, leaving=(A,), term=3), ShardPlacement(None), ShardPlacement(B, version=9)]
)


async def answer(value: Any) -> Any:
    return value


def test_a_layout_travels_as_it_is() -> None:
    packed = [FIRST.packed()]
    cache = LayoutCache(lambda strategy: answer(packed[0]))
    for layout in (FIRST, SECOND):
        packed[0] = layout.packed()
        assert asyncio.run(cache.refresh("s")) == layout
        assert cache.known("s") == layout
    assert SECOND.servers == (B, A)
    assert SECOND.version == 2


def test_an_older_layout_does_not_take_the_place_of_a_newer_one() -> None:
    cache = LayoutCache(lambda strategy: answer(None))
    cache.learn(SECOND)
    cache.learn(FIRST)
    assert cache.known("s") == SECOND


def test_a_strategy_that_was_taken_over_is_an_error_with_the_schedulers_text() -> None:
    cache = LayoutCache(lambda strategy: answer("taken over by somebody"))
    with pytest.raises(ServerLostError, match="taken over by somebody"):
        asyncio.run(cache.refresh("s"))


def test_a_closed_strategy_is_an_error_that_says_so() -> None:
    cache = LayoutCache(lambda strategy: answer(None))
    cache.learn(FIRST)
    with pytest.raises(ServerLostError, match="closed"):
        asyncio.run(cache.refresh("s"))
    assert cache.known("s") is None


def test_those_who_ask_at_the_same_time_ask_once() -> None:
    asked: list[str] = []

    async def ask(strategy: str) -> Any:
        asked.append(strategy)
        await asyncio.sleep(0)
        return FIRST.packed()

    async def several() -> None:
        cache = LayoutCache(ask)
        await asyncio.gather(*(cache.refresh("s") for _ in range(5)))
        assert asked == ["s"]
        await cache.refresh("s")
        assert asked == ["s", "s"]

    asyncio.run(several())


def test_a_request_that_was_sent_before_answers_no_later_call() -> None:
    async def several() -> None:
        asked: list[Layout] = []
        sent, go = asyncio.Event(), asyncio.Event()

        async def ask(strategy: str) -> Any:
            asked.append(SECOND if asked else FIRST)
            sent.set()
            layout = asked[-1]
            await go.wait()
            return layout.packed()

        cache = LayoutCache(ask)
        first = asyncio.create_task(cache.refresh("s"))
        await sent.wait()
        later = [asyncio.create_task(cache.refresh("s")) for _ in range(3)]
        await asyncio.sleep(0)  # they see what is on its way
        go.set()
        assert await asyncio.gather(first, *later) == [FIRST, SECOND, SECOND, SECOND]
        assert asked == [FIRST, SECOND]

    asyncio.run(several())
