"""ShardCopy: a second copy of a shard, on another server, as the server of the first one sees it.

Everything that changes the shard is sent on, in order, so the copy holds the same: chain
replication (van Renesse and Schneider, *Chain Replication for Supporting High Throughput and
Availability*, OSDI 2004) with a chain of two, but that reads are answered by its head. A change is
acknowledged to whoever made it when the copy has it.

A new copy is filled while the shard is in use (`psnb._src.server.transfer`), one piece under way at
a time. One that holds the same already, as the shard was handed over, is just *attached*. Both
sides count changes, so neither goes on from where the other is not.

Threads: the server's event loop, no other; nothing here waits. The states are those of
`psnb._src.placement.CopyState`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from psnb._src.placement import COPY_STATES, CopyState, ServerAddress
from psnb._src.server.parameter_shard import ParameterShard
from psnb._src.server.reply import PendingReply
from psnb._src.server.transfer import Transfer
from psnb.errors import InternalError

logger = logging.getLogger("psnb")

ITSELF = -1
"""In place of a shard's number, for operations of the server."""

DONE, DEPOSED = "done", "deposed"
"""What the server of a copy answers; the latter if there is a newer primary than the one that
asks."""


class ForwardedRequest(Protocol):
    """A request that wants an answer."""

    def message(self) -> tuple[Any, ...]:
        """Return what is sent."""

    def answered(self, answer: tuple[Any, ...]) -> None:
        """Take the answer."""


class CopyLink(Protocol):
    """A connection to another server."""

    def send(self, exchange: ForwardedRequest) -> None:
        """Send a request; its answer comes later, in order."""

    def close(self) -> None:
        """Hang up."""


class Opening(Protocol):
    """Who wants a connection to another server."""

    def opened(self, link: CopyLink) -> None:
        """Take the connection."""

    def broken(self, error: OSError) -> None:
        """Hear that there is none, or not any more."""


Connect = Callable[[str, Opening], None]
"""Begins to connect to an address, and tells how that went."""


class Original(Protocol):
    """A shard on the server that is its primary.

    Attributes
    ----------
    index : int
        The shard's number.
    shard : ParameterShard
        What is copied.
    term, version : int
        Of the place that says so; see `psnb._src.placement.Place`.
    position : int
        How many changes it has had.
    """

    index: int
    shard: ParameterShard
    term: int
    version: int
    position: int

    def deposed(self) -> None:
        """Hear that there is a newer primary."""


class _Change:
    """One operation on its way to a copy."""

    def __init__(
        self,
        copy: ShardCopy,
        operation: str,
        arguments: Mapping[str, Any],
        then: Callable[[], None],
    ) -> None:
        self._copy, self._operation, self._arguments = copy, operation, arguments
        self.then = then

    def message(self) -> tuple[Any, ...]:
        return self._copy.to.key, [(ITSELF, "", self._operation, self._arguments)]

    def answered(self, answer: tuple[Any, ...]) -> None:
        status, *rest = answer[1][0] if answer[0] == "OK" else answer
        self._copy.answered(self, rest[0] if rest else status)


