"""The parameter servers of a worker process, and the handler through which clients reach them.

Each is a Dask actor (`psnb._src.placement.registry.ParameterServer`), which has a host from when
Dask has made it until Dask forgets it: the scheduler's registry decides that. A server that Dask
frees while its strategy still uses it, as in ``client.restart()``, hands over its shards first.
Calls do not go through Dask's actors, which take three times as long, but through one handler on
the worker's Dask server, ``psnb_server``, which finds a server by its key. A takeover gives the
strategy's servers new keys, so that a former owner, which has the old ones, reaches none; Dask's
key stays.

Threads: operations run where they arrive, on the worker's event loop, one after the other, so no
table needs a lock and every operation is atomic. (A thread of its own for them would cost 0.3 ms a
call, as much as the round trip.) What takes long is done by two `StandbyThreads`, which the process
has from its first server on. ``psnb-making`` compiles and makes new tables, and unpickles what
strategies send of users' classes and functions, while messages on the same connection wait. (What
servers send to copies is unpickled as it comes.) ``psnb-writing`` writes checkpoints, for which it
asks the loop; where it writes may not answer for any time, which holds up nothing else. No other
thread is started while there are servers, as each takes some 70 MB of addresses, which `ulimit -v`
counts.

A server lives as long as this loop turns: nothing else answers for it. Clients that hear nothing
for as long as the strategy's ``heartbeat_timeout`` take it for unresponsive, also if the process
works, and a replica takes over. (A thread that told them *busy* meanwhile was rejected: it told
them so of loops that never turned again.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection
from functools import partial

from distributed import Worker

from psnb._src.dask_compat.plugins import actor_of, add_handler, remove_handler
from psnb._src.dask_compat.reach import CONNECTION_KEPT, Comm, event_loop
from psnb._src.placement.registry import ParameterServer
from psnb._src.server import operations as ops
from psnb._src.server.making import build, takes_long, to_make, unpacked, warm_up
from psnb._src.server.memory import answers_in, refusal
from psnb._src.server.messages import (
    Done,
    Failed,
    PendingReply,
    ServerAnswer,
    ServerReply,
    ServerRequest,
    number_in,
)
from psnb._src.server.replication import Connect
from psnb._src.server.schedules import rate_at
from psnb._src.server.server import Host, Made
from psnb._src.server.tables.operations import OnTable, TuneOptimizer
from psnb._src.server.writing import Soon
from psnb._src.transport.shared_memory import Probe, can_see
from psnb._src.transport.shared_memory import probe as own_probe
from psnb._src.transport.stream import MessageStream, UnreceivedError, message_stream
from psnb._src.utils.standby import StandbyThreads, extend_stack
from psnb._src.utils.threads import start_task
from psnb._src.utils.version import own_version
from psnb.errors import ServerLostError

HANDLER = "psnb_server"
"""The name of the handler on each Dask worker."""

GRACE = 25.0
"""Seconds that servers get to hand over what they hold."""

logger = logging.getLogger("psnb")

_MINUTE = 60.0
_LOOK_WHETHER_EMPTY = 0.05


class _Server:
    """A server, Dask's key for it, and the latest connection of its strategy."""

    def __init__(
        self,
        key: str,
        actor: ParameterServer,
        soon: Soon,
        making: StandbyThreads,
        writing: StandbyThreads,
    ) -> None:
        self.task = key
        self.host = actor.host = Host(key, f"server {actor.name}", soon, making, writing)
        self.keeper: MessageStream | None = None


