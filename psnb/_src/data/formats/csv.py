"""Comma-separated values: psnb finds records and reads most numbers, pyarrow reads the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from psnb._src.data.formats.files import INFER, reading
from psnb._src.data.formats.numbers import (
    has_nearest_float32,
    nearest_float64,
    read_decimal,
    read_digits,
)
from psnb._src.data.formats.records import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    MAX_COLUMNS,
    MAX_RECORD_BYTES,
    ByteWindow,
    Chunk,
    FilePosition,
    Records,
    within,
)
from psnb._src.data.formats.tables import by_name, first_missing, listed, pyarrow, to_columns
from psnb._src.data.formats.words import WORD, word_at, zeros_below
from psnb._src.utils.arrays import dtype_of
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, DatasetError

_NEWLINE, _RETURN, _QUOTE, _SPACE, _MINUS = 10, 13, 34, 32, 45
_ONES, _HIGHEST = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)

OTHER, SIGNED, UNSIGNED, FLOAT32, FLOAT64 = 0, 1, 2, 3, 4
"""What a column holds; of the others, pyarrow reads it."""

_DIGITS = 19
"""The most digits of a float that are read here."""


@njit(cache=True, nogil=True, inline="always")
def _ends(byte, delimiter):  # type: ignore[no-untyped-def]
    return byte in (delimiter, _NEWLINE, _RETURN)


@njit(cache=True, nogil=True, inline="always")
def _marks(word, byte):  # type: ignore[no-untyped-def]
    """Return a word in which the lowest bit that is set tells where the first such byte is."""
    word ^= np.uint64(byte) * _ONES
    return (word - _ONES) & ~word & _HIGHEST


@njit(cache=True, nogil=True)
def _skipped(data, at, delimiter):  # type: ignore[no-untyped-def]
    """Return where a field ends that begins there; -1 if a quote is never closed."""
    if data[at] == _QUOTE:
        at += 1
        while at < data.size:
            if data[at] == _QUOTE:
                if at + 1 == data.size or data[at + 1] != _QUOTE:
                    return at + 1
                at += 1
            at += 1
        return -1
    while at + WORD <= data.size:
        word = word_at(data, at)
        marks = _marks(word, delimiter) | _marks(word, _NEWLINE) | _marks(word, _RETURN)
        if marks:
            return at + np.int64(zeros_below(marks) >> np.uint64(3))
        at += WORD
    while at < data.size and not _ends(data[at], delimiter):
        at += 1
    return at


@njit(cache=True, nogil=True, inline="always")
def _number(data, at, kind, most):  # type: ignore[no-untyped-def]
    """Read a number of a kind, an integer up to ``most``, as the 64 bits that hold it.

    Returns it, the position after it, and whether it is exact. It is not where pyarrow must decide:
    also not if it is no number.
    """
    negative = at < data.size and data[at] == _MINUS and kind != UNSIGNED
    at += np.int64(negative)
    begin = at
    if kind < FLOAT32:
        number, at, larger = read_digits(data, at, data.size)
        exact = not larger and at > begin and number <= most + np.uint64(negative)
        return (~number + np.uint64(1) if negative else number), at, exact
    mantissa, exponent, digits, at = read_decimal(data, at, data.size)
    if at == begin and not negative:
        return np.float64(np.nan).view(np.uint64), at, True
    value, exact = nearest_float64(mantissa, exponent)
    exact = exact and 0 < digits <= _DIGITS and (kind == FLOAT64 or has_nearest_float32(value))
    return np.float64(-value if negative else value).view(np.uint64), at, exact


@njit(cache=True, nogil=True)
def find_records(data, delimiter, last, starts, kinds, most, numbers):  # type: ignore[no-untyped-def]
    r"""Write where records begin, as many as there is room for, and where the last ends.

    Records end with ``\n``, ``\r\n`` or ``\r`` outside of quotes; empty lines are none. One that
    ``data`` does not hold whole counts if it is the file's ``last``. They end before a record with
    something between the quote that closes a field and the next delimiter, and before a last one
    with a quote that is never closed.

    Parameters
    ----------
    starts : array of int64
        Gets one entry more than there are records.
    kinds : array of uint8, shape (columns,)
        What each column holds; of none, if only records are wanted. Becomes `OTHER` where a field
        is not as most are, and for all if a record has more fields or fewer.
    most : array of uint64, shape (columns,)
        The largest integer of each column.
    numbers : array of uint64, shape (columns, rows)
        Gets the bits of int64, uint64 or float64 for those that are not `OTHER`, which they become
        if there are more rows.

    Returns
    -------
    tuple of int
        How many records there are; where that something is, or that record begins, -1 if there is
        none; whether it is the latter; and how many delimiters the last record has.
    """
    count = column = begin = at = 0
    starts[0] = 0
    while at < data.size:
        # A field begins here.
        byte, first = data[at], at
        empty_line = at == begin and byte in (_NEWLINE, _RETURN)
        if column < kinds.size and kinds[column] != OTHER and not empty_line:
            while byte == _SPACE != delimiter and first + 1 < data.size:
                first += 1
                byte = data[first]
            number, stop, exact = _number(data, first, kinds[column], most[column])
            if stop == data.size and not last:
                break
            # An empty field is a missing number, one of spaces is none.
            exact = exact and (stop > first or first == at) and count < numbers.shape[1]
            if exact and (stop == data.size or _ends(data[stop], delimiter)):
                numbers[column, count] = number
                at = stop
            else:
                kinds[column] = OTHER
                at = _skipped(data, at, delimiter)
        else:
            at = _skipped(data, at, delimiter)
        if at < 0 and last:
            return count, begin, True, column
        if at < 0 or (at == data.size and not last):
            break
        if at < data.size and data[at] == delimiter:
            column += 1
            at += 1
            if at < data.size:
                continue
            if not last:
                break
            if column < kinds.size:
                kinds[column] = OTHER
        elif at < data.size and not _ends(data[at], delimiter):
            return count, at, False, column
        # Between the two bytes of one end, there is an empty line.
        if at > begin:
            starts[count] = begin
            count += 1
            starts[count] = min(at + 1, data.size)
            if kinds.size and column + 1 != kinds.size:
                kinds[:] = OTHER
            if count + 1 == starts.size:
                return count, -1, False, column
        at += 1
        begin = at
        column = 0
    return count, -1, False, column


_ROW = re.compile(r"Row #(\d+): *")
_MARK = b"\xef\xbb\xbf"
"""With which some programs begin UTF-8; a quote behind it begins a field."""

_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class Csv(Records):
    """Files of comma-separated values (RFC 4180); their columns are a dict of arrays.

    Fields may be quoted, and then hold newlines; empty lines are skipped. An empty field is NaN in
    a column of floats, an empty string in one of strings, and an error in one of integers. A dtype
    that is not given is as the file's first records look. Without header and names, columns are
    called f0, f1…
    """

    columns: Sequence[str] | None = None
    dtypes: Mapping[str, Any] | None = None
    header: bool = True
    names: Sequence[str] | None = None
    delimiter: str = ","
    compression: str | None = INFER
    max_columns: int = MAX_COLUMNS
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '\r\n"':
            raise ConfigurationError(
                f"delimiter is {shown(self.delimiter)}: not one ASCII character"
            )
        for name, dtype in (self.dtypes or {}).items():
            _arrow_type(name, dtype)

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the records that begin in ``[offset, end)``; ``first`` numbers the first one."""
        place = FilePosition(path, offset, first)
        with self.window(path, 0) as window:
            if not _records(window, self.delimiter, place, first, 1)[1]:
                return
            schema = _Schema(self, window, place)
            if offset <= window.offset:
                yield from schema.chunks(window, place, end)
                return
        with self.window(path, offset) as window:
            yield from schema.chunks(window, place, end)

    @contextmanager
    def window(self, path: str, offset: int) -> Iterator[ByteWindow]:
        with super().window(path, offset) as window:
            if offset == 0 and window.data[: len(_MARK)].tobytes() == _MARK:
                window.skip(len(_MARK))
            yield window

    def cuts(self, path: str, size: int, total: int) -> list[int]:
        """Return where to cut a file, which is read once for it, some two seconds a GB.

        Whether text is quoted is known from its start only.
        """
        place, cuts = FilePosition(path), [0]
        with self.window(path, 0) as window, suppress(DatasetError):  # of a record: its reader says
            while True:
                starts, count, _ = _records(window, self.delimiter, place, 0)
                if not count:
                    break
                begins = window.offset + starts[:count]
                while (found := int(np.searchsorted(begins, cuts[-1] + size))) < count:
                    cuts.append(int(begins[found]))
                window.skip(int(starts[count]))
        return cuts[1:]


