"""LocalCopies: copies of parameters that a worker's closures read and write (mode `Geo`).

A `ServerClient` for closures in front of the real one. Reads are answered from copies, which are
fetched when first used; a closure's writes are applied to them when it commits. `exchange` sends
the servers the learned changes, and all other writes, as one commit, and drops the copies. So a
closure counts wholly or not at all, also when a worker dies. A copy (`LocalDense`, `LocalSparse`)
is a table of the same kind as on the server, with the same optimizer. The values that were fetched
are kept too: the difference is what the worker has learned.

Threads: all closure threads of a worker share the copies. Between two exchanges they are a `_Cycle`
with one lock, which is held while arrays are computed, never while servers are asked. If a cycle
was exchanged before a commit comes, the commit goes into the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from psnb._src.client.commit import UndecidedError
from psnb._src.client.direct import CommitNumbers
from psnb._src.client.parameter_shards import joined
from psnb._src.client.requests import Request, on_table
from psnb._src.client.server_client import FrontClient, ServerClient
from psnb._src.client.updates import ShardWrite, Updates
from psnb._src.client.whole_tables import TableName
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import Admission
from psnb._src.server.tables.checks import COUNTS
from psnb._src.server.tables.dense import DenseTable, composed
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.presence import pieces, union, whole
from psnb._src.server.tables.row_index import GrowingRowIndex
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import with_rates
from psnb._src.transport.half_width import computed, widened
from psnb._src.transport.message import as_float32
from psnb.errors import ServerLostError, ServerMemoryError

Make = Callable[[], object]
"""Makes a change for which all memory is reserved."""


class _Fetched(Admission):
    """Only ids that were fetched have rows."""

    def may_enter(self, ids: np.ndarray, seed: int) -> np.ndarray:
        return np.zeros(ids.size, bool)


class LocalDense:
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
        self.table = DenseTable(name, state["values"], optimizer)
        self.table.load(dict(state))
        self._fetched = DenseTable(name, state["values"], None)
        # The ranges that have got a gradient: an empty one at first, None for the whole slice.
        self._pushed: np.ndarray | None = np.empty((0, 2), np.int64)
        self._pushes = 0
        self._blend: ops.BlendValues | None = None  # all of them, in order

    def reserve_write(self, write: ops.TableOperation) -> list[Make]:
        """Get the memory to repeat a write of the server, and return what does that.

        It does not count as learned here.
        """
        if isinstance(write, ops.SkipUpdates):
            return []
        return [table.reserve(write) for table in (self.table, self._fetched)]

    def reserve_push(self, push: ops.Push | ops.BlendValues) -> list[Make]:
        """Get the memory to apply gradients here, or to blend, and return what does that."""
        # Blends are sent as such, so they do not count as learned.
        blends = isinstance(push, ops.BlendValues)
        tables = (self.table, self._fetched) if blends else (self.table,)
        return [*(table.reserve(push) for table in tables), partial(self._note, push)]

    def _note(self, push: ops.Push | ops.BlendValues) -> None:
        if isinstance(push, ops.BlendValues):
            self._blend = composed(self._blend, push)
        else:
            assert isinstance(push, ops.PushGradient)
            self._pushed = union(self._pushed, push.ranges)
            self._pushes += 1

    def learned(self, share: float) -> Sequence[ops.TableWrite]:
        """Return the writes that send a share of the learned changes."""
        found: list[ops.TableWrite] = []
        if (blend := self._blend) is not None:
            # Not the difference to the fetched values: others have moved them meanwhile. And first:
            # the difference after the blend has the earlier learned changes, too.
            part = blend.terms.dtype.type(share)
            found.append(ops.BlendValues(blend.shares * part, blend.terms * part))
        if self._pushes:
            state = self.table.state()
            step, counts = int(state["step"][0]), state.get(COUNTS)
            values = self._difference(state["values"]) * state["values"].dtype.type(share)
            found.append(ops.MergeValues(values, _slots(state), step, share, self._pushed, counts))
        return found

    def _difference(self, values: np.ndarray) -> np.ndarray:
        """Return what was learned; 0 for what has had no gradient, also if it is not finite."""
        found, fetched = np.zeros_like(values), self._fetched.read().reshape(-1)
        ranges = whole(fetched.size) if self._pushed is None else self._pushed
        for columns, _ in pieces(ranges):
            now, before = values.reshape(-1)[columns], fetched[columns]
            np.subtract(now, before, out=found.reshape(-1)[columns], where=now != before)
        return found


class LocalSparse:
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
        dim, dtype = state["values"].shape[1], computed(state["values"].dtype).name

        def rows(optimizer: Optimizer | None) -> SparseTable:
            return SparseTable(
                name, dim, None, 0, 1, dtype, Constant(0.0), 0, optimizer, _Fetched()
            )

        self.table = rows(optimizer)
        self._fetched = rows(None)
        self._asked = GrowingRowIndex()
        self._pushed: list[np.ndarray] = []

    def missing(self, ids: np.ndarray) -> np.ndarray | None:
        """Return the distinct ids that are still to be fetched; None for no ids."""
        new = np.unique(ids[self._asked.find(ids) < 0])
        return new if new.size else None

    def install(self, ids: np.ndarray, state: Mapping[str, np.ndarray]) -> None:
        """Load what was fetched for these ids, unless it is here already."""
        new = self._asked.find(state["ids"]) < 0
        rows = {
            name: array if name == "step" else widened(array[new]) for name, array in state.items()
        }
        for table in (self.table, self._fetched):
            table.put(rows)
            table.updater.step = max(table.updater.step, int(state["step"][0]))
        self._asked.locate(ids)

    def reserve_write(self, write: ops.TableOperation) -> list[Make]:
        # The other writes of an embedding are counts, which are not read here.
        if not isinstance(write, ops.PutRows):
            return []
        here = self._asked.find(write.ids) >= 0
        known = ops.PutRows(write.ids[here], write.values[here])
        return [table.reserve(known) for table in (self.table, self._fetched)]

    def reserve_push(self, push: ops.Push | ops.BlendValues) -> list[Make]:
        assert isinstance(push, ops.PushRows)
        return [self.table.reserve(push), partial(self._pushed.append, push.ids)]

    def learned(self, share: float) -> Sequence[ops.TableWrite]:
        if not self._pushed:
            return ()
        state = self.table.fetch(np.unique(np.concatenate(self._pushed)))
        ids = state["ids"]
        values = (state["values"] - self._fetched.lookup(ids)) * state["values"].dtype.type(share)
        return [ops.MergeRows(ids, values, _slots(state), int(state["step"][0]), share)]


LocalTable = LocalDense | LocalSparse
"""A copy of a parameter's part on one shard; ``table`` is the copy."""


