"""Bytes eight at a time, as 64-bit integers, compiled by numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.extending import intrinsic

WORD = 8
"""The bytes of a word."""


@njit(cache=True, nogil=True, inline="always")
def word_at(data, at):  # type: ignore[no-untyped-def]
    """Return eight bytes, the first as the lowest; the compiler makes one load of it."""
    at = np.uint64(at)
    return (
        np.uint64(data[at])
        | np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
        | np.uint64(data[at + np.uint64(4)]) << np.uint64(32)
        | np.uint64(data[at + np.uint64(5)]) << np.uint64(40)
        | np.uint64(data[at + np.uint64(6)]) << np.uint64(48)
        | np.uint64(data[at + np.uint64(7)]) << np.uint64(56)
    )


@njit(cache=True, nogil=True, inline="always")
def bytes_above(word, most):  # type: ignore[no-untyped-def]
    """Return the highest bit of each byte that is above ``most``, a number below 128."""
    ones = np.uint64(0x0101010101010101)
    low = word & (ones * np.uint64(127))
    return (word | (low + ones * np.uint64(127 - most))) & (ones * np.uint64(128))


def _zeros(count: str) -> Any:
    def zeros(_context: Any, word: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return getattr(builder, count)(arguments[0], ir.Constant(ir.IntType(1), 0))

        return word(word), generate

    return intrinsic(zeros)


zeros_below, zeros_above = _zeros("cttz"), _zeros("ctlz")
"""How many bits of a word lie below the lowest, or above the highest, that is set: one instruction.
"""


def _multiply(_context: Any, word: Any, _other: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        long, bits = ir.IntType(128), ir.IntType(64)
        product = builder.mul(*(builder.zext(each, long) for each in arguments))
        return builder.trunc(builder.lshr(product, long(64)), bits)

    return word(word, word), generate


high_product: Any = intrinsic(_multiply)
"""The upper one of the two words of a product."""


@njit(cache=True, nogil=True, inline="always")
def half_word(data, at):  # type: ignore[no-untyped-def]
    """Return the four bytes at a position as a little-endian number."""
    value = np.uint64(data[np.uint64(at)])
    value |= np.uint64(data[np.uint64(at + 1)]) << np.uint64(8)
    value |= np.uint64(data[np.uint64(at + 2)]) << np.uint64(16)
    value |= np.uint64(data[np.uint64(at + 3)]) << np.uint64(24)
    return value
