"""Criteo's click logs, of the Kaggle challenge and the Terabyte data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from psnb._src.data.formats import criteo_kernels as kernels
from psnb._src.data.formats.chunk import Chunk
from psnb._src.data.formats.criteo_kernels import DENSE, SPARSE
from psnb._src.data.formats.limit import MAX_RECORD_BYTES, checked_limit
from psnb._src.data.formats.lines import Lines, line_splits, read_lines
from psnb._src.data.formats.open_files import INFER, check_compression
from psnb.errors import DatasetError

MISSING_CATEGORY = 2**32
"""The category of an empty field; no field holds it, as they have 32 bits."""


@dataclass(frozen=True)
class Criteo:
    """Files of Criteo's click logs: ``train.txt`` of the Kaggle challenge, ``day_0`` and on.

    A line has a label, 13 integers and 26 categories of up to eight hexadecimal digits, with tabs
    between them; integers and categories may be empty. The columns are a dict:

    - ``label``: float32, shape (examples,)
    - ``dense``: float32, shape (examples, 13); NaN where empty
    - ``sparse``: uint64, shape (examples, 26); `MISSING_CATEGORY` where empty. The same category
      means something else in each column: for one table of all, make ids with
      ``sparse + (numpy.arange(26, dtype="uint64") << 33)``.

    Parameters
    ----------
    compression : str or None
        "gzip", "zlib", "bz2" and others of fsspec; "infer": as the file's suffix says.
    max_record_bytes : int
        How long a line may be, at most 2**30 bytes. For a longer one, memory is not taken.

    Raises
    ------
    ConfigurationError
        If the compression is not known.
    """

    compression: str | None = INFER
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        check_compression(self.compression)
        object.__setattr__(self, "max_record_bytes", checked_limit(self.max_record_bytes))

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the lines that begin in ``[offset, end)``.

        Raises
        ------
        DatasetError
            If the file cannot be read or is empty, or at a line that is not as above; those before
            it are yielded.
        """
        for lines in read_lines(path, self.compression, self.max_record_bytes, offset, first, end):
            label = np.empty(len(lines), np.float32)
            dense = np.empty((len(lines), DENSE), np.float32)
            sparse = np.empty((len(lines), SPARSE), np.uint64)
            good, column, position, wrong = kernels.parse_lines(
                *(lines.data, lines.starts, lines.ends, np.uint64(MISSING_CATEGORY)),
                *(label, dense, sparse),
            )
            if good:
                columns = {"label": label[:good], "dense": dense[:good], "sparse": sparse[:good]}
                yield Chunk(columns, good, lines.first, lines.offset_after(good))
            if wrong != kernels.OK:
                raise _problem(lines, good, column, position, wrong)

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return the ranges of parts of about ``size`` bytes."""
        return line_splits(path, self.compression, size)


def _problem(lines: Lines, line: int, column: int, position: int, wrong: int) -> DatasetError:
    rest = lines.data[position : lines.ends[line]]
    tabs = np.flatnonzero(rest == ord("\t"))
    field = lines.text(position, position + int(tabs[0] if tabs.size else rest.size))
    problem = {
        kernels.FEW: f"there are {column} columns, not {kernels.COLUMNS}",
        kernels.LABEL: f"the label is {field}: not a number without sign",
        kernels.INTEGER: f"column {column + 1} is {field}: no integer of up to 18 digits",
        kernels.CATEGORY: f"column {column + 1} is {field}: not up to 8 hexadecimal digits",
        kernels.TRAILING: f"there are more than {kernels.COLUMNS} columns",
    }[wrong]
    return lines.error(line, position, problem)
