from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.data.formats.criteo import MISSING_CATEGORY, Criteo
from psnb.errors import DatasetError
from tests.data.formats.samples import records, write

# The first line of the Kaggle challenge's layout, with made-up values.
LINE = (
    "0\t1\t1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t-2\t"
    + "68fd1e64\t80e26c9b\t\t"
    + "\t".join(["FB936136"] * 23)
)


def test_a_line_is_read(tmp_path: Path) -> None:
    columns = next(Criteo().read(write(tmp_path, f"{LINE}\r\n{LINE}\n".encode()))).columns
    assert columns["label"].tolist() == [0.0, 0.0]
    dense = [1, 1, 5, 0, 1382, 4, 15, 2, 181, 1, 2, np.nan, -2]
    np.testing.assert_array_equal(columns["dense"], np.array([dense] * 2, np.float32))
    sparse = [0x68FD1E64, 0x80E26C9B, MISSING_CATEGORY, *[0xFB936136] * 23]
    assert columns["sparse"].tolist() == [sparse] * 2


def test_all_but_the_label_may_be_missing(tmp_path: Path) -> None:
    columns = next(Criteo().read(write(tmp_path, b"1" + b"\t" * 39))).columns
    assert np.isnan(columns["dense"]).all()
    assert (columns["sparse"] == MISSING_CATEGORY).all()


@pytest.mark.parametrize(
    ("line", "position", "problem"),
    [
        ("", 0, "the label is : not a number"),
        ("x" + LINE[1:], 0, "the label is x: not a number"),
        ("0\t5", 3, "there are 2 columns, not 40"),
        (LINE + "\t", len(LINE), "there are more than 40 columns"),
        (LINE.replace("1382", "13a2"), 10, "column 6 is 13a2: no integer"),
        (LINE.replace("1382", "1" * 19), 10, "column 6 is 1{19}: no integer"),
        (LINE.replace("1382", "-"), 10, "column 6 is -: no integer"),
        (LINE.replace("80e26c9b", "80e26c9b0"), 43, "column 16 is 80e26c9b0: not up to 8 hex"),
        (LINE.replace("80e26c9b", "80e2 c9b"), 43, "column 16 is 80e2 c9b: not up to 8 hex"),
    ],
)
def test_an_error_in_a_line_is_raised_after_those_before_it(
    line: str, position: int, problem: str, tmp_path: Path
) -> None:
    path = write(tmp_path, f"{LINE}\n{line}\n{LINE}\n".encode())
    reader = Criteo().read(path)
    assert next(reader).count == 1
    byte = len(LINE) + 1 + position
    with pytest.raises(DatasetError, match=f"{path}, line 2, byte {byte}: {problem}"):
        next(reader)


@given(st.lists(st.tuples(st.integers(0, 330), st.binary(max_size=3)), max_size=3))
def test_mutated_lines_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]]
) -> None:
    content = LINE.encode()
    for at, new in edits:
        content = content[:at] + new + content[at + len(new) :]
    with suppress(DatasetError):
        records(Criteo().read(write(tmp_path_factory.getbasetemp(), content, "criteo")))
