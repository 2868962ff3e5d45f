"""The text of the error for a lost shard: what has happened, and what can be done.

A worker that finds a shard gone knows neither what else is lost nor whether there is a checkpoint.
The process that runs the reconciler knows both: it completes the error, whether it was raised there
or has come from a worker. Thread-safe.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple, Protocol, TypeVar

from psnb._src.placement.layout import ServerAddress, ShardId
from psnb._src.utils.interrupts import Lock
from psnb.errors import ServerLostError

E = TypeVar("E", bound=BaseException)

UNKNOWN = (
    "bring it back from the last checkpoint with strategy.recover(), or without one start over "
    "with strategy.recover(initialize=True); with replicas=1 a replica takes over"
)


class Adviser(Protocol):
    """Knows what was lost of a strategy."""

    @property
    def strategy(self) -> str:
        """The strategy's name, at present."""

    def advice(self, shard: int, server: ServerAddress | None) -> str:
        """Return what can be done; empty if the shard is there (again).

        Parameters
        ----------
        shard : int
            Its number.
        server : ServerAddress or None
            The server that it was lost with, if that is known.
        """


_lock = Lock()  # guards the next one
_advisers: weakref.WeakSet[Adviser] = weakref.WeakSet()


class _Loss(NamedTuple):
    """What an error knows of a lost shard, wherever it travels."""

    message: str
    shard: ShardId
    server: ServerAddress | None


def advise(adviser: Adviser) -> None:
    """Complete errors with what an adviser knows, for as long as it lives."""
    with _lock:
        _advisers.add(adviser)


def lost_shard(message: str, shard: ShardId, server: ServerAddress | None) -> ServerLostError:
    """Return the error of a lost shard; ``message`` is what has happened."""
    error = ServerLostError(message)
    error.loss = _Loss(message, shard, server)  # type: ignore[attr-defined]
    return completed(error)


def completed(error: E) -> E:
    """Add what this process knows can be done, if an error is of a lost shard."""
    loss = getattr(error, "loss", None)
    if isinstance(error, ServerLostError) and isinstance(loss, _Loss):
        with _lock:
            those = [each for each in _advisers if each.strategy == loss.shard.strategy]
        ways = [each.advice(loss.shard.number, loss.server) for each in those]
        error.args = (f"{loss.message}; {next(filter(None, ways), UNKNOWN)}",)
    return error
