"""What is copied here of a remote file."""

from __future__ import annotations

import fsspec
import pytest

from psnb._src.server.files import partial_copy
from psnb._src.server.files.partial_copy import PartialCopy
from psnb._src.utils.paths import RemotePath


def test_of_a_remote_file_only_blocks_that_are_asked_for_are_copied_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partial_copy, "_BLOCK", 10)
    content = bytes(range(1, 36))
    fsspec.filesystem("memory").pipe_file("/copied/file", content)
    read: list[int] = []
    copy = PartialCopy(RemotePath("memory://copied/file"), read.append)
    assert copy.get(12, 22).read_bytes() == bytes(10) + content[10:30]
    assert copy.get(29, 30).read_bytes() == bytes(10) + content[10:30]
    assert read == [10, 10]
    assert copy.get().read_bytes() == content
    assert read == [10, 10, 10, 5]
    path = copy.get(33, 99)  # more than there is
    copy.remove()
    assert not path.exists()


@pytest.mark.parametrize("given", [b"short", bytes(35)])
def test_what_a_store_gives_in_place_of_a_block_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, given: bytes
) -> None:
    monkeypatch.setattr(partial_copy, "_BLOCK", 10)
    fsspec.filesystem("memory").pipe_file("/copied/file", bytes(range(35)))
    copy = PartialCopy(RemotePath("memory://copied/file"))
    with monkeypatch.context() as cut:
        cut.setattr(RemotePath, "read", lambda *_: given)
        with pytest.raises(OSError, match=rf"copied/file gave {len(given)} bytes in place of 10"):
            copy.get(12, 14)
    assert copy.get(12, 14).read_bytes()[12:14] == bytes([12, 13])