def _slots(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name.removeprefix("slot."): array
        for name, array in state.items()
        if name.startswith("slot.")
    }


_DENSE = (ops.AddRows, ops.AddValues, ops.AssignRows, ops.AssignValues)
"""Writes other than pushes that later reads must show."""


_Need = tuple[TableName, np.ndarray | None]
"""A table that a read needs here, and which ids, if it has ids."""


class _Cycle:
    """The copies between two exchanges."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards the tables and what is in them, and the next four
        self.tables: dict[TableName, LocalTable] = {}
        self.over = False
        self.ended = 0  # closures
        self.closures: list[tuple[int, bytes | None]] = []  # those that have written
        self.updates = Updates(counted=True)

    def needed(self, request: Request) -> _Need | None:
        """Return what the answer from copies needs, None if servers answer; under the lock.

        Fetching a row creates it, so reads that are not for training go to the servers, unless the
        rows are here.
        """
        if not isinstance(request.to, ShardId) or not isinstance(request.operation, ops.OnTables):
            return None
        (table,) = request.operation.tables
        key, read = (request.to, table), request.operation.operation
        ids: list[np.ndarray] = []
        if isinstance(read, ops.Preview):
            # The closure's own pushes are shown on top of the rows that they change.
            ids = [each.ids for each in read.writes if isinstance(each, ops.PushRows)]
            read = read.read
        match read:
            case ops.ReadValues() | ops.GatherRows():
                return key, None
            case ops.LookUpRows(looked_up, _, training):
                wanted = np.concatenate([*ids, looked_up])
                if training:  # `_fetch` looks for those that are missing
                    return key, wanted
                copy = self.tables.get(key)
                here = isinstance(copy, LocalSparse) and copy.missing(wanted) is None
                return (key, wanted) if here else None
        return None


class LocalCopies(FrontClient):
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
        super().__init__(server_client)
        self.workers, self._closures = 1, closures
        self._coordinator, self._writer = coordinator, writer
        self._lock = threading.Lock()  # guards the current cycle, its count, and the next two
        self._numbers = CommitNumbers()
        self._cycle = _Cycle()

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
        split = [_by_table(request) for request in requests]
        answers = iter(self._call([each for several in split for each in several]))
        return [joined([as_float32(next(answers)) for _ in several]) for several in split]

    def _call(self, requests: Sequence[Request]) -> list[Any]:
        """Answer requests of one table each."""
        cycle = self._cycle
        with cycle.lock:
            needs = {
                at: need
                for at, request in enumerate(requests)
                if (need := cycle.needed(request)) is not None
            }
        others = [at for at in range(len(requests)) if at not in needs]
        answers: dict[int, Any] = {}
        if others:
            found = self._behind.call([requests[at] for at in others])
            answers |= zip(others, found, strict=True)
        if needs:
            self._fetch(cycle, [*needs.values()])
            with cycle.lock:
                for at, (key, _) in needs.items():
                    on = requests[at].operation
                    assert isinstance(on, ops.OnTables)
                    # Copied: the array that a table returns belongs to the table.
                    answers[at] = np.array(as_float32(cycle.tables[key].table.run(on.operation)))
        return [answers[at] for at in range(len(requests))]

    def commit(self, commit: Commit, parts: Mapping[ShardId, Part]) -> None:
        """Take the writes of a closure; they go to the servers with the next exchange.

        Writes with ``immediate=True``, which have a number of this process, go to the servers
        immediately, except pushes.

        Raises
        ------
        ServerLostError
            If a server that is asked is gone; nothing was written then.
        ConfigurationError
            If a learning rate cannot be computed; no push was made then.
        """
        pushes: list[tuple[TableName, ops.Push | ops.BlendValues]] = []
        others: list[ShardWrite] = []
        for shard, part in parts.items():
            for write in [each for several in part.writes for each in several.parts()]:
                if isinstance(write.operation, ops.Push | ops.BlendValues):
                    pushes.append(((shard, write.tables[0]), write.operation))
                else:
                    others.append((shard, write))
        needs: list[_Need] = [
            (key, push.ids if isinstance(push, ops.PushRows) else None) for key, push in pushes
        ]
        cycle = self._cycle
        if commit.closures:
            dense = [(shard, w.tables[0]) for shard, w in others if isinstance(w.operation, _DENSE)]
            needs += [(key, None) for key in dense]
            self._fetch(cycle, needs)  # first: after it only a learning rate can fail
        else:
            self._fetch(cycle, needs)
            with cycle.lock:  # copies that are fetched later include the other writes
                here = [each for each in others if (each[0], each[1].tables[0]) in cycle.tables]
            if others:
                now = Updates()
                now.add(others)
                now.commit(self._behind, commit)
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
            If a server has no memory for it: all updates of this cycle's closures are lost, and the
            error says so.
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
                    (shard, ops.on_table(name, write))
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
        try:
            staleness = cycle.updates.commit(self._behind, commit)
        except UndecidedError:  # servers remember it
            raise
        except ServerLostError as error:
            # Some may still have it prepared, and might apply it when this worker is lost.
            raise UndecidedError(commit, error) from error
        except BaseException as error:  # an interrupt, too
            self._numbers.end(number)
            if isinstance(error, MemoryError):
                # Not tried again: the copies of the next cycle are of rows as they are without it.
                raise _lost(cycle, error) from None
            raise
        self._numbers.end(number)
        return staleness

    def _apply(
        self,
        cycle: _Cycle,
        commit: Commit,
        pushes: Sequence[tuple[TableName, ops.Push | ops.BlendValues]],
        others: Sequence[ShardWrite],
    ) -> bool:
        with cycle.lock:
            if cycle.over:
                return False
            # First: a user's function may fail.
            of_tables = [([cycle.tables[key].table], push) for key, push in pushes]
            rated = iter(with_rates([(t, p) for t, p in of_tables if isinstance(p, ops.Push)]))
            # All memory, and then all changes: without it, nothing is changed.
            makes: list[Make] = []
            for shard, write in others:
                if (key := (shard, write.tables[0])) in cycle.tables:
                    makes += cycle.tables[key].reserve_write(write.operation)
            for key, push in pushes:
                rate_known = next(rated) if isinstance(push, ops.Push) else push
                makes += cycle.tables[key].reserve_push(rate_known)
            try:
                for make in makes:
                    make()
            except MemoryError as error:  # of a change, before it is made
                cycle.over = True
                with self._lock:
                    if self._cycle is cycle:
                        self._cycle = _Cycle()
                raise _lost(cycle, error) from None
            if commit.closures:
                cycle.updates.add(others)
                cycle.closures += commit.closures
            return True

    def _fetch(self, cycle: _Cycle, needs: Sequence[_Need]) -> None:
        """Fetch what a cycle lacks: whole slices of variables, and rows of embeddings."""
        ids: dict[TableName, list[np.ndarray]] = {}  # none of variables
        for key, wanted in needs:
            ids.setdefault(key, []).extend([] if wanted is None else [wanted])
        missing: list[_Need] = []
        with cycle.lock:
            for key, several in ids.items():
                wanted = np.concatenate(several) if several else None
                table = cycle.tables.get(key)
                if table is None:
                    missing.append((key, None if wanted is None else np.unique(wanted)))
                elif isinstance(table, LocalSparse) and wanted is not None:
                    rest = table.missing(wanted)
                    missing += [] if rest is None else [(key, rest)]
        if not missing:
            return
        requests = []
        for (shard, name), rest in missing:
            fetch = ops.ReadState() if rest is None else ops.FetchRows(rest)
            requests += [on_table(shard, name, each) for each in (fetch, ops.ReadOptimizer())]
        answers = self._behind.call(requests, cycle.updates.seen)
        with cycle.lock:
            for (key, rest), state, optimizer in zip(
                missing, answers[::2], answers[1::2], strict=True
            ):
                if key not in cycle.tables:
                    kind = LocalDense if rest is None else LocalSparse
                    cycle.tables[key] = kind(key[1], state, optimizer)
                table = cycle.tables[key]
                if isinstance(table, LocalSparse) and rest is not None:
                    table.install(rest, state)


def _by_table(request: Request) -> list[Request]:
    """Return the same as requests of one table each."""
    if not isinstance(request.operation, ops.OnTables):
        return [request]
    return [Request(request.to, each) for each in request.operation.parts()]


def _lost(cycle: _Cycle, error: MemoryError) -> MemoryError:
    """Return the error that says that a cycle is lost, for want of memory here or on a server."""
    kind = ServerMemoryError if isinstance(error, ServerMemoryError) else MemoryError
    return kind(
        f"{error}. In mode Geo, {len(cycle.closures)} closures of this worker were one update, "
        "since its last exchange: none of it is written, nor what those before this closure have "
        "learned"
    )
