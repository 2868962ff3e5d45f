from __future__ import annotations

import csv
import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.data.formats import csv as csv_format
from psnb._src.data.formats.csv import Csv
from psnb.errors import ConfigurationError, DatasetError
from tests.data.formats.samples import records, write


def read(folder: Path, content: bytes, form: Csv | None = None) -> list[Any]:
    return records((form or Csv()).read(write(folder, content)))


def test_types_are_those_of_the_first_records(tmp_path: Path) -> None:
    path = write(tmp_path, b"a,b,c,d\n1,x,2.5,true\n2,,,false\n")
    columns = next(Csv().read(path)).columns
    assert [column.dtype for column in columns.values()] == [np.int64, object, np.float64, bool]
    assert columns["b"].tolist() == ["x", ""]
    assert np.isnan(columns["c"][1])


def test_integers_of_64_bits_stay_such(tmp_path: Path) -> None:
    path = write(tmp_path, b"id,x\n5,1.5\n18446744073709551615, 1e300\n9007199254740993,2\n")
    columns = next(Csv().read(path)).columns
    assert columns["id"].dtype == np.uint64
    assert columns["id"].tolist() == [5, 2**64 - 1, 2**53 + 1]
    assert columns["x"].tolist() == [1.5, 1e300, 2.0]


@pytest.mark.parametrize("other", [b"-1", b"18446744073709551616"])
def test_integers_that_no_type_holds_together_are_refused(other: bytes, tmp_path: Path) -> None:
    path = write(tmp_path, b"id\n9223372036854775808\n" + other + b"\n")
    with pytest.raises(DatasetError, match=r"column 'id': no 64-bit type holds"):
        next(Csv().read(path))
    columns = next(Csv(dtypes={"id": float}).read(path)).columns
    assert columns["id"].tolist() == [2.0**63, float(other)]


def test_columns_are_chosen_and_typed(tmp_path: Path) -> None:
    path = write(tmp_path, b"a,b,c\n1,2,3\n4,5,6\n")
    columns = next(Csv(["c", "a"], {"c": "float32", "a": str}).read(path)).columns
    assert list(columns) == ["c", "a"]
    assert columns["c"].dtype == np.float32
    assert columns["a"].tolist() == ["1", "4"]


def test_a_file_may_have_no_header_and_another_delimiter(tmp_path: Path) -> None:
    form = Csv(header=False, delimiter="\t")
    assert read(tmp_path, b"1\t2\n3\t4", form) == [{"f0": 1, "f1": 2}, {"f0": 3, "f1": 4}]
    named = Csv(header=True, names=["x", "y"])
    assert read(tmp_path, b"a,b\n1,2\n", named) == [{"x": 1, "y": 2}]


def test_records_end_in_any_way_and_empty_lines_are_none(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbfa\r\n\r\n1\r2\n\n\n3\r\n") == [{"a": i} for i in (1, 2, 3)]
    assert read(tmp_path, b"a,b\n") == read(tmp_path, b"\n\n") == []


@pytest.mark.parametrize("rows", [1, 9000])
def test_a_byte_order_mark_is_none_of_the_first_field(tmp_path: Path, rows: int) -> None:
    data = b"1,2\n" * rows
    found = read(tmp_path, b'\xef\xbb\xbf"a\n,b",c\n' + data)
    assert found == [{"a\n,b": 1, "c": 2}] * rows
    path = write(tmp_path, b'\xef\xbb\xbf"a\n,b",c\n' + data)
    form = Csv(header=False, dtypes={"f0": str, "f1": str})
    chunks = list(form.read(path))
    first = chunks[0]
    assert records(chunks)[0] == {"f0": "a\n,b", "f1": "c"}
    rest = form.read(path, first.next_offset, first.count)
    assert records(rest) == records(chunks)[first.count :]


def test_a_quoted_field_may_be_longer_than_what_is_read_at_a_time(tmp_path: Path) -> None:
    long = "x\n" * 1_500_000
    assert read(tmp_path, f'a,b\n1,"{long}"\n2,y\n'.encode()) == [
        {"a": 1, "b": long},
        {"a": 2, "b": "y"},
    ]


@pytest.mark.parametrize(
    ("content", "form", "problem"),
    [
        (b"a,b\n1,2\n\n3\n", Csv(), "record 2, byte 9: CSV parse error: Expected 2 columns, got 1"),
        (b"a\n1\nx\n", Csv(dtypes={"a": int}), "record 2, byte 4: .*invalid value 'x'"),
        (
            b"a,b\n1,2\n,3\n",
            Csv(),
            r"record 2, byte 8: column 'a' of int64 is empty: dtypes=\{'a': 'float64'\}",
        ),
        (b"a,b\n1,2\n", Csv(["c"]), r"the columns are \['a', 'b'\]; no {'c'}"),
        (b"a,a\n1,2\n", Csv(), r"the columns are \['a', 'a'\]"),
        (b"a\n\xff\n", Csv(dtypes={"a": str}), "record 1, byte 2: .*invalid UTF8"),
        (b"a\nx\n\xff\n", Csv(), "record 2, byte 4: .*invalid UTF8.* the dtype bytes"),
        (b'a,b\n1,x\n2,"y\n3,z\n', Csv(), "record 2, byte 8: a quote that is never closed"),
        (b'a,b\n1,"x""\n', Csv(), "record 1, byte 4: a quote that is never closed"),
        (b'a,"b\n1,2\n', Csv(), "record 1, byte 0: a quote that is never closed"),
        (b'a,b\n1,"x"y\n', Csv(), "record 1, byte 9: 'y' follows the quote that closes a field"),
        (b'a,b\n1,2\n3,"x" \n', Csv(), "record 2, byte 13: ' ' follows the quote"),
        (b'"a"b,c\n1,2\n', Csv(), "record 1, byte 3: 'b' follows the quote"),
        (b'"a""b"c\n', Csv(header=False), "record 1, byte 6: 'c' follows the quote"),
    ],
)
def test_what_is_wrong_is_reported(content: bytes, form: Csv, problem: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"{tmp_path}/part.*{problem}"):
        read(tmp_path, content, form)


def test_records_before_a_bad_one_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, b"a\n" + b"1\n" * 5000 + b"1.5\n2\n")
    reader = Csv().read(path)
    assert next(reader).count + next(reader).count == 5000
    with pytest.raises(DatasetError, match="record 5001, byte 10002"):
        next(reader)


