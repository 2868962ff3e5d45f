"""What the scheduler keeps of strategies, and whom it lets have them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from unittest.mock import patch

from tornado.ioloop import PeriodicCallback

from psnb._src.placement import registry as registry_module
from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.placement.registry import HOLDER, UNKNOWN, LayoutRegistry

A, B = ServerAddress("tcp://a", "a"), ServerAddress("tcp://b", "b")
FIRST = Layout("s", 1, 1, 10.0, (ShardPlacement(A, (B,)),))
SECOND = FIRST.with_placements([ShardPlacement(B, leaving=(A,), term=3)])
SOON = 0.05
LEASE = 15.0


class FakeScheduler:
    """Has actors as tasks while somebody wants them, as Dask's does."""

    def __init__(self) -> None:
        self.tasks: dict[str, SimpleNamespace] = {}
        self.workers: dict[str, SimpleNamespace] = {}
        self.clients = set[str]()
        self.handlers: dict[str, object] = {}
        self.periodic_callbacks: dict[str, PeriodicCallback] = {}
        self.idle_since: float | None = None

    def is_idle_after_a_look(self) -> bool:
        """Have it be idle, and the registry look; return whether it still is."""
        self.idle_since = 1.0
        self.periodic_callbacks[LayoutRegistry.name].callback()
        return self.idle_since is not None

    def begin(self, key: str, address: str) -> None:
        """Have a client begin an actor; it goes with the client (`let_go`)."""
        self.tasks[key] = task = SimpleNamespace(key=key, wants={"client"})
        self.workers.setdefault(address, SimpleNamespace(actors=[])).actors.append(task)

    def client_desires_keys(self, keys: list[str], client: str) -> None:
        self.clients.add(client)
        for key in keys:
            self.tasks[key].wants.add(client)

    def client_releases_keys(self, keys: list[str], client: str) -> None:
        for key in set(keys) & self.tasks.keys():
            self.tasks[key].wants.discard(client)
            if not self.tasks[key].wants:
                del self.tasks[key]

    def let_go(self) -> None:
        """Have the client go that began the actors."""
        self.client_releases_keys(list(self.tasks), "client")


class World:
    """A registry, whose clock the test moves, and its scheduler."""

    def __init__(self) -> None:
        self.now = 0.0
        self.registry, self.scheduler = LayoutRegistry(lambda: self.now), FakeScheduler()

    async def start(self) -> None:
        """Let the registry begin."""
        await self.registry.start(self.scheduler)  # type: ignore[arg-type]

    def publish(self, owner: str, servers: list[str], turn: int) -> str:
        """Publish which servers strategy ``s`` has."""
        return self.registry.publish(owner, "s", FIRST.packed(), servers, turn)

    def register(self, strategy: str, name: str, keep: float = 60.0, owner: str = "me") -> object:
        """Register a strategy and publish its layout."""
        record, who = [name, 1.0, keep, b"terms"], [owner, f"client of {owner}", owner, 2.0]
        told = self.registry.register(strategy, record, who, {}, {})
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
            world = World()
            await world.start()
            made = test(world)
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
def test_a_scheduler_is_not_idle_while_a_strategy_is_kept(world: World) -> None:
    assert world.scheduler.is_idle_after_a_look()
    world.register("s", "mine")
    assert not world.scheduler.is_idle_after_a_look()
    world.leave("me")
    assert not world.scheduler.is_idle_after_a_look()
    world.claim("s", "other")
    world.registry.publish("other", "s", None)
    assert world.scheduler.is_idle_after_a_look()


@on_a_loop
def test_a_layout_goes_with_its_strategy(world: World) -> None:
    world.register("s", "mine")
    world.register("t", "yours")
    assert world.registry.addresses() == {A.address, B.address}
    world.registry.publish("me", "s", None)
    assert [world.registry.layout(each) is None for each in "st"] == [True, False]


@on_a_loop
def test_equal_names_get_numbers(world: World) -> None:
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
        with patch.object(registry_module, "PUBLISH_AGAIN", SOON - FIRST.heartbeat_timeout):
            for strategy, keep in (("s", SOON), ("t", SOON), ("u", 60.0)):
                world.register(strategy, strategy, keep)
            world.leave("me")
            assert world.registry.layout("s") is not None
            while world.registry.layout("s") is not None:
                world.registry.publish("me", "t", FIRST.packed())  # it has come back
                await asyncio.sleep(0.01)
            assert [world.registry.layout(each) is None for each in "tu"] == [False, False]

    return go()


@on_a_loop
def test_an_owner_whose_connection_broke_gets_its_lease_also_without_retention(
    world: World,
) -> object:
    async def go() -> None:
        world.register("s", "mine", 0.0)
        world.leave("me")
        for _ in range(3):
            await asyncio.sleep(0)  # a timer that is due would run
        assert world.registry.layout("s") is not None

    return go()


@on_a_loop
def test_servers_that_are_published_outlive_the_client_that_began_them(world: World) -> None:
    for key in ("one", "two", "three"):
        world.scheduler.begin(key, "tcp://a")
    world.register("s", "mine")
    world.publish("me", ["one", "two", "gone"], 1)
    world.scheduler.let_go()
    assert set(world.scheduler.tasks) == {"one", "two"}
    assert world.scheduler.tasks["one"].wants == {HOLDER}


@on_a_loop
def test_servers_that_are_published_no_more_end(world: World) -> None:
    world.scheduler.begin("one", "tcp://a")
    world.scheduler.begin("two", "tcp://b")
    world.register("s", "mine")
    world.publish("me", ["one", "two"], 1)
    world.scheduler.let_go()
    world.publish("me", ["two"], 2)
    assert set(world.scheduler.tasks) == {"two"}


