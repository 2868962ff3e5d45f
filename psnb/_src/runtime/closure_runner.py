"""ClosureRunner: runs the closures of a session, and commits what they have written.

Threads: `run`, `make` and `flush` are for closure threads, several at a time; the rest is for the
event loop, which may cancel what runs. A closure thread does not wait for its commit: it runs the
next closure, and the loop hands over what came of the last one. Whatever that next closure asks the
same server comes after the commit, on the same connection, so it sees what the last one wrote. A
commit to several servers, which takes several messages, is waited for. (One that must be sent
again, as its shard moved or the connection broke, may come after that read; but the next closure's
commit waits for it.)
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from psnb._src.parameters import (
    CommServerClient,
    LocalCopies,
    Round,
    UndecidedError,
    Updates,
    buffered,
    reaching_by,
)
from psnb._src.phases import COMMIT, stop_clock
from psnb._src.placement import ShardId
from psnb._src.runtime.activity import Doing
from psnb._src.runtime.closure_attempt import ClosureAttempt
from psnb._src.runtime.leasing import ASK_TIMEOUT
from psnb._src.runtime.loaded_function import LoadedFunction
from psnb._src.runtime.mail import Mail
from psnb._src.runtime.notebook_link import NotebookLink, out_of_reach
from psnb._src.runtime.packing import loads, pack_error
from psnb._src.runtime.printed_lines import end_printed_lines
from psnb._src.runtime.resources import Resources
from psnb._src.runtime.result_sender import ResultSender
from psnb._src.runtime.session_messages import (
    AnnounceStrategies,
    Assignment,
    ClosureUndecided,
    CopiesFlushed,
    DefineResource,
    ElementsTaken,
    FlushUndecided,
    KeepResult,
    SessionOpening,
    exchange_writer,
)
from psnb._src.runtime.worker_context import Cancellation, WorkerContext, entered
from psnb._src.server import Commit, Part
from psnb._src.threads import Answer
from psnb.errors import CancelledError

LARGE_RESULT = 1 << 13
"""Bytes of a pickled result above which servers do not remember it beside the commit."""


class ClosureRunner:
    """Runs closures, one in each closure thread.

    Parameters
    ----------
    opening : SessionOpening
        What the coordinator said at first.
    server_client : CommServerClient
        The worker's way to the servers. The same that handles use: arrays that they have written to
        its memory are sent from there.
    mail : Mail
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
        mail: Mail,
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
        self._settled_below = 0
        self._written_to = {opening.strategy}  # the strategies that the coordinator knows of
        # Of closures that have not ended: the loop adds, closure threads remove. All per-worker
        # values that are made share one.
        self._cancellations: dict[int, Cancellation] = {}
        self._making = Cancellation()
        self._last = (
            threading.local()
        )  # `commit`: an `Answer` when this thread's last one has ended

    def learn(self, settled_below: int, workers: int) -> None:
        """Note below which number all closures have ended, and how many workers there are."""
        self._settled_below = settled_below
        if self._copies is not None:
            self._copies.workers, self._copies.ended_below = workers, settled_below

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

    def revoke(self, closure: int) -> None:
        """Ask a closure to stop early, and have it write nothing any more."""
        if (cancellation := self._cancellations.get(closure)) is not None:
            cancellation.revoked = cancellation.requested = True

    def cancel_all(self) -> None:
        """Ask everything that runs to stop early."""
        self._making.requested = True
        self.cancel(list(self._cancellations))

    def run(self, function: LoadedFunction, assignment: Assignment) -> None:
        """Run a closure that is expected; its result is handed over when its writes are made."""
        number = assignment.round
        in_round = None if number is None else Round(self._opening.strategy, number)
        updates = Updates(
            counted=self._copies is None, sync_round=in_round, server_client=self._copies
        )
        attempt = ClosureAttempt(function, assignment, updates, self._link.ask)
        under_way = False
        try:
            context = self._context(self._cancellations[assignment.closure], attempt)
            with (
                Doing(function.activity),
                entered(context),
                reaching_by(self._server_client),
                buffered(updates),
            ):
                value = attempt.call(self._resources)
            attempt.pack(value)
            attempt.requests.settle()
            if not updates:
                self._require_unrevoked(assignment.closure)
            elif self._copies is None:
                self._begin_commit(attempt)
                under_way = True
            else:
                self._copies.commit(*self._commit_of(attempt))
            if self._copies is not None and not self._link.closed:
                # Not without the coordinator: what runs again would count twice.
                attempt.staleness = self._copies.closure_ended()
        except BaseException as error:  # a boundary: every exception goes to the notebook
            self._end(attempt, error)
        else:
            if not under_way:
                self._end(attempt)
        stop_clock()

    def _begin_commit(self, attempt: ClosureAttempt) -> None:
        """Send a closure's writes; the closure ends when the servers have answered.

        Meanwhile this thread runs the next one, which waits here for the end of this one.
        """
        commit, parts = self._commit_of(attempt)
        before: Answer[None] | None = getattr(self._last, "commit", None)
        if before is not None:
            before.result()  # ends, as every commit does
        answered = Answer[None]()

        def ended(outcome: int | Exception | None) -> None:
            try:
                if isinstance(outcome, Exception):
                    self._end(attempt, outcome)
                else:
                    attempt.staleness = outcome
                    self._end(attempt)
            finally:
                answered.set_result(None)

        self._server_client.commit_soon(commit, parts, ended)
        self._last.commit = answered

    def _end(self, attempt: ClosureAttempt, error: BaseException | None = None) -> None:
        """Hand over what came of a closure; any thread."""
        closure, clock = attempt.assignment.closure, attempt.clock
        clock.turn(COMMIT)
        if error is not None and not isinstance(error, UndecidedError):
            attempt.fail(error, self._worker)
            taken = attempt.requests.taken.packed(self._resources.number_of)
            self._link.send(ElementsTaken(closure, taken))
        del self._cancellations[closure]
        result = attempt.result()
        if isinstance(error, UndecidedError):
            self._results.forgo(1)
            self._link.send(
                ClosureUndecided(
                    closure,
                    result.payload,
                    result.seconds,
                    clock.seconds,
                    result.pushed,
                    error.commit[:2],
                )
            )
        else:
            self._results.add_result(result, clock.seconds)

    def make(self, definition: DefineResource) -> None:
        """Make a per-worker value."""

        def call() -> Any:
            function, args, kwargs = loads(definition.payload, self._resources.get)
            with entered(self._context(self._making)), reaching_by(self._server_client):
                try:
                    return function(*args, **kwargs)
                finally:
                    end_printed_lines()

        with Doing("loading per-worker data"):
            self._resources.make(definition.number, call)

    def flush(self) -> None:
        """Send the servers the updates that are kept here, and tell the coordinator."""
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
        self, cancellation: Cancellation, attempt: ClosureAttempt | None = None
    ) -> WorkerContext:
        return WorkerContext(
            self._opening.worker_index,
            self._opening.num_workers,
            self._worker,
            1 if attempt is None else attempt.assignment.attempt,
            self._results.add_report,
            cancellation,
            None if attempt is None else attempt.requests,
            self._mail,
            -1 if attempt is None else attempt.assignment.closure,
            None if attempt is None else attempt.states,
        )

    def _commit_of(self, attempt: ClosureAttempt) -> tuple[Commit, dict[ShardId, Part]]:
        """Return a closure's writes as a commit, which must happen from here on."""
        if self._link.closed:
            raise out_of_reach()
        assignment, updates = attempt.assignment, attempt.updates
        small = self._announce(assignment, updates, attempt.packed)
        # Only now: what servers are not asked to refuse, as the coordinator did not know of them
        # when it was cancelled, is written to after this answer.
        self._require_unrevoked(assignment.closure)
        # Last: from here on the closure has happened, even if its result gets lost.
        name = self._opening.coordinator
        commit = Commit(
            name,
            assignment.commit,
            assignment.attempt,
            self._settled_below,
            closures=((assignment.commit, small),),
            coordinator=name,
            ended_below=self._settled_below,
            pushed=updates.pushed,
            shards=updates.shards,
        )
        return commit, updates.parts()

    def _require_unrevoked(self, closure: int) -> None:
        if self._cancellations[closure].revoked:
            raise CancelledError("the closure was cancelled while it ran")

    def _announce(self, assignment: Assignment, updates: Updates, packed: bytes) -> bytes | None:
        """Tell the coordinator what it must know before a commit; return the result for servers."""
        others = {shard.strategy for shard in updates.shards} - self._written_to
        large = len(packed) > LARGE_RESULT
        told = []
        if others:
            told.append(self._link.ask(AnnounceStrategies(sorted(others))))
        if large:
            told.append(self._link.ask(KeepResult(assignment.closure, assignment.attempt, packed)))
        for answer in told:
            if not answer.result(ASK_TIMEOUT):
                raise out_of_reach()
        self._written_to |= others
        return None if large else packed
