from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.data.formats.multi_slot import MultiSlot, Slot
from psnb.errors import ConfigurationError, DatasetError
from tests.data.formats.samples import records, write

SLOTS = [Slot("a"), Slot("b", "float32", (2,)), Slot("c", "float32"), Slot("d", "uint64", ())]


def read(folder: Path, text: str | bytes, slots: Any = SLOTS) -> list[Any]:
    content = text if isinstance(text, bytes) else text.encode()
    return records(MultiSlot(slots).read(write(folder, content)))


def test_sparse_and_dense_slots_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, "2 7 8 2 0.5 -1 1 2.5 1 9\n0 2 1e3 2 0 1 3\n") == [
        {"a": [7, 8], "b": [0.5, -1.0], "c": [2.5], "d": 9},
        {"a": [], "b": [1000.0, 2.0], "c": [], "d": 3},
    ]


def test_spaces_tabs_and_returns_may_be_around_values(tmp_path: Path) -> None:
    assert read(tmp_path, " \t2   7\t8 \r\n1 9", [Slot("a")]) == [{"a": [7, 8]}, {"a": [9]}]


def test_ids_are_exact_up_to_64_bits(tmp_path: Path) -> None:
    ids = [2**64 - 1, 2**63, 2**53 + 1, 0]
    assert read(tmp_path, f"4 {' '.join(map(str, ids))}\n", [Slot("a")]) == [{"a": ids}]


def test_floats_that_take_a_second_look_are_read(tmp_path: Path) -> None:
    # The middle of two float32, a little more, and what is not a plain number.
    text = "4 16777217.0 16777217.00000000000000000001 -inf 1e-45\n"
    [row] = read(tmp_path, text * 2, [Slot("f", "float32")])[1:]
    assert row["f"] == [16777216.0, 16777218.0, float("-inf"), 2.0**-149]


@pytest.mark.parametrize(
    ("line", "position", "problem"),
    [
        ("", 0, "the line is empty, not 4 slots"),
        ("  ", 0, "the line is empty"),
        ("1 7", 3, "slot 'b': the line ends before it"),
        ("2 7", 0, "slot 'a': the line ends before the last of 2 values"),
        ("99999999999999999 7", 0, "slot 'a': the line ends before the last of 9{17} values"),
        ("99999999999999999999 7", 0, "slot 'a': 9{20} is not a count of values"),
        ("x 7", 0, "slot 'a': x is not a count of values"),
        ("-1 7", 0, "slot 'a': -1 is not a count of values"),
        ("1 x", 2, "slot 'a': x is not an integer"),
        ("1 1.5", 2, "slot 'a': 1.5 is not an integer"),
        ("2 1 -5", 4, "slot 'a': -5 is negative: ids are unsigned"),
        ("1 18446744073709551616", 2, r"slot 'a': 18446744073709551616 is above 2\*\*64 - 1"),
        ("0 3 1 2 3", 2, r"slot 'b': there are 3 values, where the shape \(2,\) holds 2"),
        ("0 2 1 y 0 1 1", 6, "slot 'b': y is not a number"),
        ("0 2 1 1e39 0 1 1", 6, "slot 'b': 1e39 is beyond the largest float32"),
        ("0 2 1 2 1 3", 11, "slot 'd': the line ends before it"),
        ("0 2 1 2 1 3 1 5 6", 16, "6 follows the last slot 'd'"),
        ("0 2 y 2 1 3 1 5 6", 4, "slot 'b': y is not a number"),
    ],
)
def test_an_error_in_a_line_is_raised_after_those_before_it(
    line: str, position: int, problem: str, tmp_path: Path
) -> None:
    good = "1 7 2 1 2 1 3 1 5\n"
    path = write(tmp_path, f"{good}{good}{line}\n{good}".encode())
    reader = MultiSlot(SLOTS).read(path)
    chunk = next(reader)
    assert chunk.count == 2
    assert chunk.next_offset == 36
    with pytest.raises(DatasetError, match=f"{path}, line 3, byte {36 + position}: {problem}"):
        next(reader)


def test_the_first_of_several_bad_lines_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"line 2.*y is not a number"):
        read(tmp_path, "1 1\n1 y\n1 z\n\n", [Slot("f", "float32")])


def test_bytes_that_are_no_text_are_shown(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="slot 'a': \\\\xff is not a count"):
        read(tmp_path, b"\xff 1\n", [Slot("a")])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Slot("a", "int32"),
        lambda: Slot("a", shape=(3, -1)),
        lambda: MultiSlot([]),
        lambda: MultiSlot([Slot("a"), Slot("a", "float32")]),
        lambda: MultiSlot(SLOTS, compression="rar"),
    ],
)
def test_slots_that_cannot_be_are_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


rows = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2**64 - 1), max_size=4),
        st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2),
        st.lists(st.floats(width=32, allow_nan=False), max_size=4),
        st.integers(0, 2**64 - 1),
    ),
    min_size=1,
    max_size=5,
)


