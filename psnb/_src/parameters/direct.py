"""Writes outside of closures, and those in closures that are made at once.

A process numbers them, as a coordinator does with closures: what was not answered can be sent
again, and what one of several servers has made is made by all.

Threads: any may write. An interrupt of the main thread ends its waiting, so the commit itself is
made aside. Where a server says nothing, a thread ``psnb-finish`` waits for it; it ends when that
server answers or is lost, or with the transport.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial

from psnb._src.parameters.commit import UndecidedError
from psnb._src.parameters.request_batch import Request
from psnb._src.parameters.server_client import ServerClient
from psnb._src.placement import ShardId
from psnb._src.server import PROCESS, Commit, Part
from psnb._src.threads import aside
from psnb._src.watermark import Watermark
from psnb.errors import CancelledError, PsnbError, ServerLostError, ServerSilentError


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
    """Give a forked process a name of its own: servers drop what has come under a name before."""
    global _writer
    _writer = _DirectWriter()


os.register_at_fork(after_in_child=_begin_anew)


def commit_now(
    transport: ServerClient, shards: tuple[ShardId, ...], parts: Mapping[ShardId, Part]
) -> None:
    """Have shards make writes, all of them or none, under a number of this process.

    An interrupt ends the waiting; what was begun goes on, so that no server is left without its
    part, and no number without its end.

    Raises
    ------
    ServerLostError, ServerSilentError, CoordinatorClosedError
        Also if nobody can tell whether the writes are made, on all servers or some.
    """
    aside(_commit, transport, shards, parts)


def _commit(
    transport: ServerClient, shards: tuple[ShardId, ...], parts: Mapping[ShardId, Part]
) -> None:
    writer = _writer
    commit = writer.begin()._replace(shards=shards)
    try:
        transport.commit(commit, parts)
    except UndecidedError as error:
        end = partial(writer.end, commit)
        if isinstance(error.reason, ServerSilentError) and len(shards) > 1:
            finish = partial(_finish, transport, commit, end)
            threading.Thread(target=finish, name="psnb-finish", daemon=True).start()
        else:
            end()
        # What was given up for a copy that had missed it is lost there with its server.
        lost = isinstance(error.reason, CancelledError)
        kind = ServerLostError if lost else type(error.reason)
        raise kind(f"{error.reason}. It may have been written") from error
    except BaseException:
        writer.end(commit)
        raise
    writer.end(commit)


def _finish(transport: ServerClient, commit: Commit, end: Callable[[], None]) -> None:
    """Have each shard apply its part, if all hold theirs, as soon as its server says something."""
    left = [Request(shard, "", "apply", {"commit": commit}) for shard in commit.shards]
    try:
        while left:
            outcomes = transport.attempt(left)  # waits for a while
            found = zip(left, outcomes, strict=True)
            left = [request for request, each in found if isinstance(each, ServerSilentError)]
    except PsnbError:
        pass  # the strategy is closed
    finally:
        end()
