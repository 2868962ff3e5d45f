"""LocalCopies: what closures on a worker read and push to instead of the servers, for a while.

A transport for closures in front of the real one. Reads are answered from copies, which are fetched
when first used; what a closure has pushed is applied to them when it commits. `exchange` sends the
servers what was learned and drops the copies. Whatever is neither a read nor a push goes on to the
servers.

Threads: all closure threads of a worker share the copies. Between two exchanges they are a `_Cycle`
with one lock, which is held while arrays are worked on, never while servers are asked. A commit
that finds its cycle exchanged meanwhile goes into the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from psnb.parameters.batch import Request
from psnb.parameters.local_tables import LocalDense, LocalSparse, LocalTable
from psnb.parameters.transport import Transport
from psnb.parameters.updates import CommitId, TableWrite, Updates, commit_now
from psnb.placement import ServerAddress, ShardId

_READS = frozenset({"gather", "lookup", "preview", "read"})

_Key = tuple[ShardId | ServerAddress, str]
"""Shard and table."""


class _Cycle:
    """The copies between two exchanges."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards the tables and what is in them
        self.tables: dict[_Key, LocalTable] = {}
        self.over = False
        self.closures = 0
        self.pushed: list[CommitId] = []  # the closures that have
        self.updates = Updates(counted=True)

    def answers(self, request: Request) -> bool:
        """Return whether a request is for copies; under the lock.

        To fetch a row makes one, so what is no training is asked the servers, unless it is here.
        """
        arguments = request.arguments
        if request.operation == "preview":
            arguments = arguments["arguments"]
        if request.operation not in _READS or arguments.get("training", True):
            return request.operation in _READS
        key, ids = _needs(request)
        return key in self.tables and self.tables[key].missing(ids) is None


