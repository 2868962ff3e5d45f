"""RemoteTraceback: where an exception was raised, as text that can be read elsewhere. Pure.

The process that raised it keeps the user's frames, with the lines of their sources where it has
them. The sources of a notebook's cells are in the notebook only, which fills them in.
"""

from __future__ import annotations

import linecache
import re
import traceback
import weakref
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from psnb._src.jupyter_compat import cell_of
from psnb._src.placement.layout import ServerAddress, ShardId
from psnb._src.utils.text import PAGE, causes, is_psnbs, is_users, text_of, truncate
from psnb._src.utils.threads import Lock
from psnb.errors import ServerLostError

_MOST_FRAMES = 20
"""Frames of one exception that are kept: the first and the last of them."""

_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in .*$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of code that was being run.

    Attributes
    ----------
    file, function : str
        The file or cell, and the function in it.
    line : int
        The number of the line.
    source : str
        Its text; empty if it is not known there, or not the user's.
    """

    file: str
    line: int
    function: str
    source: str

    def text(self) -> str:
        """Return it in one line, or two if there is a source; cells are named as IPython does."""
        cell = cell_of(self.file)
        source = self.source or (_source(self.file, self.line) if cell else "")
        where = f"  {cell or f'File {self.file}'}, line {self.line}, in {self.function}"
        return f"{where}\n    {truncate(source)}" if source else where


@dataclass(frozen=True, slots=True)
class RemoteTraceback:
    """Where an exception was raised, and its causes.

    Attributes
    ----------
    links : tuple
        The user's frames of the exception, its cause and so on, each after a line that says what
        it was; this is empty if the exception before it says so.
    whole : str
        All frames, as Python shows them; at most `PAGE` characters.
    """

    links: tuple[tuple[str, tuple[Frame | str, ...]], ...]
    whole: str

    @classmethod
    def of(cls, error: BaseException) -> RemoteTraceback:
        """Return that of an exception which was just caught."""
        links: list[tuple[str, tuple[Frame | str, ...]]] = []
        texts = ""
        for each in causes(error):
            message = text_of(each)
            first = message.partition("\n")[0]
            known = not links or (first and first in texts)
            cause = "" if known else truncate(f"caused by {type(each).__name__}: {first}")
            links.append((cause, _users_frames(each)))
            texts += message
        whole = truncate("".join(traceback.format_exception(error)).rstrip(), PAGE)
        return cls(tuple(links), whole)

    def text(self) -> str:
        """Return the user's frames, with their sources; empty if there are none."""
        lines = []
        for cause, frames in self.links:
            if frames:
                lines += [cause] if cause else []
                lines += [each if isinstance(each, str) else each.text() for each in frames]
        return "\n".join(lines)

    def full(self) -> str:
        """Return all frames, with the sources of cells."""

        def filled(found: re.Match[str]) -> str:
            source = _source(found[1], int(found[2])) if cell_of(found[1]) else ""
            return f"{found[0]}\n    {source}" if source else found[0]

        return truncate(_FRAME.sub(filled, self.whole), PAGE)


NOWHERE = RemoteTraceback((), "")
"""That of an exception of which nothing is known."""


def _users_frames(error: BaseException) -> tuple[Frame | str, ...]:
    """Return the user's frames, and where in a library the last of them ended up."""
    frames: list[Frame | str] = []
    last: Frame | None = None
    for each in traceback.extract_tb(error.__traceback__):
        line = each.lineno or 0
        if is_users(each.filename):
            frames.append(Frame(each.filename, line, each.name, each.line or ""))
            last = None
        elif is_psnbs(each.filename):
            last = None
        elif frames:
            last = Frame(each.filename, line, each.name, "")
    if last is not None:
        frames.append(last)
    if (more := len(frames) - _MOST_FRAMES) > 0:
        half = _MOST_FRAMES // 2
        frames[half:-half] = [f"  [... {more} frames more ...]"]
    return tuple(frames)


def _source(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()


# What the error of a lost shard says: what has happened, and the ways on.
#
# A worker that finds a shard gone knows neither what else went with it nor whether there is a
# checkpoint. The process that looks after the servers knows both: there the error is completed,
# whether it was made there or has come from a worker. Thread-safe.

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
        """Return the ways on; empty if the shard is there (again).

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
    """Add the ways on that this process knows to an error, if it is that of a lost shard."""
    loss = getattr(error, "loss", None)
    if isinstance(error, ServerLostError) and isinstance(loss, _Loss):
        with _lock:
            those = [each for each in _advisers if each.strategy == loss.shard.strategy]
        ways = [each.advice(loss.shard.number, loss.server) for each in those]
        error.args = (f"{loss.message}; {next(filter(None, ways), UNKNOWN)}",)
    return error
