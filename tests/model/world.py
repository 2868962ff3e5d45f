"""World: a cluster without processes, connections or time, driven by chance from a seed.

What is simulated is the network (messages arrive late, twice, never and in any order, connections
break) and the processes (they die, freeze and wake between any two messages). What runs in it is
psnb's own: `Host`, `Shard`, `Copy`, `next_layout`, `commit`, `resolve_in_doubt`, `Resolver` and
`Scheduler`. After FoundationDB's simulation and TigerBeetle's; what is asserted is after Jepsen.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from psnb._src.client.requests import Request
from psnb._src.placement.layout import Layout, ServerAddress, ShardId
from psnb._src.server.messages import Done, Failed, Later, Moved, PendingReply, ServerAnswer
from psnb._src.server.operations import CreateTable, HostOperation, OnShard
from psnb._src.server.replication import ForwardedRequest, Opening
from psnb._src.server.server import Host
from psnb._src.server.tables.operations import ShardOperation
from psnb.errors import PsnbError, ServerLostError, ServerUnresponsiveError
from tests.server.standby import NO_THREADS

Then = Callable[[list[Any]], None]


def once(action: Callable[[], None]) -> Callable[[], None]:
    """Act the first time only."""
    left = [action]
    return lambda: left.pop()() if left else None


class Process:
    """Something that dies, freezes and wakes."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive, self.frozen = True, False
        self.known = world.published  # where it believes that shards are
        self._later: deque[Callable[[], None]] = deque()

    def do(self, action: Callable[[], None]) -> None:
        """Act now, or as soon as it wakes; never if it is dead."""
        if self.frozen:
            self._later.append(action)
        elif self.alive:
            action()

    def together(self, shards: Sequence[ShardId]) -> bool:
        """Return what `CommTransport` believes."""
        places = [self.known.placements[shard.number] for shard in shards]
        return len(shards) == 1 or (
            len({place.servers for place in places}) == 1 and len(places[0].servers) == 1
        )

    def kill(self) -> None:
        self.alive = self.frozen = False
        self._later.clear()
        self.world.counts[f"{type(self).__name__.lower()}s killed"] += 1

    def freeze(self) -> None:
        self.frozen = True
        self.world.counts[f"{type(self).__name__.lower()}s frozen"] += 1

    def wake(self) -> None:
        self.frozen = False
        while self._later and not self.frozen and self.alive:
            self._later.popleft()()


