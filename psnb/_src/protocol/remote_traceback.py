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

_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.*)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RemoteTraceback:
    """Where an exception was raised, and its causes; frames as Python shows them.

    Attributes
    ----------
    users : str
        The user's frames of the exception, its cause and so on, each after a line that says what
        it was, unless the exception before it says so.
    whole : str
        All frames; at most `PAGE` characters.
    """

    users: str
    whole: str

    @classmethod
    def of(cls, error: BaseException) -> RemoteTraceback:
        """Return the traceback of an exception that was just caught."""
        lines, texts = list[str](), ""
        for number, each in enumerate(causes(error)):
            message = text_of(each)
            first = message.partition("\n")[0]
            frames = _users_frames(each)
            if frames and number and not (first and first in texts):
                lines.append(truncate(f"caused by {type(each).__name__}: {first}"))
            lines += frames
            texts += message
        whole = truncate("".join(traceback.format_exception(error)).rstrip(), PAGE)
        return cls("\n".join(lines), whole)

    def text(self) -> str:
        """Return the user's frames, with their sources and the names of cells; maybe nothing."""

        def named(found: re.Match[str]) -> str:
            cell = cell_of(found[1])
            source = _source(found) if cell else ""
            where = f"  {cell or f'File {found[1]}'}, line {found[2]}, in {found[3]}"
            return f"{where}\n    {truncate(source)}" if source else where

        return _FRAME.sub(named, self.users)

    def full(self) -> str:
        """Return all frames, with the sources of cells."""

        def filled(found: re.Match[str]) -> str:
            source = _source(found) if cell_of(found[1]) else ""
            return f"{found[0]}\n    {source}" if source else found[0]

        return truncate(_FRAME.sub(filled, self.whole), PAGE)


NOWHERE = RemoteTraceback("", "")
"""That of an exception of which nothing is known."""


def _users_frames(error: BaseException) -> list[str]:
    """Return the user's frames, and where in a library the last of them ended up."""
    frames: list[str] = []
    last = ""
    for each in traceback.extract_tb(error.__traceback__):
        frame = f'  File "{each.filename}", line {each.lineno or 0}, in {each.name}'
        if is_users(each.filename):
            # The sources of cells are filled in where they are.
            source = each.line if not cell_of(each.filename) else ""
            frames.append(f"{frame}\n    {truncate(source)}" if source else frame)
            last = ""
        elif is_psnbs(each.filename):
            last = ""
        elif frames:
            last = frame
    if last:
        frames.append(last)
    if (more := len(frames) - _MOST_FRAMES) > 0:
        half = _MOST_FRAMES // 2
        frames[half:-half] = [f"  [... {more} frames more ...]"]
    return frames


def _source(frame: re.Match[str]) -> str:
    return linecache.getline(frame[1], int(frame[2])).strip()
