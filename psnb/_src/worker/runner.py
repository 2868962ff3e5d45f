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
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

from msgspec.structs import replace

from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.commit import UndecidedError
from psnb._src.client.local.geo import LocalCopies
from psnb._src.client.server_client import reaching_by
from psnb._src.client.updates import Round, Updates, buffered
from psnb._src.placement.layout import ShardId
from psnb._src.protocol.errors import pack_error
from psnb._src.protocol.messages import (
    AnnounceStrategies,
    AskLease,
    Assignment,
    ClosureResult,
    CopiesFlushed,
    DefineResource,
    ElementsTaken,
    FlushUndecided,
    KeepResult,
    ReturnLease,
    SessionOpening,
    exchange_writer,
)
from psnb._src.protocol.packing import loads
from psnb._src.server.commit_log import Commit, Part
from psnb._src.utils.phases import COMMIT, stop_clock
from psnb._src.utils.threads import Answer
from psnb._src.worker.activity import Activity
from psnb._src.worker.attempt import LoadedFunction, StepAttempt, StepsUnderWay
from psnb._src.worker.context import Cancellation, WorkerContext, entered
from psnb._src.worker.lease_requests import ASK_TIMEOUT, LeaseInquiry
from psnb._src.worker.link import NotebookLink, out_of_reach
from psnb._src.worker.mail import PeerMessages
from psnb._src.worker.printing import end_printed_lines
from psnb._src.worker.reports import with_taken
from psnb._src.worker.resources import Resources
from psnb._src.worker.results import ResultSender
from psnb.errors import ClosureCancelledError