def test_records_before_a_quote_that_closes_too_early_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, b"a\n" + b'"x"\n' * 5000 + b'"x"y\n"z"\n')
    reader = Csv().read(path)
    assert next(reader).count + next(reader).count == 5000
    with pytest.raises(DatasetError, match="record 5001, byte 20005: 'y' follows"):
        next(reader)
    # It may lie in what is read next, and every part but that one is good.
    parts = Csv().splits(path, 5000)
    assert sum(len(records(Csv().read(path, begin, end=end))) for begin, end in parts[:-1]) > 0


def test_the_first_of_several_bad_records_is_named(tmp_path: Path) -> None:
    form = Csv(dtypes={"a": int, "b": int})
    with pytest.raises(DatasetError, match=r"record 2, byte 8: .*column #1.*'x'"):
        read(tmp_path, b"a,b\n1,1\n2,x\ny,3\n4\n", form)


def test_resumed_reading_takes_the_types_of_the_first_records(tmp_path: Path) -> None:
    path = write(tmp_path, b"a\nx\n" + b"1\n" * 9000)
    chunk = next(Csv().read(path))
    assert next(Csv().read(path, chunk.next_offset)).columns["a"][0] == "1"


@pytest.mark.parametrize(
    "make", [lambda: Csv(delimiter=";;"), lambda: Csv(delimiter="\n"), lambda: Csv(dtypes={"a": 5})]
)
def test_what_cannot_be_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


NUMBERS = [
    *("0", "-0", "007", "-12345678", "123456789012345678", str(2**63 - 1), str(-(2**63))),
    *("255", "-129", str(2**63), str(2**64 - 1), "0.5", "-.5", "5.", "-0.0", "1e5", "1E-5"),
    *("1e22", "1e23", "8.5e-23", "1e300", str(2**53 + 1), "0.1234567890123456789", "16777217"),
    *("1.000000059604644775", "3.4028235e38", "1e-45", "0.30000000000000004", "5e-324", "1e65"),
]