_OF_NUMBERS = "+-.0123456789Ee"
_KINDS = {"i": SIGNED, "u": UNSIGNED, "float32": FLOAT32, "float64": FLOAT64}
_HELD = {SIGNED: np.int64, UNSIGNED: np.uint64, FLOAT32: np.float64, FLOAT64: np.float64}


class _Numbers:
    """The columns that are read where records are found; of some records at a time.

    Parameters
    ----------
    dtypes : mapping of str to dtype
        Of the columns of the file; of objects where one is not wanted, or pyarrow reads it.
    """

    def __init__(self, dtypes: Mapping[str, np.dtype]) -> None:
        self._dtypes = dtypes
        kinds = [_KINDS.get(each.kind, _KINDS.get(each.name, OTHER)) for each in dtypes.values()]
        self._first = self._kinds = np.array(kinds, np.uint8)
        most = [np.iinfo(each).max if each.kind in "iu" else 0 for each in dtypes.values()]
        self._most = np.array(most, np.uint64)
        # A field takes a byte at least, with the delimiter after it.
        rows = min(CHUNK_RECORDS, CHUNK_BYTES // max(1, len(dtypes)) + 1)
        self._bits = np.empty((len(dtypes), rows), np.uint64)

    def find(
        self, data: np.ndarray, delimiter: str, last: bool, starts: np.ndarray
    ) -> tuple[int, int, bool, int]:
        """Find records, and read their numbers; see `find_records`."""
        self._kinds = self._first.copy()
        found: tuple[int, int, bool, int] = find_records(
            data, ord(delimiter), last, starts, self._kinds, self._most, self._bits
        )
        return found

    def columns(self, count: int) -> dict[str, np.ndarray]:
        """Return the first numbers of the columns that were read."""
        every = zip(self._dtypes.items(), self._kinds.tolist(), self._bits, strict=True)
        return {
            name: bits[:count].view(_HELD[kind]).astype(dtype)
            for (name, dtype), kind, bits in every
            if kind != OTHER
        }


def _records(
    window: ByteWindow,
    delimiter: str,
    place: FilePosition,
    first: int,
    most: int = CHUNK_RECORDS,
    *,
    numbers: _Numbers | None = None,
) -> tuple[np.ndarray, int, int]:
    """Return where the next records begin, the end of the last one included, and their number.

    The first of them has the number ``first``; they end before one that is too long. Then how many
    fields there are, if it is one record.
    """
    starts = np.empty(most + 1, np.int64)
    numbers = _Numbers({}) if numbers is None else numbers
    last = not window.fill() and window.data.size <= CHUNK_BYTES
    data = window.data[:CHUNK_BYTES]
    while True:
        count, wrong, unclosed, fields = numbers.find(data, delimiter, last, starts)
        if count or last or wrong >= 0:
            break
        # A single record that is longer than that, or empty lines.
        if window.data.size > window.limit:
            raise place.too_long("record", first, window.offset, window.limit)
        last = not window.more()
        data, starts = window.data, starts[:2]
    if not count and wrong >= 0:
        problem = "a quote that is never closed; it would swallow the rest of the file"
        if not unclosed:
            problem = (
                f"{chr(window.data[wrong])!r} follows the quote that closes a field: there a "
                "delimiter must be, and a quote within quotes is written twice"
            )
        raise place.error("record", first, window.offset + wrong, problem)
    if count and starts[count] > window.limit:
        count = within(np.diff(starts[: count + 1]), window.limit)
        if not count:
            raise place.too_long("record", first, window.offset, window.limit)
    return starts, count, fields + 1


class _Schema:
    """The names and types of a file's columns; makes tables of its records.

    Leaves the window, which is at the file's start, behind the header.
    """

    def __init__(self, form: Csv, window: ByteWindow, place: FilePosition):
        self._delimiter, self._path = form.delimiter, place.path
        starts, count, fields = _records(window, form.delimiter, place, place.first, 1)
        if fields > form.max_columns:
            problem = f"there are {fields} columns, more than max_columns={form.max_columns}"
            raise place.error("record", place.first, window.offset, problem)
        with reading(place.path):
            plain = self._read(window.data[: starts[count]], header=form.header).schema.names
        if form.header:
            window.skip(int(starts[count]))
        self._names = list(plain if form.names is None else form.names)
        wanted = self._names if form.columns is None else list(form.columns)
        absent = {*wanted, *(form.dtypes or {})} - set(self._names)
        if absent or not wanted or len(set(self._names)) < len(self._names):
            lacks = f"; no {absent}" if absent else ""
            raise DatasetError(f"{place.path}: the columns are {listed(self._names)}{lacks}")
        self._wanted = wanted
        self._types = {name: _arrow_type(name, kind) for name, kind in (form.dtypes or {}).items()}
        starts, count, _ = _records(window, form.delimiter, place, place.first)
        sample, good, _ = self.parse(window.data[: starts[count]], starts[:count], wanted)
        pa = pyarrow()
        for name, found in zip(sample.schema.names, sample.schema.types, strict=True):
            # Arrow guesses bytes where a text is not UTF-8, in this file and not in others.
            unknown = sample.num_rows == 0 or pa.types.is_null(found) or pa.types.is_binary(found)
            if pa.types.is_float64(found) and name not in self._types:
                found = self._exact(name, sample, window.data[: starts[good]])
            self._types.setdefault(name, pa.string() if unknown else found)
        self._numbers = _Numbers({name: self._dtype(name) for name in self._names})

    def _dtype(self, name: str) -> np.dtype:
        """Return the dtype of a column that is wanted, and object for what is no number."""
        with suppress(NotImplementedError):
            if name in self._wanted and self._delimiter not in _OF_NUMBERS:
                return np.dtype(self._types[name].to_pandas_dtype())
        return np.dtype(object)

    def _exact(self, name: str, sample: Any, data: np.ndarray) -> Any:
        """Return the type of a column that Arrow guesses to be of floats.

        It does so for integers beyond int64, too, and rounds them.
        """
        pa = pyarrow()
        large = sample.column(name).drop_null().to_numpy()
        if not (np.abs(large) >= 2.0**63).any():
            return pa.float64()
        convert = {"column_types": {name: pa.string()}, "include_columns": [name]}
        texts = self._read(data, self._names, False, **convert).column(name).to_pylist()
        given = sample.column(name).is_valid().to_pylist()
        texts = [text.strip() for text, valid in zip(texts, given, strict=False) if valid]
        if not all(_INTEGER.fullmatch(text) for text in texts):
            return pa.float64()
        numbers = [int(text) for text in texts]
        try:
            return pa.from_numpy_dtype(dtype_of(min(numbers), max(numbers)))
        except ValueError as error:
            raise DatasetError(f"{self._path}: column {name!r}: {error}") from error

    def chunks(self, window: ByteWindow, place: FilePosition, end: int | None) -> Iterator[Chunk]:
        """Yield the records in a window that begin before ``end``."""
        first = place.first
        while end is None or window.offset < end:
            starts, count, _ = _records(
                window, self._delimiter, place, first, numbers=self._numbers
            )
            if count == 0:
                return
            if end is not None:
                count = min(count, int(np.searchsorted(starts[:count], end - window.offset)))
            data = window.data[: starts[count]]
            numbers, good, problem = self._numbers.columns(count), count, None
            if data[: len(_MARK)].tobytes() == _MARK:
                numbers = {}  # pyarrow skips it, and takes a quote behind it for one
            columns: dict[str, Any] = {}
            if rest := [name for name in self._wanted if name not in numbers]:
                table, good, problem = self.parse(data, starts[:count], rest)
                columns = to_columns(by_name(table))
            columns |= {name: column[:good] for name, column in numbers.items()}
            columns = {name: columns[name] for name in self._wanted}
            begin = window.offset
            window.skip(int(starts[good if problem else count]))
            if good:
                yield Chunk(columns, good, first, window.offset)
            first += good
            if problem is not None:
                byte = begin + int(starts[good])
                raise place.error("record", first, byte, str(problem)) from problem

    def parse(
        self, data: np.ndarray, starts: np.ndarray, wanted: list[str]
    ) -> tuple[Any, int, DatasetError | None]:
        """Return the table of the records before the first bad one, their number, what is wrong."""
        problem, pa = None, pyarrow()
        good = len(starts)
        ends = [0, *starts[1:].tolist(), data.size]
        convert = {"column_types": self._types, "include_columns": wanted}
        while True:
            if not (end := ends[good]):
                types = [(name, self._types.get(name, pa.string())) for name in wanted]
                table = pa.schema(types).empty_table()
                break
            try:
                table = self._read(data[:end], self._names, False, **convert)
                break
            except pa.ArrowInvalid as error:
                # Arrow looks at one column after the other: there may be an earlier one.
                text = str(error)
                if "invalid UTF8" in text:
                    text += "; write UTF-8, or give the column the dtype bytes"
                row = _ROW.search(text)
                good = min(int(row[1]), good) - 1 if row else 0
                problem = DatasetError(_ROW.sub("", text))
        if table.num_rows != good:
            return table.slice(0, 0), 0, DatasetError("a quote within a field is not doubled")
        if (missing := first_missing(by_name(table))) is not None:
            name, good = missing
            problem = DatasetError(
                f"column {name!r} of {table.schema.field(name).type} is empty: "
                f"dtypes={{{name!r}: 'float64'}} reads missing values as NaN (and "
                "rounds integers above 2**53, such as ids), 'str' as ''"
            )
        return table.slice(0, good), good, problem

    def _read(
        self, data: np.ndarray, names: list[str] | None = None, header: bool = True, **convert: Any
    ) -> Any:
        """Return the table of some records; without header or names these are f0 and so on."""
        arrow = pyarrow("pyarrow.csv")
        return arrow.read_csv(
            pyarrow().py_buffer(data),
            arrow.ReadOptions(
                use_threads=False,
                block_size=max(data.size, 1),
                column_names=names,
                autogenerate_column_names=names is None and not header,
            ),
            arrow.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            arrow.ConvertOptions(**convert),
        )


def _arrow_type(name: str, dtype: Any) -> Any:
    pa = pyarrow()
    if dtype in (str, "str"):
        return pa.string()
    try:
        return pa.from_numpy_dtype(np.dtype(dtype))
    except (TypeError, pa.ArrowException) as error:
        raise ConfigurationError(
            f"column {name!r} has the dtype {shown(dtype)}: a number's of NumPy, bool, str or bytes"
        ) from error
