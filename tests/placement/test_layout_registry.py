"""What the scheduler keeps of strategies, and whom it lets have them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlace
from psnb._src.placement.registry import UNKNOWN, LayoutRegistry

A, B = ServerAddress("tcp://a", "a"), ServerAddress("tcp://b", "b")
FIRST = Layout("s", 1, 1, 10.0, (ShardPlace(A, (B,)),))
SECOND = FIRST.with_places([ShardPlace(B, leaving=(A,), term=3)])
SOON = 0.05
LEASE = 15.0


class World:
    """A registry, whose clock the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.registry = LayoutRegistry(lambda: self.now)

    def register(self, strategy: str, name: str, keep: float = 60.0, owner: str = "me") -> object:
        """Register a strategy and publish its layout."""
        deed, who = [name, 1.0, keep, b"terms"], [owner, f"client of {owner}", owner, 2.0]
        told = self.registry.register(strategy, deed, who, {}, {})
        self.registry.publish(owner, strategy, FIRST.packed())
        return told

    def claim(self, strategy: str, owner: str) -> object:
        """Claim a strategy."""
        return self.registry.claim(strategy, [owner, f"client of {owner}", owner, 3.0])

    def leave(self, owner: str) -> None:
        """Have an owner's client go."""
        self.registry.remove_client(None, f"client of {owner}")  # type: ignore[arg-type]


def on_a_loop(test: Callable[[World], object]) -> Callable[[], None]:
    """Run a test on an event loop."""

    @wraps(test)
    def run() -> None:
        async def inner() -> None:
            made = test(World())
            if asyncio.iscoroutine(made):
                await made

        asyncio.run(inner())

    del run.__wrapped__  # pytest would look for a fixture
    return run


@on_a_loop
def test_the_newest_layout_is_kept(world: World) -> None:
    world.register("s", "mine")
    world.registry.publish("me", "s", SECOND.packed())
    world.registry.publish("me", "s", FIRST.packed())
    assert world.registry.layout("s") == SECOND.packed()


@on_a_loop
def test_a_layout_goes_with_its_strategy(world: World) -> None:
    world.register("s", "mine")
    world.register("t", "yours")
    assert world.registry.addresses() == {A.address, B.address}
    world.registry.publish("me", "s", None)
    assert [world.registry.layout(each) is None for each in "st"] == [True, False]


@on_a_loop
def test_names_are_told_apart_by_numbers(world: World) -> None:
    assert world.register("s", "mine") == ["mine"]
    assert world.register("t", "mine") == ["mine 2"]
    assert world.register("s", "mine") == ["mine"]  # again: it had been forgotten


@on_a_loop
def test_what_is_not_registered_is_unknown(world: World) -> None:
    assert world.registry.publish("me", "s", FIRST.packed()) == UNKNOWN
    assert world.registry.describe("me", "s", "v", b"") == UNKNOWN
    assert "freed" in str(world.claim("s", "you"))


@on_a_loop
def test_a_strategy_whose_owner_has_gone_stays_until_its_time_is_over(world: World) -> object:
    async def go() -> None:
        for strategy, owner in (("s", "me"), ("t", "me"), ("u", "you")):
            world.register(strategy, strategy, SOON, owner)
        world.leave("me")
        assert world.registry.layout("s") is not None
        world.registry.publish("me", "t", FIRST.packed())  # it has come back
        while world.registry.layout("s") is not None:
            await asyncio.sleep(0.01)
        assert [world.registry.layout(each) is None for each in "tu"] == [False, False]

    return go()


@on_a_loop
def test_an_owner_that_lives_is_named(world: World) -> None:
    world.register("s", "mine")
    world.now = LEASE - 1
    assert world.claim("s", "you") == "me owns it, and lives"


@on_a_loop
def test_what_an_owner_leaves_another_may_have_with_all_that_is_known(world: World) -> None:
    world.register("s", "mine")
    world.registry.describe("me", "s", "v", b"a variable")
    world.registry.note_model("me", "s", "M", b"what was placed")
    world.registry.note_model("me", "s", "M", b"what became of it")
    assert world.registry.note_model("you", "s", "M", b"another") != ""
    world.leave("me")
    found = world.claim("s", "you")
    assert isinstance(found, list)
    assert found[0][0] == "mine"
    assert found[2:] == [FIRST.packed(), {"v": b"a variable"}, {"M": b"what became of it"}]
    assert world.claim("s", "him") == "you owns it, and lives"


@on_a_loop
def test_an_owner_that_says_nothing_for_too_long_loses_what_it_had(world: World) -> None:
    world.register("s", "mine")
    world.now = LEASE + 1
    assert isinstance(world.claim("s", "you"), list)
    assert "taken over by you" in world.registry.publish("me", "s", SECOND.packed())
    assert world.registry.layout("s") == FIRST.packed()


@on_a_loop
def test_what_has_moved_is_not_found_where_it_was(world: World) -> None:
    world.register("s", "mine")
    world.leave("me")
    world.claim("s", "you")
    assert world.registry.move("you", "s", "t", SECOND.packed()) == ""
    assert "taken over by you" in str(world.registry.layout("s"))
    assert "taken over by you" in world.registry.publish("me", "s", FIRST.packed())
    assert "taken over by you" in str(world.register("s", "mine"))
    assert world.registry.layout("t") == SECOND.packed()
    assert [each[0] for each in world.registry.strategies()] == ["t"]


@on_a_loop
def test_what_a_new_owner_gives_up_another_may_have_at_once(world: World) -> None:
    world.register("s", "mine")
    world.leave("me")
    world.claim("s", "you")
    world.registry.leave("me", "s")  # not its own any more
    assert isinstance(world.claim("s", "him"), str)
    world.registry.leave("you", "s")
    assert isinstance(world.claim("s", "him"), list)
