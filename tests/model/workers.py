"""Workers: run closures in the simulated world; see `psnb._src.worker.session` for what they do."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from psnb._src.client.commit import UndecidedError, ask
from psnb._src.client.commit import commit as commit_on
from psnb._src.client.direct import CommitNumbers
from psnb._src.client.requests import Request
from psnb._src.coordinator.scheduling.doubts import failed
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.placement.layout import ShardId
from psnb._src.protocol.errors import pack_error
from psnb._src.protocol.messages import (
    ClosureResult,
    ClosureResults,
    Inquiry,
    QuestionAsked,
    Taken,
    TakenRange,
    exchange_writer,
)
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.tables.operations import AddRows, OnTables, PushGradient, ReadValues, on_table
from psnb._src.utils.phases import PHASES
from psnb._src.worker.reports import remembered
from psnb._src.worker.results import joined, told_of
from psnb.errors import ServerLostError
from tests.model import marks, rows
from tests.model.reading import Reader, Reading
from tests.model.reconciler import ROOM, TABLE
from tests.model.world import Line, Process, World

if TYPE_CHECKING:
    from tests.model.notebook import Notebook


SECONDS_A_STEP = 0.02
"""What the scheduler takes a step of the world for: closures are sent ahead, and called back."""


_QUIET = 0.25
"""How many steps that have taken elements write nothing."""


_TOLD_SOON = 0.5
"""How often a worker says at once what was taken, or which step of several is done."""


_DIES_UNTOLD = 0.05
"""How often a worker dies when a step that has taken elements is done, and nobody knows."""


_THREADS = 2


def code(attempt: int) -> int:
    """Return what an attempt adds: sums of several are told from any single one."""
    return 1 + (attempt << 20)


def write(row: int, attempt: int, *, pushed: bool) -> OnTables:
    """Return what an attempt writes to the table of a shard."""
    if pushed:
        gradient = np.zeros(ROOM)
        gradient[row] = -code(attempt)
        return on_table(TABLE, PushGradient(gradient))
    rows, values = np.array([row]), np.array([float(code(attempt))])
    return on_table(TABLE, AddRows(rows, values))


class StepAttempt(NamedTuple):
    """A step of a closure, in one attempt."""

    row: int  # its number: where it writes
    number: int  # of its commit
    attempt: int

    @property
    def value(self) -> bytes:
        """What it returns, pickled: which step in which attempt."""
        return pickle.dumps((self.row, self.attempt))


class Assigned(NamedTuple):
    """A closure as its worker got it."""

    closure: Work
    first: StepAttempt
    steps: int
    layout: int  # its version
    ranges: Sequence[TakenRange]


class Worker(Process):
    """A worker's session: runs closures, as long as it lives."""

    def __init__(self, world: World, session: int, notebook: Notebook) -> None:
        super().__init__(world, f"worker-{session}")
        self.session, self.notebook = session, notebook
        self.state = WorkerState(self.name, f"tcp://{self.name}", session, session, 3)
        self.state.threads = _THREADS
        self.running: set[int] = set()
        self.waiting: list[Assigned] = []
        self.stopping: set[int] = set()  # to end with the step that they do
        self.lost = False  # the notebook has given it up
        self.readers: dict[int | None, Reader] = {}  # by slot
        self.taken: list[Taken] = []  # and not said
        self._done: dict[Work, list[StepAttempt]] = {}  # steps of long closures, likewise
        self._questions: list[Callable[[Any], None]] = []
        broken = partial(notebook.broken, self)
        self._line = Line(world, notebook, broken, in_order=notebook.in_order)
        self.inbox = Line(world, self, broken, in_order=notebook.in_order)

    def arrive(self, assigned: Assigned) -> None:
        """Run a closure when there is a free thread."""
        self.waiting.append(assigned)
        self._begin_waiting()

    def stop(self, closures: Sequence[int]) -> None:
        """Return what is not begun of closures; the others end with the step that they do."""
        self.stopping |= self.running.intersection(closures)
        back = [each.closure.id for each in self.waiting if each.closure.id in closures]
        if back:
            self.waiting = [each for each in self.waiting if each.closure.id not in closures]
            self._line.send(partial(self.notebook.returned, self, back))

    def ask(self, inquiry: Inquiry, then: Callable[[Any], None]) -> None:
        """Ask the notebook; a session that is over gets no answer."""
        if self.alive:
            self._questions.append(then)
            asked = QuestionAsked(len(self._questions) - 1, inquiry)
            self._line.send(partial(self.notebook.hear, self, asked))

    def take_answer(self, number: int, answer: object) -> None:
        self.do(partial(self._questions[number], answer))

    def _begin_waiting(self) -> None:
        while self.waiting and len(self.running) < _THREADS:
            assigned = self.waiting.pop(0)
            self.running.add(assigned.closure.id)
            if self.known.version < assigned.layout:
                self.known = self.world.published
            self._begin(assigned, assigned.first, assigned.steps)

    def _begin(self, assigned: Assigned, step: StepAttempt, left: int) -> None:
        """Do a step: take elements, read, write to some shards, commit."""
        notebook, random, closure = self.notebook, self.world.random, assigned.closure
        # Another attempt writes somewhere else.
        shards = notebook.shards
        chosen = tuple(random.sample(shards, random.randint(1, min(3, len(shards)))))
        turn, slot = closure.execution.round, closure.options.slot
        reading, reader, wanted = Reading(step.row, assigned.ranges, slot), self._reader(slot), 0
        if reader is not None:
            wanted = random.choice((0, 1, 1, 1, 2, 3))  # in each attempt another number

        def begin() -> None:
            if reader is not None and random.random() < _TOLD_SOON:
                self.tell()
            reads = [on_table(TABLE, ReadValues())]
            if notebook.followers is not None:
                reads.append(rows.lookup(step.row))
            if notebook.marks:
                reads.append(marks.lookup(step.row))
            self.world.ask(self, [Request(chosen[0], each) for each in reads], read)

        def read(outcomes: list[Any]) -> None:
            for each in outcomes:
                if isinstance(each, Exception):
                    self._end(closure, failed(closure, pack_error(each)))
                    return
            values, *_ = outcomes
            if random.random() < (0.05 if reader is None else 0.01):  # which ends long ones, too
                self._end(closure, failed(closure, pack_error(ValueError("boo"))))
                return
            # One that was cancelled may see later rounds.
            if turn is not None and not self.lost and not closure.execution.revoked:
                notebook.check_rounds(chosen[0], values, turn)
            take_more()

        def take_more() -> None:
            if reader is not None and not reading.ended and len(reading.elements) < wanted:
                reader.next(reading, take_more)
            else:
                write()

        def write() -> None:
            nothing = reading.ended and not reading.elements
            if reader is not None and (nothing or random.random() < _QUIET):
                notebook.quiet.add((step.row, step.attempt))
                notebook.used[step.row, step.attempt] = reading.elements
                ended(None)
                return
            notebook.wrote[step.row, step.attempt] = chosen, begun
            notebook.used[step.row, step.attempt] = reading.elements
            self._write(step, chosen, turn, reading.used, ended)

        def ended(outcome: Any) -> None:
            if reader is not None and self.world.faults and random.random() < _DIES_UNTOLD:
                self.kill()
                notebook.broken(self)
                return
            over = left == 1 or closure.id in self.stopping
            over |= reading.ended and not reading.elements
            if isinstance(outcome, UndecidedError):
                self._end(closure, self._result(closure, [step], 0, outcome.commit[:2]))
            elif isinstance(outcome, Exception):
                self._end(closure, failed(closure, pack_error(outcome)))
            elif assigned.steps == 1:
                self._end(closure, self._result(closure, [step], 1))
            else:
                self._done.setdefault(closure, []).append(step)
                if over:
                    notebook.world.counts["long closures stopped"] += left > 1
                    self._end(closure, None)
                    return
                notebook.world.counts["steps of long closures"] += 1
                if reader is not None and random.random() < _TOLD_SOON:
                    self.tell()
                following = StepAttempt(step.row + 1, step.number + 1, step.attempt)
                self._begin(assigned, following, left - 1)

        begun = self.world.steps
        if reader is None or not wanted:
            begin()
        else:
            reader.next(reading, begin)

    def _reader(self, slot: int | None) -> Reader | None:
        notebook = self.notebook
        if notebook.epoch is None:
            return None
        return self.readers.setdefault(slot, Reader(self, notebook.epoch, notebook.splits))

    def _write(
        self,
        step: StepAttempt,
        chosen: tuple[ShardId, ...],
        turn: int | None,
        used: Sequence[Taken],
        ended: Callable[[Any], None],
    ) -> None:
        writes = self._writes_of(step, turn)
        name = self.notebook.queue.name
        result = remembered(used, b"", step.value)
        commit = Commit(
            *(name, step.number, step.attempt, (), chosen),
            closures=((step.number, result),),
            coordinator=name,
            pushed=turn is not None,
        )
        parts = {shard: Part(writes, 0, turn) for shard in chosen}
        self._commit(commit, parts, ended)

    def _writes_of(self, step: StepAttempt, turn: int | None) -> list[OnTables]:
        writes = [write(step.row, step.attempt, pushed=turn is not None)]
        if self.notebook.followers is not None:
            writes.append(rows.push(step.row, code(step.attempt)))
        if self.notebook.marks:
            writes += marks.pushes(step.row)
        return writes

    def _commit(
        self, commit: Commit, parts: dict[ShardId, Part], ended: Callable[[Any], None]
    ) -> None:
        self.world.drive(self, commit_on(commit, parts, self.together, ask), ended)

    def _result(
        self,
        closure: Work,
        done: Sequence[StepAttempt],
        count: int,
        in_doubt: tuple[str, int] | None = None,
        *,
        ended: bool = True,
    ) -> ClosureResult:
        values = [each.value for each in done]
        wrote = any((each.row, each.attempt) not in self.notebook.quiet for each in done)
        pushed = wrote and closure.execution.round is not None
        outcome = closure.id, count, ended, True, b"", values
        return ClosureResult(*outcome, SECONDS_A_STEP, pushed, (), in_doubt)

    def _end(self, closure: Work, last: ClosureResult | None) -> None:
        """Say with what a closure has ended; None: with the steps that it has done."""
        self.running.discard(closure.id)
        self.stopping.discard(closure.id)
        self.tell(closure, last)
        self._begin_waiting()

    def tell(self, ended: Work | None = None, last: ClosureResult | None = None) -> None:
        """Send what was held back, with the end of a closure; see `psnb._src.worker.results`."""
        done, self._done = self._done, {}
        taken, self.taken = self.taken, []
        results = []
        for closure, several in done.items():
            over = closure is ended and last is None
            results.append(self._result(closure, several, len(several), ended=over))
        if last is not None:
            results.append(replace(last, seconds=SECONDS_A_STEP))
        effective, told = set[StepAttempt](), dict[int, int]()
        for several in done.values():
            quiet = {each for each in several if (each.row, each.attempt) in self.notebook.quiet}
            told |= told_of({each.row: each not in quiet for each in several})
            effective |= set(several) - quiet
        message = ClosureResults(joined(taken, told), [], [0.0] * len(PHASES), results)
        self._line.send(partial(self.notebook.heard, self, message, effective))


