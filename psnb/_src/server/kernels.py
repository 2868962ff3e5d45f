"""Loops that numpy has no vectorised function for, compiled by numba.

They release the GIL, work in place, and are compiled once: numba caches the machine code beside
this file. Rows of a table are numbered densely from 0; an id is any 64-bit pattern.

The hash is that of `psnb._src.first_rows`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from psnb._src.first_rows import GOLDEN, mix, read_only
from psnb._src.server.prefetching import AHEAD, ask_for, lines

EMPTY = np.int32(-1)
"""Marks a free slot of a hash map."""

_FIRST_HEADS = 1 << 15


@njit(cache=True, nogil=True, inline="always")
def _first_slot(key, slots):  # type: ignore[no-untyped-def]
    """Return where the search for an id begins."""
    # The low 32 bits, mapped to the range by a multiplication (Lemire, 2019): works for any size.
    return ((mix(key + GOLDEN) & np.uint64(0xFFFFFFFF)) * slots) >> np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def _slot(keys, rows, key):  # type: ignore[no-untyped-def]
    """Return the slot that an id has in the hash map, or the free one that it would get."""
    slots = np.uint64(keys.size)
    slot = _first_slot(key, slots)
    # The key first: it is mostly there, and then nothing waits for the other array.
    while keys[slot] != key and rows[slot] != EMPTY:
        slot += np.uint64(1)
        if slot == slots:
            slot = np.uint64(0)
    return slot


@njit(cache=True, nogil=True)
def find(keys, rows, ids, out):  # type: ignore[no-untyped-def]
    """Look up ids in an open-addressing hash map; -1 for those without a row.

    ``keys`` (uint64) and ``rows`` (int32) are the slots; at least one is free. ``rows`` has the
    id's row, or `EMPTY` if the slot is free, or ``-1 - n`` if the id was sighted ``n`` times but
    has no row yet.
    """
    for i in range(ids.size):
        ahead = _first_slot(ids[min(i + AHEAD, ids.size - 1)], np.uint64(keys.size))
        ask_for(keys, np.int64(ahead), 0)
        ask_for(rows, np.int64(ahead), 0)
        row = rows[_slot(keys, rows, ids[i])]
        out[i] = row if row >= 0 else -1


@njit(cache=True, nogil=True)
def sight(keys, rows, ids, start, sightings, count, free, out):  # type: ignore[no-untyped-def]
    """Look up ids from ``start`` on; those sighted often enough get the next rows from ``count``.

    Ends early when no slot may be taken any more (``free``). Returns how many ids are done, the new
    count, and how many slots may still be taken.
    """
    for i in range(start, ids.size):
        ahead = _first_slot(ids[min(i + AHEAD, ids.size - 1)], np.uint64(keys.size))
        ask_for(keys, np.int64(ahead), 0)
        ask_for(rows, np.int64(ahead), 0)
        slot = _slot(keys, rows, ids[i])
        row = rows[slot]
        if row < 0:
            if row == EMPTY:
                if free == 0:
                    return i, count, free
                keys[slot] = ids[i]
                free -= 1
            row -= 1
            if -1 - row >= sightings:
                row = count
                count += 1
            rows[slot] = row
        out[i] = row if row >= 0 else -1
    return ids.size, count, free


@njit(cache=True, nogil=True)
def move(keys, rows, new_keys, new_rows):  # type: ignore[no-untyped-def]
    """Copy a hash map into an empty one of another size."""
    for i in range(keys.size):
        if rows[i] != EMPTY:
            slot = _slot(new_keys, new_rows, keys[i])
            new_keys[slot] = keys[i]
            new_rows[slot] = rows[i]


@njit(cache=True, nogil=True)
def put(keys, rows, ids, values):  # type: ignore[no-untyped-def]
    """Set the values of ids in the hash map; new ids are added."""
    for i in range(ids.size):
        slot = _slot(keys, rows, ids[i])
        keys[slot] = ids[i]
        rows[slot] = values[i]


@njit(cache=True, nogil=True)
def _heads(ids, size):  # type: ignore[no-untyped-def]
    """Return a hash map from distinct ids to their positions; its size is a power of two."""
    heads = np.full(size, EMPTY)
    mask = np.uint64(size - 1)
    for i in range(ids.size):
        slot = mix(ids[i] + GOLDEN) & mask
        while heads[slot] != EMPTY:
            slot = (slot + np.uint64(1)) & mask
        heads[slot] = i
    return heads


# Apart from `find_distinct`: a loop that gives one of its arrays another value takes six times as
# long.
@njit(cache=True, nogil=True)
def _find_more(ids, start, found, count, position, heads):  # type: ignore[no-untyped-def]
    """Go on with ids from ``start`` until ``heads`` is half full.

    Returns how many ids are done, and how many distinct ones there are.
    """
    mask = np.uint64(heads.size - 1)
    for i in range(start, ids.size):
        slot = mix(ids[i] + GOLDEN) & mask
        at = heads[slot]
        while at != EMPTY and found[at] != ids[i]:
            slot = (slot + np.uint64(1)) & mask
            at = heads[slot]
        if at == EMPTY:
            if 2 * count >= heads.size:
                return i, count
            at = heads[slot] = count
            found[at] = ids[i]
            count += 1
        position[i] = at
    return ids.size, count


@njit(cache=True, nogil=True)
def find_distinct(ids, found, position):  # type: ignore[no-untyped-def]
    """Write each id (uint64) once into ``found``, in the order of first appearance.

    ``position`` gets the position of each id in ``found``. Returns how many distinct ids there are.
    """
    # Small as long as there are few distinct ids, so that it stays in a near cache.
    size = 64
    while size < min(2 * ids.size, _FIRST_HEADS):
        size *= 2
    heads = _heads(found[:0], size)
    done, count = _find_more(ids, 0, found, 0, position, heads)
    while done < ids.size:
        heads = _heads(found[:count], 4 * heads.size)
        done, count = _find_more(ids, done, found, count, position, heads)
    return count


@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def add_up(gradients, position, out):  # type: ignore[no-untyped-def]
    """Add up gradients of the same position, in their order, in ``out``; see `find_distinct`.

    Returns 0 if all of them are finite, and NaN if one is not.
    """
    seen = 0
    nothing = gradients.dtype.type(0)
    zero = gradients.dtype.type(0)
    for i in range(position.size):
        at = position[i]
        if at == seen:
            for j in range(gradients.shape[1]):
                out[at, j] = gradients[i, j]
                nothing += gradients[i, j] * zero
            seen += 1
        else:
            for j in range(gradients.shape[1]):
                out[at, j] += gradients[i, j]
                nothing += gradients[i, j] * zero
    return nothing


@njit(cache=True, nogil=True)
def set_bits(bits, rows):  # type: ignore[no-untyped-def]
    """Set the bits (in uint8, the lowest first) of rows, but for those that have none."""
    for i in range(rows.size):
        byte = rows[i] >> 3
        if byte < bits.size:
            bits[byte] |= np.uint8(1 << (rows[i] & 7))


@njit(cache=True, nogil=True)
def take(values, rows, out):  # type: ignore[no-untyped-def]
    """Copy rows of ``values`` to ``out``; zeros for rows below 0."""
    for i in range(rows.size):
        ahead = max(rows[min(i + AHEAD, rows.size - 1)], 0)
        for line in range(lines(values)):
            ask_for(values, ahead, line)
        row = rows[i]
        if row >= 0:
            for j in range(values.shape[1]):
                out[i, j] = values[row, j]
        else:
            for j in range(values.shape[1]):
                out[i, j] = 0


# Sums may be taken in any order, or the loop is four times as slow. (But NaN is not ruled out.)
@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def _squares(flat):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(flat.size):
        number = np.float64(flat[i])
        total += number * number
    return total


def norm(array: np.ndarray) -> float:
    """Return the Euclidean norm of a contiguous array of floats, taken in double precision.

    NaN or infinite if one of the numbers is, or if it is too large for float64.
    """
    return math.sqrt(_squares(read_only(array.reshape(-1))))


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def _copy(flat, out):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(flat.size):
        out[i] = flat[i]
        number = np.float64(flat[i])
        total += number * number
    return total


def copy_with_norm(array: np.ndarray, out: np.ndarray) -> float:
    """Copy a contiguous array of floats to another, and return its `norm`."""
    return math.sqrt(_copy(read_only(array.reshape(-1)), out.reshape(-1)))


def all_finite(array: np.ndarray) -> bool:
    """Return whether a contiguous array of floats has neither NaN nor infinities."""
    return math.isfinite(norm(array)) or bool(np.isfinite(array).all())
