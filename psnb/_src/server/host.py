"""Host: the shards that a server holds, as the shard itself or as a copy of it.

It runs the operations on them, and forwards every change of a shard to its copies. The newest
`ShardPlace` that it has received says which role it has for a shard (`psnb._src.placement`). The
notebook sends places again and again, so a lost message does no harm. Everything runs on the
server's event loop, one operation after the other, so each is atomic.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from distributed.protocol.pickle import loads

from psnb._src.placement import ROLES, CopyState, Role, ShardPlace, ShardStatus
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.parameter_shard import Install, ParameterShard, build
from psnb._src.server.reply import Answer, PendingReply
from psnb._src.server.shard_copy import DEPOSED, DONE, ITSELF, Connect, ShardCopy
from psnb._src.server.snapshot import Snapshot, snapshot
from psnb._src.server.table import Piece
from psnb._src.server.tables import TABLES, Table
from psnb._src.server.traffic import Traffic
from psnb.errors import InternalError, PsnbError, SerializationError

Operation = tuple[int, str, str, Any]
"""The number of a shard, the name of a table there or "", an operation and its arguments."""

Made = Mapping[tuple[int, str], Table]
"""Tables that were made ahead, by the number of the shard and their name."""

APART = "apart"
"""The answer to a commit to several shards that cannot all be changed at once here."""

_SNAPSHOT_TICKS = 2


class _HostedShard:
    """A shard, and this server's role for it."""

    def __init__(
        self, index: int, shard: ParameterShard, role: Role, term: int, version: int
    ) -> None:
        self.index, self.shard, self.role = index, shard, role
        self.term, self.version = term, version
        self.position = 0  # the number of changes so far
        self.copies: dict[str, ShardCopy] = {}

    def enter(self, role: Role) -> None:
        if role is not self.role and (self.role, role) not in ROLES:
            raise InternalError(f"shard {self.index} cannot become {role} when it is {self.role}")
        self.role = role

    def deposed(self) -> None:
        """Stop being the primary: another server is now."""
        if self.role is Role.PRIMARY:
            self.enter(Role.RETIRED)
        for copy in self.copies.values():
            copy.move_on()
        self.copies.clear()

    def fail(self, error: Exception) -> None:
        """Note that a change may have been made in part: the copies must be filled again."""
        for copy in self.copies.values():
            copy.broken(ConnectionError(f"a change failed: {error!r}"))

    def changed(self, table: str, operation: str, arguments: Any, reply: PendingReply) -> None:
        """Send a change on to the copies."""
        self.position += 1
        for copy in self.copies.values():
            copy.forward(table, operation, arguments, reply, len(reply.answers))

    def status(self) -> ShardStatus:
        idle = self.role is Role.RETIRED and all(copy.idle for copy in self.copies.values())
        copies = {key: copy.state for key, copy in self.copies.items()}
        return ShardStatus(self.role, self.version, idle, copies)


