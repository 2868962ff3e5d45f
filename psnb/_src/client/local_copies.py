"""LocalCopies: copies of parameters that a worker's closures read and write (mode `Geo`).

A `ServerClient` for closures in front of the real one. Reads are answered from copies, which are
fetched when first used; a closure's writes are applied to them when it commits. `exchange` sends
the servers what was learned, and all other writes, as one commit, and drops the copies. So a
closure counts wholly or not at all, also when a worker dies.

Threads: all closure threads of a worker share the copies. Between two exchanges they are a `_Cycle`
with one lock, which is held while arrays are computed, never while servers are asked. If a cycle
was exchanged before a commit comes, the commit goes into the next one.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from psnb._src.client.commit import UndecidedError
from psnb._src.client.numbering import CommitNumbers
from psnb._src.client.requests import Request, ServerClient, on_table, process_client
from psnb._src.client.sparse_shards import ParameterShards, SeenIds, SparseShards
from psnb._src.client.updates import ShardWrite, Updates, fetch_together, weigh
from psnb._src.client.variable import Handle, shards_of
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables.admission import Admission
from psnb._src.server.tables.dense import DenseTable, composed
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import (
    AddRows,
    AddValues,
    AssignRows,
    AssignValues,
    BlendValues,
    FetchRows,
    GatherRows,
    LookUpRows,
    MergeRows,
    MergeValues,
    OnTable,
    Preview,
    Push,
    PushGradient,
    PushRows,
    PutRows,
    ReadOptimizer,
    ReadState,
    ReadValues,
    SkipUpdates,
    TableOperation,
    TableWrite,
)
from psnb._src.server.tables.presence import pieces, union, whole
from psnb._src.server.tables.row_index import GrowingRowIndex
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.states import COUNTS
from psnb._src.server.tables.table import with_rates
from psnb._src.transport.stream import as_float32
from psnb._src.utils.checks import integer
from psnb._src.utils.ownership import owned
from psnb._src.utils.profiling import PULL, PUSH, counted_as
from psnb._src.utils.text import shown
from psnb._src.utils.threads import Answer, uninterrupted
from psnb.errors import ConfigurationError, InvalidArrayError, ServerLostError, ServerMemoryError

# Local copies of tables, for workers that train locally between exchanges. Pure, no locks.
#
# A copy is a table of the same kind as on the server, with the same optimizer. The values that were
# fetched are kept too: the difference is what the worker has learned.

Make = Callable[[], object]
"""Makes a change for which all memory was got."""


class _Fetched(Admission):
    """Only ids that were fetched have rows."""

    def may_enter(self, ids: np.ndarray, seed: int) -> np.ndarray:
        return np.zeros(ids.size, bool)


class LocalTable(ABC):
    """A copy of a parameter's part on one shard.

    Attributes
    ----------
    table : DenseTable or SparseTable
        The copy.
    """

    table: DenseTable | SparseTable

    @abstractmethod
    def missing(self, ids: np.ndarray | None) -> np.ndarray | None:
        """Return the distinct ids that are still to be fetched; None for no ids."""

    @abstractmethod
    def install(self, ids: np.ndarray | None, state: Mapping[str, np.ndarray]) -> None:
        """Load what was fetched for these ids, unless it is here already."""

    @abstractmethod
    def reserve_write(self, write: TableOperation) -> list[Make]:
        """Get the memory to repeat a write of the server, and return what does that.

        It does not count as learned here.
        """

    @abstractmethod
    def reserve_push(self, push: Push | BlendValues) -> list[Make]:
        """Get the memory to apply gradients here, or to blend, and return what does that."""

    @abstractmethod
    def learned(self, share: float) -> Sequence[TableWrite]:
        """Return the writes that send a share of what was learned."""


class LocalDense(LocalTable):
    """A copy of a slice of a variable.

    Parameters
    ----------
    name : str
        For messages.
    state : mapping
        What was fetched; see `DenseTable.state`.
    optimizer : Optimizer or None
        The parameter's.
    """

    def __init__(
        self, name: str, state: Mapping[str, np.ndarray], optimizer: Optimizer | None
    ) -> None:
        self.table: DenseTable = DenseTable(name, state["values"], optimizer)
        self.table.load(dict(state))
        self._fetched = DenseTable(name, state["values"], None)
        # What has got a gradient: a range of nothing at first, None for the whole slice.
        self._pushed: np.ndarray | None = np.empty((0, 2), np.int64)
        self._pushes = 0
        self._blend: BlendValues | None = None  # all of them, one after the other

    def missing(self, ids: np.ndarray | None) -> np.ndarray | None:
        return None

    def install(self, ids: np.ndarray | None, state: Mapping[str, np.ndarray]) -> None:
        pass

    def reserve_write(self, write: TableOperation) -> list[Make]:
        if isinstance(write, SkipUpdates):
            return []
        return [table.reserve(write) for table in (self.table, self._fetched)]

    def reserve_push(self, push: Push | BlendValues) -> list[Make]:
        # What is blended is sent as such, so it does not count as learned.
        blends = isinstance(push, BlendValues)
        tables = (self.table, self._fetched) if blends else (self.table,)
        return [*(table.reserve(push) for table in tables), partial(self._note, push)]

    def _note(self, push: Push | BlendValues) -> None:
        if isinstance(push, BlendValues):
            self._blend = composed(self._blend, push)
        else:
            assert isinstance(push, PushGradient)
            self._pushed = union(self._pushed, push.ranges)
            self._pushes += 1

    def learned(self, share: float) -> Sequence[TableWrite]:
        found: list[TableWrite] = []
        if (blend := self._blend) is not None:
            # Not the difference to what was fetched: others have moved the values meanwhile. And
            # first: what was learned before lies in the difference as it is after the blend.
            part = blend.terms.dtype.type(share)
            found.append(BlendValues(blend.shares * part, blend.terms * part))
        if self._pushes:
            state = self.table.state()
            step, counts = int(state["step"][0]), state.get(COUNTS)
            values = self._difference(state["values"]) * state["values"].dtype.type(share)
            found.append(MergeValues(values, _slots(state), step, share, self._pushed, counts))
        return found

    def _difference(self, values: np.ndarray) -> np.ndarray:
        """Return what was learned; 0 for what has had no gradient, also if it is not finite."""
        found, fetched = np.zeros_like(values), self._fetched.read().reshape(-1)
        ranges = whole(fetched.size) if self._pushed is None else self._pushed
        for columns, _ in pieces(ranges):
            now, before = values.reshape(-1)[columns], fetched[columns]
            np.subtract(now, before, out=found.reshape(-1)[columns], where=now != before)
        return found


class LocalSparse(LocalTable):
    """A copy of rows of an embedding.

    Parameters
    ----------
    name : str
        For messages.
    state : mapping
        What was fetched, for any ids; see `SparseTable.fetch`. It gives the form only, and is not
        loaded.
    optimizer : Optimizer or None
        The parameter's.
    """

    def __init__(
        self, name: str, state: Mapping[str, np.ndarray], optimizer: Optimizer | None
    ) -> None:
        dim, dtype = state["values"].shape[1], state["values"].dtype.str

        def rows(optimizer: Optimizer | None) -> SparseTable:
            return SparseTable(
                name, dim, None, 0, 1, dtype, Constant(0.0), 0, optimizer, _Fetched()
            )

        self.table: SparseTable = rows(optimizer)
        self._fetched = rows(None)
        self._asked = GrowingRowIndex()
        self._pushed: list[np.ndarray] = []

    def missing(self, ids: np.ndarray | None) -> np.ndarray | None:
        if ids is None:
            return None
        new = np.unique(ids[self._asked.find(ids) < 0])
        return new if new.size else None

    def install(self, ids: np.ndarray | None, state: Mapping[str, np.ndarray]) -> None:
        new = self._asked.find(state["ids"]) < 0
        rows = {name: array if name == "step" else array[new] for name, array in state.items()}
        for table in (self.table, self._fetched):
            table.put(rows)
            table.advance(int(state["step"][0]))
        if ids is not None:
            self._asked.locate(ids)

    def reserve_write(self, write: TableOperation) -> list[Make]:
        # The other writes of an embedding are counts, which are not read here.
        if not isinstance(write, PutRows):
            return []
        here = self._asked.find(write.ids) >= 0
        known = PutRows(write.ids[here], write.values[here])
        return [table.reserve(known) for table in (self.table, self._fetched)]

    def reserve_push(self, push: Push | BlendValues) -> list[Make]:
        assert isinstance(push, PushRows)
        return [self.table.reserve(push), partial(self._pushed.append, push.ids)]

    def learned(self, share: float) -> Sequence[TableWrite]:
        if not self._pushed:
            return ()
        state = self.table.fetch(np.unique(np.concatenate(self._pushed)))
        ids = state["ids"]
        values = (state["values"] - self._fetched.lookup(ids)) * state["values"].dtype.type(share)
        return [MergeRows(ids, values, _slots(state), int(state["step"][0]), share)]


def _slots(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name.removeprefix("slot."): array
        for name, array in state.items()
        if name.startswith("slot.")
    }


_DENSE = (AddRows, AddValues, AssignRows, AssignValues)
"""Writes other than pushes that later reads must show."""

_Key = tuple[ShardId, str]
"""Shard and table."""


class _Cycle:
    """The copies between two exchanges."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards the tables and what is in them, and the next four
        self.tables: dict[_Key, LocalTable] = {}
        self.over = False
        self.ended = 0  # closures
        self.closures: list[tuple[int, bytes | None]] = []  # those that have written something
        self.updates = Updates(counted=True)

    def answers(self, shard: ShardId, on_table: OnTable) -> bool:
        """Return whether copies answer; called under the lock.

        Fetching a row creates it, so reads that are not for training go to the servers, unless the
        rows are here.
        """
        match _read_of(on_table.operation):
            case ReadValues() | GatherRows() | LookUpRows(training=True):
                return True
            case LookUpRows():
                key, ids = _needs(shard, on_table)
                return key in self.tables and self.tables[key].missing(ids) is None
        return False


