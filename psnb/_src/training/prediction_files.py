"""PredictionFiles: files of predictions, one for each split, which appear when all are there.

Workers write them under hidden names, and the notebook renames them at the end: a call that fails
leaves the files of an earlier one as they were, and the files of two calls are not mixed. A column
of predictions is an array with one row for each example; CSV, JSON lines and Parquet hold several.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from psnb._src.utils.checks import path_text
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

Columns = Mapping[str, np.ndarray]
"""By name, arrays with one row for each example."""

_PLACE = "*"

_SUFFIXES = (".parquet", ".csv", ".jsonl")

_CALL = r"[0-9a-f]{32}(\.[0-9a-f]{32})?"
"""What ends the name of a hidden file: its call, and the attempt that writes it."""

_LEFT_AFTER = 86_400.0
"""Seconds after which hidden files belong to a process that died: until then, it may write."""


@dataclass(frozen=True)
class PredictionFiles:
    """Where predictions go.

    Parameters
    ----------
    pattern : str or os.PathLike
        A path of a file system that the workers share, such as ``predictions/*.parquet``: the
        number of the split, of five digits, takes the place of ``*``.
    call : str
        A text that distinguishes its hidden files from other calls'.

    Raises
    ------
    ConfigurationError
        If it is none.
    """

    pattern: str | os.PathLike[str]
    call: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        text = path_text("to", self.pattern)
        path = Path(os.path.abspath(text))
        wrong = "://" in text or path.suffix not in _SUFFIXES
        if wrong or path.name.count(_PLACE) != 1 or _PLACE in str(path.parent):
            raise ConfigurationError(
                "to= takes a path of files that the workers share, with one * in its last part for "
                f"the number, and one of {', '.join(_SUFFIXES)} at its end; "
                f"found {shown(self.pattern)}"
            )
        object.__setattr__(self, "pattern", str(path))

    def prepare(self, count: int) -> None:
        """Make the folder; refuse it if it has files that would be taken for parts.

        Raises
        ------
        ConfigurationError
            If an earlier call has written more parts there.
        """
        Path(self.pattern).parent.mkdir(parents=True, exist_ok=True)
        for path, number in self._numbered():
            if number >= count:
                raise ConfigurationError(
                    f"{path} would be taken for one of the {count} parts that are to be written: "
                    "remove it, or write to another folder"
                )
        for path, _ in self._numbered(r"\.", rf"\.{_CALL}"):
            with suppress(FileNotFoundError):  # its call has ended just now
                if path.stat().st_mtime < time.time() - _LEFT_AFTER:
                    path.unlink()

    def write(self, number: int, batches: Iterable[Columns]) -> bool:
        """Write a part, to be published, in place of an earlier attempt's; False without rows."""
        part = self._hidden(number)
        temporary = part.with_name(f"{part.name}.{uuid.uuid4().hex}")
        try:
            has_rows = write_rows(temporary, part.suffixes[-2], batches) is not None
            if has_rows:
                os.replace(temporary, part)
            return has_rows
        finally:
            temporary.unlink(missing_ok=True)

    def publish(self, written: Sequence[bool]) -> list[str]:
        """Give all parts their names, in place of an earlier call's; return their paths, in order.

        Parameters
        ----------
        written : sequence of bool
            What `write` has returned for each.
        """
        with uninterrupted:
            for number, has_rows in enumerate(written):
                if has_rows:
                    os.replace(self._hidden(number), self.path(number))
                else:
                    self.path(number).unlink(missing_ok=True)
        return [str(self.path(number)) for number, has_rows in enumerate(written) if has_rows]

    def clear(self) -> None:
        """Remove what this call has not published; others may be writing theirs."""
        for path, _ in self._numbered(r"\.", rf"\.{self.call}.*"):
            path.unlink(missing_ok=True)

    def path(self, number: int) -> Path:
        """Return the file of a part."""
        pattern = Path(self.pattern)
        return pattern.with_name(pattern.name.replace(_PLACE, f"{number:05d}"))

    def _hidden(self, number: int) -> Path:
        part = self.path(number)
        return part.with_name(f".{part.name}.{self.call}")

    def _numbered(self, before: str = "", after: str = "") -> list[tuple[Path, int]]:
        """Return the files that have a part's name between two regular expressions, by number."""
        pattern = Path(self.pattern)
        name = r"(\d{5})".join(map(re.escape, pattern.name.split(_PLACE)))
        found = (
            (each, re.fullmatch(before + name + after, each)) for each in os.listdir(pattern.parent)
        )
        return sorted((pattern.with_name(each), int(match[1])) for each, match in found if match)


def single_columns(columns: Columns) -> dict[str, np.ndarray]:
    """Return columns of one number a row; of several, they are ``name.0``, ``name.1``, ..."""
    found: dict[str, np.ndarray] = {}
    for name, array in columns.items():
        wide = array.reshape(len(array), math.prod(array.shape[1:]))
        parts = {f"{name}.{at}": part for at, part in enumerate(wide.T)}
        found |= {name: array} if array.ndim == 1 else parts
    return found


def json_lines(columns: Columns) -> Iterator[str]:
    """Yield a line for each row; null in place of NaN and infinite numbers, which JSON lacks."""
    lists = [_finite(_known(array)).tolist() for array in columns.values()]
    for row in zip(*lists, strict=True):
        yield json.dumps(dict(zip(columns, row, strict=True)), allow_nan=False) + "\n"


def parquet_table(columns: Columns) -> Any:
    """Return a table of pyarrow; several numbers a row are lists of one length."""
    import pyarrow

    def column(array: np.ndarray) -> Any:
        if array.ndim == 1:
            return pyarrow.array(array)
        width = int(np.prod(array.shape[1:]))
        return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), width)

    return pyarrow.table({name: column(_known(array)) for name, array in columns.items()})


def _known(array: np.ndarray) -> np.ndarray:
    """Return float32 in place of dtypes that only accelerators have, such as bfloat16."""
    odd = array.dtype.kind == "V" and array.dtype.names is None
    return array.astype(np.float32) if odd else array


def _finite(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "f" or (finite := np.isfinite(array)).all():
        return array
    found = array.astype(object)
    found[~finite] = None
    return found


Write = Callable[[Columns], object]
"""Writes some rows."""


def write_rows(to: Path | TextIO, suffix: str, batches: Iterable[Columns]) -> int | None:
    """Write batches, one after another; return how many rows there were, None without a batch.

    Parameters
    ----------
    to : Path or file
        A new file, or one that is open and stays so; the first batch says what it has.
    suffix : {".csv", ".jsonl", ".parquet"}
        The format.
    batches : iterable of dict
        The columns of each.

    Raises
    ------
    ConfigurationError
        If Parquet cannot be written here.
    """
    rows: int | None = None
    with ExitStack() as opened:
        write: Write | None = None
        for columns in batches:
            write = write or _writer(to, suffix, columns, opened)
            write(columns)
            rows = (rows or 0) + len(next(iter(columns.values()), ()))
    return rows


def _writer(to: Path | TextIO, suffix: str, first: Columns, opened: ExitStack) -> Write:
    """Return what writes rows; ``opened`` closes what is opened for it."""
    if suffix == ".parquet":
        if not isinstance(to, Path):
            raise ConfigurationError("Parquet is written to a file: give --to FILE")
        try:
            import pyarrow.parquet
        except ModuleNotFoundError as error:
            raise ConfigurationError("Parquet needs pyarrow: pip install 'psnb[data]'") from error
        table = pyarrow.parquet.ParquetWriter(to, parquet_table(first).schema)
        opened.enter_context(table)
        return lambda columns: table.write_table(parquet_table(columns))
    file: TextIO
    if isinstance(to, Path):
        file = opened.enter_context(to.open("w", encoding="utf-8", newline=""))
    else:
        file = to
    if suffix == ".jsonl":
        return lambda columns: file.writelines(json_lines(columns))
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(single_columns(first))

    def write(columns: Columns) -> None:
        lists = [column.tolist() for column in single_columns(columns).values()]
        rows.writerows(zip(*lists, strict=True))

    return write