class Exchanging(Worker):
    """A worker in mode `Geo`: what several closures write is one commit.

    What it numbers and names is as in `psnb._src.client.local.geo.LocalCopies`, which needs
    threads.
    """

    def __init__(self, world: World, session: int, notebook: Notebook) -> None:
        super().__init__(world, session, notebook)
        self._numbers = CommitNumbers()
        self._writes: dict[ShardId, list[OnTables]] = {}
        self._closures: list[tuple[int, bytes | None]] = []
        self.sent: dict[int, set[int]] = {}  # by number, the closures of an exchange

    def _write(
        self,
        step: StepAttempt,
        chosen: tuple[ShardId, ...],
        turn: int | None,
        used: Sequence[Taken],
        ended: Callable[[Any], None],
    ) -> None:
        for shard in chosen:
            self._writes.setdefault(shard, []).extend(self._writes_of(step, None))
        outcome = remembered(used, b"", step.value)
        self._closures.append((step.number, outcome))
        if len(self._closures) < 3:
            ended(None)
        else:
            self.exchange(ended)

    def exchange(self, ended: Callable[[Any], None]) -> None:
        """Commit what closures have written since the last time."""
        writes, self._writes = self._writes, {}
        closures, self._closures = tuple(self._closures), []
        if not writes:
            ended(None)
            return
        number, settled = self._numbers.begin(tuple(writes))
        self.sent[number] = {each for each, _ in closures}

        def done(outcome: Any) -> None:
            if isinstance(outcome, ServerLostError):
                outcome = UndecidedError(commit, outcome)
            if not isinstance(outcome, UndecidedError):
                self._numbers.end(number)
                if isinstance(outcome, Exception):  # which whoever joins will hear of
                    self.notebook.forgotten |= self.sent[number]
            ended(outcome)

        name = self.notebook.queue.name
        commit = Commit(
            *(exchange_writer(name, self.session), number, 1, settled, tuple(writes)),
            closures=closures,
            coordinator=name,
        )
        self._commit(commit, {shard: Part(each) for shard, each in writes.items()}, done)
