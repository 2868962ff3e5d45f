"""Whose code a file is, and what IPython shows of an error: no frames of psnb's. Pure.

IPython asks an exception for its own picture, ``_render_traceback_``, which has the user's frames
first and last. Hiding frames by ``__tracebackhide__`` would not do: IPython shows the last frame
all the same, which is psnb's.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import TypeVar, cast

from psnb._src.jupyter_compat import format_error

_PSNB = str(Path(__file__).parents[1]) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_LIBRARIES = {"site-packages", "dist-packages"}
_TYPED = ("<ipython-input", "<stdin>", "<string>")
"""How the names of code begin that the user typed, and that is in no file."""
_EXTENSIONS = (".pyx", ".pxi", ".pxd")
"""How the sources of extensions end, which are not there: their paths begin anywhere."""


def is_psnbs(file: str) -> bool:
    """Return whether code with this file's name is psnb's own."""
    return file.startswith(_PSNB)


def users_level() -> int:
    """Return the ``stacklevel`` of a warning by which the caller names the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and is_psnbs(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def is_users(file: str) -> bool:
    """Return whether code with this file's name is the user's: of a cell, a script, a module."""
    if file.startswith("<"):
        return file.startswith(_TYPED)
    if file.startswith((_PSNB, _STANDARD)) or file.endswith(_EXTENSIONS):
        return False
    return _LIBRARIES.isdisjoint(Path(file).parts)


E = TypeVar("E", bound=BaseException)


def hide_internal_frames(error: E) -> E:
    """Have IPython show an error that is not psnb's own without psnb's frames; return it."""
    with contextlib.suppress(Exception):  # its class may allow no attributes
        error._render_traceback_ = _render_last  # type: ignore[attr-defined]
    return error


def timed_out(text: str) -> TimeoutError:
    """Return an error of something that took too long."""
    return hide_internal_frames(TimeoutError(text))


def _render_last() -> list[str]:
    # Not bound to its error, which would then refer to itself. IPython sets this before it asks.
    return render(cast(BaseException, sys.last_value))


def render(error: BaseException) -> list[str]:
    """Return what IPython would show of an error without psnb's frames.

    Causes without frames of the user are left out; the message names them.
    """
    with _trimmed(error):
        return format_error(error)


def causes(error: BaseException) -> list[BaseException]:
    """Return an error, what caused it, what caused that, and so on, as Python shows them."""
    found: dict[int, BaseException] = {}  # not by equality, which is the user's
    following: BaseException | None = error
    while following is not None and id(following) not in found:
        found[id(following)] = following
        hidden = following.__suppress_context__
        following = following.__cause__ or (None if hidden else following.__context__)
    return list(found.values())


@contextlib.contextmanager
def _trimmed(error: BaseException) -> Iterator[None]:
    chain = causes(error)
    before = [
        (each, each.__traceback__, each.__cause__, each.__context__, each.__suppress_context__)
        for each in chain
    ]
    kept = [each for each in chain if each is error or _tells(each)]
    try:
        for each in kept:
            each.__traceback__ = _without_psnb(each.__traceback__)
        for each, cause in zip(kept, [*kept[1:], None], strict=True):
            if cause is None or (cause is not each.__cause__ and cause is not each.__context__):
                each.__cause__ = cause  # this hides the context, too
        yield
    finally:
        for each, traceback, cause, context, hidden in before:
            each.__traceback__, each.__cause__, each.__context__ = traceback, cause, context
            each.__suppress_context__ = hidden


def _tells(error: BaseException) -> bool:
    """Return whether a cause shows the user where to look."""
    files = (frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__))
    return bool(getattr(error, "__notes__", ())) or any(map(is_users, files))


def _without_psnb(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without psnb's frames and what psnb calls, but with the user's."""
    shown = []
    within = False
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        within = is_psnbs(file) or (within and not is_users(file))
        if not within:
            shown.append(traceback)
        traceback = traceback.tb_next
    made = None
    for each in reversed(shown):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made
