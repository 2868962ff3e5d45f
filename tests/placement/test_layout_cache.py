"""What a process knows of layouts, and how it comes to know it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from psnb._src.placement import layout_registry
from psnb._src.placement.layout import Layout, ServerAddress, ShardPlace
from psnb._src.placement.layout_cache import LayoutCache
from psnb._src.placement.layout_registry import LayoutRegistry
from psnb.errors import ServerLostError

A, B = ServerAddress("tcp://a", "a"), ServerAddress("tcp://b", "b")
FIRST = Layout(
    "s", 1, 1, 10.0, (ShardPlace(A, (B,)), ShardPlace(B, filling=A), ShardPlace(A, (B,), heir=B))
)
SECOND = FIRST.with_places(
    [ShardPlace(B, leaving=(A,), term=3), ShardPlace(None), ShardPlace(B, version=9)]
)


def test_a_layout_goes_through_the_scheduler_as_it_is() -> None:
    registry = LayoutRegistry()
    cache = LayoutCache(lambda strategy: answer(registry.layout(strategy)))
    for layout in (FIRST, SECOND):
        registry.publish("me", "s", layout.packed())
        assert asyncio.run(cache.refresh("s")) == layout
        assert cache.known("s") == layout
    assert SECOND.servers == (B, A)
    assert SECOND.version == 2


async def answer(value: Any) -> Any:
    return value


def test_an_older_layout_does_not_take_the_place_of_a_newer_one() -> None:
    registry = LayoutRegistry()
    registry.publish("me", "s", SECOND.packed())
    registry.publish("me", "s", FIRST.packed())
    assert registry.layout("s") == SECOND.packed()
    cache = LayoutCache(lambda strategy: answer(None))
    cache.learn(SECOND)
    cache.learn(FIRST)
    assert cache.known("s") == SECOND


def test_a_layout_goes_with_its_strategy() -> None:
    registry = LayoutRegistry()
    registry.publish("me", "s", FIRST.packed())
    registry.publish("me", "t", FIRST.packed())
    assert registry.addresses() == {A.address, B.address}
    registry.publish("me", "s", None)
    assert [registry.layout(each) is None for each in "st"] == [True, False]


def test_a_layout_whose_client_has_gone_stays_until_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layout_registry, "LIFETIME", 0.05)

    async def gone() -> None:
        registry = LayoutRegistry()
        for strategy, owner in (("s", "me"), ("t", "me"), ("u", "you")):
            registry.publish(owner, strategy, FIRST.packed())
        registry.remove_client(None, "me")  # type: ignore[arg-type]
        assert registry.layout("s") is not None
        registry.publish("me", "t", FIRST.packed())  # it has come back
        assert len(registry._leaving) == 1
        while registry.layout("s") is not None:
            await asyncio.sleep(0.01)
        assert [registry.layout(each) is None for each in "tu"] == [False, False]

    asyncio.run(gone())


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
