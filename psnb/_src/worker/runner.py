"""ClosureRunner: runs the closures of a session, and commits what they have written.

Threads: `run`, `make` and `flush` are for closure threads, several at a time; the rest is for the
event loop, which may cancel what runs. A closure thread does not wait for its commit: it runs the
next closure, and the loop hands over the outcome of the last one. Whatever that next closure asks
the same server comes after the commit, on the same connection, and sees what the last one wrote. A
commit to several servers, which takes several messages, is waited for. (One that must be sent
again, as its shard moved or the connection broke, may come after that read; but the next closure's
commit waits for it.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

from msgspec.structs import replace

from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.commit import UndecidedError
from psnb._src.client.local.geo import LocalCopies
from psnb._src.client.updates import Round, Updates, buffered
from psnb._src.placement.layout import ShardId
from psnb._src.protocol import messages
from psnb._src.protocol.errors import pack_error
from psnb._src.protocol.packing import loads
from psnb._src.server.commit_log import Commit, Part
from psnb._src.utils.phases import COMMIT, stop_clock
from psnb._src.utils.text import NAME, truncate
from psnb._src.utils.threads import Answer
from psnb._src.worker.activity import Activity
from psnb._src.worker.attempt import LoadedFunction, StepAttempt, StepsUnderWay
from psnb._src.worker.context import Stop, WorkerContext, entered
from psnb._src.worker.lease_requests import ASK_TIMEOUT, LeaseInquiry
from psnb._src.worker.link import NotebookLink, out_of_reach
from psnb._src.worker.mail import PeerMessages
from psnb._src.worker.printing import MOST, end_printed_lines
from psnb._src.worker.reports import remembered
from psnb._src.worker.resources import Resources
from psnb._src.worker.results import ResultSender
from psnb.errors import ClosureCancelledError

LARGE_RESULT = 1 << 13
"""Bytes of a pickled result above which servers do not remember it with the commit."""


Unstarted = dict[int, tuple[LoadedFunction, messages.Assignment]]
"""Closures that have not begun, by their ids."""


class _LastCommit(threading.local):
    """That of a closure thread: done when its step has ended."""

    commit: Answer[None] | None = None


class ClosureRunner:
    """Runs closures, one in each closure thread.

    Parameters
    ----------
    opening : SessionOpening
        What the coordinator sent first.
    server_client : CommServerClient
        The worker's way to the servers. The same that handles use: arrays that they have written to
        its memory are sent from there.
    mail : PeerMessages
        The worker's way to other workers.
    link : NotebookLink
        The way to the coordinator.
    results : ResultSender
        Takes results and reports.
    resources : Resources
        The per-worker values.
    unstarted : dict
        By closure, those that nobody has taken, to run them or to return them. Each operation on a
        dict is atomic.
    """

    def __init__(
        self,
        opening: messages.SessionOpening,
        server_client: CommServerClient,
        mail: PeerMessages,
        link: NotebookLink,
        results: ResultSender,
        resources: Resources,
        unstarted: Unstarted,
    ) -> None:
        self._opening, self._worker = opening, opening.worker_name
        self._server_client, self._mail = server_client, mail
        self._link, self._results, self._resources = link, results, resources
        self._unstarted = unstarted
        name = opening.coordinator
        writer = messages.exchange_writer(name, opening.session)
        self._copies = (
            None
            if opening.exchange is None
            else LocalCopies(server_client, opening.exchange, name, writer)
        )
        self._written_to = {opening.strategy}  # the strategies that the coordinator knows of
        # By closure, of those that have not ended: the loop adds, the thread that removes one ends
        # it.
        self._closures: dict[int, StepsUnderWay] = {}
        self._making = WorkerContext(  # of all per-worker values that are made
            *(opening.worker_index, opening.num_workers, self._worker, 1),
            results.add_report,
            mail=mail,
            send_lines=self._send_lines,
        )
        self._report_later = partial(results.add_report, urgent=False)
        self._take_later = partial(results.add_taken, urgent=False)
        self._last = _LastCommit()

    def learn(self, workers: int) -> None:
        """Note how many workers there are."""
        self._results.workers = workers
        if self._copies is not None:
            self._copies.workers = workers

    @property
    def busy(self) -> bool:
        """Whether closures are expected that have not ended."""
        return bool(self._closures)

    def expect(self, function: LoadedFunction, assignment: messages.Assignment) -> None:
        """Note that a thread is going to run a closure."""
        self._closures[assignment.closure] = StepsUnderWay()
        self._unstarted[assignment.closure] = function, assignment

    def stop(self, closures: Iterable[int], how: Stop) -> list[int]:
        """Ask closures to stop; return those that have not begun, and are not going to."""
        returned: list[int] = []
        for closure in closures:
            if self._unstarted.pop(closure, None) is not None:
                del self._closures[closure]
                returned.append(closure)
            elif (found := self._closures.get(closure)) is not None:
                found.stop = max(found.stop, how)
        return returned

    def stop_all(self) -> None:
        """Ask everything that runs to stop early."""
        self._making.cancellation.stop = Stop.EARLY
        self.stop(list(self._closures), Stop.EARLY)

    def run(self, closure: int) -> None:
        """Do the steps of a closure, if it was not returned; each is handed over when committed."""
        given = self._unstarted.pop(closure, None)
        if given is None:
            return
        (function, assignment), steps = given, self._closures[closure]
        count = assignment.steps
        while True:
            steps.begun += 1
            steps.over = steps.begun == count
            self._run_step(function, assignment, steps)
            if not steps.go_on():
                break
            number, commit = assignment.number + 1, assignment.commit + 1
            assignment = replace(assignment, number=number, commit=commit)
        steps.over = True
        self._end_if_over(closure, steps)
        if count > 1:
            self._server_client.flush()  # nothing of it is sent after its last commit

    def _run_step(
        self, function: LoadedFunction, assignment: messages.Assignment, steps: StepsUnderWay
    ) -> None:
        number = assignment.round
        in_round = None if number is None else Round(self._opening.strategy, number)
        updates = Updates(
            counted=self._copies is None, sync_round=in_round, server_client=self._copies
        )
        alone = assignment.steps == 1
        note_taken = self._results.add_taken if alone else self._take_later
        attempt = StepAttempt(function, assignment, updates, self._ask_lease, note_taken)
        under_way = False
        try:
            context = WorkerContext(
                self._opening.worker_index,
                self._opening.num_workers,
                self._worker,
                assignment.attempt,
                self._results.add_report if alone else self._report_later,
                steps,
                attempt.requests,
                self._mail,
                assignment.number,
                attempt.states,
                function.name,
                self._send_lines,
            )
            with Activity(function.activity), entered(context), buffered(updates):
                value = attempt.call(self._resources)
            steps.over |= attempt.requests.ended and not updates  # a next one would find nothing
            attempt.pack(value)
            if not updates:
                steps.require_wanted()
            elif self._copies is None:
                self._begin_commit(attempt, steps)
                under_way = True
            else:
                self._copies.commit(*self._commit_of(attempt, steps))
            if self._copies is not None and not self._link.closed:
                # Not without the coordinator: what runs again would count twice.
                attempt.staleness = self._copies.closure_ended()
        except BaseException as error:  # a boundary: every exception goes to the notebook
            self._end_in_turn(attempt, steps, error)
        else:
            if not under_way:
                self._end_in_turn(attempt, steps)
        stop_clock()

    def _begin_commit(self, attempt: StepAttempt, steps: StepsUnderWay) -> None:
        """Send what a step has written; the step ends when the servers have answered.

        Meanwhile this thread does the next one, which waits here for the end of this one.
        """
        commit, parts = self._commit_of(attempt, steps)
        self._await_last()
        if steps.last is not None:
            raise ClosureCancelledError("a step before it had no effect")
        answered = Answer[None]()

        def ended(outcome: int | Exception | None) -> None:
            try:
                if isinstance(outcome, Exception):
                    self._end(attempt, steps, outcome)
                else:
                    attempt.staleness = outcome
                    self._end(attempt, steps)
            finally:
                answered.set_result(None)

        self._server_client.commit_soon(commit, parts, ended, later=steps.go_on())
        self._last.commit = answered

    def _await_last(self) -> None:
        """Wait for the end of this thread's last commit."""
        if self._last.commit is not None:
            self._server_client.flush()
            self._last.commit.result()  # ends, as every commit does

    def _end_in_turn(
        self, attempt: StepAttempt, steps: StepsUnderWay, error: BaseException | None = None
    ) -> None:
        """Hand over an outcome here; after that of the step before it."""
        if steps.begun > 1:
            self._await_last()
        self._end(attempt, steps, error)

    def _end(
        self, attempt: StepAttempt, steps: StepsUnderWay, error: BaseException | None = None
    ) -> None:
        """Hand over the outcome of a step; any thread."""
        attempt.clock.turn(COMMIT)
        if steps.last is None:
            if error is None and attempt.assignment.steps > 1:
                self._results.add_step(attempt)
            else:
                # Its only step, too, leaves with the end of the closure: a message between the two
                # would say that it continues, and its end that it has pushed nothing.
                steps.phases = attempt.clock.seconds
                steps.last = (
                    attempt.returned() if error is None else self._without_effect(attempt, error)
                )
        steps.handed_over += 1
        self._end_if_over(attempt.assignment.closure, steps)

    def _end_if_over(self, closure: int, steps: StepsUnderWay) -> None:
        """End a closure that does no more steps, and has the outcomes of all; any thread."""
        over = steps.over and steps.handed_over == steps.begun
        # Once, of all threads: the notebook may have sent it again since.
        if over and vars(steps).pop("open", False):
            del self._closures[closure]
            self._results.end(closure, steps.last, steps.phases)

    def _without_effect(self, attempt: StepAttempt, error: BaseException) -> messages.ClosureResult:
        """Return what says that a step has had no effect, or may have had none."""
        if isinstance(error, UndecidedError):
            return attempt.returned(error.commit[:2])
        taken = attempt.requests.taken.packed(self._resources.number_of)
        self._link.send(messages.ElementsTaken(attempt.assignment.closure, taken))
        return attempt.failed(error, self._worker)

    def make(self, definition: messages.DefineResource) -> None:
        """Make a per-worker value."""

        def call() -> Any:
            function, args, kwargs = loads(definition.payload, self._resources.get)
            with entered(self._making):
                try:
                    return function(*args, **kwargs)
                finally:
                    end_printed_lines()

        with Activity("loading per-worker data"):
            self._resources.make(definition.number, call)

    def flush(self) -> None:
        """Send the servers the updates that are kept here, and inform the coordinator."""
        error, staleness = b"", None
        try:
            if self._copies is not None:
                staleness = self._copies.exchange()
        except UndecidedError as raised:
            self._link.send(messages.FlushUndecided(raised.commit[:2]))
            return
        except BaseException as raised:  # a boundary, too
            where = f"while worker {self._worker!r} sent what it had learned"
            error = pack_error(raised, where)
        self._link.send(messages.CopiesFlushed(error, staleness))

    def _commit_of(
        self, attempt: StepAttempt, steps: StepsUnderWay
    ) -> tuple[Commit, dict[ShardId, Part]]:
        """Return a closure's writes as a commit, which must happen from here on."""
        if self._link.closed:
            raise out_of_reach()
        assignment, updates = attempt.assignment, attempt.updates
        outcome = remembered(attempt.requests.used, attempt.front, attempt.value)
        small = self._announce(assignment, updates, outcome)
        # Only now: what servers are not asked to refuse, as the coordinator did not know of them
        # when it was cancelled, is written to after this answer.
        steps.require_wanted()
        # Last: from here on the closure has happened, even if its result gets lost.
        name = self._opening.coordinator
        commit = Commit(
            name,
            assignment.commit,
            assignment.attempt,
            closures=((assignment.commit, small),),
            coordinator=name,
            pushed=updates.pushed,
            shards=updates.shards,
        )
        return commit, updates.parts()

    def _send_lines(self, closure: str, lines: list[str]) -> None:
        """Send the coordinator lines that a closure has written, at once: the worker may die."""
        now = time.time()
        self._link.send(
            messages.LinesWritten(
                [(now, truncate(closure, NAME), truncate(line, MOST)) for line in lines]
            )
        )

    def _ask_lease(self, question: LeaseInquiry) -> Future[Any]:
        in_order = isinstance(question, messages.AskLease) and question.slot is not None
        if in_order or isinstance(question, messages.ReturnLease):
            self._results.flush()  # what was taken before: the answer depends on it
        return self._link.ask(question)

    def _announce(
        self, assignment: messages.Assignment, updates: Updates, packed: bytes
    ) -> bytes | None:
        """Tell the coordinator what it must know before a commit; return the result for servers."""
        others = {shard.strategy for shard in updates.shards} - self._written_to
        large = len(packed) > LARGE_RESULT
        asked = []
        if others:
            asked.append(self._link.ask(messages.AnnounceStrategies(sorted(others))))
        if large:
            kept = messages.KeepResult(
                assignment.closure, assignment.attempt, assignment.commit, packed
            )
            asked.append(self._link.ask(kept))
        for answer in asked:
            if not answer.result(ASK_TIMEOUT):
                raise out_of_reach()
        self._written_to |= others
        return None if large else packed
