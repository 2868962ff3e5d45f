"""TFRecord files.

A record is its length (8 bytes, little-endian), the masked CRC of these, the data, and the masked
CRC of the data (4 bytes each).

The CRC is CRC-32C: polynomial 0x1EDC6F41 (Castagnoli), eight bytes at a step (Kounavis and Berry:
*A Systematic Approach to Building High Performance Software-Based CRC Generators*, ISCC 2005). The
mask is TensorFlow's, so that the sum of data that hold sums is as good as any.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from fsspec.core import OpenFile
from numba import njit

from psnb._src.data.formats.files import INFER, compression_of, translated
from psnb._src.data.formats.records import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    MAX_RECORD_BYTES,
    ByteWindow,
    Chunk,
    FilePosition,
    Records,
    byte_strings,
    within,
)
from psnb._src.data.formats.tf_example import Feature, FixedLen, check_features, parse_parts
from psnb._src.data.formats.words import half_word, word_at
from psnb._src.utils.checks import path_text
from psnb._src.utils.paths import filesystem_of

_REFLECTED = 0x82F63B78


def _tables() -> np.ndarray:
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_REFLECTED if value & 1 else 0)
        tables[0, byte] = value
    for step in range(1, 8):
        before = tables[step - 1]
        tables[step] = (before >> np.uint64(8)) ^ tables[0][before & np.uint64(0xFF)]
    return tables.reshape(-1)


_TABLES = _tables()
_BYTE, _ONES, _MASK = np.uint64(0xFF), np.uint64(0xFFFFFFFF), np.uint64(0xA282EAD8)


@njit(cache=True, nogil=True)
def masked_crc(data, start, stop):  # type: ignore[no-untyped-def]
    """Return the masked CRC-32C of ``data[start:stop]`` (uint8, in bounds) as a uint64."""
    crc = _ONES
    at = start
    while at + 8 <= stop:
        x = word_at(data, at) ^ crc
        crc = (
            _TABLES[np.uint64(1792) + (x & _BYTE)]
            ^ _TABLES[np.uint64(1536) + ((x >> np.uint64(8)) & _BYTE)]
            ^ _TABLES[np.uint64(1280) + ((x >> np.uint64(16)) & _BYTE)]
            ^ _TABLES[np.uint64(1024) + ((x >> np.uint64(24)) & _BYTE)]
            ^ _TABLES[np.uint64(768) + ((x >> np.uint64(32)) & _BYTE)]
            ^ _TABLES[np.uint64(512) + ((x >> np.uint64(40)) & _BYTE)]
            ^ _TABLES[np.uint64(256) + ((x >> np.uint64(48)) & _BYTE)]
            ^ _TABLES[x >> np.uint64(56)]
        )
        at += 8
    while at < stop:
        crc = (crc >> np.uint64(8)) ^ _TABLES[(crc ^ np.uint64(data[np.uint64(at)])) & _BYTE]
        at += 1
    crc ^= _ONES
    return (((crc >> np.uint64(15)) | (crc << np.uint64(17))) + _MASK) & _ONES


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
        self.path = path = path_text("TFRecordWriter: path", path)
        how = compression_of(path, compression)
        self._zlib = zlib.compressobj() if how == "zlib" else None
        self._stack = ExitStack()
        with self._writing():
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
        written = length + _crc(length) + data + _crc(data)
        if self._zlib is not None:
            written = self._zlib.compress(written)
        with self._writing():
            self._file.write(written)

    def close(self) -> None:
        """Write the rest and close the file.

        Raises
        ------
        DatasetError
            If that fails.
        """
        with self._writing(), self._stack:
            if self._zlib is not None:
                rest, self._zlib = self._zlib.flush(), None
                self._file.write(rest)

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _writing(self) -> AbstractContextManager[None]:
        return translated(self.path, f"{self.path} cannot be written")


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
class TFRecords(Records):
    """Records of TFRecord files, each checked against its CRC.

    Their columns are one array of bytes objects; with features of ``tf.train.Example``, a dict of
    these.
    """

    features: Mapping[str, Feature] | None = None
    compression: str | None = INFER
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features is not None:
            check_features(self.features)

    def chunks(self, window: ByteWindow, place: FilePosition, end: int | None) -> Iterator[Chunk]:
        limit, first = self.max_record_bytes, place.first
        fixed = [each for each in (self.features or {}).values() if isinstance(each, FixedLen)]
        width = 8 * sum(feature.size for feature in fixed)
        # Fewer of them make a chunk if the columns of one take much memory.
        most = max(1, min(CHUNK_RECORDS, limit // max(1, width)))
        starts, ends = np.empty((2, most), np.int64)
        while end is None or window.offset < end:
            window.fill()
            count, size, why = find_records(window.data[:CHUNK_BYTES], starts, ends)
            while why == CUT and count == 0:
                # A single record that is longer than that, or a part of one.
                count, size, why = find_records(window.data, starts[:1], ends[:1])
                # Its CRC shows that the length is what was written.
                known = count == 0 and why == CUT and window.data.size >= HEADER
                if known and int(word_at(window.data, 0)) > limit:
                    raise place.too_long("record", first, window.offset, limit)
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
                if left := window.data.size:
                    needs = "a header"
                    if left >= 8:
                        needs = f"{int(word_at(window.data, 0)) + HEADER + FOOTER} bytes"
                    wrong = f"cut short: {left} bytes are left of {needs}"
                    raise place.error("record", first, window.offset, wrong)
                return
            if size > limit:
                count = within(ends[:count] - starts[:count], limit)
                if not count:
                    raise place.too_long("record", first, window.offset, limit)
                size = int(ends[count - 1]) + FOOTER
            parts = window.data, starts[:count], ends[:count]
            columns: Any
            if self.features is not None:
                columns, good, problem = parse_parts(*parts, self.features)
            else:
                columns, good, problem = byte_strings(*parts), count, None
            if problem is not None:
                size = int(starts[good]) - HEADER
            window.skip(size)
            if good:
                yield Chunk(columns, good, first, window.offset)
            first += good
            if problem is not None:
                raise place.error("record", first, window.offset, str(problem)) from problem
