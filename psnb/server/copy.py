"""Copy: a second copy of a shard, on another server, as the server of the first one sees it.

Everything that changes the shard is sent on, in order, so the copy holds the same: chain
replication (van Renesse and Schneider, *Chain Replication for Supporting High Throughput and
Availability*, OSDI 2004) with a chain of two, but that reads are answered by its head. A change is
acknowledged to whoever made it when the copy has it.

A new copy is filled while the shard is in use: one table after the other is sent as it is at that
moment, and from then on every change to it. Threads: the server's event loop, no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from psnb.server.reply import Reply
from psnb.server.rounds import HELD
from psnb.server.shard import Shard
from psnb.server.tables import TABLES

logger = logging.getLogger("psnb")

ITSELF = -1
"""In place of a shard's number, for operations of the server."""


class CopyState(StrEnum):
    """How far a copy is; it goes from top to bottom, or from anywhere to `BROKEN`."""

    FILLING = "filling"
    FILLED = "filled"
    BROKEN = "broken"


class Exchange(Protocol):
    """A request that wants an answer."""

    def message(self) -> tuple[Any, ...]: ...  # noqa: D102
    def answered(self, answer: tuple[Any, ...]) -> None: ...  # noqa: D102


class Link(Protocol):
    """A connection to another server."""

    def send(self, exchange: Exchange) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


Connect = Callable[[str, Callable[[Sequence[Any], OSError], None]], Awaitable[Link]]
"""Connects to an address; the function is called when the connection breaks."""


DONE, DEPOSED = "done", "deposed"
"""What a copy answers; the latter if it is the shard itself now."""


class _Change:
    """One operation on its way to a copy."""

    def __init__(
        self,
        copy: Copy,
        operation: str,
        arguments: Mapping[str, Any],
        asked: asyncio.Future[Any] | None,
    ) -> None:
        self._copy, self._operation, self._arguments = copy, operation, arguments
        self.asked = asked

    def message(self) -> tuple[Any, ...]:
        return self._copy.key, [(ITSELF, "", self._operation, self._arguments)]

    def answered(self, answer: tuple[Any, ...]) -> None:
        status, *rest = answer[1][0] if answer[0] == "OK" else answer
        self._copy.answered(self, rest[0] if rest else status)


