from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from psnb._src.data.formats.numbers import (
    JUNK,
    NEGATIVE,
    OK,
    OVERFLOW,
    UNKNOWN,
    nearest_float32,
    nearest_float64,
    read_float,
    read_unsigned,
)


def unsigned(text: bytes) -> tuple[int, int, int]:
    value, at, wrong = read_unsigned(np.frombuffer(text, np.uint8), 0, len(text))
    return int(value), at, wrong


def fast(text: bytes) -> tuple[np.float32 | None, int]:
    """Return what the kernel reads, None if it does not know, and where it ended."""
    value, at, wrong = read_float(np.frombuffer(text, np.uint8), 0, len(text))
    assert wrong in (OK, UNKNOWN)
    return (np.float32(value) if wrong == OK else None), at


def correctly_rounded(text: str) -> float:
    """Return the float32 nearest to a number, by comparing fractions."""
    exact = Fraction(text)
    low = np.float32(float(exact))
    for _ in range(2):
        if Fraction(float(low)) > exact:
            low = np.nextafter(low, np.float32(-np.inf))
    high = np.nextafter(low, np.float32(np.inf))
    below, above = exact - Fraction(float(low)), Fraction(float(high)) - exact
    if below == above:
        return float(low if int(low.view(np.uint32)) % 2 == 0 else high)
    return float(low if below < above else high)


@given(st.integers(0, 2**64 - 1))
@example(2**64 - 1)
@example(2**53 + 1)
def test_integers_are_exact(number: int) -> None:
    text = str(number).encode()
    assert unsigned(text) == (number, len(text), OK)
    assert unsigned(b"000" + text + b" 5") == (number, len(text) + 3, OK)


@given(st.integers(2**64, 2**90))
@example(2**64)
def test_integers_of_more_than_64_bits_are_refused(number: int) -> None:
    assert unsigned(str(number).encode())[2] == OVERFLOW


@pytest.mark.parametrize(
    ("text", "wrong"),
    [(b"", JUNK), (b"-1", NEGATIVE), (b"-", JUNK), (b"-x", JUNK), (b"1.5", JUNK), (b"+1", JUNK)],
)
def test_what_is_no_unsigned_integer_is_refused(text: bytes, wrong: int) -> None:
    assert unsigned(text)[2] == wrong


@given(st.integers(-(10**25), 10**25), st.integers(-60, 45), st.booleans())
@example(16777217, 0, False)
@example(167772170, -1, True)
@example(5, -46, True)
@example(7006492321624085, -61, False)
def test_floats_are_rounded_correctly(digits: int, exponent: int, point: bool) -> None:
    text = f"{digits}e{exponent}"
    if point:
        sign, absolute = "-" * (digits < 0), str(abs(digits))
        text = f"{sign}{absolute[0]}.{absolute[1:]}e{exponent + len(absolute) - 1}"
    exact = Fraction(text)
    value, at = fast(text.encode() + b" 1")
    assert at == len(text)
    if abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103:
        with pytest.raises(OverflowError):
            nearest_float32(text.encode())
        assert value is None
        return
    slow = nearest_float32(text.encode())
    assert slow is not None
    assert float(slow) == correctly_rounded(text)
    assert value is None or float(value) == float(slow)


@given(st.integers(0x00800000, 0x7F7FFFFE), st.integers(-3, 3))
def test_floats_near_the_middle_of_two_are_rounded_correctly(bits: int, away: int) -> None:
    low, high = np.array([bits, bits + 1], np.uint32).view(np.float32)
    middle = (Fraction(float(low)) + Fraction(float(high))) / 2
    # Exactly, in as many digits as that takes, and a little off in the last of them.
    scale = 10**160
    text = f"{int(middle * scale) + away}e-160"
    value, _ = fast(text.encode())
    slow = nearest_float32(text.encode())
    assert slow is not None
    assert float(slow) == correctly_rounded(text)
    assert value is None or value == slow


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_shortest_text_of_a_float32_is_that_float32_again(number: float) -> None:
    for text in (repr(number), str(np.float32(number))):
        value, _ = fast(text.encode())
        found = nearest_float32(text.encode()) if value is None else value
        assert found is not None
        assert float(found) == number
        assert math.copysign(1, found) == math.copysign(1, number)


def test_usual_floats_need_no_second_look() -> None:
    for text in (b"0", b"-0.0", b"1", b"0.12345", b"-3.25e-7", b".5", b"5.", b"+1E+3"):
        value, at = fast(text)
        assert at == len(text)
        assert value == np.float32(text.decode())


def test_words_are_read_as_python_does() -> None:
    assert nearest_float32(b"-Infinity") == -np.inf
    assert np.isnan(nearest_float32(b"NaN") or 0)


@pytest.mark.parametrize(
    "text", [b"", b"-", b".", b"1e", b"1_0", b"0x1", b"1 ", "٣".encode(), b"1e5x", b"e5", b"--1"]
)
def test_what_is_no_float_is_none(text: bytes) -> None:
    assert nearest_float32(text) is None
    value, at = fast(text)
    assert value is None or at < len(text)


def test_absurd_exponents_take_no_time() -> None:
    assert nearest_float32(b"1e-999999999999") == 0
    assert nearest_float32(b"0e999999999999") == 0
    with pytest.raises(OverflowError):
        nearest_float32(b"1e999999999999")
    assert fast(b"1e-999999999999") == (None, 15)


@given(st.binary(max_size=30))
def test_any_bytes_are_read_within_their_bounds(content: bytes) -> None:
    for read in (unsigned, fast):
        assert 0 <= read(content)[1] <= len(content)


@given(st.integers(0, 2**64 - 1) | st.integers(2**53, 2**54), st.integers(-65, 65))
@example(2**53 + 1, 0)
@example(2**54 + 1, 1)
@example(9007199254740993 * 5, -1)
@example(1, 23)
@example(2**64 - 1, -27)
def test_float64_are_correctly_rounded(mantissa: int, exponent: int) -> None:
    value, exact = nearest_float64(np.uint64(mantissa), exponent)
    assert exact == (abs(exponent) <= 64)
    assert not exact or value == float(f"{mantissa}e{exponent}")
