"""Parameters on servers in this process, and a client that counts what it carries."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from psnb._src.client.arguments import NonFinite
from psnb._src.client.commit import ask, drive
from psnb._src.client.commit import commit as commit_on
from psnb._src.client.dense_shards import DenseShard, DenseShards
from psnb._src.client.embedding import Embedding
from psnb._src.client.embedding_spec import EmbeddingSpec
from psnb._src.client.requests import Request
from psnb._src.client.server_client import add_process_client, remove_process_client
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.variable import Variable
from psnb._src.placement.layout import ServerAddress, ShardId, ShardPlacement
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.messages import Done, Failed, PendingReply, ServerAnswer
from psnb._src.server.operations import CreateDense, CreateSparse, HostShards, OnShard
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.server import Host
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.admission import Admission, Always
from psnb._src.server.tables.initializers import Uniform
from psnb._src.server.tables.operations import (
    FetchRows,
    LookUpRows,
    OnTables,
    Operation,
    ShardOperation,
)
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.sharding import FixedShards, row_ranges
from tests.server.pair import now
from tests.server.standby import THREADS

ROWS, DIM = 10, 2
SHARDS = pytest.mark.parametrize("shards", [1, 3])
KINDS = pytest.mark.parametrize("rows", [ROWS, None], ids=["fixed", "growing"])


def nowhere(address: str, opening: Any) -> None:
    raise AssertionError("there are no copies")


class InProcess:
    """A transport to servers in this process, one a shard; counts the requests that it carries."""

    def __init__(self, shards: int) -> None:
        self.shards = [ShardId("s", number) for number in range(shards)]
        self.servers = [ServerAddress("here", f"server-{n}") for n in range(shards)]
        self._hosts = [Host(each.key, each.name, now, THREADS, THREADS) for each in self.servers]
        for number, host in enumerate(self._hosts):
            hosting = HostShards({number: ShardPlacement(None)}, [])
            host.run([hosting], PendingReply(lambda answers: None), nowhere)
        self.carried: list[Request] = []
        self.calls = 0

    def server_of(self, to: ShardId) -> ServerAddress | None:
        return self.servers[to.number]

    def shard(self, number: int) -> ParameterShard:
        return self._hosts[number]._hosted[number].shard

    def allocate(self, shard: ShardId, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """There is no memory between processes."""

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        results = self.attempt(requests, seen)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def attempt(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        self.carried.extend(requests)
        self.calls += 1
        results = []
        for request in requests:
            operation = request.operation
            if isinstance(request.to, ServerAddress):
                number = self.servers.index(request.to)
            else:
                number = request.to.number
                if isinstance(operation, ShardOperation):
                    operation = OnShard(number, operation)
            answers: list[ServerAnswer] = []
            self._hosts[number].run([operation], PendingReply(answers.extend), nowhere)
            (answer,) = answers
            if isinstance(answer, Failed):
                results.append(answer.error)
                continue
            assert isinstance(answer, Done)
            results.append(answer.result)
            if seen is not None and isinstance(request.to, ShardId):
                seen.setdefault(request.to, answer.version)
        return results

    def insist(self, requests: Sequence[Request]) -> None:
        self.attempt(requests)

    def commit(self, commit: Commit, parts: Mapping[ShardId, Part]) -> int | None:
        return drive(commit_on(commit, parts, lambda shards: len(shards) == 1, ask), self.attempt)


def asked(transport: InProcess) -> list[Operation]:
    """Return what shards were asked."""
    found = [request.operation for request in transport.carried]
    return [each.operation if isinstance(each, OnShard) else each for each in found]


def asked_ids(transport: InProcess) -> list[np.ndarray]:
    """Return the ids of each request for rows."""
    operations = [request.operation for request in transport.carried]
    of_tables = [each.operation for each in operations if isinstance(each, OnTables)]
    return [each.ids for each in of_tables if isinstance(each, LookUpRows | FetchRows)]


def variable(
    value: Any,
    shards: int = 3,
    optimizer: Optimizer | None = None,
    transport: InProcess | None = None,
    name: str = "v",
    nonfinite: str = "refuse",
) -> Variable:
    value = np.asarray(value)
    transport = transport or InProcess(3)
    count = FixedShards(shards)(value.shape, value.dtype)
    placed = []
    for i, (start, stop) in enumerate(row_ranges(value.shape[0], count) if count > 1 else [(0, 0)]):
        part = value[start:stop] if count > 1 else value
        creation = CreateDense(f"{name}/{start}", part, optimizer)
        transport.call([Request(transport.shards[i], creation)])
        placed.append(DenseShard(transport.shards[i], f"{name}/{start}", start, stop))
    choice = NonFinite(nonfinite)
    spread = DenseShards(name, value.shape, value.dtype, optimizer, placed, transport, choice)
    return Variable(spread)


def embedding(
    rows: int | None = ROWS,
    shards: int = 3,
    optimizer: Optimizer | None = None,
    transport: InProcess | None = None,
    dtype: str = "float32",
    nonfinite: str = "refuse",
    admission: Admission | None = None,
    accessor: CtrAccessor | None = None,
    half: bool = False,
    name: str = "e",
    slot_dtype: str | None = None,
    storage: str = "memory",
) -> Embedding:
    transport = transport or InProcess(shards)
    for index, shard in enumerate(transport.shards):
        creation = CreateSparse(
            *(name, DIM, rows, index, shards, dtype, Uniform(), 3, optimizer),
            admission=admission or Always(),
            accessor=accessor,
            slot_dtype=slot_dtype,
            storage=storage,
        )
        transport.call([Request(shard, creation)])
    spec = EmbeddingSpec(
        *(name, DIM, rows, np.dtype(dtype), optimizer, NonFinite(nonfinite)),
        admission=admission or Always(),
        accessor=accessor,
        slot_dtype=np.dtype(slot_dtype) if slot_dtype else None,
        half=half,
    )
    return Embedding(SparseShards(spec, transport.shards, transport))


@pytest.fixture
def process_client() -> Iterator[InProcess]:
    """Make a transport that of this process, until the test ends."""
    made = InProcess(3)
    add_process_client(made)
    yield made
    remove_process_client(made)
