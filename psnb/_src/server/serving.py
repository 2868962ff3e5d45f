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
call, as much as the round trip.) What takes long is done by `StandbyThreads`, which the process has
from its first server on. ``psnb-making`` compiles and makes new tables, and unpickles what
strategies send of users' classes and functions, while messages on the same connection wait. (What
servers send to copies is unpickled as it comes.) ``psnb-files``, of which there are two, write
checkpoints, for which they ask the loop, and read them: a restore need not wait for a save. Where
they write may not answer for any time, which holds up nothing else. No other thread is started
while there are servers, as each takes some 70 MB of addresses, which `ulimit -v` counts.

A server lives as long as this loop turns: nothing else answers for it. Clients that hear nothing
for as long as the strategy's ``heartbeat_timeout`` take it for unresponsive, also if the process
works, and a replica takes over. (A thread that told them *busy* meanwhile was rejected: it told
them so of loops that never turned again.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from distributed import Worker

from psnb._src.dask_compat.plugins import (
    actor_of,
    add_handler,
    ended_at,
    memory_limit,
    remove_handler,
)
from psnb._src.dask_compat.reach import CONNECTION_KEPT, Comm, event_loop
from psnb._src.placement.registry import ParameterServer
from psnb._src.server import operations as ops
from psnb._src.server.disk import DiskSpace
from psnb._src.server.making import (
    begins_scan,
    build,
    reads_files,
    takes_long,
    to_make,
    unpacked,
    warm_up,
    warm_up_scans,
)
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
from psnb._src.server.tables.growing_array import promised
from psnb._src.server.tables.operations import OnTables, Operation, TuneOptimizer
from psnb._src.transport.shared_memory import Probe, can_see
from psnb._src.transport.shared_memory import probe as own_probe
from psnb._src.transport.stream import MessageStream, UnreceivedError, message_stream
from psnb._src.utils.process_memory.limits import MemoryLimits
from psnb._src.utils.process_memory.room import room
from psnb._src.utils.standby import StandbyThreads, extend_stack
from psnb._src.utils.threads import start_task
from psnb._src.utils.version import own_version
from psnb.errors import CheckpointError, ServerLostError

HANDLER = "psnb_server"
"""The name of the handler on each Dask worker."""

GRACE = 25.0
"""Seconds that servers get to hand over what they hold."""

_MINUTE = 60.0
_LOOK_WHETHER_EMPTY = 0.05


@dataclass(eq=False)
class _Server:
    """A server, Dask's key for it, and the latest connection of its strategy."""

    task: str
    host: Host
    keeper: MessageStream | None = None


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
        self._making = self._files = StandbyThreads("psnb-none", 0)
        self._disk = DiskSpace()
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
            room.watch(MemoryLimits(ended_at(self._worker)), promised)
            self._making = StandbyThreads("psnb-making", 1)
            self._files = StandbyThreads("psnb-files", 2)
            self._disk = DiskSpace(self._worker.local_directory, memory_limit(self._worker))
            self._timer = self._loop.call_later(_MINUTE, self._count_minute)
        soon = self._loop.call_soon_threadsafe
        host = Host(key, f"server {actor.name}", soon, self._making, self._files, self._disk)
        host.leaves, actor.host = self._leaving, host
        self._servers[key] = _Server(key, host)

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
        self._streams.add(stream)
        try:
            seen = await stream.receive(bool)
            if probe is not None and sees:
                stream.share(probe[0], seen=seen)
            while True:
                try:
                    await stream.run(ServerRequest, partial(self._take, stream))
                except UnreceivedError as error:
                    refused = self._refused(error, "a request")
                    stream.send(ServerReply(number_in(error.head), [refused]))
        except OSError:  # the client that asked is gone
            return CONNECTION_KEPT
        finally:
            self._streams.discard(stream)
            stream.abort()

    def _take(
        self, stream: MessageStream, request: ServerRequest
    ) -> Coroutine[Any, Any, None] | None:
        """Run a request, or return what does so when that which takes long is done."""
        # In a frame of its own, so that no variable keeps the request while the next is awaited:
        # its memory is given back with the answer.
        server = self._servers.get(request.key)
        if server is not None and any(map(takes_long, request.operations)):
            if any(map(reads_files, request.operations)):
                return self._prepare(stream, request, self._files, partial(_read, server.host))
            return self._prepare(stream, request, self._making, partial(_made, self._disk))
        self._run(stream, request, {})
        return None

    async def _prepare(
        self,
        stream: MessageStream,
        request: ServerRequest,
        threads: StandbyThreads,
        prepare: Callable[[ServerRequest], tuple[ServerRequest, Made]],
    ) -> None:
        stream.flush()  # an answer that waits for the next one would wait for this
        made: Made = {}
        # Without memory for that it is made, or refused, where it is run.
        with contextlib.suppress(MemoryError):
            request, made = await asyncio.wrap_future(threads.submit(prepare, request))
        self._run(stream, request, made)

    def _refused(self, error: MemoryError, what: str) -> Failed:
        return Failed(refusal(error, what, f"the parameter server at {self._worker.address}"))

    def _run(self, stream: MessageStream, request: ServerRequest, made: Made) -> None:
        number, key = request.number, request.key
        server, done = self._servers.get(key), ServerReply(number, [Done(None)])
        match request.operations:
            case [ops.PrepareServer()] if self._leaving:
                ends = ServerLostError(f"the process at {self._worker.address} is about to end")
                return stream.send(ServerReply(number, [Failed(ends)]))
            case [ops.PrepareServer()]:
                return stream.send(done)
            case [ops.StopServer()]:
                if server is not None:
                    self._stop(server)
                return stream.send(done)
        if server is None:
            return stream.send(ServerReply(number, None))
        match request.operations:
            case [ops.FollowPlacements()]:
                server.keeper, server.host.key = stream, key
            case [ops.AddKey(other)]:
                self._servers[other] = server
                return stream.send(done)
            case [ops.DropOtherKeys()]:
                rest = self._servers.items()
                self._servers = {k: each for k, each in rest if k == key or each is not server}
                return stream.send(done)

        # The answer to a commit goes with that to the next request, if that is here: in a run of
        # steps it reads. Others do not wait for what may take long.
        commits = all(
            isinstance(each, ops.OnShard) and isinstance(each.operation, ops.CommitParts)
            for each in request.operations
        )

        def send(found: list[ServerAnswer]) -> None:
            try:
                stream.send(ServerReply(number, found), later=commits and stream.has_more)
            except MemoryError as error:
                refused = self._refused(error, "the answer to a request")
                # Changes stay: only reads have large answers.
                answered = [refused if _is_large(each) else each for each in found]
                stream.send(ServerReply(number, answered))

        token = answers_in.set(stream.allocate)
        try:
            server.host.run(request.operations, PendingReply(send), self._connect, made)
        finally:
            answers_in.reset(token)
        return None

    def _stop(self, server: _Server) -> None:
        self._servers = {k: each for k, each in self._servers.items() if each is not server}
        server.host.close()
        server.keeper = None  # it has nothing to hand over any more
        if not self._servers:
            room.end()
            self._making.end()
            self._files.end()
            self._disk.close()
            if self._timer is not None:
                self._timer.cancel()

    def _count_minute(self) -> None:
        for server in set(self._servers.values()):
            server.host.tick()
        self._timer = self._loop.call_later(_MINUTE, self._count_minute)


def _is_large(answer: ServerAnswer) -> bool:
    return isinstance(answer, Done) and not isinstance(answer.result, int | float | str | None)


def _read(host: Host, request: ServerRequest) -> tuple[ServerRequest, Made]:
    """Read the files that operations need; one that cannot be read is not tried again."""

    def read(operation: Operation) -> Operation:
        try:
            return host.read_here(operation)
        except CheckpointError as error:
            assert isinstance(operation, ops.OnShard)
            change = msgspec.structs.replace(operation.operation, unread=str(error))
            return msgspec.structs.replace(operation, operation=change)

    operations = [read(each) for each in request.operations]
    return ServerRequest(request.number, request.key, operations), {}


def _made(disk: DiskSpace, request: ServerRequest) -> tuple[ServerRequest, Made]:
    """Do what takes long: unpickle, which may import modules, compile kernels and make tables.

    A failure raises when it is run.
    """
    operations, made = list(request.operations), {}
    for at, packed in enumerate(operations):
        with contextlib.suppress(Exception):
            operations[at] = unpacked(packed)
            match operations[at]:
                case ops.OnShard(_, OnTables(_, TuneOptimizer(hyperparameters))):
                    # Once here: JAX compiles what it calls first.
                    for value in hyperparameters.values():
                        rate_at(value, 0)
            if begins_scan(operations[at]):
                warm_up_scans()
        for shard, creation in to_make(operations[at]):
            with contextlib.suppress(Exception):
                warm_up(creation)
                made[shard, creation.name] = build(creation, disk)
    return ServerRequest(request.number, request.key, operations), made
