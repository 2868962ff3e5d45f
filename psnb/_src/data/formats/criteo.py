"""Criteo's click logs, of the Kaggle challenge and the Terabyte data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from psnb._src.data.formats.files import INFER
from psnb._src.data.formats.records import MAX_RECORD_BYTES
from psnb._src.data.formats.text import LineFormat, Lines, Parsed
from psnb.errors import DatasetError

DENSE, SPARSE = 13, 26
COLUMNS = 1 + DENSE + SPARSE

OK, FEW, LABEL, INTEGER, CATEGORY, TRAILING = 0, 1, 2, 3, 4, 5
"""The errors of a line: it ends before a column; a value is not of its column's kind; something
follows the last."""

_TAB, _MINUS = 9, 45
_MOST_DIGITS = 18  # of an integer: they fit 64 bits


@njit(cache=True, nogil=True, inline="always")
def _digit(byte):  # type: ignore[no-untyped-def]
    """Return the value of a hexadecimal digit; 16 if it is not one."""
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    if 65 <= byte <= 70:
        return byte - 55
    return 16


@njit(cache=True, nogil=True)
def parse_lines(data, starts, ends, missing, label, dense, sparse):  # type: ignore[no-untyped-def]
    """Parse lines, up to the first that is not in order, into (lines,), (lines, 13), (lines, 26).

    ``missing`` (uint64) is what an empty category becomes; an empty integer becomes NaN.

    Returns how many lines are in order; of the next the column, the position and what is wrong.
    """
    for i in range(starts.size):
        at, stop = np.int64(starts[i]), np.int64(ends[i])
        for column in range(COLUMNS):
            if column > 0:
                if at == stop:
                    return i, column, at, FEW
                at += 1
            begin = at
            if column <= DENSE:
                negative = column > 0 and at < stop and data[at] == _MINUS
                if negative:
                    at += 1
                value = np.int64(0)
                first = at
                while at < stop and data[at] != _TAB:
                    digit = np.int64(_digit(np.int64(data[at])))
                    if digit > 9 or at - first >= _MOST_DIGITS:
                        return i, column, begin, INTEGER if column else LABEL
                    value = value * 10 + digit
                    at += 1
                empty = at == first
                if empty and (negative or column == 0):
                    return i, column, begin, INTEGER if column else LABEL
                number = np.float32(-value if negative else value)
                if column == 0:
                    label[i] = number
                else:
                    dense[i, column - 1] = np.float32(np.nan) if empty else number
            else:
                category = np.uint64(0)
                while at < stop and data[at] != _TAB:
                    digit = np.int64(_digit(np.int64(data[at])))
                    if digit > 15 or at - begin >= 8:
                        return i, column, begin, CATEGORY
                    category = (category << np.uint64(4)) | np.uint64(digit)
                    at += 1
                sparse[i, column - 1 - DENSE] = missing if at == begin else category
        if at != stop:
            return i, column, at, TRAILING
    return starts.size, 0, 0, OK


MISSING_CATEGORY = 2**32
"""The category of an empty field; no field holds it, as they have 32 bits."""


@dataclass(frozen=True)
class Criteo(LineFormat):
    """Files of Criteo's click logs: ``train.txt`` of the Kaggle challenge, ``day_0`` and on.

    A line has a label, 13 integers and 26 categories of up to eight hexadecimal digits, with tabs
    between them; integers and categories may be empty. The columns are those of `Dataset.criteo`;
    where a category is empty, it is `MISSING_CATEGORY`.
    """

    compression: str | None = INFER
    max_record_bytes: int = MAX_RECORD_BYTES

    def parse(self, lines: Lines) -> Parsed:
        label = np.empty(len(lines), np.float32)
        dense = np.empty((len(lines), DENSE), np.float32)
        sparse = np.empty((len(lines), SPARSE), np.uint64)
        good, column, position, wrong = parse_lines(
            *(lines.data, lines.starts, lines.ends, np.uint64(MISSING_CATEGORY)),
            *(label, dense, sparse),
        )
        columns = {"label": label[:good], "dense": dense[:good], "sparse": sparse[:good]}
        problem = None if wrong == OK else _problem(lines, good, column, position, wrong)
        return columns, good, problem


def _problem(lines: Lines, line: int, column: int, position: int, wrong: int) -> DatasetError:
    field = lines.field(line, position, b"\t")
    problem = {
        FEW: f"there are {column} columns, not {COLUMNS}",
        LABEL: f"the label is {field}: not a number without sign",
        INTEGER: f"column {column + 1} is {field}: no integer of up to 18 digits",
        CATEGORY: f"column {column + 1} is {field}: not up to 8 hexadecimal digits",
        TRAILING: f"there are more than {COLUMNS} columns",
    }[wrong]
    return lines.error(line, position, problem)
