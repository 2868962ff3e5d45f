"""Tests of the way to the servers over Dask's connections, on a real cluster."""

import asyncio
import contextlib
import gc
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from distributed.core import ConnectionPool

import psnb
from psnb._src.client.comm_client import PATIENCE, CommServerClient
from psnb._src.client.commit import UndecidedError
from psnb._src.client.requests import Request, RequestBatch
from psnb._src.dask_compat.reach import event_loop, pool_of
from psnb._src.placement.layout import ServerAddress, ShardId
from psnb._src.placement.layout_cache import LayoutCache
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.messages import ServerRequest
from psnb._src.server.operations import CountTraffic, OnShard
from psnb._src.server.tables.operations import (
    AddValues,
    ReadValues,
    ShardOperation,
    SkipUpdates,
    on_table,
)
from psnb._src.transport.stream import MessageStream
from psnb.errors import (
    ConfigurationError,
    CoordinatorClosedError,
    InternalError,
    ServerLostError,
    ServerUnresponsiveError,
)
from tests.conftest import DEADLINE, wait_until

PROCESSES = True  # whose memory is shared, and whose connections are sockets

THREADS, ROUNDS = 8, 20
UNKNOWN = ShardOperation()


@pytest.fixture(autouse=True, params=[True, False], ids=["shared memory", "network"])
def shared_memory(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Both ways to the servers do the same."""
    with dask.config.set({"psnb.shared-memory": request.param}):
        yield request.param


def request(strategy: psnb.ParameterServerStrategy, operation: ShardOperation) -> Request:
    return Request(strategy._core.servers.shards[0], operation)


def nowhere() -> LayoutCache:
    """Return a directory that knows nothing and asks nobody."""

    async def ask(strategy: str) -> Any:
        return None

    return LayoutCache(ask)


def test_results_come_in_the_order_of_the_requests(strategy: psnb.ParameterServerStrategy) -> None:
    names = [f"v{i}" for i in range(6)]
    for i, name in enumerate(names):
        strategy.variable(float(i), name=name)
    requests = [
        Request(p._shards.tables[0][0], on_table(name, ReadValues()))
        for name, p in strategy.parameters.items()
    ]
    places = strategy._core.layout.placements
    assert {places[request.to.number].primary for request in requests} == set(  # type: ignore[union-attr]
        strategy._core.layout.servers
    )
    found = strategy._core.server_client.call(requests)
    assert [float(value) for value in found] == [0, 1, 2, 3, 4, 5]


def test_all_requests_of_a_call_to_one_server_go_in_one_message(
    strategy: psnb.ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = strategy.embedding("e", 2, optimizer=psnb.SGD())
    v = strategy.variable(np.zeros(4), optimizer=psnb.SGD())
    psnb.pull({e: range(100), v: None})  # connects
    sent = []
    send = MessageStream.send

    def noted(stream: MessageStream, message: Any, *, later: bool = False) -> None:
        match message:  # others are the reconciler's
            case ServerRequest(operations=[OnShard(), *_] as operations):
                sent.append(operations)
        send(stream, message, later=later)

    monkeypatch.setattr(MessageStream, "send", noted)
    psnb.pull({e: range(100), v: None})
    assert len(sent) == len(strategy.server_addresses)
    sent.clear()
    psnb.push({e: (range(100), np.ones((100, 2), np.float32)), v: np.ones(4)})
    assert [len(operations) for operations in sent] == 4 * [1]  # the servers hold, then apply


def test_no_requests_have_no_results(strategy: psnb.ParameterServerStrategy) -> None:
    assert strategy._core.server_client.call([]) == []


def test_read_array_is_writable_and_independent(strategy: psnb.ParameterServerStrategy) -> None:
    v = strategy.variable([1.0, 2.0])
    v.read()[...] = 9
    assert v.read().tolist() == [1, 2]


@pytest.mark.parametrize("size", [3, 1_000_000])
def test_arrays_small_and_large_arrive_whole(
    strategy: psnb.ParameterServerStrategy, size: int
) -> None:
    v = strategy.variable(np.zeros(size), optimizer=psnb.SGD(1.0))
    for number in range(20):
        np.testing.assert_array_equal(v.read(), np.full(size, -float(number)))
        v.push(np.ones(size))


def test_what_was_read_stays_as_it_was_whatever_comes_later(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    v = strategy.variable(np.zeros(100_000))
    kept = []
    for number in range(30):  # more than shared memory has room for at once, were it not bounded
        v.assign(np.full(100_000, float(number)))
        kept.append(v.read())
    assert [np.unique(array).tolist() for array in kept] == [[number] for number in range(30)]


def test_large_arrays_go_through_shared_memory_where_it_is_wanted(
    strategy: psnb.ParameterServerStrategy, shared_memory: bool
) -> None:
    v = strategy.variable(np.zeros(100_000))
    v.read()
    mapped = [each.stream._frames.mapped for each in strategy._core.server_client._open.values()]  # type: ignore[attr-defined]
    assert any(each is not None and each._maps for each in mapped) is shared_memory


def test_the_main_thread_which_can_be_interrupted_sends_nothing_itself(
    strategy: psnb.ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = strategy.variable([1.0])
    senders = []
    send = MessageStream.send

    def noted(stream: MessageStream, message: Any, *, later: bool = False) -> None:
        senders.append(threading.current_thread())
        send(stream, message, later=later)

    monkeypatch.setattr(MessageStream, "send", noted)
    v.read()
    assert threading.main_thread() not in senders
    with ThreadPoolExecutor(1) as pool:
        pool.submit(v.read).result()
    assert len(set(senders)) == 2


@pytest.mark.parametrize("ids", [[5], [5, 6, 7, 8]])
def test_looked_up_rows_are_writable_and_independent(
    strategy: psnb.ParameterServerStrategy, ids: list[int]
) -> None:
    e = strategy.embedding("e", 2, initializer=1.0)
    e.lookup(ids)[...] = 9
    assert (e.lookup(ids) == 1).all()


def test_value_given_to_a_server_is_copied(strategy: psnb.ParameterServerStrategy) -> None:
    value = np.ones(1000)
    v = strategy.variable(value)
    value[...] = 9
    assert (v.read() == 1).all()


def test_concurrent_pushes_lose_nothing(strategy: psnb.ParameterServerStrategy) -> None:
    v = strategy.variable(np.zeros(10), optimizer=psnb.SGD(1.0))
    e = strategy.embedding("e", 2, initializer=0, optimizer=psnb.SGD(1.0))
    ids = np.arange(20)

    def push(_: int) -> None:
        for _ in range(ROUNDS):
            v.push(np.full(10, -1.0))
            e.push(ids, np.full((20, 2), -1, np.float32))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(push, range(THREADS)))
    assert (v.read() == THREADS * ROUNDS).all()
    assert (e.lookup(ids) == THREADS * ROUNDS).all()


def test_concurrent_read_never_sees_half_an_update(strategy: psnb.ParameterServerStrategy) -> None:
    v = strategy.variable(np.zeros(50_000, np.int64))
    one = np.ones(50_000, np.int64)

    def add_and_read(_: int) -> list[int]:
        seen = []
        for _ in range(ROUNDS):
            v.assign_add(one)
            seen.append(np.unique(v.read()).size)
        return seen

    with ThreadPoolExecutor(THREADS) as pool:
        different = [n for seen in pool.map(add_and_read, range(THREADS)) for n in seen]
    assert set(different) == {1}
    assert (v.read() == THREADS * ROUNDS).all()


def test_error_of_the_server_reaches_the_caller_as_it_is(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    with pytest.raises(InternalError, match="has no operation ShardOperation"):
        strategy._core.server_client.call([request(strategy, UNKNOWN)])
    with pytest.raises(ConfigurationError, match="holds no 'nothing'"):
        strategy._core.server_client.call([request(strategy, on_table("nothing", ReadValues()))])


def test_bug_in_an_operation_is_an_internal_error_that_says_where(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    v = strategy.variable([1.0, 2.0], name="v")
    wrong = Request(v._shards.parts[0].shard, on_table("v", SkipUpdates("two")))  # type: ignore[arg-type]
    with pytest.raises(InternalError, match=r"SkipUpdates of 'v' on .*TypeError"):
        strategy._core.server_client.call([wrong])
    assert v.read().tolist() == [1, 2]


def test_one_failed_request_leaves_the_connection_in_order(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    v = strategy.variable(7.0, name="v")
    good = Request(v._shards.parts[0].shard, on_table("v", ReadValues()))
    with pytest.raises(InternalError):
        strategy._core.server_client.call([good, request(strategy, UNKNOWN), good])
    assert v.read() == 7


def test_parameters_of_a_closed_strategy_are_lost_at_once(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster, heartbeat_timeout=2 * DEADLINE) as strategy:
        v, e = strategy.variable([1.0]), strategy.embedding("e", 2, optimizer=psnb.SGD())
        v.read()
    before = time.monotonic()
    for action in (v.read, lambda: e.lookup([1]), lambda: e.push([1], [[1.0, 1.0]])):
        with pytest.raises(CoordinatorClosedError, match="was closed"):
            action()
    assert time.monotonic() - before < DEADLINE


class Noting(CommServerClient):
    """Tells when a request waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop, look_again: float) -> None:
        super().__init__(loop, ConnectionPool(), nowhere(), look_again=look_again)
        self.waits = threading.Event()

    def _begin(self, batch: RequestBatch) -> None:
        super()._begin(batch)
        self.waits.set()