class ShardCopy:
    """A copy on another server.

    Parameters
    ----------
    original : Original
        What it is a copy of, as it is now.
    to : ServerAddress
        The other server.

    Attributes
    ----------
    to : ServerAddress
        The other server.
    state : CopyState
        How far it is.
    """

    def __init__(self, original: Original, to: ServerAddress) -> None:
        self.to, self.state = to, CopyState.FILLING
        self._original, self._shard = original, original.shard
        self._index, self._term = original.index, original.term
        self._begun = original.version
        self._link: CopyLink | None = None
        self._transfer: Transfer | None = None
        # Who waits for changes that the copy has not acknowledged, and in which place of a reply.
        self._waiting: dict[_Change, tuple[PendingReply, int]] = {}
        self._follows = False  # changes are sent on, and wait for it
        self._unsent: list[_Change] | None = None  # what was, before there is a connection

    def fill(self, connect: Connect) -> None:
        """Bring the copy up to date; ends with `FILLED` or `BROKEN`."""
        self._transfer = Transfer(self._shard)
        connect(self.to.address, self)

    def attach(self, connect: Connect) -> None:
        """Go on with a copy that holds the same."""
        self._enter(CopyState.FILLED)
        self._follows = True
        attach = {"version": self._begun, "position": self._original.position}
        self._unsent = [self._change("attach", attach, _nothing)]
        connect(self.to.address, self)

    @property
    def idle(self) -> bool:
        """Whether it has acknowledged all that it was sent."""
        return not self._waiting

    def opened(self, link: CopyLink) -> None:
        """Begin; see `Opening`."""
        if self.state is CopyState.BROKEN:
            link.close()
            return
        self._link = link
        if self._transfer is not None:
            self._send(self._change("adopt", {"version": self._begun}, self._go_on))
        unsent, self._unsent = self._unsent or [], None
        if self._transfer is None:
            for change in unsent:
                self._send(change)

    def broken(self, error: OSError) -> None:
        """Break off: changes wait until it is known that the copy will not take over."""
        if self.state is not CopyState.BROKEN:
            self._enter(CopyState.BROKEN)
            logger.warning("the copy of shard %d at %s: %s", self._index, self.to.address, error)
            self._end()

    def forward(
        self,
        table: str,
        operation: str,
        arguments: Mapping[str, Any],
        reply: PendingReply,
        place: int,
    ) -> None:
        """Send on a change that was just counted, and have the reply wait, if the copy follows.

        Before, it is among what will be sent. If it has broken, the reply waits until the copy is
        let go: somebody may take it for good still.
        """
        if not self._follows:
            return
        more = {"table": table, "operation": operation, "arguments": arguments}
        change = self._change("follow", {"position": self._original.position, **more}, _nothing)
        reply.wait()
        self._waiting[change] = reply, place
        self._send(change)

    def let_go(self) -> None:
        """Wait for the copy no more: it will not take over."""
        self._close()
        waiting, self._waiting = self._waiting, {}
        for reply, _ in waiting.values():
            reply.release()

    def move_on(self) -> None:
        """Answer what waits for the copy that the shard is elsewhere."""
        self._close()
        waiting, self._waiting = self._waiting, {}
        for reply, place in waiting.values():
            reply.answers[place] = ("moved",)
            reply.release()

    def answered(self, change: _Change, answer: Any) -> None:
        """Take what the other server says to something that it was sent."""
        if answer == DEPOSED:
            self._original.deposed()
        elif answer != DONE:
            # It has lost the shard, or cannot do what was done here: it is a copy no more.
            self.broken(ConnectionError(f"it answers {answer!r}"))
        elif self.state is not CopyState.BROKEN:
            change.then()
            if change in self._waiting:
                reply, _ = self._waiting.pop(change)
                reply.release()

    def _go_on(self) -> None:
        transfer = self._transfer
        assert transfer is not None
        steps = transfer.next()
        if steps:
            self._send(self._change("install", {"steps": steps}, self._go_on))
            return
        # All that is left, as it is at this moment: from here on changes are sent on, behind it.
        *parts, last = transfer.last()
        transfer.close()
        self._transfer, self._follows = None, True
        for part in parts:
            self._send(self._change("install", {"steps": part}, _nothing))
        filled = {"steps": last, "position": self._original.position}
        self._send(self._change("install", filled, self._filled))

    def _filled(self) -> None:
        self._enter(CopyState.FILLED)

    def _send(self, change: _Change) -> None:
        if self._unsent is not None:
            self._unsent.append(change)
        elif self._link is not None:
            self._link.send(change)

    def _change(
        self, operation: str, arguments: Mapping[str, Any], then: Callable[[], None]
    ) -> _Change:
        return _Change(
            self, operation, {"index": self._index, "term": self._term, **arguments}, then
        )

    def _enter(self, state: CopyState) -> None:
        if (self.state, state) not in COPY_STATES:
            raise InternalError(f"a copy that is {self.state} cannot become {state}")
        self.state = state

    def _close(self) -> None:
        if self.state is not CopyState.BROKEN:
            self._enter(CopyState.BROKEN)
        self._end()

    def _end(self) -> None:
        if self._transfer is not None:
            self._transfer.close()
            self._transfer = None
        if self._link is not None:
            self._link.close()
            self._link = None


def _nothing() -> None:
    pass
