"""Comma-separated values: psnb finds where records end, pyarrow parses them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from psnb._src.data.formats.files import INFER, reading
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
from psnb._src.data.formats.tables import first_missing, listed, pyarrow, to_columns
from psnb._src.utils.arrays import dtype_of
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, DatasetError

_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
_START, _FIELD, _QUOTED, _MAYBE_CLOSED = 0, 1, 2, 3


@njit(cache=True, nogil=True)
def find_records(data, delimiter, last, starts):  # type: ignore[no-untyped-def]
    r"""Write where records begin (int64), as many as there is room for, and where the last ends.

    Records end with ``\n``, ``\r\n`` or ``\r`` outside of quotes; empty lines are none. One that
    ``data`` does not hold whole counts if it is the file's ``last``. They end before a record with
    something between the quote that closes a field and the next delimiter, and before a last one
    with a quote that is never closed.

    Returns how many there are, ``starts`` holding one entry more; where that something is, or that
    record begins, -1 if there is none; whether it is the latter; and how many delimiters were met.
    """
    count = fields = 0
    state = _START
    begin = 0
    starts[0] = 0
    for at in range(data.size):
        byte = data[at]
        if state == _QUOTED:
            if byte == _QUOTE:
                state = _MAYBE_CLOSED
        elif byte == _QUOTE and state != _FIELD:
            # The first of a field, or the second of two within quotes.
            state = _QUOTED
        elif byte == delimiter:
            fields += 1
            state = _START
        elif byte in (_NEWLINE, _RETURN):
            # Between the two bytes of one end, there is an empty line.
            if at > begin:
                starts[count] = begin
                count += 1
                starts[count] = at + 1
                if count + 1 == starts.size:
                    return count, -1, False, fields
            begin = at + 1
            state = _START
        elif state == _MAYBE_CLOSED:
            return count, at, False, fields
        else:
            state = _FIELD
    if last and begin < data.size:
        if state == _QUOTED:
            return count, begin, True, fields
        starts[count] = begin
        count += 1
        starts[count] = data.size
    return count, -1, False, fields


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


def _records(
    window: ByteWindow, delimiter: str, place: FilePosition, first: int, most: int = CHUNK_RECORDS
) -> tuple[np.ndarray, int, int]:
    """Return where the next records begin, the end of the last one included, and their number.

    The first of them has the number ``first``; they end before one that is too long. Then how many
    fields there are, if it is one record.
    """
    starts = np.empty(most + 1, np.int64)
    last = not window.fill() and window.data.size <= CHUNK_BYTES
    data = window.data[:CHUNK_BYTES]
    while True:
        count, wrong, unclosed, fields = find_records(data, ord(delimiter), last, starts)
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
        sample, good, _ = self.parse(window.data[: starts[count]], starts[:count])
        pa = pyarrow()
        for name, found in zip(sample.schema.names, sample.schema.types, strict=True):
            # Arrow guesses bytes where a text is not UTF-8, in this file and not in others.
            unknown = sample.num_rows == 0 or pa.types.is_null(found) or pa.types.is_binary(found)
            if pa.types.is_float64(found) and name not in self._types:
                found = self._exact(name, sample, window.data[: starts[good]])
            self._types.setdefault(name, pa.string() if unknown else found)

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
            starts, count, _ = _records(window, self._delimiter, place, first)
            if count == 0:
                return
            if end is not None:
                count = min(count, int(np.searchsorted(starts[:count], end - window.offset)))
            table, good, problem = self.parse(window.data[: starts[count]], starts[:count])
            begin = window.offset
            window.skip(int(starts[good if problem else count]))
            if good:
                yield Chunk(to_columns(table), good, first, window.offset)
            first += good
            if problem is not None:
                byte = begin + int(starts[good])
                raise place.error("record", first, byte, str(problem)) from problem

    def parse(self, data: np.ndarray, starts: np.ndarray) -> tuple[Any, int, DatasetError | None]:
        """Return the table of the records before the first bad one, their number, what is wrong."""
        problem, pa = None, pyarrow()
        good = len(starts)
        ends = [0, *starts[1:].tolist(), data.size]
        convert = {"column_types": self._types, "include_columns": self._wanted}
        while True:
            if not (end := ends[good]):
                types = [(name, self._types.get(name, pa.string())) for name in self._wanted]
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
        if (missing := first_missing(table)) is not None:
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