LARGE_RESULT = 1 << 13
"""Bytes of a pickled result above which servers do not remember it beside the commit."""


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
    """

    def __init__(
        self,
        opening: SessionOpening,
        server_client: CommServerClient,
        mail: PeerMessages,
        link: NotebookLink,
        results: ResultSender,
        resources: Resources,
    ) -> None:
        self._opening, self._worker = opening, opening.worker_name
        self._server_client, self._mail = server_client, mail
        self._link, self._results, self._resources = link, results, resources
        name = opening.coordinator
        writer = exchange_writer(name, opening.session)
        self._copies = (
            None
            if opening.exchange is None
            else LocalCopies(server_client, opening.exchange, name, writer)
        )
        self._written_to = {opening.strategy}  # the strategies that the coordinator knows of
        # Of closures that have not ended: the loop adds, closure threads remove. All per-worker
        # values that are made share one.
        self._cancellations: dict[int, Cancellation] = {}
        self._making = Cancellation()
        self._last = (
            threading.local()
        )  # `commit`: an `Answer` when this thread's last one has ended

    def learn(self, workers: int) -> None:
        """Note how many workers there are."""
        self._results.workers = workers
        if self._copies is not None:
            self._copies.workers = workers

    @property
    def busy(self) -> bool:
        """Whether closures are expected that have not ended."""
        return bool(self._cancellations)

    def expect(self, closure: int) -> None:
        """Note that a closure is going to be run."""
        self._cancellations[closure] = Cancellation()

    def forget(self, closure: int) -> None:
        """Note that it is not, after all."""
        del self._cancellations[closure]

    def cancel(self, closures: Iterable[int]) -> None:
        """Ask those of these closures that have not ended to stop early."""
        for closure in closures:
            if (cancellation := self._cancellations.get(closure)) is not None:
                cancellation.requested = True

    def recall(self, closures: Iterable[int]) -> None:
        """Have those of these closures that have not ended do so with the step that they do."""
        for closure in closures:
            if (cancellation := self._cancellations.get(closure)) is not None:
                cancellation.recalled = True

    def revoke(self, closure: int) -> None:
        """Ask a closure to stop early, and have it write nothing any more."""
        if (cancellation := self._cancellations.get(closure)) is not None:
            cancellation.revoked = cancellation.requested = True

    def cancel_all(self) -> None:
        """Ask everything that runs to stop early."""
        self._making.requested = True
        self.cancel(list(self._cancellations))

    def run(self, function: LoadedFunction, assignment: Assignment) -> None:
        """Do the steps of a closure that is expected; each is handed over when it is committed."""
        closure, count = assignment.closure, assignment.steps
        end = partial(self._end_steps, closure)
        steps = StepsUnderWay(count, self._cancellations[closure], end)
        try:
            while True:
                steps.begin_part()
                self._run_step(function, assignment, steps)
                if not steps.goes_on():
                    break
                number, commit = assignment.number + 1, assignment.commit + 1
                assignment = replace(assignment, number=number, commit=commit)
            if count > 1:
                self._server_client.flush()  # nothing of it is sent after its last commit
        finally:
            steps.end_part()

    def _run_step(
        self, function: LoadedFunction, assignment: Assignment, steps: StepsUnderWay
    ) -> None:
        number = assignment.round
        in_round = None if number is None else Round(self._opening.strategy, number)
        updates = Updates(
            counted=self._copies is None, sync_round=in_round, server_client=self._copies
        )
        alone = assignment.steps == 1
        report = partial(self._results.add_taken, hurry=alone)
        attempt = StepAttempt(function, assignment, updates, self._ask_lease, report)
        under_way = False
        try:
            cancellation = self._cancellations[assignment.closure]
            context = self._context(cancellation, attempt, hurry=alone)
            with (
                Activity(function.activity),
                entered(context),
                reaching_by(self._server_client),
                buffered(updates),
            ):
                value = attempt.call(self._resources)
            steps.found_end = attempt.requests.ended and not updates
            attempt.pack(value)
            if not updates:
                self._require_unrevoked(assignment.closure)
            elif self._copies is None:
                self._begin_commit(attempt, steps)
                under_way = True
            else:
                self._copies.commit(*self._commit_of(attempt))
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
        commit, parts = self._commit_of(attempt)
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

        self._server_client.commit_soon(commit, parts, ended, later=steps.goes_on())
        self._last.commit = answered

    def _await_last(self) -> None:
        """Wait for the end of this thread's last commit."""
        before: Answer[None] | None = getattr(self._last, "commit", None)
        if before is not None:
            self._server_client.flush()
            before.result()  # ends, as every commit does

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
            if error is None and attempt.assignment.steps == 1:
                steps.only = attempt
            elif error is None:
                self._results.add_step(attempt)
            else:
                steps.last = self._without_effect(attempt, error)
                steps.phases = attempt.clock.seconds
        steps.end_part()

    def _without_effect(self, attempt: StepAttempt, error: BaseException) -> ClosureResult:
        """Return what says that a step has had no effect, or may have had none."""
        if isinstance(error, UndecidedError):
            return attempt.in_doubt(error.commit[:2])
        taken = attempt.requests.taken.packed(self._resources.number_of)
        self._link.send(ElementsTaken(attempt.assignment.closure, taken))
        return attempt.failed(error, self._worker)

    def _end_steps(self, closure: int, steps: StepsUnderWay) -> None:
        del self._cancellations[closure]
        self._results.end(closure, steps.only, steps.last, steps.phases)

    def make(self, definition: DefineResource) -> None:
        """Make a per-worker value."""

        def call() -> Any:
            function, args, kwargs = loads(definition.payload, self._resources.get)
            with entered(self._context(self._making)), reaching_by(self._server_client):
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
            self._link.send(FlushUndecided(raised.commit[:2]))
            return
        except BaseException as raised:  # a boundary, too
            where = f"while worker {self._worker!r} sent what it had learned"
            error = pack_error(raised, where)
        self._link.send(CopiesFlushed(error, staleness))

    def _context(
        self,
        cancellation: Cancellation,
        attempt: StepAttempt | None = None,
        *,
        hurry: bool = True,
    ) -> WorkerContext:
        return WorkerContext(
            self._opening.worker_index,
            self._opening.num_workers,
            self._worker,
            1 if attempt is None else attempt.assignment.attempt,
            partial(self._results.add_report, hurry=hurry),
            cancellation,
            None if attempt is None else attempt.requests,
            self._mail,
            -1 if attempt is None else attempt.assignment.number,
            None if attempt is None else attempt.states,
        )

    def _commit_of(self, attempt: StepAttempt) -> tuple[Commit, dict[ShardId, Part]]:
        """Return a closure's writes as a commit, which must happen from here on."""
        if self._link.closed:
            raise out_of_reach()
        assignment, updates = attempt.assignment, attempt.updates
        remembered = with_taken(attempt.front + attempt.value, attempt.requests.used)
        small = self._announce(assignment, updates, remembered)
        # Only now: what servers are not asked to refuse, as the coordinator did not know of them
        # when it was cancelled, is written to after this answer.
        self._require_unrevoked(assignment.closure)
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

    def _ask_lease(self, question: LeaseInquiry) -> Future[Any]:
        in_order = isinstance(question, AskLease) and question.slot is not None
        if in_order or isinstance(question, ReturnLease):
            self._results.flush()  # what was taken before: the answer depends on it
        return self._link.ask(question)

    def _require_unrevoked(self, closure: int) -> None:
        if self._cancellations[closure].revoked:
            raise ClosureCancelledError("the closure was cancelled while it ran")

    def _announce(self, assignment: Assignment, updates: Updates, packed: bytes) -> bytes | None:
        """Tell the coordinator what it must know before a commit; return the result for servers."""
        others = {shard.strategy for shard in updates.shards} - self._written_to
        large = len(packed) > LARGE_RESULT
        asked = []
        if others:
            asked.append(self._link.ask(AnnounceStrategies(sorted(others))))
        if large:
            kept = KeepResult(assignment.closure, assignment.attempt, assignment.commit, packed)
            asked.append(self._link.ask(kept))
        for answer in asked:
            if not answer.result(ASK_TIMEOUT):
                raise out_of_reach()
        self._written_to |= others
        return None if large else packed
