"""Two hosts with a shard and its copy, and wires between them that a test can hold up."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import asdict

from psnb._src.placement.layout import ServerAddress, ShardPlacement
from psnb._src.placement.status import ReplicaState, ServerStatus, ShardStatus
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.messages import Done, Failed, Moved, PendingReply, ServerAnswer
from psnb._src.server.operations import (
    CommitParts,
    CreateDense,
    CreateSparse,
    CreateTable,
    FollowPlacements,
    HostOperation,
    HostShards,
    OnShard,
)
from psnb._src.server.optimizers import SGD, Adam
from psnb._src.server.replication import ForwardedRequest, Opening
from psnb._src.server.server import Host
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.admission import CountFilter
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import (
    OnTables,
    Operation,
    PushGradient,
    PushRows,
    ReadValues,
    ShardOperation,
    on_table,
)
from psnb._src.server.tables.row_use import CtrAccessor
from tests.server.standby import THREADS

SYNCING, SYNCED = ReplicaState.SYNCING, ReplicaState.SYNCED
ONES = np.ones(2, np.float32)
SPARSE = CreateSparse(
    *("e", 2, None, 0, 1, "float32", Constant(1.0), 0, Adam(0.1)),
    admission=CountFilter(2),
    accessor=CtrAccessor(),
    storage="disk",
)


A, B = ServerAddress("a", "a"), ServerAddress("b", "b")


class Wire:
    """A connection to a host: what is sent arrives when the test says so."""

    def __init__(self, to: Host, opening: Opening) -> None:
        self._to, self.opening = to, opening
        self.waiting: deque[tuple[ForwardedRequest, bytes]] = deque()
        self.closed = False
        self.has_memory = True

    def send(self, exchange: ForwardedRequest) -> None:
        if not self.has_memory:
            raise MemoryError
        self.waiting.append((exchange, pickle.dumps(exchange.message())))

    def close(self) -> None:
        self.closed = True

    def deliver(self) -> None:
        """Let one message arrive, and its answer."""
        exchange, message = self.waiting.popleft()
        _, operations = pickle.loads(message)

        def send(answers: list[ServerAnswer]) -> None:
            exchange.answered(pickle.loads(pickle.dumps(answers)))

        self._to.run(operations, PendingReply(send), nowhere)


def now(function: Callable[[], object]) -> None:
    """Call it at once, in the thread that is here."""
    function()


def nowhere(address: str, opening: Opening) -> None:
    opening.broken(ConnectionRefusedError("nobody is there"))


def following(place: ShardPlacement, **changes: Any) -> ShardPlacement:
    """Return the next place of a shard, with changes."""
    fields = asdict(place) | changes
    del fields["term"], fields["version"]
    return place.next(**fields)


class Pair:
    """Two hosts, the first of which holds shard 0, and the wires between them."""

    def __init__(self) -> None:
        self.hosts = {name: Host(name, name, now, THREADS, THREADS) for name in "ab"}
        self.wires: list[Wire] = []
        self.place = ShardPlacement(A)
        self.manage("a", HostShards({0: self.place}, []))
        for name in "vw":
            self.do(CreateDense(name, np.zeros(2, np.float32), SGD(1.0)))
        self.do(SPARSE)
        self.commits = 0

    def connect(self, address: str, opening: Opening) -> None:
        self.wires.append(Wire(self.hosts[address], opening))
        opening.opened(self.wires[-1])

    def send(self, host: str, *operations: Operation) -> list[ServerAnswer]:
        """Run a message's operations on shard 0, or on the server or shard that they name.

        The list gets their answers when they are sent.
        """
        answers: list[ServerAnswer] = []
        sent = [
            each if isinstance(each, HostOperation) else OnShard(0, each) for each in operations
        ]
        self.hosts[host].run(sent, PendingReply(answers.extend), self.connect)
        return answers

    def manage(self, host: str, operation: HostOperation) -> Any:
        answers = self.send(host, operation)
        return result(answers) if answers else answers

    def tell(self, *hosts: str, **changes: Any) -> None:
        """Let hosts hear of the next place of the shard."""
        self.place = following(self.place, **changes)
        for host in hosts:
            self.beat(host, self.place)

    def beat(self, host: str, place: ShardPlacement) -> dict[int, ShardStatus]:
        mine = {0: place} if host in {server.key for server in place.servers} else {}
        found: ServerStatus = self.manage(host, FollowPlacements(mine, [place.version]))
        return dict(found.shards)

    def do(self, operation: ShardOperation, host: str = "a") -> Any:
        return result(self.send(host, operation))

    def commit(self, *writes: OnTables, number: int = -1, host: str = "a") -> list[ServerAnswer]:
        if number < 0:
            number, self.commits = self.commits, self.commits + 1
        return self.send(host, CommitParts(Commit("w", number), {0: Part(writes)}))

    def shard(self, host: str) -> ParameterShard:
        return self.hosts[host]._hosted[0].shard

    def holding(self, host: str) -> ShardStatus:
        return self.hosts[host]._hosted[0].status()

    def copied(self) -> ReplicaState:
        """Return how far the copy is."""
        return self.holding("a").replicas["b"]

    def read(self, host: str) -> list[float]:
        """Return what the variable has, whatever the host is for the shard."""
        values: list[float] = self.shard(host).run(READ).tolist()
        return values

    def flow(self) -> None:
        """Let everything arrive."""
        while any(wire.waiting for wire in self.wires):
            for wire in self.wires:
                if wire.waiting:
                    wire.deliver()

    def fill(self) -> None:
        self.tell("a", syncing=B)
        self.flow()
        assert self.copied() is SYNCED
        self.tell("a", "b", synced=(B,), syncing=None)

    def promote(self) -> None:
        """Let the copy hear that it is the primary, and nobody else."""
        self.tell("b", primary=B, synced=())


def result(answers: list[ServerAnswer]) -> Any:
    (answer,) = answers
    if isinstance(answer, Failed):
        raise answer.error
    return answer.result if isinstance(answer, Done) else answer


def same(one: ParameterShard, other: ParameterShard) -> bool:
    """Return whether two shards hold the same."""
    return held(one) == held(other)


def held(shard: ParameterShard) -> Any:
    """Return what a shard holds, rows in the order of their ids, as plain objects."""
    tables = []
    for name in sorted(shard.tables()):
        state = {**shard.table(name).state(), "skipped": shard.table(name).updater.skipped}
        tables.append((name, plain(shard.creation(name), state)))
    writers = shard.log._writers.items()
    log = [
        (
            name,
            each.settled.bounds(),
            sorted((n, e.state, e.commit.attempt) for n, e in each.entries.items()),
        )
        for name, each in sorted(writers)
    ]
    return tables, log, shard.log.version


def plain(creation: CreateTable, contained: Any) -> Any:
    arrays = {key: np.asarray(value) for key, value in contained.items()}
    for ids in ("ids", "waiting.ids"):
        if ids in arrays:
            order = np.argsort(arrays[ids])
            waits = ids.startswith("waiting.")
            arrays |= {
                key: array[order]
                for key, array in arrays.items()
                if key.startswith("waiting.") == waits and key not in ("step", "skipped", "minutes")
            }
    lists = sorted((key, array.tolist()) for key, array in arrays.items())
    return repr(creation), lists


def push(name: str = "v") -> OnTables:
    return on_table(name, PushGradient(-ONES))


def push_rows(*ids: int) -> OnTables:
    gradients = np.full((len(ids), 2), 0.5, np.float32)
    return on_table("e", PushRows(np.array(ids, np.uint64), gradients))


def results(answers: list[ServerAnswer]) -> list[Any]:
    """Return what was answered."""
    return [each.result if isinstance(each, Done) else each for each in answers]


def moved(answers: list[ServerAnswer]) -> bool:
    """Return whether the answer is that the shard is elsewhere."""
    return [type(each) for each in answers] == [Moved]


READ = on_table("v", ReadValues())