class LocalCopies:
    """A `ServerClient` that keeps copies; thread-safe.

    Parameters
    ----------
    server_client : ServerClient
        The client of the servers.
    closures : int
        After how many closures an exchange is due.
    coordinator : str
        The coordinator of the closures.
    writer : str
        The name under which this worker exchanges; no other session has it.

    Attributes
    ----------
    workers : int
        The number of workers by which differences are divided; set by the session, read by
        `exchange`.
    """

    def __init__(
        self, server_client: ServerClient, closures: int, coordinator: str, writer: str
    ) -> None:
        self.workers = 1
        self._server_client, self._closures = server_client, closures
        self._coordinator, self._writer = coordinator, writer
        self._lock = threading.Lock()  # guards the current cycle, its count, and the next two
        self._numbers = CommitNumbers()
        self._cycle = _Cycle()

    def server_name(self, shard: ShardId) -> str:
        """Return what people call the server of a shard."""
        return self._server_client.server_name(shard)

    def allocate(self, shard: ShardId, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Return None: pushes stay in this process."""

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        """Answer reads from copies, and forward the rest; see `ServerClient`.

        ``seen`` stays as it is: a read of a copy is not a read of a shard.

        Raises
        ------
        ServerLostError
            If a server that is asked is gone.
        """
        cycle = self._cycle
        with cycle.lock:
            reads = {
                position: (shard, operation)
                for position, request in enumerate(requests)
                if isinstance(shard := request.to, ShardId)
                if isinstance(operation := request.operation, OnTable)
                if cycle.answers(shard, operation)
            }
        others = [position for position in range(len(requests)) if position not in reads]
        answers: dict[int, Any] = {}
        if others:
            found = self._server_client.call([requests[position] for position in others])
            answers |= zip(others, found, strict=True)
        if reads:
            self._fetch(cycle, [_needs(*read) for read in reads.values()])
            with cycle.lock:
                for position, (shard, operation) in reads.items():
                    table = cycle.tables[shard, operation.table].table
                    # Copied: the array that a table returns belongs to the table.
                    answers[position] = np.array(as_float32(table.run(operation.operation)))
        return [answers[position] for position in range(len(requests))]

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        """Ask the servers."""
        return self._server_client.attempt(requests)

    def commit(self, commit: Commit, parts: Mapping[ShardId, Part]) -> None:
        """Take the writes of a closure; they go to the servers with the next exchange.

        Writes with ``immediate=True``, which have a number of this process, go to the servers at
        once, except pushes.

        Raises
        ------
        ServerLostError
            If a server that is asked is gone; nothing was written then.
        ConfigurationError
            If a learning rate cannot be computed; no push was made then.
        """
        pushes: list[tuple[_Key, Push | BlendValues]] = []
        others: list[ShardWrite] = []
        for shard, part in parts.items():
            for write in part.writes:
                if isinstance(write.operation, Push | BlendValues):
                    pushes.append(((shard, write.table), write.operation))
                else:
                    others.append((shard, write))
        needs = [(key, push.ids if isinstance(push, PushRows) else None) for key, push in pushes]
        cycle = self._cycle
        if commit.closures:
            dense = [(shard, w.table) for shard, w in others if isinstance(w.operation, _DENSE)]
            needs += [(key, None) for key in dense]
            self._fetch(cycle, needs)  # first: after it only a learning rate can fail
        else:
            self._fetch(cycle, needs)
            with cycle.lock:  # copies that are fetched later include the other writes
                here = [each for each in others if (each[0], each[1].table) in cycle.tables]
            if others:
                now = Updates()
                now.add(others)
                now.commit(self._server_client, commit)
            others = here
        while not self._apply(cycle, commit, pushes, others):
            cycle = self._cycle
            self._fetch(cycle, needs)
            if not commit.closures:
                others = []

    def closure_ended(self) -> int | None:
        """Count a closure, and exchange if it is time; see `exchange`."""
        with self._lock:
            self._cycle.ended += 1
            due = self._cycle.ended >= self._closures
        return self.exchange() if due else None

    def exchange(self) -> int | None:
        """Send what was learned and written since the last exchange, and drop the copies.

        Returns
        -------
        int or None
            The staleness of the update; None if nothing was written.

        Raises
        ------
        UndecidedError
            If this process cannot tell whether the servers have applied it, or a server is lost or
            unresponsive: some servers may have it, and only the notebook can make sure that none
            applies it.
        ServerMemoryError
            If a server has no memory for it: what all closures of this cycle have learned and
            written is lost, and the error says so.
        MemoryError
            Likewise, if this worker has none for it.
        """
        with self._lock:
            cycle, self._cycle = self._cycle, _Cycle()
        with cycle.lock:
            dropped, cycle.over = cycle.over, True
            if dropped:
                return None
            try:
                cycle.updates.add(
                    (shard, OnTable(name, write))
                    for (shard, name), table in cycle.tables.items()
                    for write in table.learned(1 / self.workers)
                )
            except MemoryError as error:
                raise _lost(cycle, error) from None
        if not cycle.updates:
            return None
        number, settled = self._numbers.begin(cycle.updates.shards)
        commit = Commit(
            self._writer,
            number,
            settled=settled,
            closures=tuple(cycle.closures),
            coordinator=self._coordinator,
        )
        undecided = False  # then servers remember it
        try:
            return cycle.updates.commit(self._server_client, commit)
        except UndecidedError:
            undecided = True
            raise
        except ServerLostError as error:
            # Some may still have it prepared, and might apply it when this worker is lost.
            undecided = True
            raise UndecidedError(commit, error) from error
        except MemoryError as error:
            # Not tried again: the copies of the next cycle are of rows as they are without it.
            raise _lost(cycle, error) from None
        finally:
            if not undecided:
                self._numbers.end(number)

    def _apply(
        self,
        cycle: _Cycle,
        commit: Commit,
        pushes: Sequence[tuple[_Key, Push | BlendValues]],
        others: Sequence[ShardWrite],
    ) -> bool:
        with cycle.lock:
            if cycle.over:
                return False
            # First: a user's function may fail.
            rated = iter(
                with_rates(
                    [(cycle.tables[k].table, push) for k, push in pushes if isinstance(push, Push)]
                )
            )
            # All memory, and then all changes: without it, nothing is changed.
            makes: list[Make] = []
            for shard, write in others:
                if (shard, write.table) in cycle.tables:
                    makes += cycle.tables[shard, write.table].reserve_write(write.operation)
            for key, push in pushes:
                rate_known = next(rated) if isinstance(push, Push) else push
                makes += cycle.tables[key].reserve_push(rate_known)
            try:
                for make in makes:
                    make()
            except MemoryError as error:  # of what changes something first
                cycle.over = True
                with self._lock:
                    if self._cycle is cycle:
                        self._cycle = _Cycle()
                raise _lost(cycle, error) from None
            if commit.closures:
                cycle.updates.add(others)
                cycle.closures += commit.closures
            return True

    def _fetch(self, cycle: _Cycle, needs: Sequence[tuple[_Key, np.ndarray | None]]) -> None:
        """Fetch what a cycle lacks: whole slices of variables, and rows of embeddings."""
        ids: dict[_Key, list[np.ndarray] | None] = {}
        for key, wanted in needs:
            if wanted is None:
                ids[key] = None
            else:
                ids.setdefault(key, []).append(wanted)  # type: ignore[union-attr]
        missing: list[tuple[_Key, np.ndarray | None]] = []
        with cycle.lock:
            for key, several in ids.items():
                wanted = None if several is None else np.concatenate(several)
                table = cycle.tables.get(key)
                if table is None:
                    missing.append((key, None if wanted is None else np.unique(wanted)))
                elif (rest := table.missing(wanted)) is not None:
                    missing.append((key, rest))
        if not missing:
            return
        requests = []
        for (shard, name), rest in missing:
            fetch = ReadState() if rest is None else FetchRows(rest)
            requests += [Request(shard, OnTable(name, each)) for each in (fetch, ReadOptimizer())]
        answers = cycle.updates.read(self._server_client, requests)
        with cycle.lock:
            for (key, rest), state, optimizer in zip(
                missing, answers[::2], answers[1::2], strict=True
            ):
                if key not in cycle.tables:
                    kind = LocalDense if rest is None else LocalSparse
                    cycle.tables[key] = kind(key[1], state, optimizer)
                cycle.tables[key].install(rest, state)


def _lost(cycle: _Cycle, error: MemoryError) -> MemoryError:
    """Return the error that says that a cycle is lost, for want of memory here or on a server."""
    kind = ServerMemoryError if isinstance(error, ServerMemoryError) else MemoryError
    return kind(
        f"{error}. In mode Geo, {len(cycle.closures)} closures of this worker were one update, "
        "since its last exchange: none of it is written, nor what those before this closure have "
        "learned"
    )


def _read_of(operation: TableOperation) -> TableOperation:
    return operation.read if isinstance(operation, Preview) else operation


def _needs(shard: ShardId, on_table: OnTable) -> tuple[_Key, np.ndarray | None]:
    """Return the table that is read, and the ids that the read needs, if it has ids."""
    ids = []
    if isinstance(on_table.operation, Preview):
        # The closure's own pushes are shown on top of the rows that they change.
        ids = [each.ids for each in on_table.operation.writes if isinstance(each, PushRows)]
    read = _read_of(on_table.operation)
    if isinstance(read, LookUpRows):
        ids.append(read.ids)
    return (shard, on_table.table), np.concatenate(ids) if ids else None


# PulledVariables: copies of variables, pulled again while steps compute with the last ones.
#
# A `ServerClient` for closures in front of the real one. Variables that are read as a whole come
# from copies; all else goes to the servers.
#
# Threads: all closure threads of a worker share the copies. One thread at a time, named
# ``psnb-pull``, fetches new ones; it ends when they are there.


class _Copy(NamedTuple):
    value: np.ndarray
    version: int  # of its shard, when it was read


class PulledVariables:
    """A `ServerClient` that keeps copies of variables; thread-safe.

    Parameters
    ----------
    every : int
        After how many batches they are pulled again.
    server_client : ServerClient, optional
        The client of the servers; by default that of the process.
    """

    def __init__(self, every: int, server_client: ServerClient | None = None) -> None:
        self._every, self._given = every, server_client
        self._lock = threading.Lock()  # guards what follows, for a moment each
        self._copies: dict[_Key, _Copy] = {}
        self._batches = 0
        self._pulls = False  # a thread does
        self._error: Exception | None = None  # of the last pull, for the next reader

    def begin_batch(self) -> None:
        """Note that a batch begins; if it is time, pull again in another thread."""
        with self._lock:
            self._batches += 1
            if self._batches % self._every or self._pulls or not self._copies:
                return
            self._pulls, wanted = True, list(self._copies)
        arguments = (self._client, wanted)  # the client of this thread's worker
        threading.Thread(target=self._pull, args=arguments, name="psnb-pull", daemon=True).start()

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        """Answer reads of variables from copies, and ask the servers for all else.

        Raises
        ------
        ServerLostError
            If a server that is asked is gone, or was when copies were pulled.
        """
        keys = [_variable(request) for request in requests]
        with self._lock:
            error, self._error = self._error, None
            copies = {key: self._copies[key] for key in keys if key in self._copies}
        if error is not None:
            raise error
        versions: dict[ShardId, int] = {}
        others = [at for at, key in enumerate(keys) if key not in copies]
        answers: dict[int, Any] = {}
        if others:
            found = self._client.call([requests[at] for at in others], versions)
            answers = dict(zip(others, found, strict=True))
            self._keep({key: answers[at] for at in others if (key := keys[at])}, versions)
        if seen is not None:
            # Of a copy and what was fetched now, the older one counts.
            for (shard, _), copy in copies.items():
                seen[shard] = min(copy.version, seen.get(shard, copy.version))
            for shard, version in versions.items():
                seen.setdefault(shard, version)
        # Copied: what is returned belongs to the caller.
        return [
            np.array(copies[key].value) if key in copies else answers[at]
            for at, key in enumerate(keys)
        ]

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        """Ask the servers."""
        return self._client.attempt(requests)

    def commit(self, commit: Commit, parts: Mapping[ShardId, Part]) -> int | None:
        """Make writes on the servers."""
        return self._client.commit(commit, parts)

    def allocate(self, shard: ShardId, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Return None: gradients are added up in this process."""

    def server_name(self, shard: ShardId) -> str:
        """Return the name of the server that has a shard."""
        return self._client.server_name(shard)

    @property
    def _client(self) -> ServerClient:
        return self._given or process_client()

    def _pull(self, server_client: ServerClient, wanted: Sequence[_Key]) -> None:
        versions: dict[ShardId, int] = {}
        requests = [on_table(shard, table, ReadValues()) for shard, table in wanted]
        try:
            values = server_client.call(requests, versions)
            self._keep(dict(zip(wanted, values, strict=True)), versions)
        except Exception as error:  # the next reader raises it
            with self._lock:
                self._error = error
        finally:
            with self._lock:
                self._pulls = False

    def _keep(self, values: Mapping[_Key, np.ndarray], versions: Mapping[ShardId, int]) -> None:
        made = {key: _Copy(np.array(value), versions[key[0]]) for key, value in values.items()}
        with self._lock:
            self._copies |= made


def _variable(request: Request) -> _Key | None:
    """Return the variable that a request reads as a whole; None if it is another request."""
    match request:
        case Request(ShardId() as shard, OnTable(table, ReadValues())):
            return shard, table
    return None


@counted_as(PULL)
def pull(wanted: Mapping[Handle, Any], *, training: bool = True) -> dict[Handle, np.ndarray]:
    """Read several variables and embeddings with one request to each server.

    Thread-safe; in the notebook, in closures and in Dask tasks. On one server, no other operation
    comes between the parts of one `pull`. In a closure, it sees the closure's own writes.

    Parameters
    ----------
    wanted : mapping
        For an embedding, the ids to look up; for a variable, rows to gather or None for all of it.
        The keys are the `Variable` and `Embedding` objects.
    training : bool
        False for evaluation and serving, as in `Embedding.lookup`.

    Returns
    -------
    dict
        The same keys, with what `Embedding.lookup`, `Variable.gather` or `Variable.read` return.

    Raises
    ------
    ConfigurationError
        If a key is not a variable or embedding.
    InvalidArrayError, IdOutOfRangeError, ServerLostError
        As in those methods; everything is checked before anything is sent.
    """
    return asking(wanted, training=training)()


def asking(
    wanted: Mapping[Handle, Any], *, training: bool = True
) -> Callable[[], dict[Handle, np.ndarray]]:
    """Return a function that does a `pull`, in any thread, and sees this thread's writes so far.

    Raises
    ------
    ConfigurationError, InvalidArrayError, IdOutOfRangeError
        As `pull`.
    """
    _check(wanted)
    handles = list(wanted)
    seen = SeenIds()
    readings = [
        shards.reading(which, training=training, seen=seen)
        if isinstance(shards, SparseShards)
        else shards.reading(which)
        for shards, which in ((shards_of(handle), which) for handle, which in wanted.items())
    ]
    return lambda: dict(zip(handles, fetch_together(readings), strict=True))


@counted_as(PUSH)
def push(
    gradients: Mapping[Handle, Any], *, immediate: bool = False, weight: float | None = None
) -> None:
    """Push gradients of several variables and embeddings with one request to each server.

    Parameters
    ----------
    gradients : mapping
        For an embedding, the ids and gradients that `Embedding.push` takes, and shows and clicks if
        wanted, as a tuple; for a variable, its gradient. The keys are the `Variable` and
        `Embedding` objects.
    immediate : bool
        In a closure: write now, not at its end. Such a write happens at least once.
    weight : float, optional
        In mode `Sync`, what the closure's batch counts in its round, such as its number of
        examples, where gradients are of a mean over it; see there.

    Raises
    ------
    ConfigurationError
        If a key is not a variable or embedding, or was made without an optimizer.
    InvalidArrayError, IdOutOfRangeError
        As `Embedding.push` and `Variable.push`; nothing was changed.
    ServerLostError
        If a server is gone; no parameter of its strategy was changed. After a
        `ServerUnresponsiveError`, they may have been changed.
    """
    _check(gradients)
    seen = SeenIds()
    writes: dict[int, tuple[ParameterShards, list[ShardWrite]]] = {}
    for handle, given in gradients.items():
        shards = shards_of(handle)
        if not isinstance(shards, SparseShards):
            parts = shards.pushing(given)
        elif isinstance(given, tuple | list) and 2 <= len(given) <= 4:
            parts = shards.pushing(*given, seen=seen)
        else:
            raise InvalidArrayError(
                f"psnb.push: expected (ids, gradients) for embedding {handle.name!r}, found "
                f"{type(given).__name__}"
            )
        # One request to each server: writes with the same `ServerClient` go together.
        writes.setdefault(id(shards.server_client), (shards, []))[1].extend(parts)
    if weight is not None:
        weigh(weight)
    for first, parts in writes.values():
        first.send(parts, immediate)


def _check(handles: Mapping[Handle, Any]) -> None:
    for handle in handles:
        if not isinstance(handle, Handle):
            raise ConfigurationError(
                f"psnb.pull and psnb.push take variables and embeddings as keys, "
                f"found {shown(handle)}"
            )


# `prefetch`: fetches the parameters for the next batches while this one is processed.
#
# Threads: one, named ``psnb-prefetch``, for as long as a loop over `prefetch` lasts. It only asks
# the servers and waits. The thread that runs the loop takes the batches and calls ``wanted``, so a
# dataset is never used by two threads.

Batch = TypeVar("Batch")
Found = dict[Handle, np.ndarray]


def prefetch(
    batches: Iterable[Batch], wanted: Callable[[Batch], Mapping[Handle, Any]], depth: int = 1
) -> Iterator[tuple[Batch, Found]]:
    """Yield each batch with what `pull` returns for it, which is fetched ahead.

    In the notebook, in closures and in Dask tasks::

        for batch, found in psnb.prefetch(batches, lambda batch: {table: batch.ids}):
            gradients = compute(found[table], batch)
            psnb.push({table: (batch.ids, gradients)}, immediate=True)

    The request for a batch is sent when the batch that comes ``depth`` batches earlier is handed
    out. It sees all writes that this thread had made by then, as with `pull` (in a closure also
    those held back until its end). This thread's writes for the ``depth`` batches in between: those
    that are held back are not seen; the others (``immediate=True``, or outside of closures) may or
    may not be seen, like those of other workers. So with the default, a worker may miss the last
    one of its own steps; with ``depth=0``, which fetches when a batch is due, it misses none.

    Errors of ``batches``, of ``wanted`` and of the servers are raised when their batch is due,
    after all batches before it. Leaving the loop, also by an error, waits for open requests and
    ends the thread; if the iterator outlives the loop, its ``close`` does so. One thread uses an
    iterator; there may be any number of iterators.

    Parameters
    ----------
    batches : iterable
        Anything; taken in the calling thread, up to ``depth`` batches early. What is read early is
        a copy, so a generator may fill the same arrays for each batch.
    wanted : callable
        Takes a batch, returns the argument of `pull` for it.
    depth : int
        How many batches ahead, 0 or more.

    Yields
    ------
    tuple
        A batch, and the result of `pull` for it.

    Raises
    ------
    ConfigurationError
        If ``depth`` is not such a number.
    """
    return _fetched(iter(batches), wanted, integer("psnb.prefetch: depth", depth, 0))


def _fetched(
    batches: Iterator[Batch], wanted: Callable[[Batch], Mapping[Handle, Any]], depth: int
) -> Iterator[tuple[Batch, Found]]:
    pool = ThreadPoolExecutor(1, "psnb-prefetch")
    asked: deque[tuple[Batch | None, Answer[Found]]] = deque()
    ended = False
    try:
        while True:
            while len(asked) <= depth and not ended:
                try:
                    batch = next(batches)
                    if depth:  # it waits here while the next one is made, in the same array perhaps
                        batch = owned(batch)
                except StopIteration:
                    ended = True
                except Exception as error:  # a dataset may raise anything
                    ended = True
                    failed: Answer[Found] = Answer()
                    failed.set_exception(error)
                    asked.append((None, failed))
                else:
                    asked.append((batch, _asked(pool, wanted, batch)))
            if not asked:
                return
            due, found = asked.popleft()
            yield due, _waited_for(found)  # type: ignore[misc]  # no batch, no result
            del due, found  # keep no reference to what the caller has dropped
    finally:
        pool.shutdown(cancel_futures=True)


@counted_as(PULL)
def _waited_for(found: Answer[Found]) -> Found:
    return found.result()


@counted_as(PULL)
def _asked(
    pool: ThreadPoolExecutor, wanted: Callable[[Batch], Mapping[Handle, Any]], batch: Batch
) -> Answer[Found]:
    found: Answer[Found] = Answer()
    try:
        ask = asking(wanted(batch))
    except Exception as error:  # raised where the result is taken
        found.set_exception(error)
    else:
        with uninterrupted:
            pool.submit(found.give, ask)
    return found
