"""Tables in HTML that need no script and no style sheet, readable on light and dark pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

MOST_ROWS = 50
"""Further rows are only counted, because the page is saved in the notebook."""

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals["most_rows"] = MOST_ROWS


def html_table(what: str, head: Iterable[str], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table; nothing if there are no rows.

    Parameters
    ----------
    what : str
        What the rows are, to name the ones that are only counted.
    head : iterable of str
        The names of the columns.
    rows : sequence of tuple
        The cells; all but `markupsafe.Markup` in them is escaped.
    """
    macros: Any = TEMPLATES.get_template("tables.html").module
    return str(macros.table(what, head, rows)).strip()
