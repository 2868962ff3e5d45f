"""LayoutRegistry: the Dask scheduler plugin that keeps the layouts of all strategies, and the rest.

The scheduler is the one process that all others in a cluster can always ask; when it ends, Dask
ends all workers, and the servers with them. A strategy's owner writes its description there
(`REGISTER`, `DESCRIBE`) and, again and again, its layout (`PUBLISH`); workers that
cannot find a shard read it (`LAYOUT`). The layout names the strategy's servers: each is a Dask
actor (`ParameterServer`), which the registry keeps in place of a client, since a client's actors go
with its connection. Another process lists the strategies (`STRATEGIES`), and becomes the owner of
one whose owner has gone (`CLAIM`); then it gives the strategy another id (`MOVE`), which the former
owner does not know. A strategy's entry is removed, and its servers end, when it is closed, or when
it had no owner for its retention and its lease: a client whose connection breaks may come back. As
long as a strategy is kept, a scheduler with an idle timeout is not idle, whether closures run or
not. All of it runs on the scheduler's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distributed import Scheduler, SchedulerPlugin

from psnb._src.dask_compat.plugins import (
    actors_at,
    add_handler,
    call_every,
    hold_tasks,
    keep_awake,
    release_tasks,
)
from psnb._src.placement.layout import unpacked
from psnb._src.utils.labels import numbered

SERVER_KEY = "psnb-server-"
"""How the keys of servers begin."""


class ParameterServer:
    """The Dask actor of a parameter server, made in a worker's process and freed there by Dask.

    The scheduler unpickles it when a server is submitted; so it is here, where nothing is imported
    that the scheduler does not have, such as kernels. Dask takes its size once, when it is empty:
    56 bytes, too few to steer tasks to servers or away. A larger one that ``__sizeof__`` makes up
    would steer them away, but count as memory that Dask manages there.

    It serves nothing itself, as a call of an actor takes three times as long as one of a handler:
    see `psnb._src.server.serving`.

    Attributes
    ----------
    name : str
        What people read.
    host : Host or None
        What it holds; empty once the strategy has ended it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.host: Any = None


PUBLISH_AGAIN = 5.0
"""Seconds after which an owner publishes its layout again, which is its heartbeat."""


class Owner(NamedTuple):
    """The owner of a strategy.

    Attributes
    ----------
    token : str
        Its own, by which it is known.
    client : str
        The id of its Dask client.
    where : str
        What people read: host, process, and kernel.
    since : float
        When it became the owner, in seconds since 1970.
    """

    token: str
    client: str
    where: str
    since: float


class OwnershipRecord(NamedTuple):
    """A strategy without its parameters and their layout.

    Attributes
    ----------
    name : str
        What people call it; unique on the cluster.
    made : float
        When it was made, in seconds since 1970.
    retention : float
        Seconds for which it is kept without an owner.
    packed : bytes
        What only its owner reads, pickled.
    """

    name: str
    made: float
    retention: float
    packed: bytes


@dataclass(slots=True)
class RegistryEntry:
    """A strategy, as the scheduler knows it; it unpickles none of it.

    It is enough to make the strategy and its handles again when the process that owned it has died.

    Attributes
    ----------
    record : OwnershipRecord
        What it is.
    owner : Owner
        The latest.
    layout : list
        Where its shards are, packed; empty until it was published.
    parameters : dict
        Its parameters by name, pickled, in the order in which they were made.
    models : dict
        What of which model is in which parameter, by the models' names.
    actors : dict
        The keys of the servers' Dask actors, by the servers' keys: a takeover changes the actors'
        only.
    heard : float
        When its owner's last message came, by the scheduler's clock.
    turn : int
        The owner's latest message that named servers; an older one may arrive after it.
    left : bool
        Whether the owner's client has gone since.
    """

    record: OwnershipRecord
    owner: Owner
    heard: float
    layout: list[Any] = field(default_factory=list)
    parameters: dict[str, bytes] = field(default_factory=dict)
    models: dict[str, bytes] = field(default_factory=dict)
    actors: dict[str, str] = field(default_factory=dict)
    turn: int = 0
    left: bool = False

    @property
    def lease(self) -> float:
        """Seconds after which an owner that sends nothing counts as gone."""
        heartbeat_timeout = self.layout[3] if self.layout else 0.0
        return float(heartbeat_timeout) + PUBLISH_AGAIN

    def lives(self, now: float) -> bool:
        """Return whether its owner lives, as far as the scheduler knows."""
        return not self.left and now - self.heard < self.lease


