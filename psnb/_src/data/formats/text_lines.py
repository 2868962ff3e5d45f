"""Lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.data.formats.chunk import Chunk
from psnb._src.data.formats.limit import MAX_RECORD_BYTES, checked_limit
from psnb._src.data.formats.line_kernels import NEWLINE, RETURN
from psnb._src.data.formats.lines import Lines, line_splits, read_lines
from psnb._src.data.formats.open_files import INFER, check_compression
from psnb._src.excerpt import shown
from psnb.errors import ConfigurationError


@dataclass(frozen=True)
class TextLines:
    r"""Lines of text files; their columns are one array of str (or bytes) objects.

    Lines end with ``\n`` or ``\r\n``, which are no part of them; the last one need not.

    Parameters
    ----------
    encoding : str or None
        The files' encoding, one in which a newline is the byte ``\n``; None for lines as bytes.
    compression : str or None
        "gzip", "zlib", "bz2" and others of fsspec; "infer": as the file's suffix says.
    max_record_bytes : int
        How long a line may be, at most 2**30 bytes. For a longer one, memory is not taken.

    Raises
    ------
    ConfigurationError
        If the encoding or the compression is not known or not possible.
    """

    encoding: str | None = "utf-8"
    compression: str | None = INFER
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        check_compression(self.compression)
        object.__setattr__(self, "max_record_bytes", checked_limit(self.max_record_bytes))
        if self.encoding is not None:
            try:
                one_byte = "\n".encode(self.encoding) == b"\n"
            except LookupError as error:
                raise ConfigurationError(f"there is no encoding {shown(self.encoding)}") from error
            if not one_byte:
                raise ConfigurationError(
                    f"lines in the encoding {shown(self.encoding)} cannot be told apart "
                    f"by their bytes; "
                    "write the files in UTF-8"
                )

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the lines that begin in ``[offset, end)``.

        Raises
        ------
        DatasetError
            If the file cannot be read or is empty, or at a line that is not in the encoding; those
            before it are yielded.
        """
        for lines in read_lines(path, self.compression, self.max_record_bytes, offset, first, end):
            good, problem = len(lines), None
            try:
                texts = self._texts(lines)
            except UnicodeDecodeError as error:
                good = int(np.searchsorted(lines.starts, error.start, "right")) - 1
                wrong = f"not {self.encoding}: {error.reason} ({lines.data[error.start]:#04x})"
                problem = lines.error(good, error.start, wrong), error
                texts = self._texts(lines, good)
            if good:
                if len(texts) != good:
                    what = f"{self.encoding} has newlines that are no bytes of their own here"
                    raise lines.error(0, 0, what)
                column = np.empty(good, object)
                column[:] = texts
                yield Chunk(column, good, lines.first, lines.offset_after(good))
            if problem is not None:
                raise problem[0] from problem[1]

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        """Return the ranges of parts of about ``size`` bytes."""
        return line_splits(path, self.compression, size)

    def _texts(self, lines: Lines, count: int | None = None) -> list[Any]:
        """Return the first ``count`` lines (all), decoded."""
        count = len(lines) if count is None else count
        if count == 0:
            return []
        # All in one go; up to the last newline, as what is after it would be one more line.
        stop = int(lines.starts[count] - 1 if count < len(lines) else lines.data.size)
        returns = bool((lines.data[:stop] == RETURN).any())
        if count == len(lines) and lines.data[stop - 1] == NEWLINE:
            stop -= 1
        view = lines.data[:stop].data
        if self.encoding is None:
            raw = view.tobytes().split(b"\n")
            return [line.removesuffix(b"\r") for line in raw] if returns else raw
        texts = str(view, self.encoding).split("\n")
        return [text.removesuffix("\r") for text in texts] if returns else texts
