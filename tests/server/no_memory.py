"""Servers in one process, and an allocator that has no memory at the moment that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from psnb._src.client.commit import ask, drive
from psnb._src.client.commit import commit as commit_on
from psnb._src.client.requests import Request
from psnb._src.placement.layout import ServerAddress, ShardId, ShardPlacement
from psnb._src.placement.status import ReplicaState
from psnb._src.server import memory
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.messages import PendingReply
from psnb._src.server.operations import CreateTable, FollowPlacements, HostShards, OnShard
from psnb._src.server.replication import Opening
from psnb._src.server.server import Host
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.operations import OnTables, ShardOperation
from tests.server.pair import Wire, following, now, result
from tests.server.standby import NO_THREADS


class Allocator:
    """Counts what servers allocate, and fails when it is told to.

    Attributes
    ----------
    count : int
        How often memory was asked for.
    failing : range or None
        Which of these questions fail.
    failed : bool
        Whether one has failed.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count, self.failed = 0, False
        self.failing: range | None = None
        self._real = memory.allocate
        patch.setattr(memory, "allocate", self._allocate)

    def _allocate(self, get: Callable[[Any, Any], Any], shape: Any, dtype: Any) -> Any:
        self.count += 1
        if self.failing is not None and self.count - 1 in self.failing:
            self.failed = True
            raise memory.no_memory(int(np.prod(shape)))
        return self._real(get, shape, dtype)

    @contextmanager
    def fails(self, first: int, *, only: bool = False) -> Iterator[None]:
        """Fail from one allocation on, or with it ``only``; they count from 0."""
        self.count, self.failed = 0, False
        self.failing = range(first, first + 1 if only else 1 << 62)
        try:
            yield
        finally:
            self.failing = None


class Servers:
    """Hosts with shards, whose copies, if there are any, are on another host.

    Parameters
    ----------
    homes : str
        The host of each shard.
    creations : sequence of CreateTable
        The tables that each shard has.
    copied : bool
        Whether each shard has a copy, on host "c".
    """

    def __init__(self, homes: str, creations: Sequence[CreateTable], *, copied: bool) -> None:
        self.hosts = {name: Host(name, name, now, NO_THREADS, NO_THREADS) for name in {*homes, "c"}}
        self.placements = [ShardPlacement(ServerAddress(name, name)) for name in homes]
        self._wires: list[Wire] = []
        self.commits = 0
        for index, home in enumerate(homes):
            self._manage(home, HostShards({index: self.placements[index]}, []))
        for index in range(len(homes)):
            for creation in creations:
                self.do(index, creation)
            if copied:
                self._tell(index, syncing=ServerAddress("c", "c"))
                self._flow()
                self._tell(index, synced=(ServerAddress("c", "c"),), syncing=None)

    def shard(self, index: int) -> ParameterShard:
        """Return a shard, on its primary."""
        return self._hosted(index).shard

    def copy(self, index: int) -> ParameterShard | None:
        """Return a shard's copy, if the primary keeps one."""
        if not self._hosted(index).replicas:
            return None
        return self.hosts["c"]._hosted[index].shard

    def do(self, index: int, operation: ShardOperation) -> Any:
        """Run an operation on a shard; one that its copy fails in is dropped meanwhile."""
        answers: list[Any] = []
        primary = self.placements[index].primary
        assert primary is not None
        reply = PendingReply(answers.extend)
        self.hosts[primary.key].run([OnShard(index, operation)], reply, self._connect)
        self._flow()
        for at in range(len(self.placements)):
            if ReplicaState.BROKEN in self._hosted(at).status().replicas.values():
                self._tell(at, synced=())
        return result(answers)

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        """Make requests, as a `ServerClient` does."""
        found: list[Any] = []
        for request in requests:
            assert isinstance(request.to, ShardId)
            assert isinstance(request.operation, ShardOperation)
            try:
                found.append(self.do(request.to.number, request.operation))
            except Exception as error:
                found.append(error)
        return found

    def commit(
        self, writes: Sequence[OnTables], sync_round: int | None = None, together: bool = True
    ) -> int:
        """Commit the same writes to all shards; return the number of the commit."""
        shards = tuple(ShardId("s", index) for index in range(len(self.placements)))
        number, self.commits = self.commits, self.commits + 1
        parts: Mapping[ShardId, Part] = {
            shard: Part(writes, round_number=sync_round) for shard in shards
        }
        commit = Commit("w", number, shards=shards)
        drive(commit_on(commit, parts, lambda _: together, ask), self.attempt)
        return number

    def _hosted(self, index: int) -> Any:
        primary = self.placements[index].primary
        assert primary is not None
        return self.hosts[primary.key]._hosted[index]

    def _tell(self, index: int, **changes: Any) -> None:
        self.placements[index] = place = following(self.placements[index], **changes)
        versions = [each.version for each in self.placements]
        for name in self.hosts:
            mine = {
                at: each
                for at, each in enumerate(self.placements)
                if name in {server.key for server in each.servers}
            }
            self._manage(name, FollowPlacements(mine, versions))
        assert place.version in versions

    def _manage(self, host: str, operation: Any) -> None:
        self.hosts[host].run([operation], PendingReply(lambda _: None), self._connect)

    def _connect(self, address: str, opening: Opening) -> None:
        self._wires.append(Wire(self.hosts[address], opening))
        opening.opened(self._wires[-1])

    def _flow(self) -> None:
        while any(wire.waiting for wire in self._wires):
            for wire in self._wires:
                if wire.waiting:
                    wire.deliver()
