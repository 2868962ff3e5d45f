"""PredictionFiles: files of predictions, one for each split, each there wholly or not at all."""

from __future__ import annotations

import csv
import glob
import json
import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psnb.errors import ConfigurationError

Columns = dict[str, np.ndarray]

_PLACE = "*"


class RowWriter(ABC):
    """Writes columns into a new file, batch after batch.

    Parameters
    ----------
    path : Path
        The file.
    first : dict
        The first columns, which say what the file has.
    """

    @abstractmethod
    def __init__(self, path: Path, first: Columns) -> None: ...

    @abstractmethod
    def add(self, columns: Columns) -> None:
        """Write some rows."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class _ParquetRows(RowWriter):
    def __init__(self, path: Path, first: Columns) -> None:
        import pyarrow.parquet

        self._file = pyarrow.parquet.ParquetWriter(path, self._table(first).schema)

    def add(self, columns: Columns) -> None:
        self._file.write_table(self._table(columns))

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def _table(columns: Columns) -> Any:
        import pyarrow

        def column(array: np.ndarray) -> Any:
            if array.ndim == 1:
                return pyarrow.array(array)
            inner = array.reshape(len(array), -1)
            values = pyarrow.array(inner.reshape(-1))
            return pyarrow.FixedSizeListArray.from_arrays(values, inner.shape[1])

        return pyarrow.table({name: column(array) for name, array in columns.items()})


class _JsonRows(RowWriter):
    def __init__(self, path: Path, first: Columns) -> None:
        self._file = path.open("w", encoding="utf-8")

    def add(self, columns: Columns) -> None:
        lists = [array.tolist() for array in columns.values()]
        for row in zip(*lists, strict=True):
            self._file.write(json.dumps(dict(zip(columns, row, strict=True))) + "\n")

    def close(self) -> None:
        self._file.close()


class _CsvRows(RowWriter):
    def __init__(self, path: Path, first: Columns) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file)
        self._rows.writerow(name for name, array in first.items() for name in _names(name, array))

    def add(self, columns: Columns) -> None:
        flat = [array.reshape(len(array), -1).T for array in columns.values()]
        lists = [column.tolist() for each in flat for column in each]
        self._rows.writerows(zip(*lists, strict=True))

    def close(self) -> None:
        self._file.close()


def _names(name: str, array: np.ndarray) -> list[str]:
    if array.ndim == 1:
        return [name]
    return [f"{name}_{number}" for number in range(int(np.prod(array.shape[1:])))]


_WRITERS: dict[str, type[RowWriter]] = {
    ".parquet": _ParquetRows,
    ".csv": _CsvRows,
    ".jsonl": _JsonRows,
}


@dataclass(frozen=True)
class PredictionFiles:
    """Where predictions go.

    Parameters
    ----------
    pattern : str
        A path of a file system that the workers share, such as ``predictions/*.parquet``: the
        number of the split, of five digits, takes the place of ``*``.

    Raises
    ------
    ConfigurationError
        If it is none.
    """

    pattern: str

    def __post_init__(self) -> None:
        path = Path(os.path.abspath(self.pattern))
        wrong = "://" in self.pattern or path.suffix not in _WRITERS
        if wrong or path.name.count(_PLACE) != 1 or _PLACE in str(path.parent):
            raise ConfigurationError(
                "to= takes a path of files that the workers share, with one * in its last part for "
                f"the number, and one of {', '.join(_WRITERS)} at its end; found {self.pattern!r}"
            )
        object.__setattr__(self, "pattern", str(path))

    def prepare(self, count: int) -> None:
        """Make the folder; refuse it if it has files that would be taken for parts of these.

        Raises
        ------
        ConfigurationError
            If an earlier call has written more parts there.
        """
        pattern = Path(self.pattern)
        pattern.parent.mkdir(parents=True, exist_ok=True)
        numbered = re.compile(r"(\d{5})".join(map(re.escape, pattern.name.split(_PLACE))))
        for name in sorted(os.listdir(pattern.parent)):
            match = numbered.fullmatch(name)
            if match and int(match[1]) >= count:
                raise ConfigurationError(
                    f"{pattern.parent / name} would be taken for one of the {count} parts that are "
                    "to be written: remove it, or write to another folder"
                )

    def write(self, number: int, batches: Iterable[Columns]) -> str | None:
        """Write a part, replacing an earlier attempt's; return its path, None if it has no rows."""
        pattern = Path(self.pattern)
        final = pattern.with_name(pattern.name.replace(_PLACE, f"{number:05d}"))
        for left in final.parent.glob(f".{glob.escape(final.name)}.*"):  # by a worker that died
            left.unlink(missing_ok=True)
        temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
        with ExitStack() as stack:
            stack.callback(temporary.unlink, missing_ok=True)
            writer: RowWriter | None = None
            for columns in batches:
                if writer is None:
                    writer = _WRITERS[final.suffix](temporary, columns)
                    stack.callback(writer.close)
                writer.add(columns)
            if writer is None:
                final.unlink(missing_ok=True)
                return None
            writer.close()
            os.replace(temporary, final)
        return str(final)


def parts_of(written: Sequence[str | None]) -> list[str]:
    """Return the paths of the parts that have rows, in order."""
    return [path for path in written if path is not None]
