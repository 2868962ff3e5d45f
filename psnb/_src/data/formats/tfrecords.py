"""TFRecord files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.data.formats.byte_window import ByteWindow, window_on
from psnb._src.data.formats.chunk import CHUNK_BYTES, CHUNK_RECORDS, Chunk
from psnb._src.data.formats.example import parse_parts
from psnb._src.data.formats.features import Feature, FixedLen, check_features
from psnb._src.data.formats.file_position import FilePosition
from psnb._src.data.formats.limit import MAX_RECORD_BYTES, checked_limit, too_long, within
from psnb._src.data.formats.open_files import INFER, check_compression
from psnb._src.data.formats.record_kernels import (
    BAD_DATA,
    BAD_LENGTH,
    CUT,
    FOOTER,
    HEADER,
    find_records,
)
from psnb._src.data.formats.words import word_at
from psnb.errors import DatasetError


@dataclass(frozen=True)
class TFRecords:
    """Records of TFRecord files, each checked against its CRC.

    Parameters
    ----------
    features : dict of str to FixedLen or VarLen, optional
        Parse each record as a ``tf.train.Example`` with these features; the columns are a dict of
        them. By default they are one array of bytes objects.
    compression : str or None
        "gzip", "zlib" and others of fsspec; "infer": as the file's suffix says.
    max_record_bytes : int
        How long a record may be, at most 2**30 bytes. For a longer one, memory is not taken.

    Raises
    ------
    ConfigurationError
        If a feature or the compression is not possible.
    """

    features: Mapping[str, Feature] | None = None
    compression: str | None = INFER
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        check_compression(self.compression)
        object.__setattr__(self, "max_record_bytes", checked_limit(self.max_record_bytes))
        if self.features is not None:
            check_features(self.features)

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the records that begin in ``[offset, end)``.

        Raises
        ------
        DatasetError
            If the file cannot be read or is empty, or at a record that is cut short or corrupt, or
            not an ``Example`` with these features; those before it are yielded.
        """
        place = FilePosition(path, offset, first)
        starts, ends = np.empty((2, self._most()), np.int64)
        limit = self.max_record_bytes
        with window_on(path, self.compression, offset, limit) as window:
            while end is None or window.offset < end:
                window.fill()
                count, size, why = find_records(window.data[:CHUNK_BYTES], starts, ends)
                while why == CUT and count == 0:
                    # A single record that is longer than that, or a part of one.
                    count, size, why = find_records(window.data, starts[:1], ends[:1])
                    # That its length is what was written, its CRC says.
                    known = count == 0 and why == CUT and window.data.size >= HEADER
                    if known and int(word_at(window.data, 0)) > limit:
                        raise too_long(place, "record", first, window.offset, limit)
                    if count == 0 and not window.more():
                        break
                if end is not None and window.offset + size > end:
                    count = int(np.searchsorted(starts[:count], end - window.offset + HEADER))
                    size, why = int(ends[count - 1]) + FOOTER, 0
                if not count:
                    if why in (BAD_LENGTH, BAD_DATA):
                        raise _corrupt(window, place, first, why)
                    if window.data.size:
                        raise _cut(window, place, first)
                    return
                if size > limit:
                    count = within(ends[:count] - starts[:count], limit)
                    if not count:
                        raise too_long(place, "record", first, window.offset, limit)
                    size = int(ends[count - 1]) + FOOTER
                parts = starts[:count], ends[:count]
                columns, good, problem = self._columns(window.data, *parts)
                if problem is not None:
                    size = int(starts[good]) - HEADER
                window.skip(size)
                if good:
                    yield Chunk(columns, good, first, window.offset)
                first += good
                if problem is not None:
                    raise place.error("record", first, window.offset, str(problem)) from problem

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return one range, the whole file: records are found from its start only."""
        return [(0, None)]

    def _most(self) -> int:
        """Return how many records make a chunk: fewer if the columns of one take much memory."""
        fixed = [each for each in (self.features or {}).values() if isinstance(each, FixedLen)]
        width = 8 * sum(feature.size for feature in fixed)
        return max(1, min(CHUNK_RECORDS, self.max_record_bytes // max(1, width)))

    def _columns(
        self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> tuple[Any, int, DatasetError | None]:
        """Return the columns of the records before the first bad one, their number, the error."""
        if self.features is not None:
            return parse_parts(data, starts, ends, self.features)
        records = np.empty(len(starts), object)
        view = data.data
        records[:] = [
            bytes(view[start:end])
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        return records, len(starts), None


def _corrupt(window: ByteWindow, place: FilePosition, number: int, why: int) -> DatasetError:
    what = "length" if why == BAD_LENGTH else "data"
    problem = f"corrupt: the CRC of its {what} is wrong"
    return place.error("record", number, window.offset, problem)


def _cut(window: ByteWindow, place: FilePosition, number: int) -> DatasetError:
    size = window.data.size
    needs = f"{int(word_at(window.data, 0)) + HEADER + FOOTER} bytes" if size >= 8 else "a header"
    return place.error(
        "record", number, window.offset, f"cut short: {size} bytes are left of {needs}"
    )
