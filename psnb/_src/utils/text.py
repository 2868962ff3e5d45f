"""Texts of strangers are cut to a limit and lose control characters where they arise.

Pure.
"""

from __future__ import annotations

import contextlib
import os
import reprlib
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from psnb._src.jupyter_compat import format_error

LINE = 300
"""Characters of a single line: the error of a closure, an event, a reply."""

NAME = 200
"""Characters of a name: of a function, a worker, a metric, a parameter."""

ARGUMENT = 120
"""Characters of what a user passed where something else belongs."""

PAGE = 10_000
"""Characters of a text with many lines: a traceback."""


def counted(count: int, noun: str) -> str:
    """Return how many there are: ``"1 server"``, ``"2 servers"``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size_text(nbytes: int) -> str:
    """Return a number of bytes as people read it: ``"1.5 MiB"``."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.3g} TiB"


def with_article(noun: str) -> str:
    """Return a noun, often the name of a type, with its indefinite article: ``"an object"``."""
    spoken = noun.lower()
    vowel = spoken[:1] in ("a", "e", "i", "o") or spoken.startswith(("nd", "unk"))
    return f"{'an' if vowel else 'a'} {noun}"


def truncate(text: str, most: int = LINE) -> str:
    """Return a text as `printable` does, or its beginning and its end if it is too long.

    Parameters
    ----------
    text : str
        Of any length.
    most : int
        Characters of the result, including the mark that says how many were cut out; 100 at least.
    """
    if len(text) <= most:
        text = printable(text)  # which may make it longer
        if len(text) <= most:
            return text
    # The end of a traceback is as useful as its beginning.
    kept = most - len(_mark(text, 0))
    end = kept // 3
    begins, ends = printable(text[:most]), printable(text[-most:])
    return begins[: kept - end] + _mark(text, kept) + ends[len(ends) - end :]


def printable(text: str) -> str:
    """Return a text of strangers that a terminal only shows: control characters are escaped.

    Also marks that change a text's direction, so that a name cannot look like another one.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text
    )


def text_of(value: object, form: Callable[[Any], str] = str) -> str:
    """Return what an object of a user's class says of itself, whatever its class raises then.

    A class may raise anything: SystemExit and the CancelledError of asyncio would end the thread
    that only wants to report an error. An interrupt of the notebook's thread is raised.

    Parameters
    ----------
    value : object
        Often an exception.
    form : callable
        `str` or `repr`.
    """
    try:
        return form(value)
    except BaseException as error:  # of the user's method, of any class
        if is_interrupt(error):
            raise
        return f"<{type(value).__name__} whose {form.__name__} raises {type(error).__name__}>"


def shown(value: object) -> str:
    """Return what a user passed, for the error that refuses it: one short line.

    It is the `repr`, or its beginning; of an array with many numbers, its shape and dtype.
    """
    text = text_of(value, _BRIEF.repr)
    if "\n" in text or len(text) > ARGUMENT:
        text = _as_array(value) or " ".join(text.split())
    text = printable(text)
    return text if len(text) <= ARGUMENT else f"{text[: ARGUMENT - 1]}…"


class _Brief(reprlib.Repr):
    """`repr` of the first items of long lists and dicts, which may have a million."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 10
        self.maxstring = self.maxlong = self.maxother = ARGUMENT + 1  # `shown` cuts at the end

    def repr_instance(self, x: Any, level: int) -> str:
        """Return the repr of anything else, whole: `shown` cuts it."""
        return (level < self.maxlevel and _as_array(x)) or repr(x)


_BRIEF = _Brief()


def _as_array(value: object) -> str:
    """Return class, shape and dtype of an array of any library with axes; else an empty text."""
    try:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    except Exception:  # of an array that is closed, for example
        return ""
    if not isinstance(shape, tuple) or not shape or dtype is None:
        return ""
    return f"<{type(value).__name__} {tuple(shape)} of {dtype}>"


def error_text(error: BaseException) -> str:
    """Return the type of an exception and what it says, whatever its class raises then."""
    return f"{type(error).__name__}: {text_of(error)}"


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error may be an interrupt of the process, which must not be swallowed."""
    main = threading.current_thread() is threading.main_thread()
    return main and isinstance(error, KeyboardInterrupt)


def _mark(text: str, kept: int) -> str:
    return f" [... {len(text) - kept:,} characters are cut out here ...] "


# text_table: tables in plain text, for terminals and for reprs. Pure.


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return lines with aligned columns: the first to the left, all others to the right."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            [first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]  # as numbers are
        ).rstrip()
        for first, *rest in lines
    )


# Whose code a file is: psnb's, the user's, or a library's. Pure.

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


# What IPython shows of an error: the user's frames first and last, and none of psnb's between.
#
# IPython asks an exception for its own picture, ``_render_traceback_``. Hiding frames by
# ``__tracebackhide__`` would not do: IPython shows the last frame all the same, which is psnb's.

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

    Of what caused it, that is left out in which the user has no part; the message names it.
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
    frames = _frames(error.__traceback__)
    files = (each.tb_frame.f_code.co_filename for each in frames)
    return bool(getattr(error, "__notes__", ())) or any(map(is_users, files))


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _without_psnb(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without psnb's frames and what psnb calls, but with the user's."""
    shown = []
    within = False
    for each in _frames(traceback):
        file = each.tb_frame.f_code.co_filename
        within = is_psnbs(file) or (within and not is_users(file))
        if not within:
            shown.append(each)
    made = None
    for each in reversed(shown):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made
