"""The operations of shards and servers. Pure.

An operation on a shard goes to its server as `OnShard`, and one on a table as `OnTables` within
that. The arguments are those of the method that carries an operation out: see `ParameterShard.run`
and `Host.run`. In this order: operations of shards, which replicas repeat; from `CommitParts` on,
operations of a shard's server alone; from `HostOperation` on, operations of servers. The messages
that carry them are in `psnb._src.server.messages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from psnb._src.placement.layout import ShardPlacement
from psnb._src.server.commit_log import Commit, CommitLog, CommitRecord, Part
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables.admission import Admission, Always
from psnb._src.server.tables.checks import Expected
from psnb._src.server.tables.eviction.policy import Eviction
from psnb._src.server.tables.initializers import Initializer
from psnb._src.server.tables.operations import Operation, RoundWeights, Segment, ShardOperation
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.saved_files import AT_ONCE, FilePart, Later, PartKey
from psnb._src.server.tables.sharding import Owner
from psnb._src.transport.message import Message
from psnb._src.utils.range_set import Bounds

_ALWAYS = Always()

APART = "apart"
"""The answer to `CommitParts` if the shards cannot all be changed in one step here."""


class CreateTable(ShardOperation, frozen=True):
    """Makes a table, in place of one of that name."""

    descriptive: ClassVar[bool] = True

    name: str

    def __str__(self) -> str:
        """Return what is made, for messages."""
        return f"{type(self).__name__} {self.name!r}"


class CreateDense(CreateTable, frozen=True):
    """Makes a `DenseTable`."""

    values: np.ndarray
    optimizer: Optimizer | None


class CreateSparse(CreateTable, frozen=True):
    """Makes a `SparseTable`."""

    dim: int
    rows: int | None
    index: int
    shards: int
    dtype: str
    initializer: Initializer
    seed: int
    optimizer: Optimizer | None
    admission: Admission = _ALWAYS
    accessor: CtrAccessor | None = None
    slot_dtype: str | None = None
    storage: str = "memory"
    eviction: Eviction | None = None


class DropTable(ShardOperation, frozen=True):
    """Drops a table, if it is there."""

    name: str


class PreparePart(ShardOperation, frozen=True):
    """Prepares a part of a commit; see `CommitLog`."""

    commit: Commit
    part: Part


class ApplyCommit(ShardOperation, frozen=True):
    """Applies what is prepared."""

    commit: Commit
    decided: bool = False


class GiveUpCommit(ShardOperation, frozen=True):
    """Gives an attempt up."""

    commit: Commit
    decided: bool = False


class CommitPart(ShardOperation, frozen=True):
    """Prepares and applies a part in one step."""

    commit: Commit
    part: Part


class FenceCommits(ShardOperation, frozen=True):
    """Asks for commits, and lets only the notebook decide on them; see `ParameterShard.fence`."""

    attempts: Mapping[str, Mapping[int, int]]
    closed: Sequence[str] = ()
    settled: Mapping[str, Bounds] | None = None


class EndWriter(ShardOperation, frozen=True):
    """Refuses all further commits of a writer, and forgets the present ones."""

    writer: str


class CloseLog(ShardOperation, frozen=True):
    """Refuses all further commits of all writers; the answer is a `ClosedLog`."""


class OpenLog(ShardOperation, frozen=True):
    """Forgets all commits, and takes new ones."""


class BeginLoading(ShardOperation, frozen=True):
    """Has commits and reads wait while tables are loaded, under a key.

    First it applies what other shards have ``applied``. The answer is what the log has of commits
    in which other shards take part.
    """

    key: str
    applied: Sequence[Commit] = ()


class EndLoading(ShardOperation, frozen=True):
    """Ends what `BeginLoading` began, also if that comes later; may be repeated.

    With ``drops``, the shard's tables go, unless it was ended before.
    """

    key: str
    drops: bool = False


class CountLoading(ShardOperation, frozen=True):
    """Notes that a change of a table comes next by which it is loaded; see `CommitLog.loads`."""

    key: str
    table: str
    place: int


class SquareNorms(ShardOperation, frozen=True):
    """Asks for the squared norms of a round's gradients."""

    changes: ClassVar[bool] = False

    writer: str
    number: int
    closures: Sequence[int]
    tables: Sequence[str]
    weights: RoundWeights | None = None


class EndRound(ShardOperation, frozen=True):
    """Applies what closures pushed in a round.

    A log that is closed takes it only if it is ``decided`` by the owner that has closed it.
    """

    writer: str
    number: int
    closures: Sequence[int]
    norms: Mapping[str, float]
    weights: RoundWeights | None = None
    decided: bool = False