class Host:
    """Runs operations on the shards of a server.

    Parameters
    ----------
    key : str
        The server's key.
    name : str
        The server's name, for messages.
    """

    def __init__(self, key: str, name: str) -> None:
        self._key, self._name = key, name
        self._hosted: dict[int, _HostedShard] = {}
        self._traffic = Traffic()
        self._made: Made = {}
        # Each with the minutes since it was last used.
        self._snapshots: dict[str, tuple[Snapshot, int]] = {}
        self._numbers = itertools.count()

    def run(
        self,
        operations: Sequence[Operation],
        reply: PendingReply,
        connect: Connect,
        made: Made | None = None,
    ) -> None:
        """Run the operations of a message, with no others in between."""
        self._made = made or {}
        for operation in operations:
            reply.answers.append(self._answer(operation, reply, connect))
        self._made = {}
        reply.ran()

    def close(self) -> None:
        """Forget all shards, and close the connections to the servers of their copies."""
        self._drop(list(self._hosted))

    def tick(self) -> None:
        """Count a minute."""
        for hosted in self._hosted.values():
            hosted.shard.tick()
        for number, (taken, ticks) in list(self._snapshots.items()):
            self._snapshots[number] = taken, ticks + 1
            if ticks + 1 >= _SNAPSHOT_TICKS:
                self._release(number)

    def _answer(self, operation: Operation, reply: PendingReply, connect: Connect) -> Answer:
        index, table, name, packed = operation
        try:
            arguments = plain(packed)
        except Exception as error:  # whatever a class may raise while it is unpickled
            of = f"{name} of {table!r}" if table else name
            text = (
                f"the arguments of {of} cannot be unpickled on {self._name}: {error!r}. Install "
                "there the modules that they need, or define them in the notebook"
            )
            return "error", SerializationError(text)
        try:
            if index == ITSELF:
                return "OK", self._manage(name, arguments, connect)
            hosted = self._primary(index)
            if hosted is None:
                return ("moved",)
            result = self._on_shard(hosted, table, name, arguments, reply)
            return "OK", result, hosted.shard.version
        except PsnbError as error:
            return "error", error
        except Exception as error:  # a bug of ours must reach its caller, not only the log
            return "error", InternalError(f"{name} of {table!r} on {self._name}: {error!r}")

    def _on_shard(
        self,
        hosted: _HostedShard,
        table: str,
        name: str,
        arguments: Mapping[str, Any],
        reply: PendingReply,
    ) -> Any:
        match name:
            case "commit":
                return self._commit(reply=reply, **arguments)
            case "snapshot":
                return self._begin_snapshot(hosted.shard.table(table))
            case "piece":
                return self._piece(**arguments)
            case "release":
                return self._release(**arguments)
        return self._run(hosted, table, name, arguments, reply)

    def _run(
        self,
        hosted: _HostedShard,
        table: str,
        name: str,
        arguments: Mapping[str, Any],
        reply: PendingReply,
    ) -> Any:
        arguments = hosted.shard.decided(table, name, arguments)
        try:
            result = hosted.shard.call(table, name, arguments)
        except PsnbError:
            raise
        except Exception as error:  # a bug: it may have changed something that the copies lack
            hosted.fail(error)
            raise
        self._traffic.count(table, name, arguments, result)
        if hosted.shard.changes(table, name):
            hosted.changed(table, name, arguments, reply)
        return result

    def _commit(self, commit: Commit, parts: Mapping[int, Part], reply: PendingReply) -> Any:
        """Prepare and apply a commit on all its shards; or on none, if that might stop halfway."""
        found = [self._primary(index) for index in parts]
        hosted = [each for each in found if each is not None]
        if len(hosted) < len(parts) or (len(hosted) > 1 and any(each.copies for each in hosted)):
            return APART
        if len(hosted) == 1:
            (part,) = parts.values()
            return self._run(hosted[0], "", "commit", {"commit": commit, "part": part}, reply)
        try:
            for each, part in zip(hosted, parts.values(), strict=True):
                self._run(each, "", "prepare", {"commit": commit, "part": part}, reply)
        except Exception:
            for each in hosted:
                self._run(each, "", "give_up", {"commit": commit}, reply)
            raise
        stale = [self._run(each, "", "apply", {"commit": commit}, reply) for each in hosted]
        return max((each for each in stale if each is not None), default=None)

    def _manage(self, operation: str, arguments: Mapping[str, Any], connect: Connect) -> Any:
        match operation:
            case "follow":
                return self._follow(**arguments)
            case "install":
                return self._install(**arguments)
            case "adopt":
                return self._adopt(**arguments)
            case "attach":
                return self._attach(**arguments)
            case "beat":
                return self._beat(connect=connect, **arguments)
            case "host":
                return self._host(**arguments)
            case "statistics":
                return self._statistics()
            case "load":
                return self._load()
        raise InternalError(f"{self._name} has no operation {operation!r}")

    # Operations that the strategy calls.

    def _host(
        self, places: Mapping[int, ShardPlace], fences: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> None:
        """Create new shards; they are empty, but know which commits were given up."""
        for index, place in places.items():
            shard = self._shard(index)
            for operation, arguments in fences:
                shard.call("", operation, arguments)
            self._hosted[index] = _HostedShard(
                index, shard, Role.PRIMARY, place.term, place.version
            )

    def _beat(
        self, places: Mapping[int, ShardPlace], versions: Sequence[int], connect: Connect
    ) -> dict[int, ShardStatus]:
        """Follow the layout, and report the status of the shards here.

        Parameters
        ----------
        places : mapping of int to ShardPlace
            The places of the shards that should be here, in any role.
        versions : sequence of int
            The versions of the places of all shards. A shard that is here but not in ``places`` is
            dropped, unless its place is newer.
        connect : callable
            Connects to another server.
        """
        for index, place in places.items():
            hosted = self._hosted.get(index)
            if hosted is not None and place.version > hosted.version:
                self._obey(hosted, place, connect)
        rest = [(index, hosted) for index, hosted in self._hosted.items() if index not in places]
        self._drop([index for index, hosted in rest if hosted.version <= versions[index]])
        return {index: hosted.status() for index, hosted in self._hosted.items()}

    def _obey(self, hosted: _HostedShard, place: ShardPlace, connect: Connect) -> None:
        hosted.version = place.version
        if place.primary is None or place.primary.key != self._key:
            hosted.deposed()
            return
        hosted.term = place.term
        hosted.enter(Role.RETIRED if place.heir is not None else Role.PRIMARY)
        wanted = {server.key: server for server in place.followers}
        for key, copy in list(hosted.copies.items()):
            again = key == (place.filling and place.filling.key) and copy.state is CopyState.BROKEN
            if again or key not in wanted:
                del hosted.copies[key]
                copy.let_go()
        for key in wanted.keys() - hosted.copies.keys():
            copy = hosted.copies[key] = ShardCopy(hosted, wanted[key])
            begin = copy.fill if wanted[key] == place.filling else copy.attach
            begin(connect)

    def _statistics(self) -> dict[int, dict[str, int]]:
        """Return the bytes of all tables of each shard, including copies."""
        return {
            index: hosted.shard.call("", "statistics", {}) for index, hosted in self._hosted.items()
        }

    def _load(self) -> dict[str, int]:
        """Return the size of the shards here, and counts of the operations since the start."""
        traffic = self._traffic
        return {
            "shards": len(self._hosted),
            "bytes": sum(sum(tables.values()) for tables in self._statistics().values()),
            "pulls": traffic.pulls,
            "pushes": traffic.pushes,
            "updates": traffic.updates,
            "staleness": traffic.staleness,
        }

    # Operations that the primaries of copies call.

    def _adopt(self, index: int, term: int, version: int) -> str:
        """Begin a new, empty copy."""
        hosted = self._hosted.get(index)
        if hosted is not None:
            if hosted.term > term or (hosted.term == term and hosted.role is Role.PRIMARY):
                return DEPOSED
            hosted.deposed()
            version = max(version, hosted.version)
        self._hosted[index] = _HostedShard(index, self._shard(index), Role.COPY, term, version)
        return DONE

    def _install(self, index: int, term: int, steps: Sequence[Install], position: int = 0) -> str:
        hosted = self._hosted.get(index)
        if hosted is None or hosted.role is not Role.COPY or hosted.term != term:
            return _refusal(hosted, term)
        hosted.shard.install(steps)
        hosted.position = position
        return DONE

    def _attach(self, index: int, term: int, version: int, position: int) -> str:
        """Become a copy of a new primary that has the same content."""
        hosted = self._hosted.get(index)
        if hosted is None or hosted.term >= term or hosted.position != position:
            return _refusal(hosted, term)
        hosted.deposed()
        hosted.enter(Role.COPY)
        hosted.term, hosted.version = term, max(version, hosted.version)
        return DONE

    def _follow(
        self, index: int, term: int, position: int, table: str, operation: str, arguments: Any
    ) -> str:
        hosted = self._hosted.get(index)
        if hosted is None or hosted.role is not Role.COPY or hosted.term != term:
            return _refusal(hosted, term)
        if hosted.position + 1 != position:
            return f"change {position} comes after {hosted.position}"
        hosted.shard.call(table, operation, plain(arguments))
        hosted.position = position
        return DONE

    # Operations that readers of whole tables call.

    def _begin_snapshot(self, table: Table) -> dict[str, Any]:
        name, taken = f"{self._key}/{next(self._numbers)}", snapshot(table)
        self._snapshots[name] = taken, 0
        return {"snapshot": name, **taken.header()}

    def _piece(self, snapshot: str, start: int, stop: int) -> Piece | None:
        """Return some rows; None if the snapshot does not exist any more."""
        if snapshot not in self._snapshots:
            return None
        taken, _ = self._snapshots[snapshot]
        self._snapshots[snapshot] = taken, 0
        return taken.read(start, stop)

    def _release(self, snapshot: str) -> None:
        taken, _ = self._snapshots.pop(snapshot, (None, 0))
        if taken is not None:
            taken.close()

    def _primary(self, index: int) -> _HostedShard | None:
        hosted = self._hosted.get(index)
        return hosted if hosted is not None and hosted.role is Role.PRIMARY else None

    def _drop(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._hosted.pop(index).deposed()

    def _shard(self, index: int) -> ParameterShard:
        return ParameterShard(f"shard {index} on {self._name}", partial(self._make, index))

    def _make(self, index: int, operation: str, arguments: Mapping[str, Any]) -> Table:
        made = self._made.get((index, arguments["name"]))
        return build(operation, arguments) if made is None else made


def _refusal(hosted: _HostedShard | None, term: int) -> str:
    if hosted is not None and (hosted.term, hosted.role is Role.PRIMARY) > (term, False):
        return DEPOSED
    return "not a copy"


def plain(arguments: Any) -> Mapping[str, Any]:
    """Return the arguments of a request; those that may hold users' classes come pickled."""
    unpacked: Mapping[str, Any] = loads(arguments) if isinstance(arguments, bytes) else arguments
    return unpacked


def to_make(operation: Operation) -> list[tuple[int, str, Mapping[str, Any]]]:
    """Return the tables that an operation will make, and on which shard; this may take long."""
    index, _, name, packed = operation
    if name in TABLES:
        return [(index, name, plain(packed))]
    if name == "follow" and packed["operation"] in TABLES:
        return [(packed["index"], packed["operation"], plain(packed["arguments"]))]
    if name == "install":
        return [(packed["index"], *what) for kind, _, what in packed["steps"] if kind == "create"]
    return []
