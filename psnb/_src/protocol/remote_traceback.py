"""RemoteTraceback: where an exception was raised, as text that can be read elsewhere. Pure.

The process that raised it keeps the user's frames, with the lines of their sources where it has
them. The sources of a notebook's cells are in the notebook only, which fills them in.
"""

from __future__ import annotations

import linecache
import re
import traceback
from dataclasses import dataclass

from psnb._src.jupyter_compat import cell_of
from psnb._src.utils.text import PAGE, text_of, truncate
from psnb._src.utils.tracebacks import causes, is_psnbs, is_users

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
        """Return the traceback of an exception that was just caught."""
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
