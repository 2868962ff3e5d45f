"""Files that are being written."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from xxhash import xxh3_64_hexdigest

from psnb._src.utils.files import NewFile


def test_what_fails_leaves_no_file_where_fsspec_writes() -> None:
    system = fsspec.filesystem("memory")

    def fail() -> None:
        with NewFile("memory://left", "file") as file:
            file.write(memoryview(b"some"))
            raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        fail()
    assert not system.exists("/left/file")


def test_a_part_begins_where_numbers_can_be_used_and_has_its_own_checksum(tmp_path: Path) -> None:
    with NewFile(str(tmp_path), "file") as file:
        starts, sums = [], []
        for part in (b"abc", b"", b"12345678", b"z"):
            starts.append(file.begin_part())
            file.write(memoryview(part))
            sums.append(file.checksum)
    assert starts == [0, 8, 8, 16]
    assert (tmp_path / "file").read_bytes() == b"abc\0\0\0\0\x0012345678z"
    assert sums == [xxh3_64_hexdigest(part) for part in (b"abc", b"", b"12345678", b"z")]
