"""Paddle's MultiSlot text: one example per line; for each slot a count, then the values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod

import numpy as np
from numba import njit

from psnb._src.data.formats.files import INFER
from psnb._src.data.formats.numbers import (
    JUNK,
    NEGATIVE,
    OK,
    OVERFLOW,
    UNKNOWN,
    is_space,
    nearest_float32,
    read_float,
    read_unsigned,
    short_float,
    short_unsigned,
)
from psnb._src.data.formats.pipes import piped
from psnb._src.data.formats.records import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    MAX_RECORD_BYTES,
    ByteWindow,
    byte_strings,
)
from psnb._src.data.formats.text import LineFormat, Lines, Parse, Parsed
from psnb._src.data.formats.words import WORD, word_at
from psnb._src.data.ragged import Ragged
from psnb._src.utils.checks import choice
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, DatasetError

_ZERO, _NINE = np.uint64(48), np.uint64(9)

EMPTY, FEW_SLOTS, COUNT, FEW_VALUES, SIZE, TRAILING = 11, 12, 13, 14, 15, 16
"""What is wrong with a line: it is empty; ends before a slot; has junk for a count; ends before a
slot's last value; a slot has not as many as its shape; something follows the last slot."""


@njit(cache=True, nogil=True, inline="always")
def _skip(data, at, stop):  # type: ignore[no-untyped-def]
    while at < stop and is_space(data[np.uint64(at)]):
        at += 1
    return at


@njit(cache=True, nogil=True)
def parse_lines(  # type: ignore[no-untyped-def]
    data, starts, ends, sizes, is_float, is_text, counts, totals, numbers, floats, unknown
):
    """Parse lines, up to the first that is not in order.

    Parameters
    ----------
    data : array of uint8
        The lines, in ``starts[i]:ends[i]``.
    sizes : array of int64
        How many values each slot must have; -1 if any number.
    is_float : array of bool
        Whether a slot holds floats.
    is_text : array of bool
        Whether a slot holds words: of each, ``numbers`` gets where it begins, times 2**32, and
        where it ends.
    counts : array of int64, shape (lines, slots)
        Gets how many values each slot has.
    totals : array of int64, shape (slots,)
        Gets their sums, of the lines in order.
    numbers, floats : arrays of uint64 and float32
        Get the values, in the order of the file. Each must have room for half as many as there are
        bytes.
    unknown : array of int32, shape (room of floats, 4)
        Gets those floats that are yet to be read: their index, where they begin and
        end, their slot.

    Returns
    -------
    tuple of int
        How many lines are in order; of the next the slot, the position and what is wrong, `OK` if
        there is none; how many values in ``unknown`` there are, of all lines met.
    """
    totals[:] = 0
    number, real, left = 0, 0, 0
    last = data.size - 2 * WORD
    for i in range(starts.size):
        at, stop = starts[i], ends[i]
        if _skip(data, at, stop) == stop:
            return i, 0, at, EMPTY, left
        for slot in range(sizes.size):
            at = _skip(data, at, stop)
            if at == stop:
                return i, slot, at, FEW_SLOTS, left
            begin = at
            many = np.uint64(data[np.uint64(at)]) - _ZERO
            if many <= _NINE and at + 1 < stop and is_space(data[np.uint64(at + 1)]):
                # One digit, as nearly all.
                at += 1
            else:
                many, at, wrong = read_unsigned(data, at, stop)
                if wrong != OK:
                    return i, slot, begin, COUNT, left
            # A value takes two bytes at least, with the space before it.
            if many > np.uint64(stop - at) // np.uint64(2):
                return i, slot, begin, FEW_VALUES, left
            count = np.int64(many)
            if sizes[slot] >= 0 and count != sizes[slot]:
                return i, slot, begin, SIZE, left
            counts[i, slot] = count
            if is_float[slot]:
                for _ in range(count):
                    at = _skip(data, at, stop)
                    if at == stop:
                        return i, slot, begin, FEW_VALUES, left
                    if at <= last:
                        value, size = short_float(word_at(data, at), word_at(data, at + WORD))
                        if size > 0:
                            floats[real] = value
                            real += 1
                            at += size
                            continue
                    begin_value = at
                    value, at, wrong = read_float(data, at, stop)
                    if wrong == UNKNOWN:
                        unknown[left, 0] = real
                        unknown[left, 1] = begin_value
                        unknown[left, 2] = at
                        unknown[left, 3] = slot
                        left += 1
                    floats[real] = value
                    real += 1
            elif is_text[slot]:
                for _ in range(count):
                    at = _skip(data, at, stop)
                    if at == stop:
                        return i, slot, begin, FEW_VALUES, left
                    begin_value = at
                    while at < stop and not is_space(data[np.uint64(at)]):
                        at += 1
                    numbers[number] = np.uint64(begin_value) << np.uint64(32) | np.uint64(at)
                    number += 1
            else:
                for _ in range(count):
                    at = _skip(data, at, stop)
                    if at == stop:
                        return i, slot, begin, FEW_VALUES, left
                    if at <= last:
                        id_, size = short_unsigned(word_at(data, at), word_at(data, at + WORD))
                        if size > 0:
                            numbers[number] = id_
                            number += 1
                            at += size
                            continue
                    begin_value = at
                    value, at, wrong = read_unsigned(data, at, stop)
                    if wrong != OK:
                        return i, slot, begin_value, wrong, left
                    numbers[number] = value
                    number += 1
        at = _skip(data, at, stop)
        if at != stop:
            return i, sizes.size - 1, at, TRAILING, left
        for slot in range(sizes.size):
            totals[slot] += counts[i, slot]
    return starts.size, 0, 0, OK, left