class ClosedLog(Message, frozen=True):
    """What must be known of a shard's commits to finish or give up orphaned ones.

    Those that several shards take part in; the end of the latest round; by writer, which commits
    wait for the end of their round; and whether tables were being loaded.
    """

    facts: Sequence[CommitRecord]
    ended: EndRound | None
    held: Mapping[str, Sequence[int]]
    loading: bool = False


class MeasureTables(ShardOperation, frozen=True):
    """Asks for the bytes of each table."""

    changes: ClassVar[bool] = False


class TableTail(Message, frozen=True):
    """The part of a table that is not by row, its optimizer, and what no checkpoint has."""

    tail: Segment
    optimizer: Optimizer | None
    beside: Segment


class FinishReplica(ShardOperation, frozen=True):
    """Gives a copy all that is not by row; tables that are not named go."""

    tails: Mapping[str, TableTail]
    log: CommitLog
    ended: EndRound | None


class SetMark(ShardOperation, frozen=True):
    """Marks all tables as they are now, unless there is this mark; see `psnb._src.server.marks`.

    The answer is its ``moment``. The primary gives it; replicas that lack a mark which is there
    make none.
    """

    mark: str
    moment: str = ""


class DropMark(ShardOperation, frozen=True):
    """Drops a mark, if it is there."""

    mark: str


class DescribeMark(ShardOperation, frozen=True):
    """Asks for what is to be loaded to go back to a mark of a moment: a `DescribedMark`."""

    changes: ClassVar[bool] = False

    mark: str
    moment: str


class MarkedTable(Message, frozen=True):
    """What is to be loaded into a table: how many rows, and how many ids are to lose theirs.

    If it is ``whole``, all rows that are there go first.
    """

    rows: int
    removed: int
    row_nbytes: int
    tail: Segment
    beside: Segment
    whole: bool


class DescribedMark(Message, frozen=True):
    """The tables of a mark, and the key by which `PutSaved` and `RemoveSaved` read it."""

    key: str
    tables: Mapping[str, MarkedTable]


class CommitParts(ShardOperation, frozen=True):
    """Makes a commit on several shards of a server, if that can be done in one step.

    It goes to one of them.
    """

    commit: Commit
    parts: Mapping[int, Part]


class TakeSnapshot(ShardOperation, frozen=True):
    """Begins to read a table as it is now; the answer is a `SnapshotHeader`.

    With the mark of an earlier one, only changes since then, if they are known; "" gives all. From
    the first such question on, the table tracks changes.
    """

    table: str
    since: str | None = None


class SnapshotHeader(Message, frozen=True):
    """What a reader must know of a snapshot.

    If it is not ``whole``, it has the rows that changed.
    """

    snapshot: str
    rows: int
    row_nbytes: int
    form: Segment
    """A segment without rows."""
    tail: Segment
    mark: str = ""
    """Of this moment, if changes were asked for."""
    whole: bool = True

    @property
    def nothing(self) -> bool:
        """Whether nothing has changed: then there is no snapshot."""
        return not self.snapshot


class ReadSegment(ShardOperation, frozen=True):
    """Reads rows of a snapshot; the answer is None if it does not exist any more."""

    snapshot: str
    start: int
    stop: int


class ReleaseSnapshot(ShardOperation, frozen=True):
    """Ends a snapshot."""

    snapshot: str


class ReadsFiles(ShardOperation, frozen=True):
    """A change of a table with what the server reads itself, of files that it has checked.

    Attributes
    ----------
    table : str
        The table.
    restore : str
        Under which key they were checked; see `CheckFiles`.
    unread : str
        Why they could not be read, where that was tried already.
    """

    table: str
    restore: str
    unread: str


class PutSaved(ReadsFiles, frozen=True):
    """`Table.put` of rows of a part; see `psnb._src.server.tables.saved_files.read_segment`."""

    part: PartKey
    start: int
    stop: int
    at: int | None
    owner: Owner | None
    later: Later = AT_ONCE


class RemoveSaved(ReadsFiles, frozen=True):
    """`RemoveRows` of some of the ids that had lost their rows when a part was saved."""

    part: PartKey
    start: int
    stop: int
    owner: Owner | None


class FinishSaved(ReadsFiles, frozen=True):
    """`FinishTable` with a tail, and the ids that wait for a row in some parts."""

    parts: Sequence[PartKey]
    owner: Owner | None
    tail: Segment


class Packed(ShardOperation, frozen=True):
    """An operation that is pickled apart: where it cannot be unpickled, only it fails."""

    what: str
    payload: bytes

    def __str__(self) -> str:
        """Return the name of the operation, for messages."""
        return self.what


class HostOperation(Operation, frozen=True):
    """An operation of a server itself."""


class OnShard(HostOperation, frozen=True):
    """An operation of a shard for which the server is the primary."""

    nested: ClassVar[bool] = True

    shard: int
    operation: ShardOperation

    def __str__(self) -> str:
        """Return the operation's name, for messages."""
        return str(self.operation)


