"""ClosureRunner: runs the closures of a session, and commits what they have written.

Threads: `run`, `make` and `flush` are for closure threads, several at a time; the rest is for the
event loop, which may cancel what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from psnb._src.parameters import (
    CommServerClient,
    LocalCopies,
    Round,
    UndecidedError,
    Updates,
    buffered,
)
from psnb._src.phases import COMMIT, COMPUTE, READ, start_clock, stop_clock
from psnb._src.runtime.activity import Doing
from psnb._src.runtime.leasing import ASK_TIMEOUT, LeaseRequests
from psnb._src.runtime.loaded_function import LoadedFunction
from psnb._src.runtime.mail import Mail
from psnb._src.runtime.notebook_link import NotebookLink, out_of_reach
from psnb._src.runtime.packing import Nothing, dumps, loads, pack_error, shorten_call
from psnb._src.runtime.printed_lines import end_printed_lines
from psnb._src.runtime.reported_states import ReportedStates
from psnb._src.runtime.resources import Resources
from psnb._src.runtime.result_sender import ResultSender
from psnb._src.runtime.session_messages import (
    AnnounceStrategies,
    Assignment,
    ClosureResult,
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
from psnb._src.server import Commit
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
        """Run a closure that is expected, and hand its result over."""
        clock = start_clock(READ)
        closure = assignment.closure
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        succeeded, packed = True, b""
        staleness: int | None = None
        undecided: tuple[str, int] | None = None
        number = assignment.round
        in_round = None if number is None else Round(self._opening.strategy, number)
        updates = Updates(
            counted=self._copies is None, sync_round=in_round, server_client=self._copies
        )
        requests = LeaseRequests(closure, self._link.ask, assignment.portions, assignment.lane)
        states = ReportedStates()
        try:
            context = self._context(
                assignment.attempt, self._cancellations[closure], requests, closure, states
            )
            with Doing(function.activity), entered(context), buffered(updates):
                if assignment.payload:
                    args, kwargs = loads(assignment.payload, self._resources.get, assignment.inputs)
                loaded = function.get()
                clock.turn(COMPUTE)
                try:
                    value = _call(loaded, function.name, args, kwargs, updates, requests)
                finally:
                    end_printed_lines()
            clock.turn(COMMIT)
            requests.settle()
            packed = b"" if value is None else dumps(value, f"the result of {function.name}")
            packed = states.attach(packed)
            if updates:
                staleness = self._commit(assignment, updates, packed)
            else:
                self._require_unrevoked(closure)
            if self._copies is not None and not self._link.closed:
                # Not without the coordinator: what runs again would count twice.
                staleness = self._copies.closure_ended()
        except UndecidedError as error:
            undecided = error.commit[:2]
        except BaseException as error:  # a boundary: every exception goes to the notebook
            succeeded = False
            unread = assignment.payload and not (args or kwargs)
            call = f"{function.name}({'...' if unread else shorten_call(args, kwargs)})"
            where = f"in closure {call} on worker {self._worker!r}, attempt {assignment.attempt}"
            packed = pack_error(error, where)
            taken = requests.taken.packed(self._resources.number_of)
            self._link.send(ElementsTaken(closure, taken))
        clock.turn(COMMIT)
        stop_clock()
        seconds = sum(clock.seconds)
        del self._cancellations[closure]
        pushed = succeeded and updates.pushed
        if undecided is None:
            self._results.add_result(
                ClosureResult(closure, succeeded, packed, seconds, pushed, staleness),
                clock.seconds,
            )
        else:
            self._results.forgo(1)
            self._link.send(
                ClosureUndecided(closure, packed, seconds, clock.seconds, pushed, undecided)
            )

    def make(self, definition: DefineResource) -> None:
        """Make a per-worker value."""

        def call() -> Any:
            function, args, kwargs = loads(definition.payload, self._resources.get)
            with entered(self._context(1, self._making)):
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
        self,
        attempt: int,
        cancellation: Cancellation,
        requests: LeaseRequests | None = None,
        closure: int = -1,
        states: ReportedStates | None = None,
    ) -> WorkerContext:
        return WorkerContext(
            self._opening.worker_index,
            self._opening.num_workers,
            self._worker,
            attempt,
            self._results.add_report,
            cancellation,
            requests,
            self._mail,
            closure,
            states,
        )

    def _commit(self, assignment: Assignment, updates: Updates, packed: bytes) -> int | None:
        """Make a closure's writes happen; return how stale the update was."""
        if self._link.closed:
            raise out_of_reach()
        small = self._announce(assignment, updates, packed)
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
        )
        return updates.commit(self._copies or self._server_client, commit)

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


def _call(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    updates: Updates,
    requests: LeaseRequests,
) -> Any:
    try:
        return function(*args, **kwargs)
    except StopIteration:
        # From a dataset that has nothing left: the closure has nothing to do.
        if not requests.ended or updates:
            raise
        return Nothing(name)
