"""Compiled loops over numbers that may be stored in half width, with stochastic rounding. Pure.

bfloat16 is float32 without its lower 16 bits. float16 has a smaller range, and three more bits of
precision. A step is often smaller than half of the distance between two such numbers: rounded to
the nearest, a row would never move. So what an optimizer writes is rounded *stochastically*, up or
down with the chance that makes the mean right (Gupta et al., ICML 2015; for embeddings Zhang et
al., *Training with low-precision embedding tables*, 2018; so does FBGEMM). Which way follows from
the table's seed, the id, the count of the table's updates and the column: replicas, and a closure
that sees its own pushes, get the same bits. What is assigned, and how a row starts, is rounded to
the nearest.

Compiled loops see codes (`psnb._src.transport.half_width`): `widen` and `narrow` convert single
ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from psnb._src.server.hashing import GOLDEN, mix
from psnb._src.server.kernels import read_only
from psnb._src.transport import half_width
from psnb._src.utils.memory import aligned


def _float_of_half(typing_context: Any, code: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.int16), generate


_wide_half: Any = intrinsic(_float_of_half)

# Tried out: numbers of one row, its slots among them, are rounded independently of each other.
_STEP = np.uint32(0x45D9F3B5)
_COLUMN = np.uint32(0x9E3779B9)
_OTHERS = np.uint32(0x85EBCA77)

_SIGN, _FRACTION = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_INFINITE = np.uint32(0x7F800000)
_LEAST_NORMAL = np.float32(2.0**-14)
_EXPONENTS_APART = np.uint32((127 - 15) << 23)
_LARGEST_CODE = np.uint32(0x7BFF)
_BEYOND = np.float32(65520.0)


def widen(number):  # type: ignore[no-untyped-def]
    """For compiled code: return a stored number, given its code, as it is computed with."""
    raise NotImplementedError


@overload(widen)
def _widen(number):  # type: ignore[no-untyped-def]
    if number == types.uint16:
        return lambda number: np.uint32(np.uint32(number) << np.uint32(16)).view(np.float32)
    if number == types.int16:
        return lambda number: _wide_half(number)
    return lambda number: number


@njit(cache=True, nogil=True)
def _widen_all(codes, out):  # type: ignore[no-untyped-def]
    for i in range(codes.size):
        out[i] = widen(codes[i])


def widened(array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return what `half_width.widened` does, in a compiled loop: of float16 in a third of its time.

    ``out`` is contiguous memory for it.
    """
    wide = half_width.computed(array.dtype)
    if wide == array.dtype:
        return array
    if out is None:
        out = aligned(array.shape, wide)
    _widen_all(read_only(half_width.codes(array).reshape(-1)), out.reshape(-1))
    return out


@njit
def noise(key, column):  # type: ignore[no-untyped-def]
    """Return random bits, uint32, for a number of a row; see `row_key`.

    The highest bits are the best ones: those that `narrow` uses.
    """
    bits = np.uint32(key + np.uint32(np.uint32(column) * _COLUMN))
    # One round: the key is mixed well.
    return np.uint32(np.uint32(bits ^ np.uint32(bits >> np.uint32(16))) * _STEP)


@njit
def again(bits):  # type: ignore[no-untyped-def]
    """Return other random bits, for the next number at the same place, given some."""
    return np.uint32(np.uint32(bits ^ np.uint32(bits >> np.uint32(15))) * _OTHERS)


def narrow(number, like, bits):  # type: ignore[no-untyped-def]
    """For compiled code: return the code of a number, rounded by random bits.

    ``like`` is a number that has the dtype of the code.
    """
    raise NotImplementedError


@njit
def _narrow_bfloat16(number, random):  # type: ignore[no-untyped-def]
    bits = np.float32(number).view(np.uint32)
    up = np.uint32(np.uint32(bits + np.uint32(random >> np.uint32(16))) >> np.uint32(16))
    return np.uint16(up if number == number else np.uint32(0x7FC0))