@given(
    st.lists(st.sampled_from(NUMBERS) | st.floats(width=64, allow_nan=False).map(repr), min_size=1),
    st.sampled_from(["float64", "float32", "int64", "uint64", "int8"]),
    st.sampled_from(["", " "]),
)
def test_numbers_are_what_pyarrow_reads(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], dtype: str, space: str
) -> None:
    content = "x,a\n" + "".join(f"1,{space}{text}\n" for text in texts)
    path = write(tmp_path_factory.getbasetemp(), content.encode())
    types = {"a": pa.from_numpy_dtype(np.dtype(dtype))}
    form = Csv(dtypes={"a": dtype})
    convert = pyarrow.csv.ConvertOptions(column_types=types)
    try:
        expected = pyarrow.csv.read_csv(path, convert_options=convert)["a"].to_numpy()
    except pa.ArrowInvalid:
        with pytest.raises(DatasetError, match=r"column #1: .* invalid value"):
            list(form.read(path))
        return
    (chunk,) = form.read(path)
    assert chunk.columns["a"].dtype == expected.dtype
    assert chunk.columns["a"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\r", b"\n3,4\n"])
def test_an_empty_float_may_be_the_last_field(end: bytes, tmp_path: Path) -> None:
    found = read(tmp_path, b"a,b\n1,2\n5," + end, Csv(dtypes={"b": float}))
    assert str(found[:2]) == "[{'a': 1, 'b': 2.0}, {'a': 5, 'b': nan}]"


def test_one_unusual_field_changes_no_other(tmp_path: Path) -> None:
    rows = [{"a": i, "b": i / 8, "c": -i} for i in range(9000)]
    lines = [f"{row['a']},{row['b']},{row['c']}" for row in rows]
    lines[5] = '"5", 0.625 ,-5'
    lines[6000] = "6000,0.0750e+4,-06000"
    assert read(tmp_path, "\n".join(["a,b,c", *lines]).encode()) == rows


def test_a_delimiter_that_numbers_have_ends_them(tmp_path: Path) -> None:
    form = Csv(header=False, delimiter=".", dtypes={"f0": float, "f1": float})
    assert read(tmp_path, b"1.5\n2.6\n", form) == [{"f0": 1, "f1": 5}, {"f0": 2, "f1": 6}]


def test_numbers_have_the_order_of_the_columns_that_are_wanted(tmp_path: Path) -> None:
    path = write(tmp_path, b"a,b,c\n1,2,3\n")
    assert list(next(Csv(["c", "a"]).read(path)).columns) == ["c", "a"]


def test_columns_own_their_memory(tmp_path: Path) -> None:
    path = write(tmp_path, b"a,b\n" + b"1,2.5\n" * 9000)
    first, second, third = (chunk.columns for chunk in Csv().read(path))
    for column in [*first.values(), *third.values()]:
        assert (column if column.base is None else column.base).size == column.size
    assert (first["b"] == 2.5).all()
    assert not np.shares_memory(first["a"], second["a"])


def test_no_number_is_written_where_there_is_no_room() -> None:
    data = np.frombuffer(b"1,2\n3,4\n5,6\n7\n", np.uint8)
    kinds = np.array([csv_format.SIGNED, csv_format.FLOAT64], np.uint8)
    numbers = np.zeros((2, 2), np.uint64)
    most = np.array([2**63 - 1, 0], np.uint64)
    starts = np.empty(9, np.int64)
    count, *_ = csv_format.find_records(data, 44, True, starts, kinds, most, numbers)
    assert count == 4
    assert kinds.tolist() == [csv_format.OTHER] * 2
    assert numbers[0].tolist() == [1, 3]


fields = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5))


@given(st.lists(st.tuples(fields, fields).map(lambda pair: ["".join(f) for f in pair])))
def test_what_python_writes_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *rows])
    form = Csv(dtypes={"a": str, "b": str})
    found = read(tmp_path_factory.getbasetemp(), out.getvalue().encode(), form)
    assert [list(row.values()) for row in found] == rows


@given(
    st.lists(st.tuples(fields, fields).map(lambda pair: ["".join(f) for f in pair]), min_size=1),
    st.integers(1, 60),
    st.sampled_from(["", "\ufeff"]),
)
def test_parts_begin_where_records_do(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], size: int, mark: str
) -> None:
    out = io.StringIO()
    csv.writer(out).writerows([["a", "b"], *rows])
    path = write(tmp_path_factory.getbasetemp(), (mark + out.getvalue()).encode())
    form = Csv(dtypes={"a": str, "b": str})
    parts = form.splits(path, size)
    found = [row for begin, end in parts for row in records(form.read(path, begin, end=end))]
    assert found == records(form.read(path))
    assert len(parts) > len(out.getvalue()) // (size + 200)


def test_a_quote_that_never_closes_is_found_where_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, b"a,b\n1,2\n3,4\n" + b'5,"6\n' + b"7,8\n" * 3)
    *good, last = Csv().splits(path, 4)
    assert [records(Csv().read(path, begin, end=end)) for begin, end in good if begin]
    with pytest.raises(DatasetError, match="never closed"):
        records(Csv().read(path, last[0]))


@given(st.lists(st.sampled_from(list(b'1x,"\n\r \xff')), max_size=60).map(bytes))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    with suppress(DatasetError):
        read(tmp_path_factory.getbasetemp(), content)
    with suppress(DatasetError):
        read(tmp_path_factory.getbasetemp(), b"1,2\n" + content, Csv(header=False))