@njit(cache=True, nogil=True)
def spread(counts, is_float, begins, rows, numbers, floats, slot_numbers, slot_floats, offsets):  # type: ignore[no-untyped-def]
    """Put the values of each slot one after the other.

    ``begins`` says where each slot's values begin in ``slot_numbers`` or ``slot_floats``; it is
    moved to where they end. The begin of each line's values goes into the row of ``offsets``
    (int64, (…, lines + 1)) that ``rows`` says, if it is not negative.
    """
    number, real = 0, 0
    lines, slots = counts.shape
    offsets[:, 0] = 0
    for i in range(lines):
        for slot in range(slots):
            count, at, row = counts[i, slot], begins[slot], rows[slot]
            if is_float[slot]:
                for j in range(count):
                    slot_floats[at + j] = floats[real + j]
                real += count
            else:
                for j in range(count):
                    slot_numbers[at + j] = numbers[number + j]
                number += count
            begins[slot] = at + count
            if row >= 0:
                offsets[row, i + 1] = offsets[row, i] + count


_DTYPES = ("uint64", "float32", "bytes")
_PADDLES = {"int64": "uint64", "float": "float32"}
"""Paddle's words for dtypes."""

_END = np.uint64(0xFFFFFFFF)
"""The part of a span that is its end."""


@dataclass(frozen=True)
class Slot:
    """One slot of each line.

    Parameters
    ----------
    name : str
        The name of its column.
    dtype : str
        "uint64", "float32", or "bytes" for words as they are, such as an instance's id: for
        these ``shape`` must be given. Paddle's "int64" and "float" are "uint64" and "float32",
        as they are there in files.
    shape : tuple of int, optional
        The shape of each line's values, whose number must fit: the slot is dense, its column an
        array. The first size may be -1: then the number of values must be a multiple of the others'
        product, and the column is a `Ragged` of such rows. By default the slot is sparse, with any
        number of values (also none), and its column a `Ragged`.
    used : bool
        Whether it gets a column. One that is not used is parsed, checked and dropped: Paddle's
        ``is_used``.

    Raises
    ------
    ConfigurationError
        If the dtype or the shape is not possible.
    """

    name: str
    dtype: str = "uint64"
    shape: tuple[int, ...] | None = None
    used: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigurationError(f"the name of a slot must be a text, found {shown(self.name)}")
        words = (*_DTYPES, *_PADDLES)
        dtype = choice(f"slot {self.name!r}: dtype", self.dtype, words)
        object.__setattr__(self, "dtype", _PADDLES.get(dtype, dtype))
        if self.dtype == "bytes" and (self.shape is None or -1 in self.shape):
            raise ConfigurationError(
                f"slot {self.name!r} is of bytes: give the shape of its words, such as ()"
            )
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))
            if any(size < 0 for size in self.rest) or min(self.shape, default=0) < -1:
                raise ConfigurationError(
                    f"slot {self.name!r} has the shape {self.shape}: only its first size may be -1"
                )
            if self.varies and 0 in self.rest:
                raise ConfigurationError(
                    f"slot {self.name!r} has the shape {self.shape}: no number of values gives the "
                    "first size"
                )

    @property
    def varies(self) -> bool:
        """Whether lines may have different numbers of values."""
        return self.shape is None or self.shape[:1] == (-1,)

    @property
    def unit(self) -> int:
        """The number of values, or what it must be a multiple of."""
        return prod(self.rest if self.varies else self.shape or ())

    @property
    def rest(self) -> tuple[int, ...]:
        """The sizes but the first."""
        return () if self.shape is None else self.shape[1:]


