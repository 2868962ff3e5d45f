"""HostedShard: a shard on a server, as the shard itself or as a replica, and its replicas.

`ShardReplica` is the primary's view of a replica. The primary forwards every change of the shard,
in order, so the replica has the same content. This is chain replication (van Renesse and Schneider,
*Chain Replication for Supporting High Throughput and Availability*, OSDI 2004) with a chain of two,
except that the head answers reads. A change is acknowledged to its sender when the replica has it.

A new replica is filled while the shard is in use, with one segment under way at a time. A replica
that is equal already, because the shard was handed over, is just *attached*. Both sides count
changes, so a replica that has missed one is noticed.

Threads: the server's event loop only; nothing here blocks. The states are in
`psnb._src.placement.status.ReplicaState`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from psnb._src.placement.layout import ServerAddress, ShardPlacement
from psnb._src.placement.status import REPLICA_STATES, ROLES, ReplicaState, Role, ShardStatus
from psnb._src.server import operations as ops
from psnb._src.server.messages import Done, Failed, Moved, PendingReply, ServerAnswer
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.operations import Operation, ShardOperation
from psnb._src.server.transfer import Transfer
from psnb.errors import InternalError

logger = logging.getLogger("psnb")

DONE, DEPOSED = "done", "deposed"
"""Answers of the server of a replica; the second if there is a newer primary than the sender."""


class ForwardedRequest(Protocol):
    """A request that expects an answer."""

    def message(self) -> tuple[str, Sequence[Operation]]:
        """Return the key of the server, and the operations."""

    def answered(self, answers: Sequence[ServerAnswer] | None) -> None:
        """Take the answers; None if there is no such server (any more)."""


class ReplicaLink(Protocol):
    """A connection to another server."""

    def send(self, exchange: ForwardedRequest) -> None:
        """Send a request; its answer comes later, in order."""

    def close(self) -> None:
        """Hang up."""


class Opening(Protocol):
    """Receives the outcome of connecting to another server."""

    def opened(self, link: ReplicaLink) -> None:
        """Take the connection."""

    def broken(self, error: OSError) -> None:
        """Take the error: connecting failed, or the connection broke."""


Connect = Callable[[str, Opening], None]
"""Begins to connect to an address, and reports the outcome to an `Opening`."""


class HostedShard:
    """A shard, and this server's role for it.

    Attributes
    ----------
    position : int
        The number of changes so far.
    replicas : dict
        By the key of its server, each replica that this server must keep equal.
    """

    def __init__(
        self, index: int, shard: ParameterShard, role: Role, term: int, version: int
    ) -> None:
        self.index, self.shard, self.role = index, shard, role
        self.term, self.version = term, version
        self.position = 0
        self.replicas: dict[str, ShardReplica] = {}

    def enter(self, role: Role) -> None:
        """Change the role, or raise InternalError if that cannot be."""
        if role is not self.role and (self.role, role) not in ROLES:
            raise InternalError(f"shard {self.index} cannot become {role} when it is {self.role}")
        self.role = role

    def deposed(self) -> None:
        """Stop being the primary: another server is now."""
        if self.role is Role.PRIMARY:
            self.enter(Role.RETIRED)
        for replica in self.replicas.values():
            replica.let_go(moved=True)
        self.replicas.clear()

    def fail(self, error: Exception) -> None:
        """Note that a change may have been made in part: the replicas must be filled again."""
        for replica in self.replicas.values():
            replica.broken(ConnectionError(f"a change failed: {error!r}"))

    def changed(self, operation: ShardOperation, reply: PendingReply) -> None:
        """Send a change on to the replicas."""
        self.position += 1
        for replica in self.replicas.values():
            replica.forward(operation, reply, len(reply.answers))

    def status(self) -> ShardStatus:
        """Return what is reported to the strategy."""
        idle = self.role is Role.RETIRED and not any(
            each.waiting for each in self.replicas.values()
        )
        replicas = {key: replica.state for key, replica in self.replicas.items()}
        return ShardStatus(self.role, self.version, idle, replicas)

    def apply_role(self, placement: ShardPlacement, own_key: str, connect: Connect) -> None:
        """Take on the role that a newer placement says for the server with this key."""
        self.version = placement.version
        if placement.primary is None or placement.primary.key != own_key:
            self.deposed()
            return
        self.term = placement.term
        self.enter(Role.RETIRED if placement.successor is not None else Role.PRIMARY)
        wanted = {server.key: server for server in placement.followers}
        for key, replica in list(self.replicas.items()):
            syncs = wanted.get(key, placement.primary) == placement.syncing
            again = syncs and replica.state is ReplicaState.BROKEN
            if again or key not in wanted:
                del self.replicas[key]
                replica.let_go()
        for key in wanted.keys() - self.replicas.keys():
            replica = self.replicas[key] = ShardReplica(self, wanted[key])
            begin = replica.fill if wanted[key] == placement.syncing else replica.attach
            begin(connect)


class _Change:
    """One operation on its way to a replica, and what follows when that has it."""

    def __init__(
        self,
        replica: ShardReplica,
        operation: ops.ReplicaOperation,
        then: Callable[[], object] | None = None,
    ) -> None:
        self._replica, self._operation, self.then = replica, operation, then

    def message(self) -> tuple[str, Sequence[Operation]]:
        return self._replica.to.key, [self._operation]

    def answered(self, answers: Sequence[ServerAnswer] | None) -> None:
        match answers:
            case None:
                self._replica.answered(self, "it is not a server any more")
            case [Done(result)]:
                self._replica.answered(self, result)
            case [Failed(error)]:
                self._replica.answered(self, error)


class ShardReplica:
    """A replica on another server.

    Parameters
    ----------
    primary : HostedShard
        The shard on this server.
    to : ServerAddress
        The other server.

    Attributes
    ----------
    to : ServerAddress
        The other server.
    state : ReplicaState
        Whether it is being filled, complete or broken.
    waiting : dict
        The replies that wait for changes that it has not acknowledged, and the place in each.
    """

    def __init__(self, primary: HostedShard, to: ServerAddress) -> None:
        self.to, self.state = to, ReplicaState.SYNCING
        self._primary, self._shard = primary, primary.shard
        self._index, self._term = primary.index, primary.term
        self._begun = primary.version
        self._link: ReplicaLink | None = None
        self._transfer: Transfer | None = None
        self.waiting: dict[_Change, tuple[PendingReply, int]] = {}
        self._follows = False  # changes are forwarded, and wait for it
        self._unsent: list[_Change] | None = None  # changes from before there was a connection

    def fill(self, connect: Connect) -> None:
        """Fill the replica; ends with `SYNCED` or `BROKEN`."""
        self._transfer = Transfer(self._shard)
        adopt = ops.AdoptReplica(self._index, self._term, self._begun)
        self._unsent = [_Change(self, adopt, self._go_on)]
        connect(self.to.address, self)

    def attach(self, connect: Connect) -> None:
        """Go on with a replica that has the same content."""
        self._enter(ReplicaState.SYNCED)
        self._follows = True
        attach = ops.AttachReplica(self._index, self._term, self._begun, self._primary.position)
        self._unsent = [_Change(self, attach)]
        connect(self.to.address, self)

    def opened(self, link: ReplicaLink) -> None:
        """Begin; see `Opening`."""
        if self.state is ReplicaState.BROKEN:
            link.close()
            return
        self._link = link
        unsent, self._unsent = self._unsent or [], None
        for change in unsent:
            self._send(change)

    def broken(self, error: OSError) -> None:
        """Give the replica up; changes wait until it is certain that it will not take over."""
        if self.state is not ReplicaState.BROKEN:
            self._enter(ReplicaState.BROKEN)
            logger.warning("the replica of shard %d at %s: %s", self._index, self.to.address, error)
            self._end()

    def forward(self, operation: ShardOperation, reply: PendingReply, place: int) -> None:
        """Forward a change that was just counted; if the replica follows, the reply waits for it.

        If the replica does not follow yet, the change is in what will be sent. If it is broken, the
        reply waits for `let_go`: the replica may still be chosen to take over.
        """
        if not self._follows:
            return
        repeat = ops.RepeatChange(self._index, self._term, self._primary.position, operation)
        change = _Change(self, repeat)
        reply.wait()
        self.waiting[change] = reply, place
        self._send(change)

    def let_go(self, *, moved: bool = False) -> None:
        """Stop waiting for the replica: it will not take over, or the shard has ``moved``."""
        if self.state is not ReplicaState.BROKEN:
            self._enter(ReplicaState.BROKEN)
        self._end()
        waiting, self.waiting = self.waiting, {}
        for reply, place in waiting.values():
            if moved:
                reply.answers[place] = Moved()
            reply.release()

    def answered(self, change: _Change, answer: Any) -> None:
        """Take the other server's answer to a change."""
        if answer == DEPOSED:
            self._primary.deposed()
        elif answer != DONE:
            # It has lost the shard, or a change failed there: it is not a replica any more.
            self.broken(ConnectionError(f"it answers {answer!r}"))
        elif self.state is not ReplicaState.BROKEN:
            if change.then is not None:
                change.then()
            if change in self.waiting:
                reply, _ = self.waiting.pop(change)
                reply.release()

    def _go_on(self) -> None:
        transfer = self._transfer
        assert transfer is not None
        try:
            steps = transfer.next()
            # Then all that is left, as it is at this moment; from here on, changes are forwarded
            # behind it.
            rest = [] if steps else transfer.last()
        except MemoryError as error:
            self.broken(
                ConnectionError(f"there is no memory to send it what it is to hold: {error}")
            )
            return
        if steps:
            self._sync(steps, self._go_on)
            return
        *parts, last = rest
        transfer.close()
        self._transfer, self._follows = None, True
        for part in parts:
            self._sync(part)
        self._sync(last, partial(self._enter, ReplicaState.SYNCED), self._primary.position)

    def _sync(
        self,
        steps: Sequence[ShardOperation],
        then: Callable[[], object] | None = None,
        position: int = 0,
    ) -> None:
        self._send(_Change(self, ops.SyncReplica(self._index, self._term, steps, position), then))

    def _send(self, change: _Change) -> None:
        if self._unsent is not None:
            self._unsent.append(change)
        elif self._link is not None:
            try:
                self._link.send(change)
            except MemoryError:
                # The shard has the change already, and what comes after it would come out of turn.
                self.broken(ConnectionError("there is no memory to send it a change"))

    def _enter(self, state: ReplicaState) -> None:
        if (self.state, state) not in REPLICA_STATES:
            raise InternalError(f"a replica that is {self.state} cannot become {state}")
        self.state = state

    def _end(self) -> None:
        if self._transfer is not None:
            self._transfer.close()
            self._transfer = None
        if self._link is not None:
            self._link.close()
            self._link = None