class Copy:
    """Sends a shard's changes on to another server.

    Parameters
    ----------
    index : int
        The shard's number.
    shard : Shard
        The shard.
    address, key : str
        The other server.
    deposed : callable
        Called when the copy says that it is the shard itself now.

    Attributes
    ----------
    state : CopyState
        How far it is.
    key : str
        The other server's.
    """

    def __init__(
        self, index: int, shard: Shard, address: str, key: str, deposed: Callable[[], None]
    ) -> None:
        self.key, self.state = key, CopyState.FILLING
        self._index, self._shard, self._address = index, shard, address
        self._deposed = deposed
        self._link: Link | None = None
        self._installed: set[str] | None = set()  # the tables that the copy has; None: all
        # Changes that the copy has not acknowledged, with who waits for them and in which place.
        self._held: dict[_Change, tuple[Reply, int]] = {}
        self._asking: set[asyncio.Future[Any]] = set()

    async def fill(self, connect: Connect) -> None:
        """Bring the copy up to date; ends with `FILLED` or `BROKEN`."""
        try:
            self._link = await connect(self._address, self._broken)
            installed = self._installed = set()
            # Sent at once: whatever is done from this moment on is sent on after it.
            await self._ask("adopt", {"index": self._index, "log": self._shard.log()})
            for name in self._shard.tables():
                if self._missing(name, installed):
                    await self._ask("warm", {"creation": self._shard.creation(name)})
                if self._missing(name, installed):
                    installed.add(name)
                    content = self._shard.content(name)
                    await self._ask("install", {"index": self._index, "content": content})
            # From here on changes wait for the copy; those before have arrived when this has.
            self._installed = None
            await self._ask("sync", {})
            if self.state is CopyState.FILLING:
                self.state = CopyState.FILLED
        except OSError as error:
            self._break(error)
        except Exception as error:  # a bug of ours: whoever asks how far it is must learn of it
            self._break(ConnectionError(repr(error)))
            raise

    def forward(
        self, table: str, operation: str, arguments: Mapping[str, Any], reply: Reply, position: int
    ) -> None:
        """Send on what has changed the shard; the reply waits for it if the copy is complete."""
        if self._installed is not None:
            part = _part(self._installed, table, operation, arguments)
            if part is not None and self._link is not None and self.state is CopyState.FILLING:
                self._link.send(self._follow(table, operation, part))
            return
        change = self._follow(table, operation, arguments)
        reply.wait()
        self._held[change] = reply, position
        # Broken, it is let go of soon, or this server learns that it is not the shard's any more.
        if self._link is not None and self.state is not CopyState.BROKEN:
            self._link.send(change)

    def let_go(self) -> None:
        """Wait for the copy no more: there is none; idempotent."""
        self._end()
        held, self._held = self._held, {}
        for reply, _ in held.values():
            reply.release()

    def move_on(self) -> None:
        """Answer what waits for the copy that the shard is elsewhere."""
        self._end()
        held, self._held = self._held, {}
        for reply, position in held.values():
            reply.answers[position] = ("moved",)
            reply.release()

    def when_idle(self, reply: Reply) -> None:
        """Let a reply wait until the copy has acknowledged everything."""
        change = _Change(self, "sync", {}, None)
        reply.wait()
        self._held[change] = reply, len(reply.answers)
        if self._link is not None:
            self._link.send(change)

    def answered(self, change: _Change, answer: Any) -> None:
        """Take what the copy says to something that it was sent."""
        if change.asked is not None and not change.asked.done():
            change.asked.set_result(answer)
        if answer == DEPOSED:
            self._deposed()
        elif answer != DONE:
            # It has lost the shard, or cannot do what was done here: it is a copy no more.
            self._break(ConnectionError(f"it answers {answer!r}"))
        elif change in self._held:
            reply, _ = self._held.pop(change)
            reply.release()

    def _missing(self, table: str, installed: set[str]) -> bool:
        # It may have been dropped meanwhile, or made anew, which was sent on.
        return table in self._shard.tables() and table not in installed

    def _follow(self, table: str, operation: str, arguments: Mapping[str, Any]) -> _Change:
        more = {"table": table, "operation": operation, "arguments": arguments}
        return _Change(self, "follow", {"index": self._index, **more}, None)

    async def _ask(self, operation: str, arguments: Mapping[str, Any]) -> None:
        if self._link is None or self.state is CopyState.BROKEN:
            raise ConnectionError("there is no connection to the copy")
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asking.add(asked)
        try:
            self._link.send(_Change(self, operation, arguments, asked))
            if await asked != DONE:
                raise ConnectionError("the other server does not take a copy")
        finally:
            self._asking.discard(asked)

    def _broken(self, changes: Sequence[Any], error: OSError) -> None:
        self._break(error)

    def _break(self, error: OSError) -> None:
        if self.state is not CopyState.BROKEN:
            self.state = CopyState.BROKEN
            logger.warning("the copy of shard %d at %s: %s", self._index, self._address, error)
        for asked in self._asking:
            if not asked.done():
                asked.set_exception(error)

    def _end(self) -> None:
        self.state = CopyState.BROKEN
        if self._link is not None:
            self._link.close()


def _part(
    installed: set[str], table: str, operation: str, arguments: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return what of a change concerns tables that the copy has; None if nothing."""
    if table:
        return arguments if table in installed else None
    if operation in TABLES:
        installed.add(arguments["name"])
    if operation == "commit":
        # Also without writes: it must be known as done. What waits for the end of a round is no
        # part of any table yet.
        waits = HELD if arguments.get("round_number") is not None else ()
        writes = [w for w in arguments["writes"] if w[0] in installed or w[1] in waits]
        return {**arguments, "writes": writes}
    return arguments
