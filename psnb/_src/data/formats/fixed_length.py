"""Records of one length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psnb._src.data.formats.files import INFER
from psnb._src.data.formats.records import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    LONGEST,
    ByteWindow,
    Chunk,
    FilePosition,
    Records,
)
from psnb.errors import ConfigurationError


@dataclass(frozen=True)
class FixedLengthRecords(Records):
    """Records of the same length; their columns are one array of bytes objects."""

    record_bytes: int
    header_bytes: int = 0
    footer_bytes: int = 0
    compression: str | None = INFER

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.record_bytes <= LONGEST:
            raise ConfigurationError(f"record_bytes is {self.record_bytes}: not in 1..{LONGEST}")
        if self.header_bytes < 0 or not 0 <= self.footer_bytes <= LONGEST:
            raise ConfigurationError(
                f"header_bytes is {self.header_bytes}, footer_bytes {self.footer_bytes}: "
                "not what a file can have"
            )

    def chunks(self, window: ByteWindow, place: FilePosition, end: int | None) -> Iterator[Chunk]:
        size, first = self.record_bytes, place.first
        most = min(CHUNK_RECORDS, max(1, CHUNK_BYTES // size))
        if window.offset == 0 and not window.data.size:
            return  # an empty file has no header either
        while (missing := self.header_bytes - window.offset) > 0:
            if not window.data.size and not window.more():
                raise place.error("record", 0, window.offset, "the header is cut short")
            window.skip(min(missing, window.data.size))
        while end is None or window.offset < end:
            window.fill(most * size + self.footer_bytes)
            count = min((window.data.size - self.footer_bytes) // size, most)
            if end is not None:
                count = min(count, -(-(end - window.offset) // size))
            if count <= 0:
                break
            records = window.data[: count * size].view(f"V{size}").astype(object)
            window.skip(count * size)
            yield Chunk(records, count, first, window.offset)
            first += count
        else:
            return
        if window.data.size != self.footer_bytes:
            raise place.error(
                "record",
                first,
                window.offset,
                f"the file ends after {window.data.size} bytes, which are neither a record of "
                f"{size} bytes nor the footer of {self.footer_bytes}",
            )

    def cuts(self, path: str, size: int, total: int) -> list[int]:
        step = max(1, size // self.record_bytes) * self.record_bytes
        return list(range(self.header_bytes + step, total - self.footer_bytes, step))