class ParameterServers:
    """The servers of a process.

    Parameters
    ----------
    worker : distributed.Worker
        The Dask worker whose handler reaches them.
    connect : callable
        Connects to other servers.
    """

    def __init__(self, worker: Worker, connect: Connect) -> None:
        self._worker, self._connect = worker, connect
        self._loop = event_loop(worker)
        self._servers: dict[str, _Server] = {}
        self._streams: set[MessageStream] = set()  # to each client
        # Others while there are servers.
        self._making = self._writing = StandbyThreads("psnb-none", 0)
        self._timer: asyncio.TimerHandle | None = None
        self._leaving = False
        self._tasks: set[asyncio.Task[None]] = set()
        add_handler(worker, HANDLER, self._serve)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._servers)

    async def leave(self, seconds: float) -> None:
        """Have the strategies move all shards elsewhere and stop their servers here.

        Returns when they have, or cannot be reached any more, or after that number of seconds.
        """
        self._leaving = True
        await self._hand_over(self._servers.values(), seconds)

    async def _hand_over(self, servers: Collection[_Server], seconds: float) -> None:
        for server in servers:
            server.host.leaves = True
        end = self._loop.time() + seconds
        while self._loop.time() < end and any(server.keeper in self._streams for server in servers):
            await asyncio.sleep(_LOOK_WHETHER_EMPTY)

    def begin(self, key: str) -> None:
        """Have an actor serve that Dask has made; on the loop."""
        actor = actor_of(self._worker, key)
        if not isinstance(actor, ParameterServer):
            return  # a handle of one elsewhere, for a task of the user's
        if not self._servers:
            extend_stack()
            self._making = StandbyThreads("psnb-making", 1)
            self._writing = StandbyThreads("psnb-writing", 1)
            self._timer = self._loop.call_later(_MINUTE, self._count_minute)
        soon = self._loop.call_soon_threadsafe
        server = self._servers[key] = _Server(key, actor, soon, self._making, self._writing)
        server.host.leaves = self._leaving

    def free(self, key: str) -> None:
        """End a server whose actor Dask has forgotten; on the loop."""
        for server in {each for each in self._servers.values() if each.task == key}:
            start_task(self._free(server), self._tasks, "psnb freeing a server")

    async def _free(self, server: _Server) -> None:
        await self._hand_over([server], GRACE)
        self._stop(server)

    def close(self) -> None:
        """Drop all servers, and stop answering requests."""
        remove_handler(self._worker, HANDLER)
        for task in self._tasks:
            task.cancel()
        for server in set(self._servers.values()):
            self._stop(server)

    async def _serve(self, comm: Comm, probe: Probe | None = None, psnb: str = "") -> object:
        if psnb != own_version():
            return {"status": "another version", "psnb": own_version()}
        # The caller keeps the connection open. Then it sends `ServerRequest`s, and gets a
        # `ServerReply` to each: without answers, if the server's process was restarted at the same
        # address, or its strategy was closed.
        sees = can_see(probe)
        await comm.write({"status": "OK", "probe": own_probe(), "sees": sees})
        stream = message_stream(comm)
        messages = _MessageQueue(stream, self._run, self._who_prepares)
        self._streams.add(stream)
        try:
            seen = await stream.receive(bool)
            if probe is not None and sees:
                stream.share(probe[0], seen=seen)
            while True:
                try:
                    messages.take(await stream.receive(ServerRequest))
                except UnreceivedError as error:
                    stream.send(self._refused(error))
        except OSError:  # the client that asked is gone
            return CONNECTION_KEPT
        finally:
            self._streams.discard(stream)
            stream.abort()

    def _who_prepares(self, request: ServerRequest) -> StandbyThreads | None:
        """Return the threads for what takes long of a request; None if nothing does."""
        here = request.key in self._servers
        return self._making if here and any(map(takes_long, request.operations)) else None

    def _refused(self, error: UnreceivedError) -> ServerReply:
        """Return the answer to a request that there is no memory for."""
        where = f"the parameter server at {self._worker.address}"
        refused = refusal(error, "a request", where)
        return ServerReply(number_in(error.head), [Failed(refused)])

    def _run(self, stream: MessageStream, request: ServerRequest, made: Made) -> None:
        number, key = request.number, request.key
        match request.operations:
            case [ops.PrepareServer()] if self._leaving:
                ends = ServerLostError(f"the process at {self._worker.address} is about to end")
                stream.send(ServerReply(number, [Failed(ends)]))
                return
            case [ops.PrepareServer()]:
                stream.send(ServerReply(number, [Done(None)]))
                return
            case [ops.StopServer()]:
                if key in self._servers:
                    self._stop(self._servers[key])
                stream.send(ServerReply(number, [Done(None)]))
                return
        server = self._servers.get(key)
        if server is None:
            stream.send(ServerReply(number, None))
            return
        match request.operations:
            case [ops.FollowPlacements()]:
                server.keeper = stream
                server.host.rename(key)  # what the places call it
            case [ops.AddKey(other)]:
                self._servers[other] = server
                stream.send(ServerReply(number, [Done(None)]))
                return
            case [ops.DropOtherKeys()]:
                others = [each for each in self._servers if self._servers[each] is server]
                for each in others:
                    del self._servers[each]
                self._servers[key] = server
                stream.send(ServerReply(number, [Done(None)]))
                return

        # The answer to a commit goes with that to the next request, if that is here: in a run of
        # steps it reads. Others do not wait for what may take long.
        commits = all(isinstance(_on_a_shard(each), ops.CommitParts) for each in request.operations)

        def send(found: list[ServerAnswer]) -> None:
            try:
                stream.send(ServerReply(number, found), later=commits and stream.has_more)
            except MemoryError as error:
                where = f"the parameter server at {self._worker.address}"
                refused = Failed(refusal(error, "the answer to a request", where))
                # Changes stay: only reads have large answers.
                answered = [refused if _is_large(each) else each for each in found]
                stream.send(ServerReply(number, answered))

        with answers_in(stream.allocate):
            server.host.run(request.operations, PendingReply(send), self._connect, made)

    def _stop(self, server: _Server) -> None:
        self._servers = {k: each for k, each in self._servers.items() if each is not server}
        server.host.close()
        server.keeper = None  # it has nothing to hand over any more
        if not self._servers:
            self._making.end()
            self._writing.end()
            if self._timer is not None:
                self._timer.cancel()

    def _count_minute(self) -> None:
        for server in set(self._servers.values()):
            server.host.tick()
        self._timer = self._loop.call_later(_MINUTE, self._count_minute)


