"""Excerpts: texts of users, of any length, are cut to a limit where they arise. Pure."""

from __future__ import annotations

LINE = 300
"""Characters of a single line: the error of a closure, an event, a reply."""

NAME = 200
"""Characters of a name: of a function, a worker, a metric, a parameter."""

PAGE = 10_000
"""Characters of a text with many lines: a traceback."""


def excerpt(text: str, most: int = LINE) -> str:
    """Return a text, or its beginning and its end if it is too long.

    Parameters
    ----------
    text : str
        Of any length.
    most : int
        Characters of the result, including the mark that says how many were cut out; 100 at least.
    """
    if len(text) <= most:
        return text
    # The end of a traceback is as useful as its beginning.
    kept = most - len(_mark(text, 0))
    end = kept // 3
    return text[: kept - end] + _mark(text, kept) + text[len(text) - end :]


def printable(text: str) -> str:
    """Return a text of strangers that a terminal only shows: control characters are escaped."""
    return "".join(
        each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text
    )


def _mark(text: str, kept: int) -> str:
    return f" [... {len(text) - kept:,} characters are cut out here ...] "
