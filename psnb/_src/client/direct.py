"""Writes outside of closures, and writes in closures with ``immediate=True``.

A process numbers them, as a coordinator numbers closures. So a request without an answer can be
sent again, and a write that one of several servers has made is made by all.

Threads: any may write. An interrupt of the main thread ends its waiting, so the commit itself is
made in another thread. If a server is unresponsive, a thread ``psnb-finish`` waits for it; it
ends when that server answers or is lost, or when the `ServerClient` is closed.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from functools import partial

from psnb._src.client.commit import UndecidedError, ask, drive, resolve_in_doubt
from psnb._src.client.server_client import ServerClient
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import PROCESS, Commit, Part
from psnb._src.utils.range_set import Bounds, RangeSet
from psnb._src.utils.threads import run_in_thread
from psnb.errors import ClosureCancelledError, PsnbError, ServerLostError, ServerUnresponsiveError


class CommitNumbers:
    """Numbers commits, and tells each shard which have ended.

    A commit tells its shards all of it, so it does not matter if one is lost. But only once as many
    have ended, since the shard was told, as there are ranges: this costs constant time a commit,
    and a shard remembers at most twice as many commits as are under way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all that is here, for a moment each
        self._next = self._ended = 0
        self._settled = RangeSet()
        self._told: dict[ShardId, int] = {}  # how many had ended when a shard was told

    def begin(self, shards: Collection[ShardId]) -> tuple[int, Bounds]:
        """Return the next number, and what a commit to these shards tells them."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            least = len(self._settled)
            if not any(self._ended - self._told.get(each, 0) >= least for each in shards):
                return number, ()
            self._told |= dict.fromkeys(shards, self._ended)
            return number, self._settled.bounds()

    def end(self, number: int) -> None:
        """Note that a commit has ended, in whatever way; once."""
        with self._lock:
            self._settled.add(number, number + 1)
            self._ended += 1


_name: str
_numbers: CommitNumbers


def _begin_anew() -> None:
    """Give a forked process its own name: servers drop numbers that came under a name before."""
    global _name, _numbers
    _name, _numbers = f"{PROCESS}{uuid.uuid4().hex}", CommitNumbers()


_begin_anew()
os.register_at_fork(after_in_child=_begin_anew)


def commit_now(
    server_client: ServerClient, shards: tuple[ShardId, ...], parts: Mapping[ShardId, Part]
) -> None:
    """Have shards make writes, all of them or none, under a number of this process.

    An interrupt ends the waiting only. The commit continues, so that every server gets its part and
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
    numbers = _numbers
    number, settled = numbers.begin(shards)  # servers remember it until it has ended
    commit = Commit(_name, number, settled=settled, shards=shards)
    end = partial(numbers.end, number)
    try:
        server_client.commit(commit, parts)
    except UndecidedError as error:
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
        end()
        raise
    end()


def _finish(server_client: ServerClient, commit: Commit, end: Callable[[], None]) -> None:
    """Have all shards apply it, or none, once their servers answer."""
    attempts = {commit.writer: {commit.number: commit.attempt}}
    try:
        drive(resolve_in_doubt(commit.shards, attempts, (), ask, bool), server_client.attempt)
    except PsnbError:
        pass  # the strategy is closed
    finally:
        end()