class LocalCopies:
    """A transport that keeps copies; thread-safe.

    Parameters
    ----------
    transport : Transport
        The way to the servers.
    closures : int
        How many closures make an exchange due.
    coordinator : str
        Under whose name closures commit.

    Attributes
    ----------
    workers : int
        Among how many the worker has its share; set by the session, read when it exchanges.
    """

    def __init__(self, transport: Transport, closures: int, coordinator: str) -> None:
        self.workers = 1
        self._transport, self._closures, self._coordinator = transport, closures, coordinator
        self._lock = threading.Lock()  # guards which cycle it is, and its count of closures
        self._cycle = _Cycle()

    def lend(self, shard: ShardId, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Return None: what is pushed stays here."""

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        """Answer reads from copies, keep pushes, and send the rest on; see `Transport`.

        Nothing is ``seen``: what a closure reads here is no state of a shard.

        Raises
        ------
        ServerLostError
            If a server that is asked is gone; nothing was pushed then.
        """
        commits = [request for request in requests if request.operation == "commit"]
        if commits:
            return self._commit(commits)
        cycle = self._cycle
        with cycle.lock:
            reads = [request for request in requests if cycle.answers(request)]
        near = {id(request) for request in reads}
        others = [request for request in requests if id(request) not in near]
        answers: dict[int, Any] = {}
        if others:
            answers |= zip(map(id, others), self._transport.call(others), strict=True)
        if reads:
            self._fetch(cycle, [_needs(request) for request in reads])
            with cycle.lock:
                for each in reads:
                    table = cycle.tables[each.to, each.table].table
                    # A copy: what a table returns is its own.
                    answers[id(each)] = np.array(table.call(each.operation, each.arguments))
        return [answers[id(request)] for request in requests]

    def closure_ended(self) -> int | None:
        """Count a closure, and exchange if it is time; see `exchange`."""
        with self._lock:
            self._cycle.closures += 1
            due = self._cycle.closures >= self._closures
        return self.exchange() if due else None

    def exchange(self) -> int | None:
        """Send what was learned since the last time, and begin with fresh copies.

        Returns
        -------
        int or None
            The staleness of the update; None if nothing was pushed.

        Raises
        ------
        ServerLostError
            If a server is gone; what was to go there is lost.
        """
        with self._lock:
            cycle, self._cycle = self._cycle, _Cycle()
        with cycle.lock:
            cycle.over = True
            writes: list[TableWrite] = [
                (shard, name, write)  # type: ignore[misc]
                for (shard, name), table in cycle.tables.items()
                if (write := table.learned(1 / self.workers)) is not None
            ]
        if not writes:
            return None
        cycle.updates.add(writes)
        cycle.updates.holds = cycle.pushed
        return commit_now(self._transport, cycle.updates)

    def commit_again(self, updates: Updates, identity: CommitId) -> None:
        """Commit what a closure has written that has run before, on a worker that was lost.

        Its pushes may be in what that worker sent, and would count twice.
        """
        shards = updates.shards
        asked = [Request(shard, "", "holds", asdict(identity)) for shard in shards]
        answers = self._transport.call(asked)
        updates.drop_pushes([shard for shard, held in zip(shards, answers, strict=True) if held])
        updates.commit(self, identity)

    def _commit(self, commits: Sequence[Request]) -> list[Any]:
        pushes: list[tuple[_Key, Mapping[str, Any]]] = []
        others: list[tuple[_Key, str, Mapping[str, Any]]] = []
        requests = []
        for each in commits:
            rest = []
            for write in each.arguments["writes"]:
                name, operation, arguments = write
                if operation == "push":
                    pushes.append(((each.to, name), arguments))
                else:
                    rest.append(write)
                    others.append(((each.to, name), operation, arguments))
            if rest:
                changed = {**each.arguments, "writes": rest}
                requests.append(Request(each.to, each.table, each.operation, changed))
        needs = [(key, arguments.get("ids")) for key, arguments in pushes]
        cycle = self._cycle
        self._fetch(cycle, needs)  # first: then nothing can fail any more
        with cycle.lock:  # what is fetched later has seen the other writes
            others = [write for write in others if write[0] in cycle.tables]
        if requests:
            self._transport.call(requests)
        first = commits[0].arguments
        identity = CommitId(first["writer"], first["number"], first["settled_below"])
        while not self._apply(cycle, identity, pushes, others):
            cycle, others = self._cycle, []
            self._fetch(cycle, needs)
        return [None] * len(commits)

    def _apply(
        self,
        cycle: _Cycle,
        identity: CommitId,
        pushes: Sequence[tuple[_Key, Mapping[str, Any]]],
        others: Sequence[tuple[_Key, str, Mapping[str, Any]]],
    ) -> bool:
        with cycle.lock:
            if cycle.over:
                return False
            for key, operation, arguments in others:
                cycle.tables[key].write(operation, arguments)
            for key, arguments in pushes:
                cycle.tables[key].push(arguments)
            # Not what was pushed in the middle of a closure, under a number of this process.
            if pushes and identity.writer == self._coordinator:
                cycle.pushed.append(identity)
            return True

    def _fetch(self, cycle: _Cycle, needs: Sequence[tuple[_Key, np.ndarray | None]]) -> None:
        """Fetch what a cycle lacks: whole slices of variables, and rows of embeddings by ids."""
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
            fetch = ("state", {}) if rest is None else ("fetch", {"ids": rest})
            requests += [Request(shard, name, *fetch), Request(shard, name, "optimizer", {})]
        answers = cycle.updates.read(self._transport, requests)
        with cycle.lock:
            for (key, rest), state, optimizer in zip(
                missing, answers[::2], answers[1::2], strict=True
            ):
                if key not in cycle.tables:
                    kind = LocalDense if rest is None else LocalSparse
                    cycle.tables[key] = kind(key[1], state, optimizer)
                cycle.tables[key].install(rest, state)


def _needs(request: Request) -> tuple[_Key, np.ndarray | None]:
    """Return the table that a read is of, and the ids that it needs, if it has ids."""
    arguments = request.arguments
    ids = []
    if request.operation == "preview":
        # The closure's own pushes are shown on top of the rows that they change.
        pushed = [each for operation, each in arguments["writes"] if operation == "push"]
        ids = [each["ids"] for each in pushed if "ids" in each]
        arguments = arguments["arguments"]
    if "ids" in arguments:
        ids.append(arguments["ids"])
    return (request.to, request.table), np.concatenate(ids) if ids else None
