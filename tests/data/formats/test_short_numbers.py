from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from psnb._src.data.formats.numbers import (
    OK,
    nearest_float32,
    read_unsigned,
    short_float,
    short_unsigned,
)
from psnb._src.data.formats.words import WORD, word_at


def read(kernel: Any, text: bytes) -> tuple[Any, int]:
    data = np.frombuffer(text.ljust(2 * WORD, b"\n"), np.uint8)
    return kernel(np.uint64(word_at(data, 0)), np.uint64(word_at(data, WORD)))


@pytest.mark.parametrize("digits", range(1, 16))
@pytest.mark.parametrize("space", [b" ", b"\t"])
def test_integers_of_up_to_15_digits_are_exact(digits: int, space: bytes) -> None:
    for text in (b"9" * digits, b"123456789012345"[:digits], b"0" * digits):
        for rest in (b"", b"7 8", b"-\xff"):
            assert read(short_unsigned, text + space + rest) == (int(text), digits)


@pytest.mark.parametrize(
    "text", [b"", b" 1", b"-1 ", b"+1 ", b"1.5 ", b"1x ", b"1\n", b"1" * 16, b"12345678x "]
)
def test_what_is_no_short_integer_is_left(text: bytes) -> None:
    assert read(short_unsigned, text)[1] == 0


@pytest.mark.parametrize(
    "text",
    (
        b"0 -7 1234567 -123456 0.12345 -0.0 .5 -.25 16.777217 -3.14159265 123.00000001 "
        b"1234567.1234567 -999999.9999999 0.00000001"
    ).split(),
)
def test_usual_floats_are_read(text: bytes) -> None:
    value, size = read(short_float, text + b" 5.")
    assert size == len(text)
    assert value == nearest_float32(text)
    assert np.signbit(value) == text.startswith(b"-")


@pytest.mark.parametrize(
    "text",
    (
        b"/ 1/-/. /- /-. /1e5 /+1 /nan /1.5\n/1..5 /1.x /--1 /1- /0.123456789 /12345678.5 /1.5e3 "
        b"/1.5,/16777217.0 "
    ).split(b"/"),
)
def test_what_is_no_usual_float_is_left(text: bytes) -> None:
    assert read(short_float, text)[1] == 0


@given(st.lists(st.sampled_from(list(b"0123456789 -+.e\t\nx\xff")), max_size=16).map(bytes))
def test_what_is_read_of_any_text_is_what_is_there(text: bytes) -> None:
    token = text.replace(b"\t", b" ").split(b" ")[0]
    value, size = read(short_unsigned, text)
    if size:
        assert (int(value), size, OK) == read_unsigned(
            np.frombuffer(token, np.uint8), 0, len(token)
        )
    value, size = read(short_float, text)
    if size:
        assert size == len(token)
        assert value == nearest_float32(token)


@given(st.integers(-(10**5) + 1, 10**5 - 1), st.integers(0, 10**8 - 1), st.integers(1, 8))
@example(65536, 390625, 8)
def test_floats_are_rounded_correctly_or_left(whole: int, part: int, digits: int) -> None:
    text = f"{whole}.{part:0{digits}}".encode()
    value, size = read(short_float, text + b" ")
    assert size in (0, len(text))
    if size:
        assert value == nearest_float32(text)