@pytest.fixture
def running() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=run_and_close, args=(loop,))
    thread.start()
    yield loop
    with contextlib.suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(loop.stop)
    thread.join()


def run_and_close(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


@contextlib.contextmanager
def asked_in_vain(
    running: asyncio.AbstractEventLoop, look_again: float = DEADLINE
) -> Iterator[Noting]:
    """Have a thread wait for a request whose event loop gets it in one turn with what follows."""
    transport, go = Noting(running, look_again), threading.Event()
    running.call_soon_threadsafe(go.wait)
    request = Request(ServerAddress("tcp://127.0.0.1:1", "x"), CountTraffic())
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(transport.call, [request])
        assert transport.waits.wait(10)
        yield transport
        go.set()
        with pytest.raises(CoordinatorClosedError, match="was closed"):
            ended.result(5)


def test_a_request_that_was_not_even_begun_ends_when_its_transport_is_closed(
    running: asyncio.AbstractEventLoop,
) -> None:
    with asked_in_vain(running) as transport:
        transport.close()


class Answering(CommServerClient):
    """Answers with what it is given, one after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *answers: list[Any]) -> None:
        super().__init__(loop, ConnectionPool(), nowhere())
        self._answers = [*answers]
        self.asked: queue.SimpleQueue[int] = queue.SimpleQueue()

    async def ask(self, requests: Sequence[Request]) -> list[Any]:
        self.asked.put(len(requests))
        return self._answers.pop(0)


def test_a_server_that_does_not_respond_is_asked_until_it_does(
    running: asyncio.AbstractEventLoop,
) -> None:
    frozen, lost = ServerUnresponsiveError("frozen"), ServerLostError("lost")
    client = Answering(running, [frozen, None, frozen], [frozen, lost], [None])
    client.insist([Request(ServerAddress("a", "a"), CountTraffic())] * 3)
    assert [client.asked.get(timeout=DEADLINE) for _ in range(3)] == [3, 2, 1]


def test_a_commit_that_no_thread_waits_for_is_undecided_when_its_transport_is_closed(
    running: asyncio.AbstractEventLoop,
) -> None:
    transport, told = CommServerClient(running, ConnectionPool(), nowhere()), queue.SimpleQueue()
    transport.close()
    shard = ShardId("s", 0)
    parts = {shard: Part([on_table("v", SkipUpdates(1))])}
    transport.commit_soon(Commit("a", 1, shards=(shard,)), parts, told.put)
    assert isinstance(told.get(timeout=10), UndecidedError)


def test_arrays_of_a_commit_that_no_thread_waits_for_are_free_when_it_has_ended(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    """At once, not when cycles are collected: they may be in memory that is shared and wanted."""
    variable = strategy.variable(np.zeros(100_000), name="v")
    variable.read()  # connects
    shard, told = variable._shards.tables[0][0], queue.SimpleQueue()
    transport = strategy._core.server_client

    def begin() -> weakref.ref[np.ndarray]:
        given = np.ones(100_000)
        part = Part([on_table("v", AddValues(given))])
        transport.commit_soon(Commit("w", 1, shards=(shard,)), {shard: part}, told.put)
        return weakref.ref(given)

    gc.disable()
    try:
        array = begin()
        assert told.get(timeout=10) is None
        wait_until(lambda: array() is None, "it is free")
    finally:
        gc.enable()
    assert (variable.read() == 1).all()


def connected(
    strategy: psnb.ParameterServerStrategy,
) -> tuple[psnb.Variable, ShardId, ServerAddress, CommServerClient]:
    """Return a variable "v" of a 0, its shard, its server and a client that is connected to it."""
    variable = strategy.variable(np.zeros(1), name="v")
    variable.read()
    shard, transport = variable._shards.tables[0][0], strategy._core.server_client
    assert isinstance(transport, CommServerClient)
    server = transport.server_of(shard)
    assert server is not None
    return variable, shard, server, transport


@pytest.mark.parametrize("sent_by", ["the next request", "flush", "a broken connection"])
def test_a_commit_that_may_wait_is_held_back_until_something_is_sent(
    strategy: psnb.ParameterServerStrategy, sent_by: str
) -> None:
    variable, shard, server, transport = connected(strategy)
    told, part = queue.SimpleQueue[Any](), Part([on_table("v", AddValues(np.ones(1)))])
    transport.commit_soon(Commit("w", 1, shards=(shard,)), {shard: part}, told.put, later=True)
    connection = transport._open[server.address]
    wait_until(lambda: connection.stream._waiting, "it is held back")  # type: ignore[attr-defined]
    assert told.empty()
    match sent_by:
        case "the next request":
            assert variable.read().tolist() == [1]
        case "flush":
            transport.flush()
        case _:
            transport._loop.call_soon_threadsafe(connection.close)
    assert told.get(timeout=10) is None
    assert variable.read().tolist() == [1]


@contextlib.contextmanager
def counted_answers(cluster: Client, server: str) -> Iterator[Callable[[], list[int]]]:
    """Have a server count the answers of each of its writes that has some to a commit."""

    def begin() -> None:
        from psnb._src.server.messages import ServerReply
        from psnb._src.transport.stream import _SocketStream as Stream

        Stream.real = Stream.send, Stream._write_waiting  # type: ignore[attr-defined]
        send, write = Stream.real  # type: ignore[attr-defined]
        Stream.answers, Stream.counted = 0, []  # type: ignore[attr-defined]

        def noted(stream: Stream, message: object, *, later: bool = False) -> None:
            if isinstance(message, ServerReply) and message.answers:
                Stream.answers += 1  # type: ignore[attr-defined]
            send(stream, message, later=later)

        def wrote(stream: Stream) -> None:
            if stream._waiting and Stream.answers:  # type: ignore[attr-defined]
                Stream.counted.append(Stream.answers)  # type: ignore[attr-defined]
                Stream.answers = 0  # type: ignore[attr-defined]
            write(stream)

        Stream.send, Stream._write_waiting = noted, wrote  # type: ignore[method-assign]

    def counted() -> list[int]:
        from psnb._src.transport.stream import _SocketStream as Stream

        return list(Stream.counted)  # type: ignore[attr-defined]

    def end() -> None:
        from psnb._src.transport.stream import _SocketStream as Stream

        Stream.send, Stream._write_waiting = Stream.real  # type: ignore[attr-defined]

    cluster.run(begin, workers=[server])
    try:
        yield lambda: cluster.run(counted, workers=[server])[server]
    finally:
        cluster.run(end, workers=[server])


def test_the_answer_to_a_commit_goes_with_that_to_the_next_request(
    cluster: Client, strategy: psnb.ParameterServerStrategy
) -> None:
    variable, shard, server, transport = connected(strategy)
    told, part = queue.SimpleQueue[Any](), Part([on_table("v", AddValues(np.ones(1)))])
    with counted_answers(cluster, server.address) as counts:
        commit = Commit("w", 1, shards=(shard,))
        transport.commit_soon(commit, {shard: part}, told.put, later=True)
        assert variable.read().tolist() == [1]
        assert 2 in counts()
    assert told.get(timeout=10) is None


def test_a_request_ends_when_its_event_loop_has(running: asyncio.AbstractEventLoop) -> None:
    with asked_in_vain(running, look_again=0.1):
        running.stop()


def test_a_server_that_cannot_be_reached_is_lost_when_patience_is_over(
    cluster: Client,
) -> None:
    loop, pool = event_loop(cluster), pool_of(cluster)
    transport = CommServerClient(loop, pool, nowhere(), heartbeat_timeout=1.0, connect_timeout=0.2)
    server = ServerAddress("tcp://127.0.0.1:1", "psnb-server-x")
    before = time.monotonic()
    with pytest.raises(
        ServerUnresponsiveError, match=r"^parameter server x at .*:1 does not answer: "
    ):
        transport.call([Request(server, CountTraffic())])
    assert 1 <= time.monotonic() - before < PATIENCE
    transport.close()


def test_call_from_the_event_loop_is_refused(
    strategy: psnb.ParameterServerStrategy, cluster: Client
) -> None:
    v = strategy.variable([1.0])

    async def read() -> np.ndarray:
        return v.read()

    future = asyncio.run_coroutine_threadsafe(read(), cluster.loop.asyncio_loop)
    with pytest.raises(ConfigurationError, match="event loop"):
        future.result(10)


def test_call_from_another_event_loop_works(strategy: psnb.ParameterServerStrategy) -> None:
    v = strategy.variable([1.0])

    async def read() -> np.ndarray:
        return v.read()

    assert asyncio.run(read()).tolist() == [1]


def test_handle_of_a_closed_client_says_so(cluster: Client) -> None:
    with Client(cluster.scheduler.address, loop=cluster.loop) as client:
        strategy = psnb.ParameterServerStrategy(client)
        v = strategy.variable([1.0])
        assert v.read() == 1
    with pytest.raises(CoordinatorClosedError, match="was closed"):
        v.read()
    strategy.close()


def test_closed_event_loop_is_distinguished_from_a_lost_server() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    transport = CommServerClient(loop, ConnectionPool(), nowhere())
    with pytest.raises(CoordinatorClosedError, match="was closed"):
        transport.call([Request(ServerAddress("tcp://127.0.0.1:1", "x"), CountTraffic())])
