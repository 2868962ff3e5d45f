"""Tables in HTML that need no script and no style sheet, readable on light and dark pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

MOST_ROWS = 50
"""Further rows are only counted, because the page is saved in the notebook."""

_LINE = "1px solid rgba(128,128,128,0.4)"
_STYLE = f"padding:2px 8px;text-align:left;vertical-align:top;border-bottom:{_LINE}"
_CELL = f'style="{_STYLE}"'
_SHORT = f'style="{_STYLE};white-space:nowrap"'  # else `worker-0` is broken at its hyphen
_SHORTEST_TEXT = 24


class Markup(str):
    """HTML as it is; any other text in a cell is escaped."""

    __slots__ = ()


def html_table(what: str, head: Iterable[str], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table; nothing if there are no rows.

    Parameters
    ----------
    what : str
        What the rows are, for those that are only counted.
    head : iterable of str
        The names of the columns.
    rows : sequence of tuple
        The cells.
    """
    if not rows:
        return ""
    cells = [f"<th {_CELL}>{escape(cell)}</th>" for cell in head]
    body = ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows[:MOST_ROWS]]
    return (
        '<table style="border-collapse:collapse;margin-top:8px">'
        f"<thead><tr>{''.join(cells)}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        + left_out(len(rows), what)
    )


def left_out(count: int, what: str) -> str:
    """Return the line that says how many of ``count`` rows are not shown."""
    more = count - MOST_ROWS
    return f"<div>and {more:,} {what} more</div>" if more > 0 else ""


def _cell(cell: str) -> str:
    if isinstance(cell, Markup):
        return f"<td {_CELL}>{cell}</td>"
    return f"<td {_SHORT if len(cell) < _SHORTEST_TEXT else _CELL}>{escape(cell)}</td>"
