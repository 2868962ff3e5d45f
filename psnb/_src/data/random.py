"""Random numbers that are computed from seeds, and what is drawn with them. Pure.

Random numbers are counter-based: the n-th is computed from a key and n. The mixing function is
SplitMix64's (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). So the
state of a shuffle is two integers.
"""

from __future__ import annotations

import secrets

import numpy as np
from numba import njit

from psnb._src.utils.checks import integer

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_AT_ONCE = 1 << 16


def mixed(*numbers: int) -> int:
    """Return a key made from some integers; each combination gives another key."""
    key = 0
    for number in numbers:
        key = (key + (number & _MASK) + _GOLDEN) & _MASK
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
        key ^= key >> 31
    return key


@njit(cache=True, nogil=True, inline="always")
def _hashed(key, number):  # type: ignore[no-untyped-def]
    """Return the SplitMix64 hash of a key with a number (uint64), different for each."""
    z = key + (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hashes(key: int, numbers: np.ndarray) -> np.ndarray:
    """Return the hash of a key with each number."""
    # In plain NumPy: compiled, each layout of an array would be a version of its own.
    hashes: np.ndarray = _hashed.py_func(np.uint64(key), numbers)
    return hashes


@njit(cache=True, nogil=True, inline="always")
def _uniform(key, number):  # type: ignore[no-untyped-def]
    """Return the n-th number of a key, in [0, 1)."""
    return np.float64(_hashed(key, np.uint64(number)) >> np.uint64(11)) * 2.0**-53


@njit(cache=True, nogil=True)
def _uniforms(key, first, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = _uniform(key, first + i)


def uniforms(key: int, first: int, count: int) -> np.ndarray:
    """Return numbers ``first`` to ``first + count`` of a key, float64 in [0, 1)."""
    out = np.empty(count)
    _uniforms(np.uint64(key), first, out)
    return out


@njit(cache=True, nogil=True)
def _draw(key, first, buffer, size, entering, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        slot = np.int64(_uniform(key, first + i) * size)
        out[i] = buffer[slot]
        if i < entering.size:
            buffer[slot] = entering[i]
        else:
            size -= 1
            buffer[slot] = buffer[size]
    return size


def draw(
    key: int, first: int, buffer: np.ndarray, size: int, entering: np.ndarray, count: int
) -> tuple[np.ndarray, int]:
    """Draw from a shuffle buffer; the next entering element, or the last one, fills the slot.

    Parameters
    ----------
    key, first : int
        The key, and the index of the first random number.
    buffer : numpy.ndarray
        The content, int64; modified in place.
    size : int
        How many slots are in use; at least ``count`` minus the number of entering elements.
    entering : numpy.ndarray
        The numbers that enter, in order, int64; at most ``count``.
    count : int
        How many to draw.

    Returns
    -------
    drawn : numpy.ndarray
        The drawn numbers, int64 ``(count,)``.
    size : int
        The new value.
    """
    out = np.empty(count, np.int64)
    return out, _draw(np.uint64(key), first, buffer, size, entering, out)


def draw_again(key: int, buffer: np.ndarray, size: int, entering: int, end: int, count: int) -> int:
    """Repeat ``count`` draws on a buffer, about ten million per second.

    Parameters as for `draw`, but all numbers from ``entering`` to ``end`` enter; returns the new
    size.
    """
    for first in range(0, count, _AT_ONCE):
        some = min(_AT_ONCE, count - first)
        stop = min(end, entering + some)
        _, size = draw(key, first, buffer, size, np.arange(entering, stop), some)
        entering = stop
    return size


def as_seed(method: str, seed: int | None) -> int:
    """Return the seed, or a random one if it is None.

    Raises
    ------
    ConfigurationError
        If it is not an integer.
    """
    return secrets.randbits(63) if seed is None else integer(f"{method}: seed", seed, None)