def _on_a_shard(operation: object) -> object:
    return operation.operation if isinstance(operation, ops.OnShard) else None


def _is_large(answer: ServerAnswer) -> bool:
    return isinstance(answer, Done) and not isinstance(answer.result, int | float | str | None)


_Run = Callable[[MessageStream, ServerRequest, Made], None]
_WhoPrepares = Callable[[ServerRequest], StandbyThreads | None]


class _MessageQueue:
    """The messages of one connection, in their order: some must wait until tables are made."""

    def __init__(self, stream: MessageStream, run: _Run, who_prepares: _WhoPrepares) -> None:
        self._stream, self._run, self._who_prepares = stream, partial(run, stream), who_prepares
        self._waiting: deque[ServerRequest] = deque()
        self._making: asyncio.Task[None] | None = None

    def take(self, request: ServerRequest) -> None:
        """Run a message, or queue it behind those before it."""
        # In a frame of its own, so that no variable keeps the message while the next is awaited:
        # its memory is given back with the answer.
        if self._making is not None:
            self._waiting.append(request)
            return
        if (threads := self._who_prepares(request)) is not None:
            making = self._make(request, threads)
            self._making = asyncio.create_task(making, name="psnb making tables")
            self._making.add_done_callback(self._made)
            return
        self._run(request, {})

    def _made(self, making: asyncio.Task[None]) -> None:
        # An unanswered request would wait for as long as this process lives: when the connection
        # breaks, it is sent again.
        if not making.cancelled() and (error := making.exception()) is not None:
            logger.error("a request could not be carried out", exc_info=error)
            self._stream.abort()

    async def _make(self, request: ServerRequest, threads: StandbyThreads) -> None:
        made: Made = {}
        # Without memory for that it is made, or refused, where it is run.
        with contextlib.suppress(MemoryError):
            request, made = await asyncio.wrap_future(threads.submit(_prepared, request))
        self._run(request, made)
        del request, made
        self._making = None
        while self._waiting and self._making is None:
            self.take(self._waiting.popleft())


def _prepared(request: ServerRequest) -> tuple[ServerRequest, Made]:
    """Do what takes long: unpickle, which may import modules, compile kernels and make tables.

    A failure raises when it is run.
    """
    operations, made = list(request.operations), {}
    for at, packed in enumerate(operations):
        with contextlib.suppress(Exception):
            operations[at] = unpacked(packed)
            match operations[at]:
                case ops.OnShard(_, OnTable(_, TuneOptimizer(hyperparameters))):
                    # Once here: JAX compiles what it calls first.
                    for value in hyperparameters.values():
                        rate_at(value, 0)
        for shard, creation in to_make(operations[at]):
            with contextlib.suppress(Exception):
                warm_up(creation)
                made[shard, creation.name] = build(creation)
    return ServerRequest(request.number, request.key, operations), made
