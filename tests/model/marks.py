"""Marks: all tables at one moment, to which they go back while servers die and messages come late.

What marks and rewinds is psnb's own. It asks servers over the simulated network, and all else goes
on until they have answered. Two more tables get what each step pushes: with one, rows that have
changed are loaded one by one; with the other, ids wait for a row.
"""

from __future__ import annotations

import math
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from psnb._src.client.dense_shards import DenseShard, DenseShards
from psnb._src.client.embedding_spec import EmbeddingSpec
from psnb._src.client.requests import Request
from psnb._src.client.server_client import ServerClient
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.tables.marks import ParameterMarks
from psnb._src.coordinator.rewinding import _load
from psnb._src.placement.layout import ServerAddress, ShardId
from psnb._src.placement.next_layout import Health
from psnb._src.placement.status import Role
from psnb._src.server import operations as ops
from psnb._src.server.optimizers import Adam
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.admission import CountFilter
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import (
    ClearTable,
    FinishTable,
    LookUpRows,
    OnTables,
    Operation,
    PushRows,
    on_table,
)
from psnb.errors import (
    ConfigurationError,
    PsnbError,
    ServerUnresponsiveError,
    StaleMarkError,
)
from tests.model import direct, rows
from tests.model.direct import DIRECT, MOST
from tests.model.reconciler import ROOM, TABLE
from tests.model.world import Pending, Server
from tests.server.pair import plain

if TYPE_CHECKING:
    from tests.model.notebook import Notebook

FREE, SEEN = "free", "seen"

_OFTEN = 0.05
"""How often something is done with marks, of steps."""

_LATE, _COPIES = 0.03, 60
"""How often a request comes once more, of steps, and of how many of the last ones."""

_PATIENCE = 300
"""Steps within which nothing runs, or it is given up."""

_SETTLED = 60, 400
"""Steps that it takes at least, and at most, to see which servers answer."""

_REPEATED = (ops.SetMark, ops.ReadsFiles, ClearTable, FinishTable)

Content = Mapping[str, Any]
"""By table: all that a checkpoint would have of it."""


def _inner(operation: Operation) -> Operation:
    """Return what an operation does in the end."""
    while isinstance(operation, ops.OnShard | OnTables):
        operation = operation.operation
    return operation


class NotebookDiedError(BaseException):
    """Raised where a process waits for servers, and has died."""


def _spec(name: str, **options: Any) -> EmbeddingSpec:
    how = {"optimizer": Adam(0.1), "initializer": Constant(1.0)} | options
    return EmbeddingSpec(name, 2, None, np.dtype(np.float32), **how)


_SPECS = _spec(FREE), _spec(SEEN, admission=CountFilter(2))


def creations() -> list[ops.CreateTable]:
    """Return what makes the tables of a shard."""
    return [direct.creation(), *(each.creation(0, 1, each.optimizer) for each in _SPECS)]


def lookup(number: int) -> OnTables:
    """Return what counts as seen what a step pushes next."""
    return on_table(SEEN, LookUpRows(np.array([number % 7], np.uint64)))


def pushes(number: int) -> list[OnTables]:
    """Return what a step pushes to a shard: for an id of its own, and for some of all steps."""
    gradients = np.full((2, 2), 1.0 + number, np.float32)
    return [
        on_table(FREE, PushRows(np.array([number, 1000 + number % 5], np.uint64), gradients)),
        on_table(SEEN, PushRows(np.array([number % 7, number % 11 + 7], np.uint64), gradients)),
    ]


def content(shard: ParameterShard) -> Content:
    """Return what the tables of a shard have."""
    return {name: plain(shard.creation(name), shard.table(name).state()) for name in shard.tables()}


class _Client(ServerClient):
    """Asks over the simulated network; all else goes on until all have answered."""

    def __init__(self, notebook: Notebook, go_on: Callable[[], None]) -> None:
        self._notebook, self._go_on = notebook, go_on
        self._ended: BaseException | None = None

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        outcomes = self.attempt(requests)
        for each in outcomes:
            if isinstance(each, PsnbError):
                raise each
        return outcomes

    def attempt(self, requests: Sequence[Request]) -> list[Any]:
        if self._ended is not None:  # what asks goes on after any error
            raise self._ended
        found: list[list[Any]] = []
        self._notebook.world.ask(self._notebook, requests, found.append)
        while not found:
            self.go_on()
        return found[0]

    def go_on(self) -> None:
        """Let all else go on for a step."""
        try:
            self._go_on()
        except BaseException as error:
            self._ended = error
            raise

    def insist(self, requests: Sequence[Request]) -> None:
        def again(outcomes: Sequence[Any]) -> None:
            pairs = zip(requests, outcomes, strict=True)
            self.insist([one for one, out in pairs if isinstance(out, ServerUnresponsiveError)])

        if requests and self._ended is None:
            self._notebook.world.ask(self._notebook, requests, again)


