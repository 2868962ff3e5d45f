"""How a commit is made, on all shards that it writes to or on none. Pure.

`committing` is a generator: it yields batches of requests, and returns the outcome of the commit. A
driver makes the requests: a closure's thread, or the simulation that tests the whole protocol
(`tests/model`). See `psnb._src.server.commit_log` for the shards' side.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from psnb._src.client.requests import Request, ServerClient
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import PROCESS, Commit, Part
from psnb._src.server.operations import APART, ApplyCommit, CommitParts, GiveUpCommit, PreparePart
from psnb._src.utils.profiling import Watermark
from psnb._src.utils.threads import run_in_thread
from psnb.errors import (
    ClosureCancelledError,
    CoordinatorClosedError,
    PsnbError,
    ServerLostError,
    ServerUnresponsiveError,
)

T = TypeVar("T")

Outcome = Any
"""The result of a request, or the exception that it raised."""

_UNKNOWN = (ServerUnresponsiveError, CoordinatorClosedError)
"""Errors after which a request may still be carried out."""

Steps = Generator[Sequence[Request], Sequence[Outcome], T]
"""Yields requests, takes their outcomes, and returns the final result."""


class UndecidedError(Exception):
    """Raised when this process cannot tell whether a commit is applied: ask the shards.

    Attributes
    ----------
    commit : Commit
        Which.
    reason : PsnbError
        Why.
    """

    def __init__(self, commit: Commit, reason: PsnbError) -> None:
        super().__init__(f"commit {commit.number} of {commit.writer}: {reason}")
        self.commit, self.reason = commit, reason


def committing(
    commit: Commit, parts: Mapping[ShardId, Part], together: Callable[[Sequence[ShardId]], bool]
) -> Steps[int | None]:
    """Yield the requests that make a commit, and take their outcomes.

    Parameters
    ----------
    commit : Commit
        Which; it names all shards that take part.
    parts : mapping of ShardId to Part
        What goes to each of them.
    together : callable
        Returns whether shards are likely to be on one server, which can change them at once. The
        server decides in the end.

    Returns
    -------
    int or None
        If its staleness counts: the number of other updates since the first read, on the shard with
        the most.

    Raises
    ------
    UndecidedError
        If it may be applied somewhere, now or later: the notebook, which can ask all shards, must
        decide.
    PsnbError
        If it is applied nowhere, and never will be.
    """
    shards = commit.shards
    if together(shards):
        several = {shard.number: part for shard, part in parts.items()}
        once = Request(shards[0], CommitParts(commit, several))
        (outcome,) = yield [once]
        if isinstance(outcome, _UNKNOWN):
            raise UndecidedError(commit, outcome) from outcome
        if isinstance(outcome, Exception):
            raise outcome
        if outcome != APART:
            staleness: int | None = outcome
            return staleness
    holds = yield [Request(shard, PreparePart(commit, parts[shard])) for shard in shards]
    if failed := _errors(holds):
        # Not all have prepared it, so none will apply it; those that have are asked to give it up.
        held = [s for s, each in zip(shards, holds, strict=True) if not isinstance(each, Exception)]
        yield [Request(shard, GiveUpCommit(commit)) for shard in held]
        raise failed[0]
    # The commit is decided. From here on its effect is lost only if a server is lost with all its
    # data.
    applied = yield [Request(shard, ApplyCommit(commit)) for shard in shards]
    failed = _errors(applied)
    for error in failed:
        # A copy that took over at a bad moment may not know the commit, while others have applied
        # it.
        if isinstance(error, (*_UNKNOWN, ClosureCancelledError)):
            raise UndecidedError(commit, error) from error
        if not isinstance(error, ServerLostError):
            raise error
    stale = [each for each in applied if isinstance(each, int)]
    return max(stale, default=None)


def _errors(outcomes: Sequence[Outcome]) -> list[Exception]:
    return [each for each in outcomes if isinstance(each, Exception)]


def drive(
    steps: Steps[T],
    attempt: Callable[[Sequence[Request]], Sequence[Outcome]],
    requests: Sequence[Request] | None = None,
) -> T:
    """Make the requests that a generator yields, and return its result; raises what it raises.

    A generator that has begun has yielded ``requests``.
    """
    requests, outcomes = next(steps) if requests is None else requests, list[Outcome]()
    try:
        while True:
            try:
                outcomes = list(attempt(requests)) if requests else []
            except PsnbError as error:
                outcomes = [error] * len(requests)
            requests = steps.send(outcomes)
    except StopIteration as ended:
        result: T = ended.value
        return result


# InFlightCommit: a commit that its thread does not wait for.
#
# The thread sends it and goes on with something else; the event loop takes the answer. So a worker
# computes while its last commit travels. Nearly always there is one answer: all shards are on one
# server. Only where it says that they are not any more, a thread ``psnb-commit`` makes the rest.

Ended = Callable[[Any], None]
"""Takes the outcome of a commit: how stale it was, or None; or an exception."""


class InFlightCommit:
    """Goes through the steps of a commit, and hands over its outcome, once.

    Parameters
    ----------
    steps : generator
        From `committing`.
    attempt : callable
        `ServerClient.attempt`, for a thread that waits.
    ended : callable
        Takes the outcome, in whichever thread has it.

    Attributes
    ----------
    requests : sequence of Request
        Those that are to be made next.
    """

    def __init__(
        self,
        steps: Steps[int | None],
        attempt: Callable[[Sequence[Request]], Sequence[Outcome]],
        ended: Ended,
    ) -> None:
        self._steps, self._attempt, self._ended = steps, attempt, ended
        self.requests = next(steps)

    @property
    def whole(self) -> bool:
        """Whether one message is to make all of it."""
        return isinstance(self.requests[0].operation, CommitParts)

    def answered(self, outcomes: Sequence[Outcome]) -> None:
        """Take the answers to `requests`."""
        try:
            self.requests = self._steps.send(outcomes)
        except StopIteration as ended:
            self._ended(ended.value)
        except Exception as error:  # the commit's outcome
            self._ended(error)
        else:
            threading.Thread(target=self.finish, name="psnb-commit", daemon=True).start()

    def finish(self) -> None:
        """Make all requests that are left, in this thread."""
        try:
            staleness = drive(self._steps, self._attempt, self.requests)
        except Exception as error:  # the commit's outcome
            self._ended(error)
        else:
            self._ended(staleness)


# Writes outside of closures, and writes in closures with ``immediate=True``.
#
# A process numbers them, as a coordinator numbers closures. So a request without an answer can be
# sent again, and a write that one of several servers has made is made by all.
#
# Threads: any may write. An interrupt of the main thread ends its waiting, so the commit itself is
# made in another thread. If a server is unresponsive, a thread ``psnb-finish`` waits for it; it
# ends when that server answers or is lost, or when the `ServerClient` is closed.


class _DirectWriter:
    """Numbers the writes that this process makes outside of closures."""

    def __init__(self) -> None:
        self._name = f"{PROCESS}{uuid.uuid4().hex}"
        self._lock = threading.Lock()  # guards the numbers, for a moment each
        self._next = 0
        self._watermark = Watermark()

    def begin(self) -> Commit:
        """Return the next commit; servers remember it until it has ended."""
        with self._lock:
            number, low = self._next, self._watermark.low
            self._next += 1
        return Commit(self._name, number, settled_below=low)

    def end(self, commit: Commit) -> None:
        with self._lock:
            self._watermark.end(commit.number)


_writer = _DirectWriter()


def _begin_anew() -> None:
    """Give a forked process its own name: servers drop numbers that came under a name before."""
    global _writer
    _writer = _DirectWriter()


os.register_at_fork(after_in_child=_begin_anew)


def commit_now(
    server_client: ServerClient, shards: tuple[ShardId, ...], parts: Mapping[ShardId, Part]
) -> None:
    """Have shards make writes, all of them or none, under a number of this process.

    An interrupt ends the waiting only. The commit goes on, so that every server gets its part and
    every number ends.

    Raises
    ------
    ServerLostError, ServerUnresponsiveError, CoordinatorClosedError
        Also if it is unknown whether the writes were made, on all servers or on some.
    """
    run_in_thread(_commit, server_client, shards, parts)


def _commit(
    server_client: ServerClient, shards: tuple[ShardId, ...], parts: Mapping[ShardId, Part]
) -> None:
    writer = _writer
    commit = writer.begin()._replace(shards=shards)
    try:
        server_client.commit(commit, parts)
    except UndecidedError as error:
        end = partial(writer.end, commit)
        if isinstance(error.reason, ServerUnresponsiveError) and len(shards) > 1:
            finish = partial(_finish, server_client, commit, end)
            threading.Thread(target=finish, name="psnb-finish", daemon=True).start()
        else:
            end()
        # A copy that took over has missed the writes: they are lost there with the server before
        # it.
        lost = isinstance(error.reason, ClosureCancelledError)
        kind = ServerLostError if lost else type(error.reason)
        raise kind(f"{error.reason}. It may have been written") from error
    except BaseException:  # an interrupt, too: servers need not remember the commit
        writer.end(commit)
        raise
    writer.end(commit)


def _finish(server_client: ServerClient, commit: Commit, end: Callable[[], None]) -> None:
    """Have each shard apply its part, if all have prepared theirs, once its server answers."""
    left = [Request(shard, ApplyCommit(commit)) for shard in commit.shards]
    try:
        while left:
            outcomes = server_client.attempt(left)  # waits for a while
            found = zip(left, outcomes, strict=True)
            left = [request for request, each in found if isinstance(each, ServerUnresponsiveError)]
    except PsnbError:
        pass  # the strategy is closed
    finally:
        end()