def written(rows: list[Any]) -> str:
    return "".join(
        " ".join(f"{len(values)} {' '.join(map(repr, values))}" for values in (*row[:3], [row[3]]))
        + "\n"
        for row in rows
    )


@given(rows)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: Any) -> None:
    found = read(tmp_path_factory.getbasetemp(), written(rows))
    assert [tuple(row.values()) for row in found] == rows


@given(rows, st.lists(st.tuples(st.integers(0, 99), st.binary(max_size=3)), max_size=4))
def test_mutated_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: Any, edits: list[tuple[int, bytes]]
) -> None:
    content = written(rows).encode()
    for at, new in edits:
        content = content[:at] + new + content[at + len(new) :]
    try:
        read(tmp_path_factory.getbasetemp(), content)
    except DatasetError:
        pass
    else:
        assert content.strip(b" \t\r")


@given(st.lists(st.sampled_from(list(b"0123456789 -.e\n\r\tx")), max_size=80).map(bytes))
def test_any_text_is_read_as_a_plain_parser_does(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    slots = [Slot("a"), Slot("b", "float32")]
    try:
        lines = content.removesuffix(b"\n").split(b"\n") if content else []
        expected = [plainly(line) for line in lines]
    except ValueError:
        with pytest.raises(DatasetError):
            read(tmp_path_factory.getbasetemp(), content, slots)
    else:
        assert read(tmp_path_factory.getbasetemp(), content, slots) == expected


def plainly(line: bytes) -> dict[str, list[Any]]:
    """Parse a line; ValueError if it is not one."""
    tokens = line.removesuffix(b"\r").replace(b"\t", b" ").split(b" ")
    tokens = [token for token in tokens if token]
    found: dict[str, list[Any]] = {}
    for name, convert in (("a", integer), ("b", float)):
        if not tokens:
            raise ValueError
        count = integer(tokens.pop(0))
        values, tokens = tokens[:count], tokens[count:]
        if len(values) < count:
            raise ValueError
        found[name] = [convert(value) for value in values]
    if tokens or any(abs(value) > 3e38 for value in found["b"]):
        raise ValueError
    found["b"] = np.array(found["b"], np.float32).tolist()
    return found


def integer(text: bytes) -> int:
    if not text.isdigit() or int(text) >= 2**64:
        raise ValueError
    return int(text)


def test_a_slot_that_is_not_used_is_parsed_and_dropped(tmp_path: Path) -> None:
    slots = [Slot("a"), Slot("b", "float32", used=False), Slot("c", "uint64", (), used=False)]
    assert read(tmp_path, "1 7 2 0.5 1 1 9\n0 0 1 3\n", slots) == [{"a": [7]}, {"a": []}]
    with pytest.raises(DatasetError, match="slot 'c': x is not an integer"):
        read(tmp_path, "1 7 0 1 x\n", slots)


def test_a_first_size_may_be_left_to_the_data(tmp_path: Path) -> None:
    slots = [Slot("a", "float32", (-1, 2)), Slot("b", "uint64", (-1,)), Slot("c")]
    text = "4 1 2 3 4 1 7 1 5\n0 2 8 9 1 6\n"
    assert read(tmp_path, text, slots) == [
        {"a": [[1, 2], [3, 4]], "b": [7], "c": [5]},
        {"a": [], "b": [8, 9], "c": [6]},
    ]
    with pytest.raises(DatasetError, match=r"line 2.*'a': there are 3 values, which the"):
        read(tmp_path, "2 1 2 0 0\n3 1 2 3 0 0\n", slots)


def test_every_line_may_have_as_many_values_as_one_row_has(tmp_path: Path) -> None:
    # One value each shares its offsets with other slots, where a row is of one value.
    slots = [Slot("a", "uint64", (-1, 1)), Slot("b")]
    assert read(tmp_path, "1 4 1 5\n1 6 1 7\n", slots) == [
        {"a": [[4]], "b": [5]},
        {"a": [[6]], "b": [7]},
    ]


@pytest.mark.parametrize("shape", [(2, -1), (-2,), (-1, -1), (-1, 0)])
def test_other_sizes_must_be_known(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="has the shape"):
        Slot("a", shape=shape)


def test_some_slot_must_be_used() -> None:
    with pytest.raises(ConfigurationError, match="none of the slots"):
        MultiSlot([Slot("a", used=False)])


def test_words_are_taken_as_they_are(tmp_path: Path) -> None:
    slots = [Slot("id", "bytes", ()), Slot("a"), Slot("two", "bytes", (2,))]
    text = "1 x\xe9-1 2 7 8 2 p 0\n1 a 0 2 \tqq  r\n"
    assert read(tmp_path, text, slots) == [
        {"id": "x\xe9-1".encode(), "a": [7, 8], "two": [b"p", b"0"]},
        {"id": b"a", "a": [], "two": [b"qq", b"r"]},
    ]
    with pytest.raises(DatasetError, match="slot 'id': there are 2 values"):
        read(tmp_path, "2 x y 0 2 p q\n", slots)
    for shape in (None, (-1,)):
        with pytest.raises(ConfigurationError, match="give the shape of its words"):
            Slot("id", "bytes", shape)