class OnLoadingShard(OnShard, frozen=True):
    """A change that loads a table, under a key of `BeginLoading`: one that is late is refused.

    Those of a table have places, in their order.
    """

    nested: ClassVar[bool] = False

    key: str
    table: str
    place: int


class HostShards(HostOperation, frozen=True):
    """Creates shards, in which some commits are given up; sent by the strategy, as the next three.

    `FollowPlacements` answers with the `ServerStatus`, `MeasureShards` with the bytes of all
    tables (of none, if the shard is being loaded), `CountTraffic` with the size of the shards, the
    microseconds of CPU time of the server's process, and counts of operations.
    """

    places: Mapping[int, ShardPlacement]
    fences: Sequence[FenceCommits]


class FollowPlacements(HostOperation, frozen=True):
    """Takes on the roles that the newest layout says.

    ``places`` are of the shards that should be here, ``versions`` of the places of all shards: a
    shard that is here, but not in ``places``, is dropped, unless its place is newer.
    """

    places: Mapping[int, ShardPlacement]
    versions: Sequence[int]


class MeasureShards(HostOperation, frozen=True):
    """See `HostShards`."""


class CountTraffic(HostOperation, frozen=True):
    """See `HostShards`."""


class PrepareSnapshots(HostOperation, frozen=True):
    """Has memory made ready for snapshots of all tables; the answer is whether it is there.

    To be asked again until it is. So a change of a table then waits for that copy only.
    """


class WriteTables(HostOperation, frozen=True):
    """Begins to write snapshots that were taken here into new files of a folder.

    ``files`` has the snapshots of each file, in the order of its parts. The folder is this
    writing's own.
    """

    folder: str
    files: Mapping[str, Sequence[str]]


class SavedParts(Message, frozen=True):
    """The parts of a shard in a checkpoint.

    Attributes
    ----------
    expected : Expected or None
        What it must be; None if only the checksums are to be checked.
    number, shards : int
        Its number, and how many were saved.
    parts : sequence of FilePart
        The oldest first; their files are addresses.
    owners : int
        How many shards there are now.
    """

    expected: Expected | None
    number: int
    shards: int
    parts: Sequence[FilePart]
    owners: int


class CheckedParts(Message, frozen=True):
    """What is in the parts of a shard, which were checked.

    Attributes
    ----------
    counts, removed : sequence of int
        How many rows each has, and how many ids it says to have lost theirs before.
    rows : sequence of int
        See `check_saved_parts`.
    step, minutes : int
        The optimizer's, and how many minutes the table has counted.
    updates : numpy.ndarray or None
        The counts of updates of a variable's numbers, where they differ.
    """

    counts: Sequence[int]
    removed: Sequence[int]
    rows: Sequence[int]
    step: int
    minutes: int
    updates: np.ndarray | None


class CheckFiles(HostOperation, frozen=True):
    """Begins to check files of a checkpoint, which the server may then be asked to read.

    The key is of one restore. The result has `CheckedParts` or None for each shard, or a text: why
    this server cannot read it.
    """

    restore: str
    shards: Sequence[SavedParts]


class AskFileWork(HostOperation, frozen=True):
    """Asks for the `FileProgress` of a folder or restore; the answer is the error if it failed."""

    key: str


class EndFileWork(HostOperation, frozen=True):
    """Ends the work on a folder or for a restore, and forgets it."""

    key: str


class FileProgress(Message, frozen=True):
    """How many bytes are written or read; and the result, when all are.

    That is a mapping of snapshots to `FilePart`, or what `CheckFiles` says.
    """

    nbytes: int
    result: Any


class ReplicaOperation(HostOperation, frozen=True):
    """Sent by the primary of a shard to the server of its copy; answered with a text."""

    shard: int
    term: int


class AdoptReplica(ReplicaOperation, frozen=True):
    """Begins a new, empty copy."""

    version: int


class SyncReplica(ReplicaOperation, frozen=True):
    """Takes steps that make the copy equal to the shard; see `psnb._src.server.replication`."""

    steps: Sequence[ShardOperation]
    position: int = 0


class AttachReplica(ReplicaOperation, frozen=True):
    """Makes a shard that has the same content the copy."""

    version: int
    position: int


class RepeatChange(ReplicaOperation, frozen=True):
    """Makes a change that was made to the shard."""

    position: int
    change: ShardOperation


class PrepareServer(HostOperation, frozen=True):
    """Asks whether the server may begin here; it goes to its process, as the next three."""


class AddKey(HostOperation, frozen=True):
    """Gives the server another key; the others remain valid."""

    key: str


class DropOtherKeys(HostOperation, frozen=True):
    """Has the server answer to the key of this request only."""


class StopServer(HostOperation, frozen=True):
    """Ends the server."""