@njit
def _narrow_float16(number, random):  # type: ignore[no-untyped-def]
    bits = np.float32(number).view(np.uint32)
    size = np.float32(abs(number))
    sign = np.uint32(np.uint32(bits & _SIGN) >> np.uint32(16))
    magnitude = np.uint32(bits & _FRACTION)
    share = np.uint32(random >> np.uint32(19))
    # Below the normal numbers all are as far apart: by 2 ** -24.
    small = min(size, _LEAST_NORMAL) * np.float32(2.0**24) + share * np.float32(2.0**-13)
    code = np.uint32(np.uint32(np.uint32(magnitude + share) - _EXPONENTS_APART) >> np.uint32(13))
    code = np.uint32(np.int32(small)) if size < _LEAST_NORMAL else code
    code = np.uint32(min(code, _LARGEST_CODE))
    code = np.uint32(0x7C00) if size >= _BEYOND else code
    code = code if number == number else np.uint32(0x7E00)
    return np.int16(np.uint16(sign | code))


@overload(narrow)
def _narrow(number, like, bits):  # type: ignore[no-untyped-def]
    if like == types.uint16:
        return lambda number, like, bits: _narrow_bfloat16(number, bits)
    if like == types.int16:
        return lambda number, like, bits: _narrow_float16(number, bits)
    return lambda number, like, bits: number


@njit
def row_key(name, seed):  # type: ignore[no-untyped-def]
    """Return what the random bits of a row follow from: its id, and the seed of this update."""
    return np.uint32(mix(mix(name + GOLDEN) + seed))


def seed_of(seed: int, step: int) -> int:
    """Return the seed of an update of a table with a seed."""
    return (seed + (step + 1) * int(GOLDEN)) & 0xFFFFFFFFFFFFFFFF


@njit(cache=True, nogil=True)
def _merge_rows(stored, rows, ids, learned, share, seed, slot):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        if rows[i] >= 0:
            key = np.uint32(row_key(ids[i], seed) + slot)
            for j in range(stored.shape[1]):
                old = stored[rows[i], j]
                number = widen(old)
                apart = learned[i, j] - number if slot else learned[i, j]
                stored[rows[i], j] = narrow(number + apart * share, old, noise(key, j))


def merge_rows(
    stored: np.ndarray,
    rows: np.ndarray,
    ids: np.ndarray,
    learned: np.ndarray,
    share: np.floating[Any],
    seed: int,
    slot: int,
) -> None:
    """Merge what was learned elsewhere into rows of a table, but into none below 0.

    Parameters
    ----------
    stored : numpy.ndarray
        The codes of the array.
    rows, ids, learned : numpy.ndarray
        int64 and uint64 ``(n,)``, and ``(n, columns)`` in the dtype for computing, which ``share``
        has too.
    seed : int
        Of this update; see `seed_of`.
    slot : int
        0 for values, to which a share of ``learned`` is added; or the number of a slot, from 1 on,
        which moves that share of the way to it.
    """
    of = read_only(rows), read_only(ids), read_only(learned)
    _merge_rows(stored, *of, share, np.uint64(seed), np.uint32(slot))


@njit(cache=True, nogil=True)
def _put_rows(stored, rows, ids, numbers, seed, slot):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        key = np.uint32(row_key(ids[i], seed) + slot)
        for j in range(stored.shape[1]):
            stored[rows[i], j] = narrow(numbers[i, j], stored[rows[i], j], noise(key, j))


def put_rows(
    stored: np.ndarray,
    rows: np.ndarray,
    ids: np.ndarray,
    numbers: np.ndarray,
    seed: int,
    slot: int,
) -> None:
    """Write computed numbers to rows (none below 0); the arguments are those of `merge_rows`."""
    of = read_only(rows), read_only(ids), read_only(numbers)
    _put_rows(stored, *of, np.uint64(seed), np.uint32(slot))
