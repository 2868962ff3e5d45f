"""MergedDeltas: a shard of a table from several parts, of which later ones replace rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from psnb._src.server.tables.checks import Form
from psnb.errors import InvalidArrayError


class MergedDeltas:
    """The rows of all parts, each as the last part that has it says; all else is the last part's.

    Rows are in the order in which they came first.

    Parameters
    ----------
    parts : sequence of mapping
        The arrays of each part, the oldest first; each was checked by itself.

    Raises
    ------
    ConfigurationError
        If they have different arrays.
    """

    def __init__(self, parts: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._parts = parts
        for part in parts:
            if part.keys() != parts[0].keys():
                raise InvalidArrayError(
                    f"its files have different arrays: {sorted(parts[0])} and {sorted(part)}"
                )

    def forms(self) -> dict[str, Form]:
        """Return the forms of all arrays."""
        count = self._rows.size
        return {
            name: (array.dtype, (count if _by_row(name) else len(array), *array.shape[1:]))
            for name, array in self._parts[-1].items()
        }

    def read(self, name: str) -> np.ndarray:
        """Return an array, which is a copy."""
        if not _by_row(name):
            return self._parts[-1][name].copy()
        first, *later = self._parts
        found = np.empty((self._rows.size, *first[name].shape[1:]), first[name].dtype)
        found[: len(first[name])] = first[name]
        for part, (at, rows) in zip(later, self._replaced, strict=True):
            found[at] = part[name][rows]
        return found

    def state(self) -> dict[str, np.ndarray]:
        """Return all arrays."""
        return {name: self.read(name) for name in self._parts[-1]}

    @cached_property
    def _replaced(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each part but the first: the rows that it has last, and where they are in it."""
        stops = np.cumsum([part["ids"].size for part in self._parts])
        at = np.flatnonzero(self._rows >= stops[0])
        rows = self._rows[at]
        owner = np.searchsorted(stops, rows, side="right")
        return [
            (at[owner == part], rows[owner == part] - stops[part - 1])
            for part in range(1, stops.size)
        ]

    @cached_property
    def _rows(self) -> np.ndarray:
        """Where each row is among the rows of all parts, one after the other."""
        ids = np.concatenate([part["ids"] for part in self._parts])
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        other, end = ordered[1:] != ordered[:-1], np.ones(min(1, ids.size), np.bool_)
        first, last = order[np.append(end, other)], order[np.append(other, end)]
        found: np.ndarray = last[np.argsort(first)]
        return found


def _by_row(name: str) -> bool:
    return name != "step" and not name.startswith("waiting.")
