"""Notebook: what decides in the simulated world: a queue of closures, and who finds out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np

from psnb._src.client.commit import UndecidedError, ask, end_round, resolve_in_doubt
from psnb._src.client.requests import Request
from psnb._src.coordinator.closures.options import ScheduleOptions
from psnb._src.coordinator.closures.remote_value import RemoteValue, StepValues
from psnb._src.coordinator.scheduling.doubts import Applied, Attempts
from psnb._src.coordinator.scheduling.events import Balance, Heard, Joined, Left, Started
from psnb._src.coordinator.scheduling.gates import (
    ApplyRound,
    Flush,
    FlushGate,
    Gate,
    RoundGate,
    Step,
)
from psnb._src.coordinator.scheduling.instructions import ReportSettled, Resolve, Send, Tell
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.coordinator.scheduling.work import Numbers, Work
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.coordinator.workers.resolve import Resolver
from psnb._src.monitor.events import EventKind
from psnb._src.placement.layout import ShardId
from psnb._src.protocol.messages import (
    CancelClosures,
    ClosureResults,
    ClosuresReturned,
    RecallClosures,
    RevokeClosure,
    TakeAnswer,
    ToNotebook,
)
from psnb._src.server.operations import CreateTable, EndRound, FenceCommits
from psnb.errors import PsnbError, ServerLostError, ServerUnresponsiveError
from tests.coordinator.queues import ClosureQueue, commit_of, make_work
from tests.model.direct import Direct
from tests.model.halves import assert_whole
from tests.model.marks import EVER
from tests.model.marks import creations as marks_creations
from tests.model.reading import Element
from tests.model.reconciler import Fences, Reconciler, creation
from tests.model.rows import Followers
from tests.model.rows import creation as rows_creation
from tests.model.workers import SECONDS_A_STEP, Assigned, Exchanging, StepAttempt, Worker, code
from tests.model.world import World, once

ROUND = 3
"""Closures of a round, in mode `Sync`."""


class _Resolver(Resolver):
    """Asks over the simulated network instead of in a task."""

    def __init__(self, notebook: Notebook) -> None:
        queue = notebook.queue
        super().__init__(queue.scheduler, notebook, queue.handle)  # type: ignore[arg-type]
        self._notebook = notebook

    def _find_out(
        self,
        attempts: Attempts,
        closed: Sequence[str],
        settle: Callable[[Applied], None],
        fail: Callable[[bytes], None],
    ) -> None:
        notebook = self._notebook

        def ended(applied: Any) -> None:
            if isinstance(applied, Exception):
                raise applied
            notebook.world.counts["fates found out"] += 1
            settle(applied)

        blocked = notebook.queue.block
        work = resolve_in_doubt(notebook.shards, attempts, closed, ask, blocked)
        notebook.world.drive(notebook, work, ended)


class Notebook(Reconciler):
    """Scheduler, resolver and reconciler, on servers that hold a table of numbers on each shard.

    The scheduler decides which worker gets what; its instructions go over the simulated network.

    Parameters
    ----------
    world : World
        Where it is.
    mode : str
        ``async``, ``sync`` or ``geo``.
    servers, shards, replicas, workers : int
        How many.
    splits : sequence of int
        How many elements each split of a dataset has from which closures take; none: they take
        nothing.
    rows : bool
        Whether shards have a table with a bound, too; see `tests.model.rows`.
    marks : bool
        Whether they have what `tests.model.marks` wants.
    in_order : bool
        Whether what a session's ends send each other arrives in its order. Workers that say
        several things of one closure need that.
    """

    def __init__(
        self,
        world: World,
        mode: str,
        servers: int,
        shards: int,
        replicas: int,
        workers: int,
        splits: Sequence[int] = (),
        *,
        rows: bool = False,
        marks: bool = False,
        in_order: bool = False,
    ) -> None:
        creations: list[CreateTable] = [creation(), *([rows_creation()] if rows else [])]
        self.direct: Direct | None = None
        self.marks = marks
        if marks:
            creations += marks_creations()
        self.spans = [EVER]  # in which it began what is not taken back
        self.half = False  # tables are being loaded, and nobody can read them
        super().__init__(world, servers, shards, replicas, creations)
        self.followers = Followers() if rows else None
        gates: dict[str, Gate] = {"async": Gate(), "sync": RoundGate(ROUND), "geo": FlushGate()}
        self._steps: list[Step] = []
        self.leases = LeaseRegistry(ROUND if mode == "sync" else None)
        self.splits, self.in_order = splits, in_order
        self.epoch = self.leases.open(len(splits)) if splits else None
        self.queue = ClosureQueue(
            10_000,
            gate=gates[mode],
            leases=self.leases,
            clock=lambda: world.steps * SECONDS_A_STEP,
        )
        self.resolver = _Resolver(self)
        self.queue.on = {
            Send: self._send,
            Tell: self._tell,
            Resolve: lambda each: self.resolver.resolve(each.doubt),
            ReportSettled: lambda each: self.tell(),
            ApplyRound: self._steps.append,
            Flush: self._steps.append,
        }
        self.closures: list[Work] = []
        self.rows = Numbers()
        self.mode = mode
        self.workers: list[Worker] = []
        self._of: dict[WorkerState, Worker] = {}
        self.sessions: list[Worker] = []  # those that were given up, too
        # Where each attempt of a step writes, by its row, and since when it runs.
        self.wrote: dict[tuple[int, int], tuple[tuple[ShardId, ...], int]] = {}
        # By the same, what it has taken; those that wrote nothing; and those of the others of which
        # their worker has said that they are done, whatever was known of their closure by then.
        self.used: dict[tuple[int, int], list[Element]] = {}
        self.quiet: set[tuple[int, int]] = set()
        self.effective: set[tuple[int, int]] = set()
        self.rounds: dict[int, tuple[tuple[int, ...], Any]] = {}  # closures, and what came of it
        self.ending: dict[int, tuple[int, ...]] = {}  # closures of rounds whose end was begun
        self.ran: dict[int, Worker] = {}  # who has told the end of a closure
        self.forgotten: set[int] = set()  # numbers of closures of which a worker lost what it knew
        self.doubts: list[tuple[Work, set[int]]] = []  # who asked about the exchange of whom
        self._flushing: set[Worker] = set()
        self._flush_error: Exception | None = None
        for _ in range(workers):
            self._start_worker()

    def shards_of(self, name: str) -> tuple[ShardId, ...]:
        return ()

    # Closures.

    def put(self, steps: int = 1) -> None:
        in_slots = self.splits and self.mode == "sync"
        slot = len(self.closures) % ROUND if in_slots else None
        options = ScheduleOptions(1000, steps=steps, slot=slot)
        inbox = self.queue.inbox
        remote = RemoteValue(inbox) if steps == 1 else StepValues(inbox, bool)
        closure = make_work(self.queue, self.rows.take(steps), options, remote=remote)
        self.queue.put(closure)
        self.closures.append(closure)

    def cancel(self, random: Random) -> None:
        """Cancel a closure that has not ended."""
        left = [each for each in self.closures if not each.remote.done()]
        if left:
            remote = random.choice(left).remote
            opened = self.queue.cancel_one(remote, in_flight=self.mode != "geo")
            self.world.counts["closures cancelled"] += remote.done()
            self.world.counts["closures revoked"] += opened is not None

    def feed(self) -> None:
        """Let time pass for the scheduler, and do what the gate wants."""
        self.queue.handle(Balance())
        while self._steps:
            step = self._steps.pop()
            if isinstance(step, ApplyRound):
                self._apply(step)
            else:
                self._flush()

    def _send(self, instruction: Send) -> None:
        worker = self._of[instruction.worker]
        for closure in instruction.closures:
            execution, ranges = closure.execution, closure.execution.ranges
            step = StepAttempt(closure.number, execution.commit, execution.attempt)
            assigned = Assigned(closure, step, closure.left, self.layout.version, ranges)
            self.world.counts["ranges taken again"] += len(ranges)
            worker.inbox.send(partial(worker.arrive, assigned))

    def _tell(self, instruction: Tell) -> None:
        worker, message = self._of[instruction.worker], instruction.message
        match message:
            case RecallClosures(closures=closures) | CancelClosures(closures=closures):
                action = partial(worker.stop, closures)
            case RevokeClosure(closure=closure):
                action = partial(worker.stop, [closure])
            case TakeAnswer(number=number, answer=answer):
                action = partial(worker.take_answer, number, answer)
            case _:
                raise AssertionError(message)
        self.world.counts[type(message).__name__] += 1
        worker.inbox.send(action)

    def settled(self) -> FenceCommits:
        """Return what tells a shard which commits it may forget."""
        settled = self.queue.scheduler.in_flight.settled.bounds()
        return FenceCommits({}, (), {self.queue.name: settled})

    def tell(self) -> None:
        """Tell all shards what is settled, or those that it reaches."""
        requests = [Request(shard, self.settled()) for shard in self.shards]
        self.world.ask(self, requests, lambda outcomes: None)

    def die(self, random: Random) -> None:
        """Take in nothing any more; workers live on, and what was sent may arrive."""
        self.world.forget(self, random)
        for worker in self.sessions:
            worker.lost = True

    def heard(
        self, worker: Worker, message: ClosureResults, effective: Collection[StepAttempt]
    ) -> None:
        """Take results, unless the session is over; it calls some steps effective."""
        if worker.lost:
            return
        self.effective |= {(each.row, each.attempt) for each in effective}
        for each in message.results:
            self.ran[each.closure] = worker
            if isinstance(worker, Exchanging) and each.in_doubt is not None:
                closure = worker.state.load.find(each.closure)
                self.doubts.append((closure, worker.sent[each.in_doubt[1]]))
        self.hear(worker, message)

    def returned(self, worker: Worker, closures: Sequence[int]) -> None:
        """Take closures back that were not begun, unless the session is over."""
        if not worker.lost:
            self.world.counts["closures returned"] += len(closures)
            self.hear(worker, ClosuresReturned(closures))

    def hear(self, worker: Worker, message: ToNotebook) -> None:
        """Take a message, likewise."""
        if not worker.lost:
            self.queue.handle(Heard(worker.state, message))

    def broken(self, worker: Worker) -> None:
        """See that a worker's connection broke: it is given up, alive or not."""
        self.world.send(self, lambda: self.give_up(worker), lost=lambda: self.broken(worker))

    def give_up(self, worker: Worker) -> None:
        if not worker.lost:
            worker.lost = True
            self.workers.remove(worker)
            self._start_worker()
            self.queue.handle(Left(worker.state, EventKind.WORKER_LOST, "was lost"))
            self._flushed(worker)

    def _start_worker(self) -> None:
        made = Exchanging if self.mode == "geo" else Worker
        worker = made(self.world, len(self.sessions), self)
        self.workers.append(worker)
        self.sessions.append(worker)
        self._of[worker.state] = worker
        self.queue.handle(Joined(worker.state), Started(worker.state))

    # What the gate wants.

    def _apply(self, step: ApplyRound) -> None:
        def ended(outcome: Any) -> None:
            self.world.counts["rounds applied" if outcome is None else "rounds failed"] += 1
            self.rounds[step.number] = step.closures, outcome
            self.queue.stepped(outcome)

        self.ending[step.number] = step.closures
        of = EndRound(self.queue.name, step.number, step.closures, {})
        self.world.drive(self, end_round(self.shards, {}, of, ask, self.queue.block), ended)

    def taken_back(self, begun: int) -> bool:
        """Return whether parameters went back over what was begun in a step."""
        return not any(each.first < begun <= each.last for each in self.spans)

    def check_rounds(self, shard: ShardId, values: np.ndarray, turn: int) -> None:
        """Assert that a closure sees the whole of the rounds before its own, and no more."""
        since = max(self.lost_at.get(shard.number, -1), self.risked_at.get(shard.number, -1))
        for closure in self.closures:
            if closure.execution.round is None:
                continue
            found = float(values[closure.first])
            counted, outcome = self.rounds.get(closure.execution.round, ((), None))
            if closure.execution.round >= turn or commit_of(closure) not in counted or outcome:
                assert not found, f"{closure} counts in round {turn}: {found}"
            elif closure.remote.status.value == "completed":
                _, attempt = closure.remote.fetch()
                chosen, begun = self.wrote[closure.first, attempt]
                if shard in chosen and begun > since:
                    back = self.taken_back(begun)
                    wanted = 0.0 if back else code(attempt) / len(counted)
                    told = f"{closure} lacks on {shard} in round {turn}: {found}"
                    assert abs(found - wanted) < 1, told

    def _flush(self) -> None:
        self._flushing, self._flush_error = set(self.workers), None
        for worker in self.workers:
            self._have_flushed(worker)
        self._flushed()

    def _have_flushed(self, worker: Worker) -> None:
        assert isinstance(worker, Exchanging)

        def sent(outcome: Any) -> None:
            self.world.send(self, once(lambda: decide(outcome)), lambda: self.broken(worker))

        def decide(outcome: Any) -> None:
            if isinstance(outcome, UndecidedError) and not worker.lost:
                self.resolver.ask_about(outcome.commit[:2], partial(found, outcome.commit.number))
            else:
                self._flushed(worker, outcome)

        def found(number: int, applied: bool) -> None:
            if not applied:
                self.forgotten |= worker.sent[number]
            self._flushed(worker, None if applied else ServerLostError("it is lost"))

        flush = once(lambda: worker.exchange(sent))
        self.world.send(worker, flush, lambda: self.broken(worker))

    def _flushed(self, worker: Worker | None = None, outcome: Exception | None = None) -> None:
        if worker in self._flushing:
            self._flushing.discard(worker)
            self._flush_error = self._flush_error or outcome
            self.world.counts["flushes"] += 1
            if not self._flushing:
                self.queue.stepped(self._flush_error)

    # What recovery wants of it.

    def drained(self) -> Iterator[None]:
        self.queue.pause()
        yield from self._rest()

    def saved(self) -> Generator[None]:
        """Wait as a save does, until no closure runs; others are not begun meanwhile."""
        self.queue.hold()
        try:
            yield from self._rest()
        finally:
            self.queue.let_go()

    def joined(self) -> Generator[None]:
        """Wait as a user does, until all is done, or something has failed."""
        with contextlib.suppress(ValueError, PsnbError):
            while not self.queue.done():
                yield
            assert_whole(self)

    def _rest(self) -> Iterator[None]:
        while True:
            try:
                self.queue.wait_until_nothing_runs(0)
            except TimeoutError:
                yield
            except ServerUnresponsiveError:
                return  # what it holds up is settled when the server is replaced
            else:
                assert_whole(self)
                return

    def resumed(self) -> None:
        self.queue.resume()

    def fences(self) -> Fences:
        assert not self.queue.scheduler.in_flight.running()
        return self.resolver.fences(self.queue.closed_attempts())
