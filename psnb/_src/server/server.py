"""Host: the shards that a server holds, as the shard itself or as a replica of it.

It runs the operations on them, and forwards every change of a shard to its replicas. The newest
`ShardPlacement` that it has received says which role it has for a shard (`psnb._src.placement`).
The notebook sends placements again and again, so a lost message does no harm. Everything runs on
the server's event loop, one operation after the other, so each is atomic.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from psnb._src.placement.layout import ShardPlacement
from psnb._src.placement.status import Role, ServerStatus
from psnb._src.server import operations as ops
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.disk import DiskSpace
from psnb._src.server.files.file_work import FileWork
from psnb._src.server.files.reading import FileChecking
from psnb._src.server.files.writing import Soon, TableWriting
from psnb._src.server.making import build, unpacked
from psnb._src.server.memory import refusal
from psnb._src.server.messages import Done, Failed, Later, Moved, PendingReply, ServerAnswer
from psnb._src.server.replication import DEPOSED, DONE, Connect, HostedShard
from psnb._src.server.shard import ParameterShard
from psnb._src.server.snapshots import OpenSnapshots, PreallocatedPages, chunks_wanted
from psnb._src.server.tables.operations import (
    OnTables,
    Operation,
    Preview,
    ShardOperation,
    TableRead,
)
from psnb._src.server.tables.table import Table
from psnb._src.utils.process_memory.room import room
from psnb._src.utils.standby import StandbyThreads
from psnb._src.utils.text import text_of
from psnb.errors import CheckpointError, InternalError, PsnbError, SerializationError

Made = Mapping[tuple[int, str], Table]
"""Tables that were made ahead, by the number of the shard and their name."""

_PULLS = (TableRead, Preview)
_UPDATES = (ops.CommitPart, ops.ApplyCommit)
"""Operations that return the staleness of an update."""


class Host:
    """Runs operations on the shards of a server.

    Parameters
    ----------
    key : str
        What placements call the server; an attribute, too, as a new owner gives it another.
    name : str
        The server's name, for messages.
    soon : callable
        Calls functions on the server's event loop, from any thread.
    making, files : StandbyThreads
        Make memory ready, and write and read checkpoints; several servers may share them.
    disk : DiskSpace, optional
        Where tables have their files; several servers may share it.

    Attributes
    ----------
    leaves : bool
        Whether the strategy is to move the shards elsewhere, as the process will end.
    """

    def __init__(
        self,
        key: str,
        name: str,
        soon: Soon,
        making: StandbyThreads,
        files: StandbyThreads,
        disk: DiskSpace | None = None,
    ) -> None:
        self.key, self._name, self._soon, self._files = key, name, soon, files
        self._disk = disk
        self.leaves = False
        self._hosted: dict[int, HostedShard] = {}
        self._traffic = Counter(pulls=0, pushes=0, updates=0, staleness=0)  # since the start
        self._made: Made = {}
        self._room = PreallocatedPages(making)
        self._snapshots = OpenSnapshots(self._room)
        self._work: dict[str, FileWork] = {}  # by folder, or key of a restore

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
        """Forget all shards, and close the connections to the servers of their replicas."""
        self._drop(list(self._hosted))
        for key in list(self._work):
            self._end_work(key)
        self._room.clear()

    def tick(self) -> None:
        """Count a minute."""
        for index, hosted in self._hosted.items():
            hosted.shard.tick()
            if hosted.role is Role.PRIMARY:
                for change in hosted.shard.minute():
                    reply = PendingReply(_nobody)
                    reply.answers.append(self._answer(ops.OnShard(index, change), reply, _unused))
                    reply.ran()
        self._snapshots.tick()
        self._room.tick()
        for key, work in list(self._work.items()):
            if not work.tick():
                self._end_work(key)

    def read_here(self, operation: Operation) -> Operation:
        """Return an operation with what it has the server read; any thread.

        Raises
        ------
        CheckpointError
            If that cannot be read.
        """
        change = operation.operation if isinstance(operation, ops.OnShard) else None
        if not isinstance(change, ops.ReadsFiles):
            return operation
        assert isinstance(operation, ops.OnShard)
        hosted = self._hosted.get(operation.shard)
        if hosted is not None and hosted.shard.reading_mark(change.restore) is not None:
            return operation  # read where tables are changed
        work = self._work.get(change.restore)
        if change.unread or not isinstance(work, FileChecking):
            raise CheckpointError(
                change.unread or f"{self._name} has not checked what it is to read"
            )
        try:
            return msgspec.structs.replace(operation, operation=work.read_here(change))
        except OSError as error:
            raise CheckpointError(f"{self._name}: {error}") from error

    def _answer(self, packed: Operation, reply: PendingReply, connect: Connect) -> ServerAnswer:
        try:
            operation = unpacked(packed)
        except Exception as error:  # whatever a class may raise while it is unpickled
            why = text_of(error, repr)
            text = (
                f"the arguments of {packed} cannot be unpickled on {self._name}: {why}. "
                "Install there the modules that they need, or define them in the notebook"
            )
            return Failed(SerializationError(text))
        try:
            operation = self.read_here(operation)
            if not isinstance(operation, ops.OnShard):
                return Done(self._manage(operation, connect))
            hosted = self._primary(operation.shard)
            if hosted is None:
                return Moved()
            if isinstance(operation, ops.OnLoadingShard):
                # Replicas count along: one that lacks a change, and takes over, takes no later one.
                _, _, *which = msgspec.structs.astuple(operation)
                self._change(hosted, ops.CountLoading(*which), reply)
            if self._waits(hosted, operation.operation):
                return Later()
            result = self._on_shard(hosted, operation.operation, reply)
            return Done(result, hosted.shard.log.version)
        except PsnbError as error:
            return Failed(error)
        except MemoryError as error:
            return Failed(refusal(error, str(operation), self._name))
        except Exception as error:  # a bug of ours must reach its caller, not only the log
            return Failed(InternalError(f"{operation} on {self._name}: {error!r}"))

    def _waits(self, hosted: HostedShard, operation: ShardOperation) -> bool:
        if not isinstance(operation, ops.CommitParts):
            return hosted.shard.waits(operation)
        several = [self._hosted[index] for index in operation.parts if index in self._hosted]
        return True in [each.shard.waits(operation) for each in several]

    def _on_shard(self, hosted: HostedShard, operation: ShardOperation, reply: PendingReply) -> Any:
        match operation:
            case OnTables():
                return self._run(hosted, operation, reply)
            case ops.CommitParts(commit, parts):
                return self._commit(commit, parts, reply)
            case ops.TakeSnapshot(table, since):
                return self._snapshots.begin(self.key, hosted.shard.table(table), since)
            case ops.ReadSegment(name, start, stop):
                return self._snapshots.read(name, start, stop)
            case ops.ReleaseSnapshot(name):
                return self._snapshots.release(name)
            case ops.ReadsFiles(restore=key):
                mark = hosted.shard.reading_mark(key)
                assert mark is not None  # `read_here` has found it
                return self._run(hosted, mark.read_here(operation), reply)
        return self._run(hosted, operation, reply)

    def _run(self, hosted: HostedShard, operation: ShardOperation, reply: PendingReply) -> Any:
        operation = hosted.shard.decided(operation)
        for first in hosted.shard.before(operation):
            self._change(hosted, first, reply)
        result = self._change(hosted, operation, reply)
        for then in hosted.shard.after(operation):
            self._change(hosted, then, reply)
        return result

    def _change(self, hosted: HostedShard, operation: ShardOperation, reply: PendingReply) -> Any:
        """Run an operation, and send it on to the replicas if it changes something."""
        try:
            result = hosted.shard.run(operation)
        except PsnbError:
            raise
        except Exception as error:  # it may have changed something that the replicas lack
            # A lookup without memory has not, and commits without memory raise another error.
            if hosted.shard.changes(operation) or not isinstance(error, MemoryError):
                hosted.fail(error)
            raise
        self._count(operation, result)
        if hosted.shard.changes(operation):
            hosted.changed(operation, reply)
        return result

    def _count(self, operation: ShardOperation, result: Any) -> None:
        """Count reads and writes, and the updates of closures whose staleness is known."""
        traffic = self._traffic
        match operation:
            case OnTables(tables, inner):
                traffic["pulls"] += len(tables) * isinstance(inner, _PULLS)
                return
            case ops.PreparePart(_, part) | ops.CommitPart(_, part):
                traffic["pushes"] += sum([len(write.tables) for write in part.writes])
        if isinstance(operation, _UPDATES) and result is not None:
            traffic["updates"] += 1
            traffic["staleness"] += result

    def _commit(self, commit: Commit, parts: Mapping[int, Part], reply: PendingReply) -> Any:
        """Prepare and apply a commit on all its shards; or on none, if it might fail in between."""
        found = [self._primary(index) for index in parts]
        hosted = [each for each in found if each is not None]
        if len(hosted) < len(parts) or (len(hosted) > 1 and any(each.replicas for each in hosted)):
            return ops.APART
        if len(hosted) == 1:
            (part,) = parts.values()
            return self._run(hosted[0], ops.CommitPart(commit, part), reply)
        try:
            for each, part in zip(hosted, parts.values(), strict=True):
                self._run(each, ops.PreparePart(commit, part), reply)
        except Exception:  # whatever raised: all parts are given up, or none
            for each in hosted:
                self._run(each, ops.GiveUpCommit(commit), reply)
            raise
        stale = [self._run(each, ops.ApplyCommit(commit), reply) for each in hosted]
        return max((each for each in stale if each is not None), default=None)

    def _manage(self, operation: Operation, connect: Connect) -> Any:
        match operation:
            case ops.RepeatChange():
                return self._repeat(operation)
            case ops.SyncReplica():
                return self._fill(operation)
            case ops.AdoptReplica(index, term, version):
                return self._adopt(index, term, version)
            case ops.AttachReplica():
                return self._attach(operation)
            case ops.FollowPlacements(placements, versions):
                return self._follow(placements, versions, connect)
            case ops.HostShards(placements, fences):
                # They are empty, but know which commits were given up.
                for index, placement in placements.items():
                    shard = self._shard(index)
                    for fence in fences:
                        shard.run(fence)
                    role = Role.PRIMARY, placement.term, placement.version
                    self._hosted[index] = HostedShard(index, shard, *role)
                return None
            case ops.MeasureShards():
                # What was being loaded may be half there, and what loaded it gone: see recovery.
                found = self._measure()
                loads = {index for index in found if self._hosted[index].shard.log.loading}
                return {index: {} if index in loads else each for index, each in found.items()}
            case ops.CountTraffic():
                nbytes = sum(sum(tables.values()) for tables in self._measure().values())
                cpu = int(1e6 * time.process_time())
                counts = {"shards": len(self._hosted), "bytes": nbytes, "cpu": cpu}
                return room.use(), {**counts, **self._traffic}
            case ops.PrepareSnapshots():
                shards = [
                    hosted.shard for index in self._hosted if (hosted := self._primary(index))
                ]
                tables = [shard.table(name) for shard in shards for name in shard.tables()]
                return self._room.want(sum(map(chunks_wanted, tables)))
            case ops.WriteTables(folder, files):
                return self._write(folder, files)
            case ops.CheckFiles(restore, shards):
                work = self._work.get(restore)
                if not isinstance(work, FileChecking):
                    work = self._work[restore] = FileChecking(self._name, self._files)
                return work.check(shards)
            case ops.AskFileWork(key):
                if key not in self._work:
                    raise CheckpointError(
                        f"{self._name} does not work on {key!r} any more: for minutes it was not "
                        "asked how far it is; try again"
                    )
                return self._work[key].progress()
            case ops.EndFileWork(key):
                return self._end_work(key)
        raise InternalError(f"{self._name} has no operation {operation}")

    # Operations that the strategy calls.

    def _follow(
        self, placements: Mapping[int, ShardPlacement], versions: Sequence[int], connect: Connect
    ) -> ServerStatus:
        """Follow the layout, and report the status of the shards here; see `FollowPlacements`."""
        for index, placement in placements.items():
            hosted = self._hosted.get(index)
            if hosted is not None and placement.version > hosted.version:
                hosted.apply_role(placement, self.key, connect)
        rest = [
            (index, hosted) for index, hosted in self._hosted.items() if index not in placements
        ]
        self._drop([index for index, hosted in rest if hosted.version <= versions[index]])
        shards = {index: hosted.status() for index, hosted in self._hosted.items()}
        writes = any(isinstance(each, TableWriting) for each in self._work.values())
        return ServerStatus(shards, self.leaves, writes, room.use())

    def _measure(self) -> dict[int, dict[str, int]]:
        """Return the bytes of all tables of each shard, including replicas."""
        return {
            index: hosted.shard.run(ops.MeasureTables()) for index, hosted in self._hosted.items()
        }

    def _write(self, folder: str, files: Mapping[str, Sequence[str]]) -> None:
        """Begin to write snapshots."""
        if folder in self._work:
            return  # it was asked for twice
        taken = self._snapshots.take(files)
        if taken is None:
            raise CheckpointError(
                f"{self._name} does not have the snapshots any more that were to be written into "
                f"{folder!r}: they were not used for minutes; save again"
            )
        self._work[folder] = TableWriting(self._name, folder, taken, self._soon, self._files)
        self._work[folder].begin()

    def _end_work(self, key: str) -> None:
        if (work := self._work.pop(key, None)) is not None:
            work.stop()
        if not self._work:
            self._room.clear()

    # Operations that the primaries of replicas call.

    def _adopt(self, index: int, term: int, version: int) -> str:
        """Begin a new, empty replica."""
        hosted = self._hosted.get(index)
        if hosted is not None:
            if hosted.term > term or (hosted.term == term and hosted.role is Role.PRIMARY):
                return DEPOSED
            hosted.deposed()
            version = max(version, hosted.version)
        self._hosted[index] = HostedShard(index, self._shard(index), Role.REPLICA, term, version)
        return DONE

    def _fill(self, fill: ops.SyncReplica) -> str:
        hosted = self._replica(fill.shard, fill.term)
        if isinstance(hosted, str):
            return hosted
        for step in fill.steps:
            hosted.shard.run(step)
        hosted.position = fill.position
        return DONE

    def _attach(self, attach: ops.AttachReplica) -> str:
        """Become a replica of a new primary that has the same content."""
        hosted, term = self._hosted.get(attach.shard), attach.term
        if hosted is None or hosted.term >= term or hosted.position != attach.position:
            return _refusal(hosted, term)
        hosted.deposed()
        hosted.enter(Role.REPLICA)
        hosted.term, hosted.version = term, max(attach.version, hosted.version)
        return DONE

    def _repeat(self, repeat: ops.RepeatChange) -> str:
        hosted = self._replica(repeat.shard, repeat.term)
        if isinstance(hosted, str):
            return hosted
        if hosted.position + 1 != repeat.position:
            return f"change {repeat.position} comes after {hosted.position}"
        hosted.shard.run(repeat.change)
        hosted.position = repeat.position
        return DONE

    def _replica(self, index: int, term: int) -> HostedShard | str:
        """Return the replica that the primary of this term may change, or the answer why not."""
        hosted = self._hosted.get(index)
        if hosted is None or hosted.role is not Role.REPLICA or hosted.term != term:
            return _refusal(hosted, term)
        return hosted

    def _primary(self, index: int) -> HostedShard | None:
        hosted = self._hosted.get(index)
        return hosted if hosted is not None and hosted.role is Role.PRIMARY else None

    def _drop(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._hosted.pop(index).deposed()

    def _shard(self, index: int) -> ParameterShard:
        return ParameterShard(f"shard {index} on {self._name}", partial(self._make, index))

    def _make(self, index: int, creation: ops.CreateTable) -> Table:
        made = self._made.get((index, creation.name))
        return build(creation, self._disk) if made is None else made


def _nobody(answers: object) -> None:
    """Take answers that nobody waits for."""


def _unused(address: str, opening: object) -> None:
    """Connect to no other server: a change of a table does not."""


def _refusal(hosted: HostedShard | None, term: int) -> str:
    if hosted is not None and (hosted.term, hosted.role is Role.PRIMARY) > (term, False):
        return DEPOSED
    return "not a replica"