@dataclass(frozen=True)
class MultiSlot(LineFormat):
    """Files of MultiSlot text; their columns are a dict of the slots.

    Values are separated by spaces or tabs. Integers are exact up to 2**64 - 1, floats the float32
    nearest to what is written.

    A ``pipe_command`` turns a file (its input, decompressed) into MultiSlot text (its output), such
    as ``python generator.py`` with a `MultiSlotDataGenerator`. It must give the same for the same
    file, for reading to be resumed. It runs as long as its output is read, and is killed, with all
    that it started, when reading is given up.
    """

    slots: Sequence[Slot]
    pipe_command: str | None = None
    compression: str | None = INFER
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        for slot in self.slots:
            if not isinstance(slot, Slot):
                raise ConfigurationError(
                    f"slots must be psnb.data.Slot objects, found {shown(slot)}"
                )
        names = [slot.name for slot in self.slots]
        if not names or len(set(names)) < len(names):
            raise ConfigurationError(f"slots are {names}: give some, each with its own name")
        if not any(slot.used for slot in self.slots):
            raise ConfigurationError(f"none of the slots {names} is used")

    def parser(self) -> Parse:
        return _Parser(self.slots).parse

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return the ranges of parts of about ``size`` bytes; one, if a command reads the file."""
        return [(0, None)] if self.pipe_command is not None else super().splits(path, size)

    def window(self, path: str, offset: int) -> AbstractContextManager[ByteWindow]:
        if self.pipe_command is None:
            return super().window(path, offset)
        return piped(path, self.compression, self.pipe_command, offset, self.max_record_bytes)


def _rows(table: np.ndarray) -> Iterator[list[int]]:
    # As lists of Python's own numbers they take ten times the memory: some at a time.
    for begin in range(0, len(table), CHUNK_RECORDS):
        yield from table[begin : begin + CHUNK_RECORDS].tolist()


class _Parser:
    """Parses lines into columns; keeps memory for it from one time to the next."""

    def __init__(self, slots: Sequence[Slot]):
        self._slots = slots
        self._sizes = np.array([-1 if slot.varies else slot.unit for slot in slots], np.int64)
        self._in_rows = [i for i, slot in enumerate(slots) if slot.varies and slot.unit > 1]
        self._is_float = np.array([slot.dtype == "float32" for slot in slots])
        self._is_text = np.array([slot.dtype == "bytes" for slot in slots])
        self._counts = np.empty((CHUNK_RECORDS, len(slots)), np.int64)
        self._room(CHUNK_BYTES)

    def _room(self, values: int) -> None:
        self._numbers = np.empty(values, np.uint64)
        self._floats = np.empty(values, np.float32)
        self._unknown = np.empty((values, 4), np.int32)

    def parse(self, lines: Lines) -> Parsed:
        """Return the columns of lines before the first bad one, their number, what is wrong."""
        if self._numbers.size < lines.data.size // 2 + 1:
            self._room(lines.data.size // 2 + 1)
        counts = self._counts[: len(lines)]
        totals = np.empty(len(self._slots), np.int64)
        good, at, position, wrong, unknown = parse_lines(
            *(lines.data, lines.starts, lines.ends, self._sizes, self._is_float, self._is_text),
            *(counts, totals, self._numbers, self._floats, self._unknown),
        )
        problem = None
        if wrong != OK:
            problem = self._problem(lines, good, at, position, wrong)
        for index, begin, end, which in _rows(self._unknown[:unknown]):
            text = lines.data[begin:end].tobytes()
            try:
                value = nearest_float32(text)
                what = "not a number"
            except OverflowError:
                value, what = None, "beyond the largest float32"
            if value is None:
                # It comes before what the kernel found: there that ended.
                good = int(np.searchsorted(lines.starts, begin, "right")) - 1
                name = self._slots[which].name
                what = f"slot {name!r}: {lines.text(begin, end)} is {what}"
                problem = lines.error(good, begin, what)
                break
            self._floats[index] = value
        for index in self._in_rows:
            slot = self._slots[index]
            if (bad := np.flatnonzero(counts[:good, index] % slot.unit)).size:
                good = int(bad[0])
                many = f"there are {counts[good, index]} values"
                what = f"slot {slot.name!r}: {many}, which the shape {slot.shape} cannot hold"
                problem = lines.error(good, int(lines.starts[good]), what)
        if problem is not None:
            totals = counts[:good].sum(axis=0)
        return self._columns(lines.data, counts[:good], totals), good, problem

    def _columns(
        self, data: np.ndarray, counts: np.ndarray, totals: np.ndarray
    ) -> dict[str, np.ndarray | Ragged]:
        lines = len(counts)
        floats_end = np.cumsum(totals * self._is_float)
        others_end = np.cumsum(totals * ~self._is_float)
        ends = np.where(self._is_float, floats_end, others_end)  # among the values of its kind
        begins = ends - totals
        numbers = np.empty(int(others_end[-1]), np.uint64)
        floats = np.empty(int(floats_end[-1]), np.float32)
        # Mostly each line has one value of a sparse slot: then all such share their offsets.
        single = (counts == 1).all(axis=0)
        own = (self._sizes < 0) & ~single
        rows = np.where(own, np.cumsum(own) - 1, -1)
        ones = np.arange(lines + 1)
        offsets = np.empty((int(rows.max()) + 1, lines + 1), np.int64)
        spread(
            *(counts, self._is_float, begins.copy(), rows, self._numbers, self._floats),
            *(numbers, floats, offsets),
        )
        columns: dict[str, np.ndarray | Ragged] = {}
        for i, slot in enumerate(self._slots):
            if not slot.used:
                continue
            values: np.ndarray = (floats if self._is_float[i] else numbers)[begins[i] : ends[i]]
            if self._is_text[i]:
                values = byte_strings(data, values >> np.uint64(32), values & _END)
            if slot.varies:
                starts = offsets[rows[i]] if rows[i] >= 0 else ones
                if slot.rest:
                    values, starts = values.reshape(-1, *slot.rest), starts // slot.unit
                columns[slot.name] = Ragged._trusted(values, starts)
            else:
                columns[slot.name] = values.reshape(lines, *(slot.shape or ()))
        return columns

    def _problem(
        self, lines: Lines, line: int, index: int, position: int, wrong: int
    ) -> DatasetError:
        slot, size = self._slots[index], int(self._sizes[index])
        token = lines.field(line, position, b" \t")
        if wrong == EMPTY:
            return lines.error(line, position, f"the line is empty, not {len(self._slots)} slots")
        if wrong == TRAILING:
            return lines.error(line, position, f"{token} follows the last slot {slot.name!r}")
        problem = {
            FEW_SLOTS: "the line ends before it",
            COUNT: f"{token} is not a count of values",
            FEW_VALUES: f"the line ends before the last of {token} values",
            SIZE: f"there are {token} values, where the shape {slot.shape} holds {size}",
            JUNK: f"{token} is not an integer",
            NEGATIVE: f"{token} is negative: ids are unsigned",
            OVERFLOW: f"{token} is above 2**64 - 1",
        }[wrong]
        return lines.error(line, position, f"slot {slot.name!r}: {problem}")
