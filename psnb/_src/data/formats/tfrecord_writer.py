"""Writing TFRecord files."""

from __future__ import annotations

import zlib
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

import numpy as np
from fsspec.core import OpenFile

from psnb._src.addresses import filesystem_of
from psnb._src.data.formats.crc import masked_crc
from psnb._src.data.formats.open_files import INFER, compression_of, writing

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
        """Write what is left and close the file.

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
