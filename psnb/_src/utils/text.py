"""Texts for people: numbers, names, what users pass, errors and tables. Pure.

Texts of users and of other packages are cut to a limit, and lose control characters, where they
arise.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

V = TypeVar("V")

LINE = 300
"""Characters of a single line: the error of a closure, an event, a reply."""

NAME = 200
"""Characters of a name: of a function, a worker, a metric, a parameter."""

ARGUMENT = 120
"""Characters of a wrong argument in a message."""

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


MOST_LISTED = 10
"""Names of a kind that are listed one by one."""


def listed(names: Sequence[str]) -> str:
    """Return names in a line; of many, the first ones and a count."""
    more = f" and {len(names) - MOST_LISTED:,} more" if len(names) > MOST_LISTED else ""
    return (", ".join(map(quoted, names[:MOST_LISTED])) or "none") + more


def quoted(name: str) -> str:
    """Return a name in quotation marks; of a long one, its beginning and end."""
    return truncate(repr(name), NAME)


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
    """Return class, shape and dtype of an array of any library with axes, or of a frame.

    Of anything else, it is an empty text.
    """
    try:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    except Exception:  # of an array that is closed, for example
        return ""
    if not isinstance(shape, tuple) or not shape:
        return ""
    if dtype is None:
        return f"<{type(value).__name__} {shape}>" if hasattr(value, "columns") else ""
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


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Return the text for a name that is none: names near it, or else those that there are."""
    names = [*map(str, known)]
    if near := get_close_matches(str(name), names, 2):
        return f"there is no {what} {shown(name)}: did you mean {' or '.join(map(repr, near))}?"
    return f"there is no {what} {shown(name)}; there are {truncate(', '.join(names)) or 'none'}"


class Named(dict[str, V]):
    """A dict that says what it has if it is asked for another name.

    Parameters
    ----------
    named : mapping
        Its items.
    what : str
        What it has: ``"metric"``.
    """

    # By a mapping alone, too: libraries make another one of a batch's class, as of any dict's.
    def __init__(
        self, named: Mapping[str, V] | Iterable[tuple[str, V]] = (), what: str = "key"
    ) -> None:
        super().__init__(named)
        self._what = what

    def __missing__(self, name: object) -> NoReturn:
        error = KeyError(name)
        error.add_note(unknown(self._what, name, self))
        raise error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self), self._what), vars(self)