class Span(NamedTuple):
    """The steps from one moment at which all had gone back, until a mark was made.

    That was begun in the ``last`` one, and had ended in the ``latest``.
    """

    first: float
    last: float
    latest: float


EVER = Span(-math.inf, math.inf, math.inf)


class _Mark:
    """A mark, the steps of which all is in it, and what its servers had."""

    def __init__(self, now: int) -> None:
        self.begun, self.spans = now, list[Span]()
        self.kept: ParameterMarks | None = None
        self.content: dict[int, Content] = {}


class Marks:
    """What a user does with marks: makes some, goes back to one, drops one.

    Parameters
    ----------
    seed : int
        Of its own chance.
    notebook : Notebook
        Whose parameters they are of.
    go_on : callable
        Lets one more step of everything happen.

    Attributes
    ----------
    busy : bool
        Whether something is being done.
    """

    def __init__(self, seed: int, notebook: Notebook, go_on: Callable[[], None]) -> None:
        self._random, self._notebook, self._go_on = Random(seed), notebook, go_on
        self.busy = False
        self._marks: list[_Mark] = []
        self._copies: deque[tuple[Server, ops.OnShard]] = deque(maxlen=_COPIES)
        self._making: _Mark | None = None
        self._to: _Mark | None = None
        self._begun = 0  # when it began to go back there
        client = self._client = _Client(notebook, go_on)
        shards = notebook.shards
        self._parameters: dict[str, DenseShards | SparseShards] = {
            each.name: SparseShards(each, shards, client) for each in _SPECS
        }
        for name, size in ((TABLE, ROOM), (DIRECT, MOST)):
            shape, dtype = (len(shards) * size,), np.dtype(np.float64)
            parts = [DenseShard(s, name, n * size, (n + 1) * size) for n, s in enumerate(shards)]
            self._parameters[name] = DenseShards(name, shape, dtype, None, parts, client)
        if notebook.followers is not None:
            spec = EmbeddingSpec(rows.ROWS, 2, None, np.dtype(np.float64))
            self._parameters[rows.ROWS] = SparseShards(spec, shards, client)
        notebook.world.watched = self._watched
        notebook.world.silence /= 4  # a load is many requests, and most are to end well

    def act(self) -> None:
        """Do something with marks, now and then; returns when it is done."""
        notebook, random = self._notebook, self._random
        if self._copies and random.random() < _LATE:
            self._repeat()
        if self.busy or notebook.frozen or notebook.recovering or notebook.unmade:
            return
        if random.random() >= _OFTEN:
            return
        self.busy = True
        try:
            chance = random.random()
            if len(self._marks) < 3 and chance < 0.5:
                self._at_rest(self._mark)
            elif self._marks and chance < 0.9:
                self._at_rest(partial(self._rewind, random.choice(self._marks)))
            elif self._marks:
                self._drop(random.choice(self._marks))
        finally:
            self.busy = False

    def _at_rest(self, action: Callable[[], None]) -> None:
        """Do something in a barrier, unless what runs takes too long."""
        notebook = self._notebook
        notebook.queue.hold()
        try:
            for _ in range(_PATIENCE):
                if not notebook.frozen and self._rests():
                    action()
                    return
                self._go_on()
            notebook.world.counts["barriers given up"] += 1
        except PsnbError:
            notebook.world.counts["barriers in vain"] += 1
        finally:
            notebook.queue.let_go()

    def _rests(self) -> bool:
        try:
            self._notebook.queue.wait_until_nothing_runs(0)
        except TimeoutError:
            return False
        return True

    def _mark(self) -> None:
        notebook = self._notebook
        self._making = made = _Mark(notebook.world.steps)
        try:
            made.kept = ParameterMarks(self._client, notebook.shards, self._parameters)
        except ConfigurationError:  # there are too many: some were set by requests that came late
            notebook.world.counts["marks too many"] += 1
        else:
            *before, (first, _, _) = notebook.spans
            made.spans = [*before, Span(first, made.begun, notebook.world.steps)]
            self._marks.append(made)
            notebook.world.counts["marks"] += 1
        finally:
            self._making = None

    def _drop(self, mark: _Mark) -> None:
        assert mark.kept is not None
        self._marks.remove(mark)
        self._notebook.world.ask(self._notebook, mark.kept.drops(), lambda outcomes: None)

    def _rewind(self, mark: _Mark) -> None:
        notebook, counts = self._notebook, self._notebook.world.counts
        losses = SimpleNamespace(beginning=lambda: "recover")
        strategy = SimpleNamespace(
            settled=self._settled,
            server_client=self._client,
            shards=notebook.shards,
            losses=losses,
        )
        self._to, self._begun = mark, notebook.world.steps
        try:
            _load(SimpleNamespace(strategy=strategy), partial(self._loading, mark))  # type: ignore[arg-type]
        except PsnbError as error:
            if isinstance(error, StaleMarkError):
                self._drop(mark)
            if notebook.half:
                counts["rewinds in vain, all dropped"] += 1
                notebook.half = False
                notebook.unmade |= set(range(len(notebook.shards)))  # what was dropped, or is half
                self._marks.clear()
            else:
                counts["rewinds refused"] += 1
        finally:
            self._to = None

    def _loading(self, mark: _Mark) -> Iterator[None]:
        notebook = self._notebook
        assert mark.kept is not None
        for _ in mark.kept.loading(self._parameters):
            notebook.world.counts["loads begun"] += 1
            notebook.half = True
            yield
        notebook.world.counts["rewinds"] += 1
        notebook.spans = [*mark.spans, EVER._replace(first=notebook.world.steps)]
        self._compare_all(mark)
        notebook.half = False

    def _settled(self) -> bool:
        least, most = _SETTLED
        for number in range(most):
            self._client.go_on()
            served = self._notebook.layout.served(self._answers)
            if number >= least and served is not None:
                return served
        return False

    def _answers(self, server: ServerAddress) -> bool:
        observed = self._notebook._observed.get(server)
        return observed is not None and observed.health is Health.ALIVE

    # What must hold.

    @contextmanager
    def _watched(self, pending: Pending, server: Server) -> Iterator[None]:
        """Watch a request that comes to a server."""
        notebook, operation = self._notebook, pending.operation
        index, of = operation.shard, _inner(operation)
        hosted = server.host._hosted.get(index)
        primary = notebook.layout.placements[index].primary
        if hosted is None or hosted.role is not Role.PRIMARY:
            yield
            return
        shard = hosted.shard
        new = isinstance(of, ops.SetMark) and of.mark not in shard._marks
        if server.address != primary:  # which has not heard of it
            yield
            self._note(index, shard, new)
            return
        waits = hosted.shard.log.loading or not hosted.shard.tables()
        # A replica that may have been let go knows nothing of it.
        fell_back = notebook.risked_at.get(index, -1) >= self._begun
        told = f"shard {index} is loaded, and {of} does not wait"
        assert waits or fell_back or not notebook.half, told
        if isinstance(of, _REPEATED):
            self._copies.append((server, operation))
        loading = of.key in shard.log.loading if isinstance(of, ops.EndLoading) else False
        yield
        if loading and of.drops:
            assert not shard.tables(), f"what is half loaded of shard {index} stays there"
            notebook.unmade.add(index)
        self._note(index, shard, new)
        if isinstance(of, FinishTable) and self._to is not None and not pending.done:
            assert isinstance(operation, ops.OnLoadingShard)
            assert isinstance(operation.operation, OnTables)
            counted = shard.log.loading.get(operation.key, {})
            if counted.get(operation.table) != operation.place:
                return  # refused
            self._compare(index, self._to, shard, *operation.operation.tables)

    def _note(self, index: int, shard: ParameterShard, new: bool) -> None:
        if new and self._making is not None:
            self._making.content[index] = content(shard)

    def _repeat(self) -> None:
        """Have a request come to a server once more, late: that changes nothing."""
        notebook, (server, operation) = self._notebook, self._random.choice(self._copies)
        index = operation.shard
        hosted = server.host._hosted.get(index)
        if not server.alive or server.frozen or hosted is None:
            return
        before = content(hosted.shard)
        server.run(pickle.loads(pickle.dumps([operation])), lambda answers: None)
        notebook.world.counts["requests that came late"] += 1
        if self._to is None and index not in notebook.unmade:
            assert content(hosted.shard) == before, f"{operation} came late, and changed {index}"

    def _compare(self, index: int, mark: _Mark, shard: ParameterShard, *names: str) -> None:
        """Assert that tables of a shard are as they were."""
        found = content(shard)
        for name in names or shard.tables():
            kept, now = mark.content[index][name], found[name]
            assert now == kept, f"{name!r} of {shard.name} went back to {now}, and was {kept}"

    def _compare_all(self, mark: _Mark) -> None:
        """Assert that all is as it was that no lookup changes, and no minute; on replicas, too."""
        notebook = self._notebook
        for index, place in enumerate(notebook.layout.placements):
            holders = [notebook.world.servers[e.key] for e in (place.primary, *place.synced) if e]
            for each in holders:
                if each.alive and index in each.host._hosted:
                    self._compare(index, mark, each.host._hosted[index].shard, TABLE, DIRECT, FREE)
                    notebook.world.counts["shards that went back"] += 1
