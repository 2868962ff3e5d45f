"""SliceTable: a metric's values by slice, the worst first. Immutable. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from psnb._src.metrics.keys import Key
from psnb._src.utils.text import printable, text_table, truncate, unknown

MOST_SHOWN = 50
"""Rows of a table that a notebook or a terminal shows; further ones are only counted."""

_NAME = 60


class SliceRow(NamedTuple):
    """One slice of a metric.

    Attributes
    ----------
    slice : int, bool, str or None
        Its key in the column; None for the others.
    value : float
        Of its examples alone; NaN if they have none.
    examples : int
        How many it has, those of weight 0 left out.
    """

    slice: Key | None
    value: float
    examples: int


@dataclass(frozen=True, repr=False, eq=False)
class SliceTable(Mapping[Key, SliceRow]):
    """A metric's values by slice: a mapping from keys to `SliceRow`, the worst value first.

    Slices without a value come last. Of equal values, the slice with more examples is first.
    Thread-safe: it never changes. It shows itself as a table in a notebook.

    Attributes
    ----------
    rows : tuple of SliceRow
        The slices, the worst first.
    others : SliceRow or None
        All examples of the slices that have no row; None if there are none.

    Examples
    --------
    >>> import psnb
    >>> accuracy = psnb.metrics.Accuracy()
    >>> state = accuracy([1, 0, 1], [0.9, 0.2, 0.1], by=["DE", "FR", "FR"])
    >>> state.slices
    slice   value  examples
    FR     0.5000         2
    DE     1.0000         1
    >>> state.slices["FR"].value
    0.5
    """

    rows: tuple[SliceRow, ...] = ()
    others: SliceRow | None = None

    def __getitem__(self, key: Key) -> SliceRow:
        for row in self.rows:
            if row.slice == key and type(row.slice) is type(key):
                return row
        error = KeyError(key)
        error.add_note(unknown("slice", key, [str(each.slice) for each in self.rows]))
        raise error

    def __contains__(self, key: object) -> bool:
        return any(row.slice == key and type(row.slice) is type(key) for row in self.rows)

    def __iter__(self) -> Iterator[Key]:
        return (row.slice for row in self.rows if row.slice is not None)

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return bool(self.rows or self.others)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SliceTable):
            return NotImplemented
        return self.saved() == other.saved()  # there NaN equals itself

    __hash__ = None  # type: ignore[assignment]

    def worst(self, most: int) -> SliceTable:
        """Return the first rows, and the others."""
        return SliceTable(self.rows[:most], self.others)

    def __repr__(self) -> str:
        if not self:
            return "no slices"
        return "\n".join([text_table(_HEAD, [*map(_cells, self._shown())]), *self._further()])

    def _repr_html_(self) -> str:
        if not self:
            return "no slices"
        head = "".join(f'<th scope="col">{each}</th>' for each in _HEAD)
        body = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{value}</td><td>{examples}</td></tr>'
            for name, value, examples in map(_cells, self._shown())
        )
        further = "".join(f"<div>{each}</div>" for each in self._further())
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<div>{table}{further}</div>"

    def _shown(self) -> list[SliceRow]:
        return [*self.rows[:MOST_SHOWN], *([] if self.others is None else [self.others])]

    def _further(self) -> list[str]:
        more = len(self.rows) - MOST_SHOWN
        return [f"and {more:,} slices that are better or have no value"] if more > 0 else []

    def saved(self) -> list[list[Any]]:
        """Return the rows in JSON's types; ``loaded_table`` makes the table of them again."""
        rows = [*self.rows, *([] if self.others is None else [self.others])]
        return [
            [key, value if math.isfinite(value) else str(value), examples]
            for key, value, examples in rows
        ]


def loaded_table(saved: Any) -> SliceTable:
    """Return the table that `SliceTable.saved` was called of.

    Raises
    ------
    TypeError, ValueError
        If it is none.
    """
    rows = []
    for key, value, examples in saved:
        if not (key is None or isinstance(key, int | str)):
            raise TypeError(f"{key!r:.80} is no key of a slice")
        rows.append(SliceRow(key, float(value), int(examples)))
    others = [row for row in rows if row.slice is None]
    return SliceTable(
        tuple(row for row in rows if row.slice is not None), others[0] if others else None
    )


def worst_first(rows: list[SliceRow], best: float) -> list[SliceRow]:
    """Return slices in the order of their values: those that are furthest from the best first."""

    def place(row: SliceRow) -> tuple[bool, float, int]:
        value = row.value
        if math.isnan(value):
            return True, 0.0, -row.examples
        if math.isinf(best):
            far = -value if best > 0 else value
        else:  # a quotient: half is as far as twice
            far = abs(math.log(value / best)) if value > 0 else math.inf
        return False, -far, -row.examples

    return sorted(rows, key=place)


_HEAD = ("slice", "value", "examples")


def _cells(row: SliceRow) -> tuple[str, str, str]:
    name = "others" if row.slice is None else printable(truncate(str(row.slice), _NAME))
    name = name.replace("\n", "\\n").replace("\t", "\\t")  # a row is a line
    return name, "-" if math.isnan(row.value) else f"{row.value:.4f}", f"{row.examples:,}"
