from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.data.formats.text import TextLines, cut_lines
from psnb.errors import ConfigurationError, DatasetError
from tests.data.formats.samples import records, write


def lines(folder: Path, content: bytes, encoding: str | None = "utf-8") -> list[str]:
    return records(TextLines(encoding).read(write(folder, content)))


def test_lines_end_with_a_newline_a_return_and_newline_or_the_file(tmp_path: Path) -> None:
    assert lines(tmp_path, b"a\r\n\nb\rc\nd") == ["a", "", "b\rc", "d"]
    assert lines(tmp_path, b"a\n") == ["a"]
    assert lines(tmp_path, b"\n\n") == ["", ""]


def test_what_ends_lines_elsewhere_does_not_end_them(tmp_path: Path) -> None:
    text = "a\u2028b\x0bc\x0cd\x85e"
    assert lines(tmp_path, text.encode() + b"\nf") == [text, "f"]


def test_lines_of_any_length_are_read_whole(tmp_path: Path) -> None:
    long = "x" * 5_000_000
    assert lines(tmp_path, f"a\n{long}\nb\n{long}".encode()) == ["a", long, "b", long]


def test_lines_without_an_encoding_are_bytes(tmp_path: Path) -> None:
    assert lines(tmp_path, b"\xff\r\n\x00", None) == [b"\xff", b"\x00"]


def test_lines_are_read_in_other_encodings(tmp_path: Path) -> None:
    assert lines(tmp_path, "é\n".encode("latin-1"), "latin-1") == ["é"]


def test_a_line_that_is_not_in_the_encoding_is_named_and_those_before_it_read(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, "é\n".encode() * 6000 + b"ab\xc3(\nok\n")
    reader = TextLines().read(path)
    found = next(reader).count + next(reader).count
    assert found == 6000
    with pytest.raises(DatasetError, match=f"{path}, line 6001, byte 18002: not utf-8") as error:
        next(reader)
    assert isinstance(error.value.__cause__, UnicodeDecodeError)


def test_an_error_in_a_part_says_from_where_it_counts(tmp_path: Path) -> None:
    path = write(tmp_path, b"a\nb\n\xff\n")
    with pytest.raises(DatasetError, match="line 2 after byte 2, byte 4"):
        list(TextLines().read(path, 2))
    with pytest.raises(DatasetError, match="line 3, byte 4"):
        list(TextLines().read(path, 2, first=1))


def test_newlines_that_an_encoding_hides_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="line 1, byte 0: utf-7 has newlines"):
        lines(tmp_path, b"a+AAo-b\n", "utf-7")


@pytest.mark.parametrize("encoding", ["utf-16", "cp037", "no-such"])
def test_encodings_whose_newlines_are_no_bytes_are_refused(encoding: str) -> None:
    with pytest.raises(ConfigurationError, match=encoding):
        TextLines(encoding)


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_are_split_as_python_does(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, size: int
) -> None:
    path = write(tmp_path_factory.getbasetemp(), content + b"|", "lines")
    expected = [line.removesuffix(b"\r") for line in (content + b"|").split(b"\n")]
    form = TextLines(encoding=None)
    parts = form.splits(path, size)
    assert [row for a, b in parts for row in records(form.read(path, a, end=b))] == expected


def test_the_column_is_an_array_of_str(tmp_path: Path) -> None:
    column = next(TextLines().read(write(tmp_path, b"a\nb\n"))).columns
    assert column.dtype == np.dtype(object)
    assert type(column[0]) is str


@pytest.mark.parametrize("size", [0, 1, 8, 31, 32, 33, 64, 96])
def test_what_lies_behind_the_data_is_not_read(size: int) -> None:
    everything = np.full(size + 8, ord("\n"), np.uint8)
    everything[:size] = ord("x")
    starts, ends = np.empty((2, 4), np.int64)
    assert cut_lines(everything[:size], 1 << 40, starts, ends) == (0, 0)
