"""Workers: run closures in the simulated world; see `runtime.session` for what they do."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from psnb._src.client.commit import UndecidedError, ask
from psnb._src.client.commit import commit as commit_on
from psnb._src.client.direct import CommitNumbers
from psnb._src.client.requests import Request
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.placement.layout import ShardId
from psnb._src.protocol.errors import pack_error
from psnb._src.protocol.messages import exchange_writer
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.tables.operations import AddRows, OnTable, PushGradient, ReadValues
from psnb._src.worker.reports import remembered
from psnb.errors import ServerLostError
from tests.model.reconciler import ROOM, TABLE
from tests.model.world import Process, World, once

if TYPE_CHECKING:
    from tests.model.notebook import Notebook


_THREADS = 2


def code(attempt: int) -> int:
    """Return what an attempt adds: sums of several are told from any single one."""
    return 1 + (attempt << 20)


def write(row: int, attempt: int, *, pushed: bool) -> OnTable:
    """Return what an attempt writes to a shard."""
    if pushed:
        gradient = np.zeros(ROOM)
        gradient[row] = -code(attempt)
        return OnTable(TABLE, PushGradient(gradient))
    rows, values = np.array([row]), np.array([float(code(attempt))])
    return OnTable(TABLE, AddRows(rows, values))


class StepAttempt(NamedTuple):
    """A step of a closure, in one attempt."""

    row: int  # its number: where it writes
    number: int  # of its commit
    attempt: int


class Worker(Process):
    """A worker's session: runs closures, as long as it lives."""

    def __init__(self, world: World, session: int, notebook: Notebook) -> None:
        super().__init__(world, f"worker-{session}")
        self.session, self.notebook = session, notebook
        self.state = WorkerState(self.name, f"tcp://{self.name}", session, session, 3)
        self.state.threads = _THREADS
        self.running: set[int] = set()
        self.waiting: list[tuple[Work, StepAttempt, int, int]] = []
        self.stopping: set[int] = set()  # to end with the step that they do
        self.lost = False  # the notebook has given it up

    def arrive(self, closure: Work, step: StepAttempt, left: int, layout: int) -> None:
        """Run a closure when there is a free thread."""
        self.waiting.append((closure, step, left, layout))
        self._begin_waiting()

    def stop(self, closures: Sequence[int]) -> None:
        """Return what is not begun of closures; the others end with the step that they do."""
        self.stopping |= self.running.intersection(closures)
        back = [each[0].id for each in self.waiting if each[0].id in closures]
        if back:
            self.waiting = [each for each in self.waiting if each[0].id not in closures]
            self.world.send(
                self.notebook,
                once(partial(self.notebook.returned, self, back)),
                lost=partial(self.notebook.broken, self),
            )

    def _begin_waiting(self) -> None:
        while self.waiting and len(self.running) < _THREADS:
            closure, *rest = self.waiting.pop(0)
            self.running.add(closure.id)
            self.begin(closure, *rest)

    def begin(self, closure: Work, step: StepAttempt, left: int, layout: int) -> None:
        """Run a closure: for each step read, write to some shards, commit."""
        if self.known.version < layout:
            self.known = self.world.published
        self._begin(closure, step, left, 0)

    def _begin(self, closure: Work, step: StepAttempt, left: int, done: int) -> None:
        notebook, random = self.notebook, self.world.random
        # Another attempt writes somewhere else.
        shards = notebook.shards
        chosen = tuple(random.sample(shards, random.randint(1, min(3, len(shards)))))
        turn = closure.execution.round

        def read(outcomes: list[Any]) -> None:
            (values,) = outcomes
            if isinstance(values, Exception):
                self._report(closure, False, pack_error(values), done)
                return
            if random.random() < 0.05:
                self._report(closure, False, pack_error(ValueError("boo")), done)
                return
            # One that was cancelled may see later rounds.
            if turn is not None and not self.lost and not closure.execution.revoked:
                notebook.check_rounds(chosen[0], values, turn)
            notebook.wrote[step.row, step.attempt] = chosen, begun
            self._write(closure, step, chosen, turn, ended)

        def ended(outcome: Any) -> None:
            result = pickle.dumps(step.attempt)
            if isinstance(outcome, UndecidedError):
                self._report(closure, None, result, done, outcome.commit[:2])
            elif isinstance(outcome, Exception):
                self._report(closure, False, pack_error(outcome), done)
            elif left == 1 or closure.id in self.stopping:
                notebook.world.counts["long closures stopped"] += left > 1
                self._report(closure, True, result, done + 1)
            else:
                notebook.world.counts["steps of long closures"] += 1
                following = StepAttempt(step.row + 1, step.number + 1, step.attempt)
                self._begin(closure, following, left - 1, done + 1)

        begun = self.world.steps
        self.world.ask(self, [Request(chosen[0], OnTable(TABLE, ReadValues()))], read)

    def _write(
        self,
        closure: Work,
        step: StepAttempt,
        chosen: tuple[ShardId, ...],
        turn: int | None,
        ended: Callable[[Any], None],
    ) -> None:
        one = write(step.row, step.attempt, pushed=turn is not None)
        name = self.notebook.queue.name
        result = remembered((), b"", pickle.dumps(step.attempt))
        commit = Commit(
            *(name, step.number, step.attempt, (), chosen),
            closures=((step.number, result),),
            coordinator=name,
            pushed=turn is not None,
        )
        parts = {shard: Part([one], 0, turn) for shard in chosen}
        self._commit(commit, parts, ended)

    def _commit(
        self, commit: Commit, parts: dict[ShardId, Part], ended: Callable[[Any], None]
    ) -> None:
        self.world.drive(self, commit_on(commit, parts, self.together, ask), ended)

    def together(self, shards: Any) -> bool:
        """Return what `CommTransport` believes."""
        places = [self.known.placements[shard.number] for shard in shards]
        return len(shards) == 1 or (
            len({place.servers for place in places}) == 1 and len(places[0].servers) == 1
        )

    def _report(
        self,
        closure: Work,
        ending: bool | None,
        payload: bytes,
        steps: int,
        key: tuple[str, int] | None = None,
    ) -> None:
        notebook, pushed = (
            self.notebook,
            closure.execution.round is not None and ending is not False,
        )
        self.running.discard(closure.id)
        self.stopping.discard(closure.id)
        self.world.send(
            notebook,
            once(lambda: notebook.heard(self, closure, ending, payload, steps, pushed, key)),
            lost=lambda: notebook.broken(self),
        )
        self._begin_waiting()


class Exchanging(Worker):
    """A worker in mode `Geo`: what several closures write is one commit.

    What it numbers and names is as in `psnb._src.client.local.geo.LocalCopies`, which needs
    threads.
    """

    def __init__(self, world: World, session: int, notebook: Notebook) -> None:
        super().__init__(world, session, notebook)
        self._numbers = CommitNumbers()
        self._writes: dict[ShardId, list[OnTable]] = {}
        self._closures: list[tuple[int, bytes | None]] = []
        self.sent: dict[int, set[int]] = {}  # by number, the closures of an exchange

    def _write(
        self,
        closure: Work,
        step: StepAttempt,
        chosen: tuple[ShardId, ...],
        turn: int | None,
        ended: Callable[[Any], None],
    ) -> None:
        for shard in chosen:
            one = write(step.row, step.attempt, pushed=False)
            self._writes.setdefault(shard, []).append(one)
        outcome = remembered((), b"", pickle.dumps(step.attempt))
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