@on_a_loop
def test_a_message_that_is_late_ends_no_server(world: World) -> None:
    world.scheduler.begin("one", "tcp://a")
    world.register("s", "mine")
    world.publish("me", ["one"], 2)
    world.scheduler.let_go()
    world.publish("me", [], 1)
    assert set(world.scheduler.tasks) == {"one"}


@on_a_loop
def test_servers_end_with_their_strategy_and_no_others(world: World) -> None:
    world.scheduler.begin("one", "tcp://a")
    world.scheduler.begin("other", "tcp://a")
    world.register("s", "mine")
    world.register("t", "yours")
    world.publish("me", ["one"], 1)
    world.registry.publish("me", "t", FIRST.packed(), ["other"], 1)
    world.scheduler.let_go()
    world.registry.publish("me", "s", None)
    assert set(world.scheduler.tasks) == {"other"}


@on_a_loop
def test_servers_end_when_their_strategy_was_not_taken_over(world: World) -> object:
    async def go() -> None:
        with patch.object(registry_module, "PUBLISH_AGAIN", SOON - FIRST.heartbeat_timeout):
            world.scheduler.begin("one", "tcp://a")
            world.register("s", "mine", SOON)
            world.publish("me", ["one"], 1)
            world.scheduler.let_go()
            world.leave("me")
            assert set(world.scheduler.tasks) == {"one"}
            while world.registry.layout("s") is not None:
                await asyncio.sleep(0.01)
            assert not world.scheduler.tasks

    return go()


@on_a_loop
def test_a_takeover_keeps_the_servers_that_it_has_given_new_keys(world: World) -> None:
    for key in ("one", "two", "three"):
        world.scheduler.begin(key, "tcp://a")
    world.register("s", "mine")
    world.publish("me", ["one", "two", "three"], 7)
    world.scheduler.let_go()
    world.leave("me")
    world.claim("s", "you")
    world.publish("you", ["one", "two"], 1)  # it counts anew
    assert set(world.scheduler.tasks) == {"one", "two"}
    world.registry.move("you", "s", "t", SECOND.packed(), {"new": "one"})
    assert set(world.scheduler.tasks) == {"one"}
    world.registry.publish("you", "t", SECOND.packed(), ["new"], 2)
    world.leave("you")
    world.claim("t", "him")
    world.registry.move("him", "t", "u", SECOND.packed(), {"newer": "new"})
    world.registry.publish("him", "u", SECOND.packed(), ["newer"], 1)
    assert set(world.scheduler.tasks) == {"one"}
    world.registry.publish("him", "u", None)
    assert not world.scheduler.tasks


@on_a_loop
def test_idle_servers_of_a_worker_end_that_is_to_leave(world: World) -> None:
    world.scheduler.begin("one", "tcp://a")
    world.scheduler.begin("two", "tcp://b")
    world.register("s", "mine")
    world.publish("me", ["one", "two"], 1)
    world.scheduler.let_go()
    world.registry.release_idle(["tcp://b", "tcp://unknown"])
    assert set(world.scheduler.tasks) == {"one"}


def began(world: World) -> None:
    """Have strategy ``s`` two servers, of which a layout names one."""
    world.scheduler.begin("one", "tcp://a")
    world.scheduler.begin("two", "tcp://c")
    world.register("s", "mine")
    world.publish("me", ["one", "two"], 1)


@on_a_loop
def test_a_server_that_is_given_up_is_emptied_until_it_is_taken_again(world: World) -> None:
    began(world)
    assert world.registry.emptied() == set()
    world.publish("me", ["one"], 3)
    assert world.registry.emptied() == {"tcp://c"}
    world.publish("me", ["one", "two"], 2)  # it is late
    assert world.registry.emptied() == {"tcp://c"}
    world.scheduler.begin("three", "tcp://c")
    world.publish("me", ["one", "three"], 4)
    assert world.registry.emptied() == set()


@on_a_loop
def test_a_server_that_has_parameters_of_another_strategy_is_not_emptied(world: World) -> None:
    began(world)
    world.register("t", "other")
    world.publish("me", ["two"], 2)  # the layout of both names tcp://a
    assert world.registry.emptied() == set()


@on_a_loop
def test_a_server_whose_process_has_ended_is_not_emptied(world: World) -> None:
    began(world)
    world.publish("me", ["one"], 2)
    world.registry.remove_worker(None, "tcp://c")  # type: ignore[arg-type]
    assert world.registry.emptied() == set()


@on_a_loop
def test_the_servers_of_a_strategy_that_ends_are_not_emptied(world: World) -> None:
    began(world)
    world.registry.publish("me", "s", None)
    assert world.registry.emptied() == set()


@on_a_loop
def test_an_owner_that_lives_is_named(world: World) -> None:
    world.register("s", "mine")
    world.now = LEASE - 1
    assert world.claim("s", "you") == "me owns it, and lives"


@on_a_loop
def test_what_an_owner_leaves_another_may_have_with_all_that_is_known(world: World) -> None:
    world.register("s", "mine")
    world.registry.describe("me", "s", "v", b"a variable")
    world.registry.describe("me", "s", "M", b"what was placed", model=True)
    world.registry.describe("me", "s", "M", b"what became of it", model=True)
    assert world.registry.describe("you", "s", "M", b"another", model=True) != ""
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
    assert world.registry.move("you", "s", "t", SECOND.packed(), {}) == ""
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
