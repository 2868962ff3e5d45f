"""LocalCopies: copies of parameters that a worker's closures read and write (mode `Geo`).

A `ServerClient` for closures in front of the real one. Reads are answered from copies, which are
fetched when first used; a closure's writes are applied to them when it commits. `exchange` sends
the servers the learned changes, and all other writes, as one commit, and drops the copies. So a
closure counts wholly or not at all, also when a worker dies.

Threads: all closure threads of a worker share the copies. Between two exchanges they are a `_Cycle`
with one lock, which is held while arrays are computed, never while servers are asked. If a cycle
was exchanged before a commit comes, the commit goes into the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from psnb._src.client.commit import UndecidedError
from psnb._src.client.direct import CommitNumbers
from psnb._src.client.local.tables import LocalDense, LocalSparse, LocalTable, Make
from psnb._src.client.requests import Request
from psnb._src.client.server_client import FrontClient, ServerClient
from psnb._src.client.updates import ShardWrite, Updates
from psnb._src.client.whole_tables import TableName
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.table import with_rates
from psnb._src.transport.message import as_float32
from psnb.errors import ServerLostError, ServerMemoryError

_DENSE = (ops.AddRows, ops.AddValues, ops.AssignRows, ops.AssignValues)
"""Writes other than pushes that later reads must show."""


class _Cycle:
    """The copies between two exchanges."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards the tables and what is in them, and the next four
        self.tables: dict[TableName, LocalTable] = {}
        self.over = False
        self.ended = 0  # closures
        self.closures: list[tuple[int, bytes | None]] = []  # those that have written
        self.updates = Updates(counted=True)

    def answers(self, shard: ShardId, on_table: ops.OnTable) -> bool:
        """Return whether copies answer; called under the lock.

        Fetching a row creates it, so reads that are not for training go to the servers, unless the
        rows are here.
        """
        match _read_of(on_table.operation):
            case ops.ReadValues() | ops.GatherRows() | ops.LookUpRows(training=True):
                return True
            case ops.LookUpRows():
                key, ids = _needs(shard, on_table)
                return key in self.tables and self.tables[key].missing(ids) is None
        return False


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
        cycle = self._cycle
        with cycle.lock:
            reads = {
                position: (shard, operation)
                for position, request in enumerate(requests)
                if isinstance(shard := request.to, ShardId)
                if isinstance(operation := request.operation, ops.OnTable)
                if cycle.answers(shard, operation)
            }
        others = [position for position in range(len(requests)) if position not in reads]
        answers: dict[int, Any] = {}
        if others:
            found = self._behind.call([requests[position] for position in others])
            answers |= zip(others, found, strict=True)
        if reads:
            self._fetch(cycle, [_needs(*read) for read in reads.values()])
            with cycle.lock:
                for position, (shard, operation) in reads.items():
                    table = cycle.tables[shard, operation.table].table
                    # Copied: the array that a table returns belongs to the table.
                    answers[position] = np.array(as_float32(table.run(operation.operation)))
        return [answers[position] for position in range(len(requests))]

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
            for write in part.writes:
                if isinstance(write.operation, ops.Push | ops.BlendValues):
                    pushes.append(((shard, write.table), write.operation))
                else:
                    others.append((shard, write))
        needs = [
            (key, push.ids if isinstance(push, ops.PushRows) else None) for key, push in pushes
        ]
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
                    (shard, ops.OnTable(name, write))
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
            return cycle.updates.commit(self._behind, commit)
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
        pushes: Sequence[tuple[TableName, ops.Push | ops.BlendValues]],
        others: Sequence[ShardWrite],
    ) -> bool:
        with cycle.lock:
            if cycle.over:
                return False
            # First: a user's function may fail.
            rated = iter(
                with_rates(
                    [
                        (cycle.tables[k].table, push)
                        for k, push in pushes
                        if isinstance(push, ops.Push)
                    ]
                )
            )
            # All memory, and then all changes: without it, nothing is changed.
            makes: list[Make] = []
            for shard, write in others:
                if (shard, write.table) in cycle.tables:
                    makes += cycle.tables[shard, write.table].reserve_write(write.operation)
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

    def _fetch(self, cycle: _Cycle, needs: Sequence[tuple[TableName, np.ndarray | None]]) -> None:
        """Fetch what a cycle lacks: whole slices of variables, and rows of embeddings."""
        ids: dict[TableName, list[np.ndarray] | None] = {}
        for key, wanted in needs:
            if wanted is None:
                ids[key] = None
            else:
                ids.setdefault(key, []).append(wanted)  # type: ignore[union-attr]
        missing: list[tuple[TableName, np.ndarray | None]] = []
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
            fetch = ops.ReadState() if rest is None else ops.FetchRows(rest)
            requests += [
                Request(shard, ops.OnTable(name, each)) for each in (fetch, ops.ReadOptimizer())
            ]
        answers = cycle.updates.read(self._behind, requests)
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


def _read_of(operation: ops.TableOperation) -> ops.TableOperation:
    return operation.read if isinstance(operation, ops.Preview) else operation


def _needs(shard: ShardId, on_table: ops.OnTable) -> tuple[TableName, np.ndarray | None]:
    """Return the table that is read, and the ids that the read needs, if it has ids."""
    ids = []
    if isinstance(on_table.operation, ops.Preview):
        # The closure's own pushes are shown on top of the rows that they change.
        ids = [each.ids for each in on_table.operation.writes if isinstance(each, ops.PushRows)]
    read = _read_of(on_table.operation)
    if isinstance(read, ops.LookUpRows):
        ids.append(read.ids)
    return (shard, on_table.table), np.concatenate(ids) if ids else None
