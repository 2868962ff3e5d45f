from __future__ import annotations

from pathlib import Path

import pytest

from psnb._src.data.formats.fixed_length import FixedLengthRecords
from psnb.errors import ConfigurationError, DatasetError
from tests.data.formats.samples import records, write


def test_header_and_footer_are_no_records(tmp_path: Path) -> None:
    path = write(tmp_path, b"HEAD" + bytes(range(6)) + b"FOOT")
    assert records(FixedLengthRecords(3, 4, 4).read(path)) == [b"\0\1\2", b"\3\4\5"]


def test_a_file_may_have_no_record(tmp_path: Path) -> None:
    assert not list(FixedLengthRecords(3, 2, 1).read(write(tmp_path, b"HHF")))


def test_a_header_may_be_longer_than_what_is_read_at_a_time(tmp_path: Path) -> None:
    path = write(tmp_path, bytes(3_000_000) + b"ab")
    assert records(FixedLengthRecords(2, 3_000_000).read(path)) == [b"ab"]


def test_a_record_may_be_longer_than_what_is_read_at_a_time(tmp_path: Path) -> None:
    path = write(tmp_path, bytes(6_000_001))
    chunks = list(FixedLengthRecords(3_000_000, 0, 1).read(path))
    assert [list(map(len, chunk.columns)) for chunk in chunks] == [[3_000_000]] * 2


def test_a_record_that_is_cut_short_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, b"H" + bytes(8) + b"F")
    reader = FixedLengthRecords(3, 1, 1).read(path)
    assert next(reader).count == 2
    with pytest.raises(DatasetError, match=f"{path}, record 3, byte 7: the file ends after 3"):
        next(reader)


def test_a_header_that_is_cut_short_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, b"HH")
    with pytest.raises(DatasetError, match=f"{path}, record 1, byte 2: the header is cut short"):
        next(FixedLengthRecords(3, 5).read(path))


@pytest.mark.parametrize("lengths", [(0,), (1, -1), (1, 0, -1)])
def test_lengths_that_no_file_has_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="bytes is"):
        FixedLengthRecords(*lengths)
