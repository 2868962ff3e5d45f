"""The parameter servers of a worker process, and the handler through which clients reach them.

They are kept here, not as Dask actors: an actor ends with its client's connection to the scheduler,
which may break and come back. A strategy starts and stops its servers, and tells them again and
again which shards to hold; a server that is not told so for as long as the strategy has said is
dropped. Calls go through one handler on the worker's Dask server, ``psnb_server``, which finds a
server by its key. Whoever takes a strategy over gives its servers new keys, so that nobody reaches
them who knows the old ones only.

Threads: operations run where they arrive, on the worker's event loop, one after the other, so no
table needs a lock and every operation is atomic. (A thread of its own for them would cost 0.3 ms a
call, as much as the round trip.) But a new table is compiled and made in another thread, where what
strategies send of users' classes and functions is unpickled too; messages on the same connection
wait meanwhile. (What servers send to copies is unpickled as it comes.) While the process has
servers, a thread ``psnb-life`` checks whether the loop makes progress. If not, it sends *busy* to
all clients. Only a frozen process sends nothing. What is written of tables (`table_writing`) a
thread ``psnb-writing`` writes, and asks the loop for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from distributed import Worker

from psnb._src.dask_compat import CONNECTION_KEPT, Comm, add_handler, event_loop, remove_handler
from psnb._src.server.memory import lending_answers, refusal
from psnb._src.server.operations import (
    BUSY,
    AddKey,
    Done,
    DropOtherKeys,
    Failed,
    FollowPlaces,
    OnShard,
    PendingReply,
    ServerAnswer,
    ServerReply,
    ServerRequest,
    StartServer,
    StopServer,
    number_in,
)
from psnb._src.server.optimizer import rate_at
from psnb._src.server.replication import Connect
from psnb._src.server.server import Host, Made, takes_long, to_make, unpacked
from psnb._src.server.shard import build, warm_up
from psnb._src.server.snapshots import Soon
from psnb._src.server.table import OnTable, TuneOptimizer
from psnb._src.transport.shared_memory import Probe, can_see
from psnb._src.transport.shared_memory import probe as own_probe
from psnb._src.transport.stream import MessageStream, UnreceivedError, message_stream, unwired
from psnb._src.utils.files import own_version
from psnb.errors import ServerLostError

HANDLER = "psnb_server"
"""The name of the handler on each Dask worker."""

_MINUTE = 60.0
_LOOK = 0.5
_LOOK_WHETHER_EMPTY = 0.05
_STUCK = 1.0
"""Seconds without progress after which the event loop counts as busy."""


class _Server:
    """A server, the seconds since its strategy was last heard, and the connection of that."""

    def __init__(self, key: str, name: str, life: float, soon: Soon) -> None:
        self.host = Host(key, f"server {name}", soon)
        self.silence, self.life = 0.0, life
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
        self._streams: set[MessageStream] = (
            set()
        )  # to each client, on the loop; the thread copies it
        self._ticked = 0.0  # the last progress of the loop; written by it, read by the thread
        self._ended = threading.Event()  # ends the thread, which runs while there are servers
        self._timers: list[asyncio.TimerHandle] = []
        self._leaving = False
        add_handler(worker, HANDLER, self._serve)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._servers)

    async def leave(self, seconds: float) -> None:
        """Have the strategies move all shards elsewhere and stop their servers here.

        Returns when they have, or cannot be reached any more, or after so many seconds.
        """
        self._leaving = True
        for server in self._servers.values():
            server.host.leaves = True
        end = self._loop.time() + seconds
        while self._loop.time() < end and any(
            server.keeper in self._streams for server in self._servers.values()
        ):
            await asyncio.sleep(_LOOK_WHETHER_EMPTY)

    def close(self) -> None:
        """Drop all servers, and answer no more requests."""
        remove_handler(self._worker, HANDLER)
        for key in list(self._servers):
            self._stop(key)

    async def _serve(self, comm: Comm, probe: Probe | None = None, psnb: str = "") -> object:
        if psnb != own_version():
            return {"status": "another version", "psnb": own_version()}
        # The caller keeps the connection open. Then it sends `ServerRequest`s, and gets a
        # `ServerReply` to each: without answers, if the server's process was restarted at the same
        # address, or its strategy was closed.
        sees = can_see(probe)
        await comm.write({"status": "OK", "probe": own_probe(), "sees": sees})
        stream = message_stream(comm)
        messages = _MessageQueue(stream, self._run)
        self._streams.add(stream)
        try:
            seen = await stream.receive()
            if probe is not None and sees:
                stream.share(probe[0], seen=seen)
            while True:
                try:
                    messages.take(unwired(await stream.receive(), ServerRequest))
                except UnreceivedError as error:
                    stream.send(self._refused(error).wire())
        except OSError:  # the client that asked is gone
            return CONNECTION_KEPT
        finally:
            self._streams.discard(stream)
            stream.abort()

    def _refused(self, error: UnreceivedError) -> ServerReply:
        """Return the answer to a request that there is no memory for."""
        where = f"the parameter server at {self._worker.address}"
        refused = refusal(error, "a request", where)
        return ServerReply(number_in(error.head), [Failed(refused)])

    def _run(self, stream: MessageStream, request: ServerRequest, made: Made) -> None:
        number, key = request.number, request.key
        match request.operations:
            case [StartServer()] if self._leaving:
                ends = ServerLostError(f"the process at {self._worker.address} is about to end")
                stream.send(ServerReply(number, [Failed(ends)]).wire())
                return
            case [StartServer(name, life)]:
                self._start(key, name, life)
                stream.send(ServerReply(number, [Done(None)]).wire())
                return
            case [StopServer()]:
                self._stop(key)
                stream.send(ServerReply(number, [Done(None)]).wire())
                return
        server = self._servers.get(key)
        if server is None:
            stream.send(ServerReply(number, None).wire())
            return
        match request.operations:
            case [FollowPlaces()]:
                server.silence, server.keeper = 0.0, stream
                server.host.rename(key)  # what the places call it
            case [AddKey(other)]:
                self._servers[other] = server
                stream.send(ServerReply(number, [Done(None)]).wire())
                return
            case [DropOtherKeys()]:
                others = [each for each in self._servers if self._servers[each] is server]
                for each in others:
                    del self._servers[each]
                self._servers[key] = server
                stream.send(ServerReply(number, [Done(None)]).wire())
                return

        def send(found: list[ServerAnswer]) -> None:
            try:
                stream.send(ServerReply(number, found).wire())
            except MemoryError as error:
                where = f"the parameter server at {self._worker.address}"
                refused = Failed(refusal(error, "the answer to a request", where))
                # What was changed is changed: only what reads has large answers.
                answered = [refused if _is_large(each) else each for each in found]
                stream.send(ServerReply(number, answered).wire())

        with lending_answers(stream.lend):
            server.host.run(request.operations, PendingReply(send), self._connect, made)

    def _start(self, key: str, name: str, life: float) -> None:
        if key in self._servers:
            return  # it was asked for twice
        self._servers[key] = _Server(key, name, life, self._loop.call_soon_threadsafe)
        if len(self._servers) == 1:
            self._ended = threading.Event()
            self._timers = [self._loop.call_later(_MINUTE, self._count_minute)]
            self._go_round()
            look = partial(self._look, self._ended)
            threading.Thread(target=look, name="psnb-life", daemon=True).start()

    def _stop(self, key: str) -> None:
        server = self._servers.get(key)
        if server is not None:
            self._servers = {k: each for k, each in self._servers.items() if each is not server}
            server.host.close()
        if not self._servers:
            self._ended.set()
            for timer in self._timers:
                timer.cancel()

    def _count_minute(self) -> None:
        for server in set(self._servers.values()):
            server.host.tick()
        self._timers[0] = self._loop.call_later(_MINUTE, self._count_minute)

    def _go_round(self) -> None:
        self._ticked = time.monotonic()
        for timer in self._timers[1:]:
            timer.cancel()  # so that there is one, whoever has called
        self._timers[1:] = [self._loop.call_later(_LOOK, self._go_round)]
        # Rounds are counted: where this process was frozen, what was sent to it waits to be read.
        for key, server in list(self._servers.items()):
            server.silence += _LOOK
            if server.silence > server.life:
                self._stop(key)

    def _look(self, ended: threading.Event) -> None:
        # Runs in the thread. Sending takes the stream's lock, which the loop holds only briefly.
        while not ended.wait(_LOOK):
            if time.monotonic() - self._ticked > _STUCK:
                for stream in self._streams.copy():
                    stream.send(ServerReply(BUSY, None).wire())


def _is_large(answer: ServerAnswer) -> bool:
    return isinstance(answer, Done) and not isinstance(answer.result, int | float | str | None)


_Run = Callable[[MessageStream, ServerRequest, Made], None]


class _MessageQueue:
    """The messages of one connection, in their order: some must wait until tables are made."""

    def __init__(self, stream: MessageStream, run: _Run) -> None:
        self._run = partial(run, stream)
        self._waiting: deque[ServerRequest] = deque()
        self._making: asyncio.Task[None] | None = None

    def take(self, request: ServerRequest) -> None:
        """Run a message, or queue it behind those before it."""
        # In a frame of its own, so that no variable keeps the message while the next is awaited:
        # its memory is given back with the answer.
        if self._making is not None:
            self._waiting.append(request)
            return
        if any(map(takes_long, request.operations)):
            making = self._make(request)
            self._making = asyncio.create_task(making, name="psnb making tables")
            return
        self._run(request, {})

    async def _make(self, request: ServerRequest) -> None:
        request, made = await asyncio.to_thread(_made, request)
        self._run(request, made)
        del request, made
        self._making = None
        while self._waiting and self._making is None:
            self.take(self._waiting.popleft())


def _made(request: ServerRequest) -> tuple[ServerRequest, Made]:
    """Do what takes long: unpickle, which may import modules, compile kernels and make tables.

    What fails raises when it is run.
    """
    operations, made = list(request.operations), {}
    for at, packed in enumerate(operations):
        with contextlib.suppress(Exception):
            operations[at] = unpacked(packed)
            match operations[at]:
                case OnShard(_, OnTable(_, TuneOptimizer(hyperparameters))):
                    # Once here: JAX compiles what it calls first.
                    for value in hyperparameters.values():
                        rate_at(value, 0)
        for shard, creation in to_make(operations[at]):
            with contextlib.suppress(Exception):
                warm_up(creation)
                made[shard, creation.name] = build(creation)
    return ServerRequest(request.number, request.key, operations), made
