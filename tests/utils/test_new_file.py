"""Files that are being written."""

from __future__ import annotations

import fsspec
import pytest

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
