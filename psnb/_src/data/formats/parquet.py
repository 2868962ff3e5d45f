"""Parquet files, read by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psnb._src.data.formats.files import holds_nothing, reading, stored
from psnb._src.data.formats.parquet_footer import RowGroup, read_footer
from psnb._src.data.formats.parquet_pages import CheckedFile, TooWide
from psnb._src.data.formats.records import CHUNK_RECORDS, MAX_RECORD_BYTES, Chunk, checked_limit
from psnb._src.data.formats.tables import by_name, first_missing, listed, pyarrow, to_columns
from psnb.errors import DatasetError


@dataclass(frozen=True)
class Parquet:
    """Parquet files; their columns are a dict of arrays, lists `Ragged`.

    Offsets are numbers of rows. Reading resumes at the start of the row group. Where rows take more
    than ``max_record_bytes``, fewer are read at a time. If a page, or a column of texts or lists in
    a row group, unpacks to more than this and to more than 256 times its size in the file, that is
    refused.
    """

    columns: Sequence[str] | None = None
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_record_bytes", checked_limit(self.max_record_bytes))
        pyarrow("pyarrow.parquet")

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the rows from number ``offset`` up to ``end``; ``first`` is known from that."""
        with _opened(path, self.max_record_bytes) as found:
            if found is None:
                return
            file, checked, groups = found
            schema = file.schema_arrow
            wanted = list(self.columns) if self.columns is not None else schema.names
            if absent := set(wanted) - set(schema.names):
                raise DatasetError(f"{path}: the columns are {listed(schema.names)}; no {absent}")
            if double := {name for name in wanted if schema.names.count(name) > 1}:
                raise DatasetError(
                    f"{path}: the columns are {listed(schema.names)}; several are called {double}: "
                    "choose others with columns=, or rename them"
                )
            rows = file.metadata.num_rows
            if offset > rows:
                raise DatasetError(f"{path} has {rows} rows, and reading was to go on at {offset}")
            stop = rows if end is None else min(end, rows)
            begin = 0
            for number, group in enumerate(groups):
                if begin + group.rows > offset and begin < stop:
                    batches = _batches(file, checked, path, number, group, wanted)
                    yield from _group(
                        batches, path, number, wanted, begin, max(offset, begin), stop
                    )
                begin += group.rows

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return the ranges of rows of row groups, together of about ``size`` bytes."""
        cuts, row, held = [0], 0, 0
        with _opened(path, self.max_record_bytes) as found:
            for group in found[2] if found is not None else ():
                if held >= size:
                    cuts.append(row)
                    held = 0
                held += group.size
                row += group.rows
        return list(zip(cuts, [*cuts[1:], None], strict=True))


@contextmanager
def _opened(path: str, limit: int) -> Iterator[tuple[Any, CheckedFile, list[RowGroup]] | None]:
    parquet = pyarrow("pyarrow.parquet")
    with stored(path) as raw:
        if holds_nothing(raw):  # such as a mark that a job has ended
            yield None
            return
        with reading(path):
            checked = CheckedFile(raw, limit)
            file = parquet.ParquetFile(checked, pre_buffer=False)
        with file:
            with reading(path):
                groups = read_footer(raw, path)
            yield file, checked, groups


def _batches(
    file: Any, checked: CheckedFile, path: str, number: int, group: RowGroup, wanted: list[str]
) -> Iterator[Any]:
    """Yield the rows of a row group, as many at a time as memory allows."""
    rows, where = CHUNK_RECORDS, f"{path}, row group {number}"
    schemas = list(file.schema)
    with reading(where):
        while True:
            checked.expect(group.chunks(), schemas, rows, where)
            try:
                # Its columns are read, and so checked, before the first batch.
                yield from file.iter_batches(rows, [number], wanted, use_threads=False)
                return
            except TooWide as hint:
                rows = hint.rows


def _group(
    batches: Iterator[Any],
    path: str,
    group: int,
    wanted: list[str],
    begin: int,
    start: int,
    stop: int,
) -> Iterator[Chunk]:
    """Yield the rows ``[start, stop)`` of a row group that begins with row ``begin``."""
    for batch in batches:
        skipped = min(max(0, start - begin), batch.num_rows)
        part = batch.slice(skipped, max(0, stop - begin - skipped))
        row = begin + skipped
        begin += batch.num_rows
        found = by_name(part)
        missing = first_missing(found)
        if missing is not None:
            part = part.slice(0, missing[1])
            found = by_name(part)
        if part.num_rows:
            try:
                columns = to_columns(found)
            except DatasetError as error:
                raise DatasetError(f"{path}, row group {group}: {error}") from error
            # By name: the file has them in an order of its own.
            columns = {name: columns[name] for name in wanted}
            yield Chunk(columns, part.num_rows, row, row + part.num_rows)
        if missing is not None:
            raise DatasetError(
                f"{path}, row {row + missing[1] + 1}: column {missing[0]!r} of "
                f"{batch.schema.field(missing[0]).type} misses a value: fill it, or write floats"
            )
