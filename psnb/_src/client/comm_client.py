"""CommServerClient: requests to servers over Dask's own connections, sent together.

A request names a shard; the `LayoutCache` knows its server. All requests of a call to one server go
in one message, which the server runs with no others in between. Results come in the order of the
requests. When a server does not answer, or does not have the shard any more, the client asks the
scheduler where the shard is now, and sends the request again: every operation may be repeated (see
`psnb._src.server.commit_log`).

Threads: any thread may call. Unless it is the main thread, it sends its requests itself if a
connection is open, and for a moment it reads the answers. The event loop of the worker or client
does the rest while the caller waits. A call from that event loop would wait for itself, so it is
refused. An interrupt ends the waiting only: the operations may still be done, wholly on each
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from psnb._src.client import commit as protocol
from psnb._src.client.commit import drive
from psnb._src.client.connection import (
    CONNECT_TIMEOUT,
    ServerConnection,
    ServerLiveness,
    open_connection,
)
from psnb._src.client.requests import (
    Request,
    RequestBatch,
    RequestRound,
    lost,
    unreadable,
    unresponsive,
)
from psnb._src.client.server_client import ServerClient
from psnb._src.dask_compat.reach import ConnectionPool, is_open
from psnb._src.placement.layout import ServerAddress, ShardId
from psnb._src.placement.layout_cache import LayoutCache
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.memory import refusal
from psnb._src.server.operations import CommitParts
from psnb._src.transport.stream import UnreadableError
from psnb._src.transport.turns import SocketByTurns, read_while, reads_here
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.loops import LoopErrors
from psnb._src.utils.threads import runs_here, start_task
from psnb.errors import (
    ConfigurationError,
    CoordinatorClosedError,
    PsnbError,
    ServerLostError,
    ServerUnresponsiveError,
)

logger = logging.getLogger("psnb")

CALL_TIMEOUT = 600.0
"""Seconds for one operation of a server that answers others, including the transfer of data. A
server whose process is gone is noticed immediately; an unresponsive one after its
`heartbeat_timeout`."""

RETRIES = 3
"""How often an operation is tried again when its connection breaks, as in TensorFlow."""

PATIENCE = 10.0
"""Seconds for which a server may be unresponsive, if no layout says how many."""

FAILOVER_TIMEOUT = 20.0
"""Seconds in which a copy takes over from a server that has not responded for as long as it may."""

_READS_ITSELF = 0.02
"""Seconds for which a thread that waits reads the answers itself. Then it sleeps: the event loop
reads them, and may have other news for the thread, as that a server is lost."""

_PAUSE = 0.05
"""Seconds before the first try again; twice as long before each further one, up to 0.2."""

_unanswered = partial(
    unresponsive,
    reason=f"it was not answered within {CALL_TIMEOUT:g} s, though its server lives",
)

_CLOSED = "the strategy was closed, or the Dask client or worker that carries parameters"


class CommServerClient(ServerClient):
    """Requests over Dask's connections, one to each address, with a time limit on each call.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        The event loop of the client or worker.
    pool : distributed.core.ConnectionPool
        Its connections; when it closes, this client's connections close too.
    layouts : LayoutCache
        Knows where shards are; uses the same event loop. An attribute, too.
    heartbeat_timeout : float
        Seconds for which a server may be unresponsive, if no layout says how many.
    connect_timeout : float
        Seconds to reach a server that is not connected yet.
    look_again : float
        Seconds without an answer after which the client asks whether the shard has moved, and
        whether the server lives.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: ConnectionPool,
        layouts: LayoutCache,
        *,
        heartbeat_timeout: float = PATIENCE,
        connect_timeout: float = CONNECT_TIMEOUT,
        look_again: float = 1.0,
    ) -> None:
        self._heartbeat_timeout, self._connect_timeout = heartbeat_timeout, connect_timeout
        self._look_again_after = look_again
        self._loop, self._pool, self.layouts = loop, pool, layouts
        # Used by the event loop only. A task for each address: done when it is connected.
        self._connections: dict[str, asyncio.Task[ServerConnection]] = {}
        self._open: dict[str, ServerConnection] = {}  # the open ones, by which any thread may send
        self._tasks: set[asyncio.Task[None]] = set()  # running tasks; used by the event loop only
        # Those under way, and since when; any thread, as each operation is atomic.
        self._batches: dict[RequestBatch, float] = {}
        self._attends = False  # a task looks after them; the event loop sets it
        self._looks = LoopErrors("Asking where parameters are")
        self._lives = ServerLiveness(pool, self._heard, self._look_again, look_again)
        self._closed: CoordinatorClosedError | None = None

    def close(self, why: CoordinatorClosedError | None = None) -> None:
        """Close all; any thread. Idempotent. Calls under way and later ones raise ``why``."""
        self._closed = self._closed or why or CoordinatorClosedError(_CLOSED)
        # A RuntimeError: the loop is closed, and all connections with it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._hang_up)

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        outcomes = self._outcomes(requests, seen)
        for each in outcomes:
            if isinstance(each, PsnbError):
                raise each
        return outcomes

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        return self._outcomes(requests, None)

    def insist(self, requests: Sequence[Request]) -> None:
        async def repeat(left: Sequence[Request]) -> None:
            with contextlib.suppress(CoordinatorClosedError):
                while left:
                    outcomes = zip(left, await self.ask(left), strict=True)
                    left = [e for e, out in outcomes if isinstance(out, ServerUnresponsiveError)]

        if requests:
            self._on_loop(lambda: self._spawn(repeat(requests)))

    def _outcomes(self, requests: Sequence[Request], seen: dict[ShardId, int] | None) -> list[Any]:
        if runs_here(self._loop) or reads_here():
            raise ConfigurationError(
                "parameters cannot be reached from Dask's event loop, or while the answer to "
                "another call is taken: call from a closure, a task or the notebook's thread"
            )
        if not requests:
            return []
        batch, end = RequestBatch(requests), time.monotonic() + CALL_TIMEOUT
        try:
            self._begin(batch)
            if threading.current_thread() is not threading.main_thread():
                read_while(lambda: not batch.done.done(), self._sockets(batch), _READS_ITSELF)
            while not batch.done.done():
                try:
                    batch.done.result(self._look_again_after)
                except TimeoutError:
                    if self._loop.is_closed():  # and all connections with it
                        raise CoordinatorClosedError(_CLOSED) from None
                    if time.monotonic() > end:
                        raise _unanswered(batch.requests[0]) from None
        finally:
            self._batches.pop(batch, None)
            batch.done.cancel()  # no effect if it is done; otherwise it is not waited for any more
        return batch.outcomes(seen)

    def _sockets(self, batch: RequestBatch) -> list[SocketByTurns]:
        """Return what all answers come through; nothing unless threads can read all of it."""
        if len(batch.sent) < len(batch.requests):
            return []
        found = []
        for address in {server.address for server in list(batch.sent.values())}:
            connection = self._open.get(address)
            if connection is None or connection.stream.by_turns is None:
                return []
            found.append(connection.stream.by_turns)
        return found

    async def ask(self, requests: Sequence[Request]) -> list[Any]:
        """Make requests, and return errors as results; on the event loop."""
        if not requests:
            return []
        ended = asyncio.Event()
        batch = RequestBatch(requests, partial(self._on_loop, ended.set))
        try:
            self._begin(batch)
            await ended.wait()
        finally:
            self._batches.pop(batch, None)
            batch.done.cancel()  # no effect if it is done; otherwise it is not waited for any more
        return batch.outcomes()

    def commit(self, commit: Commit, parts: Mapping[ShardId, Part]) -> int | None:
        return drive(protocol.commit(commit, parts, self._together, protocol.ask), self.attempt)

    def commit_soon(
        self,
        commit: Commit,
        parts: Mapping[ShardId, Part],
        ended: Callable[[Any], None],
        *,
        later: bool = False,
    ) -> None:
        """Begin what `commit` does; see `ServerClient`.

        The thread sends it and continues; the event loop takes the answer, or a thread that reads.
        So a worker computes while its last commit travels. Nearly always there is one answer: all
        shards are on one server.

        With ``later``, a small one is held back until this client sends that server something else,
        or `flush`: in a run of steps, what the next one reads goes in the same write.
        """
        work = protocol.commit(commit, parts, self._together, protocol.ask)
        requests: Sequence[Request] = work.send(None)
        server = self.server_of(requests[0].to)
        whole = isinstance(requests[0].operation, CommitParts)
        if whole and server is not None and server.address in self._open:
            self._go_on(work, requests, ended, later)
            return
        # Else what this thread reads next might come before it.
        try:
            found = drive(work, self.attempt, requests)
        except Exception as error:  # the commit's outcome
            ended(error)
        else:
            ended(found)

    def _go_on(
        self,
        work: Coroutine[Any, Any, int | None],
        requests: Sequence[Request],
        ended: Callable[[Any], None],
        later: bool = False,
    ) -> None:
        """Make a commit's next requests; when they have answers, those after; any thread."""

        def answered() -> None:
            self._batches.pop(batch, None)
            try:
                self._go_on(work, work.send(batch.outcomes()), ended)
            except StopIteration as stop:
                ended(stop.value)
            except Exception as error:  # the commit's outcome
                ended(error)

        batch = RequestBatch(requests, answered, later)
        try:
            self._begin(batch)
        except CoordinatorClosedError as error:
            batch.failed(range(len(requests)), error)

    def flush(self) -> None:
        """Send what is held back; any thread."""
        for connection in list(self._open.values()):
            connection.stream.flush()

    def _together(self, shards: Sequence[ShardId]) -> bool:
        """Return whether shards are likely to be on one server, as far as is known here."""
        if len(shards) == 1:
            return True
        layouts = [self.layouts.known(shard.strategy) for shard in shards]
        if layouts[0] is None or any(layout is not layouts[0] for layout in layouts):
            return False
        placements = [layouts[0].placements[shard.number] for shard in shards]
        return len({each.servers for each in placements}) == 1 == len(placements[0].servers)

    def _begin(self, batch: RequestBatch) -> None:
        # Before the check for closing: either that check finds it closed, or `_hang_up` finds this
        # batch.
        self._batches[batch] = time.monotonic()
        if self._closed is not None:
            raise self._why()
        rest: Sequence[int] = range(len(batch.requests))
        # Not in the main thread, which an interrupt may stop in the middle of a message.
        if threading.current_thread() is not threading.main_thread():
            rest = self._send(batch, rest)
        try:
            if not self._attends:
                self._loop.call_soon_threadsafe(self._look_after)
            if rest:
                self._loop.call_soon_threadsafe(self._start, batch, rest)
        except RuntimeError as error:
            raise CoordinatorClosedError(_CLOSED) from error

    def _send(self, batch: RequestBatch, positions: Iterable[int]) -> list[int]:
        """Send what can be sent immediately; any thread. Return the positions of the rest."""
        groups: dict[ServerAddress, list[int]] = {}
        rest = []
        for position in positions:
            server = self.server_of(batch.requests[position].to)
            if server is None or server.address not in self._open:
                rest.append(position)
            else:
                groups.setdefault(server, []).append(position)
        for server, mine in groups.items():
            connection = self._open.get(server.address)
            if connection is None:  # it broke this very moment
                rest.extend(mine)
            else:
                batch.sent.update(dict.fromkeys(mine, server))
                self._hand_over(connection, batch, server, mine)
        return rest

    def _hand_over(
        self,
        connection: ServerConnection,
        batch: RequestBatch,
        server: ServerAddress,
        positions: Sequence[int],
    ) -> None:
        later, batch.later = batch.later, False  # not when it is sent again
        try:
            message = RequestRound(batch, server, positions, self.again, self.later)
            connection.send(message, later=later)
        except MemoryError as error:  # an answer like others: prepared parts must be undone
            batch.failed(positions, refusal(error, "a request to it", "this process"))

    def server_of(self, to: ShardId | ServerAddress) -> ServerAddress | None:
        if isinstance(to, ServerAddress):
            return to
        layout = self.layouts.known(to.strategy)
        return layout.placements[to.number].primary if layout is not None else None

    @uninterrupted  # the event loop uses the memory as well
    def allocate(
        self, shard: ShardId, shape: tuple[int, ...], dtype: np.dtype
    ) -> np.ndarray | None:
        server = self.server_of(shard)
        connection = self._open.get(server.address) if server is not None else None
        return None if connection is None else connection.stream.allocate(shape, dtype)

    def _why(self) -> CoordinatorClosedError:
        closed = self._closed or CoordinatorClosedError(_CLOSED)
        return type(closed)(*closed.args)  # a copy: several threads may raise it

    def _hang_up(self) -> None:
        for batch in list(self._batches):
            batch.failed(range(len(batch.requests)), self._why())
        self._open.clear()
        self._lives.close()
        for task in self._tasks:
            task.cancel()
        connections, self._connections = self._connections, {}
        for connecting in connections.values():
            if not connecting.done():
                connecting.cancel()
            elif not connecting.cancelled() and connecting.exception() is None:
                connecting.result().close()

    def again(
        self,
        batch: RequestBatch,
        positions: Sequence[int],
        server: ServerAddress,
        error: OSError | None = None,
    ) -> None:
        """Send requests again, to where their shards are now; any thread. See `_again`."""
        self._on_loop(lambda: self._spawn(self._again(batch, positions, server, error)))

    def later(self, batch: RequestBatch, positions: Sequence[int]) -> None:
        """Send requests again after a pause: their shards are being loaded; any thread."""
        self._on_loop(lambda: self._spawn(self._resend(batch, positions)))

    def _on_loop(self, function: Callable[[], object]) -> None:
        """Call a function on the event loop, at once if this is its thread."""
        if runs_here(self._loop):
            function()
        else:
            with contextlib.suppress(RuntimeError):  # it is closed: the callers have their error
                self._loop.call_soon_threadsafe(function)

    # On the event loop.

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        start_task(coroutine, self._tasks, "psnb request")

    def _start(self, batch: RequestBatch, positions: Iterable[int]) -> None:
        groups: dict[ServerAddress | None, list[int]] = {}
        for position in self._send(batch, positions):
            groups.setdefault(self.server_of(batch.requests[position].to), []).append(position)
        for server, mine in groups.items():
            if server is None:
                self._spawn(self._find(batch, mine))
            else:
                self._spawn(self._carry(batch, mine, server))

    async def _find(self, batch: RequestBatch, positions: Sequence[int]) -> None:
        """Find out where shards are; requests for shards that do not exist fail."""
        with batch.failing(positions):
            await self._refresh(batch, positions)
            found = [p for p in positions if self.server_of(batch.requests[p].to) is not None]
            batch.failed(set(positions).difference(found), lambda request: lost(request, None))
            self._start(batch, found)

    async def _refresh(self, batch: RequestBatch, positions: Sequence[int]) -> None:
        to = [batch.requests[position].to for position in positions]
        for strategy in {each.strategy for each in to if not isinstance(each, ServerAddress)}:
            await self.layouts.refresh(strategy)

    async def _carry(
        self, batch: RequestBatch, positions: Sequence[int], server: ServerAddress
    ) -> None:
        with batch.failing(positions):
            # Before connecting: `_look_again` watches it.
            batch.sent.update(dict.fromkeys(positions, server))
            address = server.address
            connecting = self._connections.get(address)
            if connecting is None:
                if not is_open(self._pool):
                    raise CoordinatorClosedError(_CLOSED)
                connecting = asyncio.create_task(self._connect(address), name="psnb connecting")
                self._connections[address] = connecting
            try:
                connection = await asyncio.shield(connecting)
            except OSError as error:  # TimeoutError among them
                if self._connections.get(address) is connecting:
                    del self._connections[address]  # the next request tries again
                await self._again(batch, positions, server, error)
            else:
                if not batch.done.done():  # it took too long, and the caller has got an error
                    self._hand_over(connection, batch, server, positions)

    async def _connect(self, address: str) -> ServerConnection:
        broken = partial(self._broken, address)
        connection = await open_connection(
            self._pool, address, broken, self._connect_timeout, by_threads=True
        )
        if not connection.shared:
            logger.info("parameters at %s go over the network, not shared memory", address)
        self._open[address] = connection
        return connection

    def _broken(self, address: str, exchanges: Sequence[Any], error: OSError) -> None:
        self._connections.pop(address, None)
        self._open.pop(address, None)
        for exchange in exchanges:
            batch, positions = exchange.batch, exchange.positions
            if not is_open(self._pool):
                batch.failed(positions, CoordinatorClosedError(_CLOSED))
            if batch.done.done():
                continue
            batch.breaks += 1
            if isinstance(error, UnreadableError) and batch.breaks > RETRIES:
                batch.failed(positions, partial(unreadable, error=error))
                continue
            # If the process is gone, connecting again will show it. If a message could not be read,
            # it may have been another one, and this one may have been carried out.
            again = error if batch.breaks > RETRIES else None
            self.again(batch, positions, exchange.server, again)

    async def _again(
        self,
        batch: RequestBatch,
        positions: Sequence[int],
        server: ServerAddress,
        error: OSError | None,
    ) -> None:
        """Send requests again, to where their shards are now.

        With an ``error`` (the server cannot be reached), only if they are elsewhere now, or may be
        soon.
        """
        with batch.failing(positions):
            waited = batch.since_trouble()
            try:
                await self._refresh(batch, positions)
            except ServerLostError as closed:
                return batch.failed(positions, partial(lost, reason=closed))
            except OSError as unknown:
                reason = f"the scheduler does not say where it is: {unknown!r}"
                return batch.failed(positions, partial(unresponsive, reason=reason))
            hopeful = []
            for position in positions:
                given_up = self._given_up(batch.requests[position], server, error, waited)
                if given_up is None:
                    hopeful.append(position)
                else:
                    batch.failed([position], given_up)
            if hopeful:
                await self._resend(batch, hopeful)
        return None

    async def _resend(self, batch: RequestBatch, positions: Sequence[int]) -> None:
        await asyncio.sleep(batch.pause(_PAUSE))
        if not batch.done.done():
            self._start(batch, positions)

    def _given_up(
        self, request: Request, server: ServerAddress, error: OSError | None, waited: float
    ) -> ServerLostError | None:
        """Return the error of a request that is not tried again; None if it should be."""
        there = self.server_of(request.to)
        copied = self._copied(request)
        if there is None or (
            there == server and isinstance(error, ConnectionRefusedError) and not copied
        ):
            return lost(request, error, server)
        moves = there != server or error is None or copied
        if waited < self._timeout_of(request, server, moves):
            return None
        return unresponsive(
            request, f"for {waited:.0f} s it was not to be found: {error or 'it moves'}"
        )

    def _copied(self, request: Request) -> bool:
        if isinstance(request.to, ServerAddress):
            return False
        layout = self.layouts.known(request.to.strategy)
        # A copy that is being filled may be complete already; only the notebook knows that so far.
        return layout is not None and len(layout.placements[request.to.number].servers) > 1

    def _heard(self, server: ServerAddress) -> int:
        """Return how many messages have come where the data comes."""
        connection = self._open.get(server.address)
        return connection.heard if connection is not None else 0

    def _timeout_of(self, request: Request, server: ServerAddress, moves: bool = False) -> float:
        """Return the seconds for which a server may be unresponsive; more if the shard ``moves``.

        The notebook waits as long before a replica takes over. A client that waited just as long
        would give up at that very moment.
        """
        to = request.to
        strategy = None if isinstance(to, ServerAddress) else to.strategy
        found = [
            layout.heartbeat_timeout
            for layout in self.layouts.all()
            # The first: a server from which others have taken over is in no layout any more.
            if layout.strategy == strategy or server in layout.servers
        ]
        longest = min(found, default=self._heartbeat_timeout)
        return longest + FAILOVER_TIMEOUT if moves else longest

    def _look_after(self) -> None:
        """Look again and again after what is under way, until nothing is."""
        if not self._attends:
            self._attends = True
            self._spawn(self._attend())

    async def _attend(self) -> None:
        errors = LoopErrors("Looking after requests to servers")
        while self._attends:
            await asyncio.sleep(self._look_again_after / 2)
            with errors:
                now = time.monotonic()
                for batch, since in list(self._batches.items()):
                    if now - since >= CALL_TIMEOUT:
                        batch.failed(range(len(batch.requests)), _unanswered)
                    elif now - since >= self._look_again_after:
                        self._spawn(self._look_again(batch))
            # A thread notes a batch before it sees whether there is this task; so this looks after.
            self._attends = False
            self._attends = bool(self._batches)

    async def _look_again(self, batch: RequestBatch) -> None:
        """Send requests again whose shards have moved; check whether the other servers live."""
        with self._looks, contextlib.suppress(OSError, PsnbError):
            await self._refresh(batch, list(batch.waiting()))
        elsewhere = []
        for position, server in batch.waiting().items():
            request, silence = batch.requests[position], self._lives.silences.get(server, 0.0)
            if self.server_of(request.to) not in (server, None):
                elsewhere.append(position)
            elif silence >= self._timeout_of(request, server, self._copied(request)):
                reason = f"it has not answered for {silence:.0f} s"
                batch.failed([position], unresponsive(request, reason))
            else:
                self._lives.follow(server, batch, self._timeout_of(request, server))
        self._start(batch, elsewhere)