class Server(Process):
    """A parameter server."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.address = ServerAddress(name, name)
        self.host = Host(name, name, lambda function: function(), NO_THREADS, NO_THREADS)

    def run(self, operations: Sequence[Any], answer: Callable[[list[Any]], None]) -> None:
        self.host.run(operations, PendingReply(answer), self._connect)

    def _connect(self, address: str, opening: Opening) -> None:
        other = self.world.servers[address]

        def connect() -> None:
            if other.alive:
                self.do(lambda: opening.opened(Link(self, other, opening)))
            else:
                self.do(lambda: opening.broken(ConnectionRefusedError("it is dead")))

        def lost() -> None:
            self.do(lambda: opening.broken(TimeoutError("no answer")))

        self.world.send(other, once(connect), lost)


class Link:
    """A connection between two servers: in order, until it breaks."""

    def __init__(self, source: Server, target: Server, opening: Opening) -> None:
        self.source, self._target, self._opening = source, target, opening
        self._there: deque[tuple[ForwardedRequest, bytes]] = deque()
        self._back: deque[tuple[ForwardedRequest, bytes]] = deque()
        self.closed = False
        source.world.links.append(self)

    def send(self, exchange: ForwardedRequest) -> None:
        if not self.closed:
            self._there.append((exchange, pickle.dumps(exchange.message())))

    def close(self) -> None:
        self.closed = True

    def idle(self) -> bool:
        return not self._there and not self._back

    def deliver(self) -> None:
        """Let something arrive, at the one end or the other."""
        target = self._target
        if self._back and (not self._there or self.source.world.chance(0.5)):
            exchange, answer = self._back.popleft()
            if not self.closed:
                self.source.do(lambda: exchange.answered(pickle.loads(answer)))
        elif self._there and not target.alive:
            self.break_off()
        elif self._there and not target.frozen:
            exchange, message = self._there.popleft()
            _, operations = pickle.loads(message)

            def answered(answers: list[Any]) -> None:
                self._back.append((exchange, pickle.dumps(answers)))

            target.run(operations, answered)

    def break_off(self) -> None:
        """Lose what is under way; what the other side has got already, it has."""
        if not self.closed:
            self.closed = True
            self.source.world.counts["connections broken"] += 1
            error = ConnectionResetError("the connection broke")
            self.source.do(lambda: self._opening.broken(error))
        self._there.clear()
        self._back.clear()


class Line:
    """One way of a session's connection.

    Parameters
    ----------
    world : World
        Where it is.
    to : Process
        The end at which messages arrive.
    broken : callable
        Called when one is lost.
    in_order : bool
        Whether they arrive in their order, as on a real one, and none after one that is lost.
    """

    def __init__(
        self, world: World, to: Process, broken: Callable[[], None], *, in_order: bool
    ) -> None:
        self._world, self._to, self._broken, self._in_order = world, to, broken, in_order
        self._under_way: deque[Callable[[], None]] = deque()
        self._closed = False

    def send(self, action: Callable[[], None]) -> None:
        """Let something happen at the other end: once."""
        if not self._in_order:
            self._world.send(self._to, once(action), self._broken)
        elif not self._closed:
            self._under_way.append(action)
            self._world.send(self._to, once(self._arrive), self._lose)

    def _arrive(self) -> None:
        if self._under_way:
            self._under_way.popleft()()

    def _lose(self) -> None:
        self._closed = True
        self._under_way.clear()
        self._broken()


_LONG = 200
"""How often a request is sent while its shard is loaded, until there is an error."""


class Pending:
    """A request that somebody waits for, and its way through the network; see `CommTransport`."""

    def __init__(self, owner: Process, request: Request, then: Callable[[Any], None]) -> None:
        self._world, self.owner = owner.world, owner
        self.request, self._then = request, then
        assert isinstance(request.to, ShardId)
        self.operation: Any = request.operation
        if isinstance(self.operation, ShardOperation):
            self.operation = OnShard(request.to.number, self.operation)
        self._server: Server | None = None
        self._under_way = 0  # messages there and back
        self.done = self.lost = False
        self._later = 0
        self.send()

    def send(self) -> None:
        """Send it to where its shard is, as far as its owner knows; the scheduler knows better."""
        if self._place().primary is None:
            self._look()
        primary = self._place().primary
        if primary is None:
            self._end(ServerLostError("no server has it"))
            return
        server = self._server = self._world.servers[primary.key]
        message = pickle.dumps([self.operation])
        self._under_way += 1
        self._world.send(server, lambda: self._arrive(server, message), self._lost)

    def _lost(self) -> None:
        self._under_way -= 1

    def notice(self) -> None:
        """See whether the server is dead, or has not answered for too long, or ask again."""
        if self.done or self._server is None:
            return
        if not self._server.alive or self._world.chance(0.5):
            self._look()
        place, server = self._place(), self._server
        if not server.alive:
            self._under_way = 0
        if not server.alive and place.servers == (server.address,):
            self._end(ServerLostError("it is dead"))
        elif place.primary not in (server.address, None):
            self._under_way = 0  # the server before may be dead by now, and never answer
            self.send()
        elif self._world.faults and self._world.chance(
            self._world.silence * (5 if server.frozen else 1)
        ):
            self._end(ServerUnresponsiveError("it says nothing"))
        elif self._under_way <= 0 or (self._world.faults and self._world.chance(0.1)):
            self.send()

    def _arrive(self, server: Server, message: bytes) -> None:
        making = isinstance(self.request.operation, CreateTable)
        # What makes a table would make it anew: nobody sends it twice who has had an answer.
        if not server.alive or self.lost or (making and self.done):
            self._lost()
            return
        world = self._world

        def answered(answers: list[Any]) -> None:
            packed = pickle.dumps(answers[0])
            world.send(self.owner, lambda: self._answered(pickle.loads(packed)), self._lost)

        with world.watched(self, server):
            server.run(pickle.loads(message), answered)

    def _answered(self, answer: ServerAnswer) -> None:
        self._lost()
        if self.done:
            return
        match answer:
            case Moved():
                self._look()
                self.send()
            case Later():
                self._later += 1  # it is sent again by and by: see `notice`
                if self._later > _LONG:
                    self._end(ServerUnresponsiveError("it is being loaded"))
            case Done(result):
                self._end(result)
            case Failed(error):
                self._end(error)

    def _end(self, outcome: Any) -> None:
        self.done = True
        self.owner.do(lambda: self._then(outcome))

    def _look(self) -> None:
        self.owner.known = self._world.published

    def _place(self) -> Any:
        assert isinstance(self.request.to, ShardId)
        return self.owner.known.placements[self.request.to.number]


Watched = Callable[[Pending, Server], AbstractContextManager[None]]


class World:
    """Processes, and what is under way between them.

    Parameters
    ----------
    seed : int
        Of all chance.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.published = Layout("s", 0, 0, 1.0, ())
        self.silence = self.random.choice([0.004, 0.04])  # how impatient who asks is
        self.servers: dict[str, Server] = {}
        self.links: list[Link] = []
        self.pending: list[Pending] = []
        # What is under way: for whom, what it does there, and what happens if it is lost.
        self.messages: list[tuple[Process, Callable[[], None], Callable[[], None] | None]] = []
        self.faults = True
        self.counts: Counter[str] = Counter()  # of what has happened
        self.steps = 0
        self.watched: Watched = lambda request, server: nullcontext()  # each request that comes

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def server(self) -> Server:
        """Start one more server."""
        name = f"server-{len(self.servers)}"
        self.servers[name] = Server(self, name)
        return self.servers[name]

    def send(
        self,
        to: Process,
        action: Callable[[], None],
        lost: Callable[[], None] | None = None,
    ) -> None:
        """Let something happen at a process, some time."""
        self.messages.append((to, action, lost))

    def ask(self, owner: Process, requests: Sequence[Request], then: Then) -> None:
        """Make requests, and hand over what came of them, when all have come back."""
        outcomes: list[Any] = [None] * len(requests)
        left = set(range(len(requests)))
        if not requests:
            owner.do(lambda: then([]))

        def ended(position: int, outcome: Any) -> None:
            outcomes[position] = outcome
            left.discard(position)
            if not left:
                then(outcomes)

        for position, request in enumerate(requests):
            take = lambda outcome, at=position: ended(at, outcome)  # noqa: E731
            self.pending.append(Pending(owner, request, take))

    def forget(self, owner: Process, random: random.Random) -> None:
        """Let nobody wait for what a process has asked; what has not arrived may do so later."""
        for each in self.pending:
            if each.owner is owner:
                each.done, each.lost = True, random.random() < 0.5

    def drive(
        self,
        owner: Process,
        work: Coroutine[Sequence[Request], Sequence[Any] | None, Any],
        then: Callable[[Any], None],
    ) -> None:
        """Make the requests of a coroutine; hand over what it returns or raises."""

        def advance(outcomes: Sequence[Any] | None) -> None:
            try:
                requests = work.send(outcomes)
            except StopIteration as ended:
                then(ended.value)
            except Exception as error:
                if not isinstance(error, PsnbError) and type(error).__name__ != "UndecidedError":
                    raise
                then(error)
            else:
                self.ask(owner, requests, advance)

        advance(None)

    def step(self) -> None:
        """Let one thing happen in the network."""
        self.steps += 1
        live = [link for link in self.links if not link.idle()]
        choice = self.random.random()
        if live and choice < 0.45:
            link = self.random.choice(live)
            link.break_off() if self.faults and self.chance(0.01) else link.deliver()
        elif self.messages and choice < 0.9:
            self._deliver(self.random.randrange(len(self.messages)))
        elif self.pending:
            waiting = self.random.choice(self.pending)
            waiting.notice()
        self.links = [link for link in self.links if not link.closed or not link.idle()]
        if self.steps % 16 == 0:
            self.pending = [each for each in self.pending if not each.done]

    def _deliver(self, position: int) -> None:
        to, action, lost = self.messages[position]
        if to.frozen:
            return
        if self.faults and self.chance(0.05):
            if self.chance(0.5):
                self.counts["messages doubled"] += 1
                action()  # and once more, later
                return
            self.counts["messages lost"] += 1
            del self.messages[position]
            if lost is not None:
                lost()
            return
        del self.messages[position]
        action()


def manage(server: Server, operation: HostOperation) -> Any:
    """Run an operation of a server at once, outside of the network."""
    found: list[ServerAnswer] = []
    server.run([operation], found.extend)
    (answer,) = found
    if isinstance(answer, Failed):
        raise answer.error
    assert isinstance(answer, Done)
    return answer.result
