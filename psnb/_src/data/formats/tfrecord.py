"""TFRecord files.

A record is its length (8 bytes, little-endian), the masked CRC of these, the data, and the masked
CRC of the data (4 bytes each).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from fsspec.core import OpenFile
from numba import njit

from psnb._src.data.formats.crc import masked_crc
from psnb._src.data.formats.files import INFER, compression_of, writing
from psnb._src.data.formats.records import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    MAX_RECORD_BYTES,
    ByteWindow,
    Chunk,
    FilePosition,
    byte_strings,
    check_reading,
    too_long,
    window_on,
    within,
)
from psnb._src.data.formats.tf_example import Feature, FixedLen, check_features, parse_parts
from psnb._src.data.formats.words import half_word, word_at
from psnb._src.utils.paths import filesystem_of
from psnb.errors import DatasetError

_NUMBER = np.dtype("<u4")


class TFRecordWriter:
    """Writes a TFRecord file; a context manager. Not thread-safe.

    Parameters
    ----------
    path : str
        The file, or an address that fsspec understands; one that is there is replaced.
    compression : str or None
        "gzip", "zlib" and others of fsspec; "infer": as the path's suffix says.

    Raises
    ------
    DatasetError
        If the file cannot be written.
    ConfigurationError
        If the compression is not known.

    Examples
    --------
    >>> with TFRecordWriter("memory://clicks.tfrecord") as writer:
    ...     writer.write(encode_example({"id": [7], "name": [b"seven"]}))
    """

    def __init__(self, path: str, compression: str | None = INFER):
        self.path = path
        how = compression_of(path, compression)
        self._zlib = zlib.compressobj() if how == "zlib" else None
        self._stack = ExitStack()
        with writing(path):
            system, inner = filesystem_of(path)
            with suppress(PermissionError):
                system.makedirs(system._parent(inner), exist_ok=True)
            opened = OpenFile(system, inner, "wb", None if how == "zlib" else how)
            self._file: Any = self._stack.enter_context(opened)

    def write(self, record: bytes | np.ndarray) -> None:
        """Append a record: any bytes.

        Raises
        ------
        DatasetError
            If it cannot be written.
        """
        data = bytes(record)
        length = len(data).to_bytes(8, "little")
        self._append(length + _crc(length) + data + _crc(data))

    def close(self) -> None:
        """Write the rest and close the file.

        Raises
        ------
        DatasetError
            If that fails.
        """
        if self._zlib is not None:
            rest, self._zlib = self._zlib.flush(), None
            with writing(self.path):
                self._file.write(rest)
        with writing(self.path):
            self._stack.close()

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _append(self, data: bytes) -> None:
        if self._zlib is not None:
            data = self._zlib.compress(data)
        with writing(self.path):
            self._file.write(data)


def _crc(data: bytes) -> bytes:
    buffer = np.frombuffer(data, np.uint8)
    return int(masked_crc(buffer, 0, buffer.size)).to_bytes(4, "little")


HEADER, FOOTER = 12, 4

CUT, BAD_LENGTH, BAD_DATA = 1, 2, 3
"""Why finding records ended: at a part of one, or at one whose length's or data's CRC is wrong."""


@njit(cache=True, nogil=True)
def find_records(data, starts, ends):  # type: ignore[no-untyped-def]
    """Write where the next records' data begin and end (int64), as many as there is room for.

    Returns how many, how many bytes they are, and why there are no more: 0 if the room is used up,
    `CUT`, `BAD_LENGTH` or `BAD_DATA`.
    """
    at = np.int64(0)
    for count in range(starts.size):
        left = data.size - at
        if left < HEADER:
            return count, at, CUT
        if masked_crc(data, at, at + 8) != half_word(data, at + 8):
            return count, at, BAD_LENGTH
        length = word_at(data, at)
        if left < HEADER + FOOTER or length > np.uint64(left - HEADER - FOOTER):
            return count, at, CUT
        start = at + HEADER
        stop = start + np.int64(length)
        if masked_crc(data, start, stop) != half_word(data, stop):
            return count, at, BAD_DATA
        starts[count] = start
        ends[count] = stop
        at = stop + FOOTER
    return starts.size, at, 0


@dataclass(frozen=True)
class TFRecords:
    """Records of TFRecord files, each checked against its CRC.

    Their columns are one array of bytes objects; with features of ``tf.train.Example``, a dict of
    these.
    """

    features: Mapping[str, Feature] | None = None
    compression: str | None = INFER
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        check_reading(self)
        if self.features is not None:
            check_features(self.features)

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
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
                    # Its CRC shows that the length is what was written.
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
                        what = "length" if why == BAD_LENGTH else "data"
                        wrong = f"corrupt: the CRC of its {what} is wrong"
                        raise place.error("record", first, window.offset, wrong)
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
        return byte_strings(data, starts, ends), len(starts), None


def _cut(window: ByteWindow, place: FilePosition, number: int) -> DatasetError:
    size = window.data.size
    needs = f"{int(word_at(window.data, 0)) + HEADER + FOOTER} bytes" if size >= 8 else "a header"
    return place.error(
        "record", number, window.offset, f"cut short: {size} bytes are left of {needs}"
    )
