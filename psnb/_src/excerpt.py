"""Excerpts: texts of users, whose length nobody knows, cut where they come from. Pure."""

from __future__ import annotations

LINE = 300
"""Characters of a line: the error of a closure, an event, a reply."""

NAME = 200
"""Characters of a name: of a function, a worker, a metric, a parameter."""

PAGE = 10_000
"""Characters of what has many lines: a traceback."""


def excerpt(text: str, most: int = LINE) -> str:
    """Return a text, or its beginning and its end if it is too long.

    Parameters
    ----------
    text : str
        Of any length.
    most : int
        Characters of what is returned, with the mark that tells how many were cut out; 100 at
        least.
    """
    if len(text) <= most:
        return text
    # The end of a traceback tells as much as its beginning.
    kept = most - len(_mark(text, 0))
    end = kept // 3
    return text[: kept - end] + _mark(text, kept) + text[len(text) - end :]


def _mark(text: str, kept: int) -> str:
    return f" [... {len(text) - kept:,} characters are cut out here ...] "
