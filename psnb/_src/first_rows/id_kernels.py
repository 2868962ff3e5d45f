"""Compiled loops over ids: their hash, and the numbers that rows begin with. Pure.

The hash is SplitMix64 (Steele, Lea, Flood: *Fast Splittable Pseudorandom Number Generators*,
OOPSLA 2014), used as a counter-based generator too, so that a row's initial values depend on the
table's seed and the id alone: not on the number of servers nor on who asked first. The loops
release the GIL; numba caches the machine code beside this file.
"""

from __future__ import annotations

import numpy as np
from numba import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view that cannot be written.

    numba compiles separate versions for writable and for read-only arguments. Inputs may be either;
    as read-only views they are of one kind, so each kernel is compiled once.
    """
    view = array.view()
    view.flags.writeable = False
    return view


@njit(cache=True, nogil=True, inline="always")
def mix(x):  # type: ignore[no-untyped-def]
    """Mix the bits of a uint64; a bijection."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def hash_ids(ids, out):  # type: ignore[no-untyped-def]
    """Write a well-mixed uint64 for each uint64 id into ``out`` (same shape, one axis)."""
    for i in range(ids.size):
        out[i] = mix(ids[i] + GOLDEN)


@njit(cache=True, nogil=True)
def fill_uniform(out, ids, seed):  # type: ignore[no-untyped-def]
    """Fill ``out`` (n, dim) with uniform values in [0, 1), each from (seed, id, column) alone."""
    for i in range(ids.size):
        key = mix(mix(ids[i] + GOLDEN) ^ seed)
        for j in range(out.shape[1]):
            bits = mix(key + GOLDEN * np.uint64(j + 1))
            out[i, j] = (bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def fill_normal(out, ids, seed):  # type: ignore[no-untyped-def]
    """Fill ``out`` (n, dim) with standard normal values (Box-Muller), from (seed, id, column)."""
    for i in range(ids.size):
        key = mix(mix(ids[i] + GOLDEN) ^ seed)
        for j in range(out.shape[1]):
            first = mix(key + GOLDEN * np.uint64(2 * j + 1))
            second = mix(key + GOLDEN * np.uint64(2 * j + 2))
            # The logarithm's argument is in (0, 1]: never log(0).
            u = ((first >> np.uint64(11)) + 1.0) * (1.0 / 9007199254740992.0)
            v = (second >> np.uint64(11)) * (1.0 / 9007199254740992.0)
            out[i, j] = np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)
