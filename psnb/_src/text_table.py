"""text_table: tables in plain text, for terminals and for reprs. Pure."""

from __future__ import annotations

from collections.abc import Sequence


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