PUBLISH = "psnb_publish"
LAYOUT = "psnb_layout"
REGISTER = "psnb_register"
DESCRIBE = "psnb_describe"
STRATEGIES = "psnb_strategies"
CLAIM = "psnb_claim"
LEAVE = "psnb_leave"
MOVE = "psnb_move"
"""The names of the handlers on the Dask scheduler: methods of `LayoutRegistry`."""

HOLDER = "psnb"
"""The client in whose name the scheduler keeps the actors of all strategies."""

_STAY_AWAKE = 0.25
"""Seconds between two looks, which is as often as Dask looks whether its scheduler is idle."""

UNKNOWN = "unknown"
"""The answer to what is published of a strategy that is not registered (any more)."""


class LayoutRegistry(SchedulerPlugin):
    """Remembers the newest layout of each strategy, and its description for a takeover.

    Every method but `layout` returns a text if it has refused: why, for the user.

    Parameters
    ----------
    clock : callable
        Returns the time in seconds.
    """

    name = "psnb-layouts"
    idempotent = True

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, RegistryEntry] = {}
        self._taken: dict[str, str] = {}  # by former id, the answer to its former owner
        self._timers: dict[str, asyncio.TimerHandle] = {}  # these end strategies without an owner
        self._left: set[str] = set()  # addresses of servers that a strategy has given up

    async def start(self, scheduler: Scheduler) -> None:
        """Register the handlers; Dask calls this once."""
        self._scheduler = scheduler
        for name in (PUBLISH, LAYOUT, REGISTER, DESCRIBE, STRATEGIES, CLAIM, LEAVE, MOVE):
            add_handler(scheduler, name, getattr(self, name.removeprefix("psnb_")))
        call_every(scheduler, self.name, _STAY_AWAKE, self._stay_awake)

    def _stay_awake(self) -> None:
        if self._kept:
            keep_awake(self._scheduler)

    def register(
        self,
        strategy: str,
        record: list[Any],
        owner: list[Any],
        parameters: Mapping[str, bytes],
        models: Mapping[str, bytes],
    ) -> list[str] | str:
        """Begin to keep a strategy; return its name in a list, with a number if it is taken."""
        if strategy in self._taken:
            return self._taken[strategy]
        own = OwnershipRecord(*record)
        others = {each.record.name for key, each in self._kept.items() if key != strategy}
        name = numbered(own.name, others)
        before = self._kept.get(strategy)
        self._kept[strategy] = RegistryEntry(
            own._replace(name=name),
            Owner(*owner),
            self._clock(),
            parameters=dict(parameters),
            models=dict(models),
            actors={} if before is None else before.actors,
        )
        self._wait_for_owner(strategy)
        return [name]

    def describe(
        self, token: str, strategy: str, name: str, packed: bytes | None, *, model: bool = False
    ) -> str:
        """Note a parameter or a model of a strategy, or a change; None: there is none."""
        if refusal := self._refusal(token, strategy):
            return refusal
        kept = self._kept[strategy]
        known = kept.models if model else kept.parameters
        if packed is None:
            known.pop(name, None)
        else:
            known[name] = packed
        return ""

    def publish(
        self,
        token: str,
        strategy: str,
        layout: list[Any] | None,
        servers: Sequence[str] = (),
        turn: int = 0,
    ) -> str:
        """Store a strategy's layout, which is its owner's heartbeat; None: it is closed.

        From now on these servers are kept, by their keys, and no others.
        """
        if refusal := self._refusal(token, strategy):
            return refusal
        if layout is None:
            self._forget(strategy)
            return ""
        kept = self._kept[strategy]
        kept.heard, kept.left = self._clock(), False
        if not kept.layout or kept.layout[1] < layout[1]:
            kept.layout = layout
        if kept.turn < turn:
            kept.turn = turn
            actors = {key: kept.actors.get(key, key) for key in servers}
            before, after = set(kept.actors.values()), set(actors.values())
            self._left -= self._addresses_of(after - before)
            self._left |= self._addresses_of(before - after)
            self._keep(kept, actors)
        self._wait_for_owner(strategy)
        return ""

    def layout(self, strategy: str) -> list[Any] | str | None:
        """Return a strategy's layout; None if it is closed, a text if it was taken over."""
        kept = self._kept.get(strategy)
        return kept.layout or None if kept is not None else self._taken.get(strategy)

    def strategies(self) -> list[list[Any]]:
        """Return of all strategies the id, what `claim` returns, and whether the owner lives."""
        now = self._clock()
        return [
            [key, *self._contents(kept), kept.lives(now)]
            for key, kept in self._kept.items()
            if kept.layout
        ]

    def claim(self, strategy: str, owner: list[Any]) -> list[Any] | str:
        """Give a strategy without an owner this one; return its entry.

        That is its record, owner, layout, parameters and models.
        """
        kept = self._kept.get(strategy)
        if kept is None:
            return self._taken.get(strategy, "it was closed, or freed, this very moment")
        if kept.lives(self._clock()):
            return f"{kept.owner.where} owns it, and lives"
        kept.owner, kept.heard, kept.left = Owner(*owner), self._clock(), False
        kept.turn = 0
        self._wait_for_owner(strategy)
        return self._contents(kept)

    def leave(self, token: str, strategy: str) -> str:
        """Give a strategy up: another may claim it."""
        if refusal := self._refusal(token, strategy):
            return refusal
        self._kept[strategy].left = True
        self._wait_for_owner(strategy)
        return ""

    def move(
        self, token: str, strategy: str, after: str, layout: list[Any], servers: Mapping[str, str]
    ) -> str:
        """Give a strategy another id and layout: it cannot be reached by the former ones.

        Its servers are kept that have new keys; ``servers`` has those before by the new ones.
        """
        if refusal := self._refusal(token, strategy):
            return refusal
        kept = self._kept[after] = self._kept.pop(strategy)
        kept.layout = layout
        actors = {new: kept.actors[old] for new, old in servers.items() if old in kept.actors}
        self._keep(kept, actors)
        self._taken[strategy] = _taken_over(kept)
        self._stop_waiting(strategy)
        self._wait_for_owner(after)
        return ""

    def addresses(self) -> set[str]:
        """Return the addresses of the servers of all strategies that hold shards or copies."""
        layouts = [unpacked(each.layout) for each in self._kept.values() if each.layout]
        return {server.address for layout in layouts for server in layout.servers}

    def emptied(self) -> set[str]:
        """Return the addresses of the servers that strategies have emptied and given up.

        None that a strategy has taken since, nor one that another strategy has parameters on. They
        are forgotten when their processes end.
        """
        return self._left - self.addresses() if self._left else set()

    def release_idle(self, addresses: Collection[str]) -> None:
        """End the servers at some addresses; they hold nothing (`addresses`)."""
        there = set().union(*(actors_at(self._scheduler, each) for each in addresses))
        for kept in self._kept.values():
            self._keep(kept, {k: actor for k, actor in kept.actors.items() if actor not in there})

    def remove_worker(self, scheduler: Scheduler, worker: str, **more: Any) -> None:
        """Forget a worker that has ended."""
        self._left.discard(worker)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Note that an owner has gone, unless it comes back."""
        for strategy, kept in self._kept.items():
            if kept.owner.client == client:
                kept.left = True
                self._wait_for_owner(strategy)

    def _addresses_of(self, actors: Set[str]) -> set[str]:
        if not actors:
            return set()
        return {a for a in self._scheduler.workers if actors & actors_at(self._scheduler, a)}

    def _contents(self, kept: RegistryEntry) -> list[Any]:
        return [[*kept.record], [*kept.owner], kept.layout, kept.parameters, kept.models]

    def _refusal(self, token: str, strategy: str) -> str:
        kept = self._kept.get(strategy)
        if kept is None:
            return self._taken.get(strategy, UNKNOWN)
        return "" if kept.owner.token == token else _taken_over(kept)

    def _forget(self, strategy: str) -> None:
        self._stop_waiting(strategy)
        self._keep(self._kept.pop(strategy), {})

    def _keep(self, kept: RegistryEntry, actors: dict[str, str]) -> None:
        released = set(kept.actors.values()) - set(actors.values())
        kept.actors = actors
        hold_tasks(self._scheduler, HOLDER, actors.values())
        release_tasks(self._scheduler, HOLDER, released)

    def _stop_waiting(self, strategy: str) -> None:
        if (timer := self._timers.pop(strategy, None)) is not None:
            timer.cancel()

    def _wait_for_owner(self, strategy: str) -> None:
        self._stop_waiting(strategy)
        kept = self._kept[strategy]
        # Also if its client has gone, it gets the lease: it may be back before workers notice.
        seconds = kept.record.retention + kept.lease
        loop = asyncio.get_running_loop()
        self._timers[strategy] = loop.call_later(seconds, self._forget, strategy)


def _taken_over(kept: RegistryEntry) -> str:
    return (
        f"the strategy {kept.record.name!r} was taken over by {kept.owner.where}, as its owner had "
        "gone: those who had it before can neither read nor write it any more. "
        "psnb.attach(client) lists what lives on the cluster"
    )
