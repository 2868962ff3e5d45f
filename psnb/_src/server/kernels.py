"""Loops that numpy has no vectorised function for, compiled by numba.

They release the GIL, work in place, and are compiled once: numba caches the machine code beside
this file. Rows of a table are numbered densely from 0; an id is any 64-bit pattern.

The hash also makes the first values of rows (`psnb._src.server.states`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from psnb._src.server.memory import scratch

# Prefetch hints to the processor, in loops over rows of a table.
#
# Random rows are not in the processor's caches, and without hints each waits for memory in turn.
# With hints some rows ahead, many are loaded at the same time: a lookup takes a third of the time.

AHEAD = 16
"""How many rows ahead: 8 are too few, more gain nothing."""

_LINE = 64
_MOST_LINES = 8  # of a row; the processor prefetches the rest of a longer one by itself


def _ask_for(typing_context: Any, array: Any, row: Any, line: Any) -> Any:
    """Ask for one of the cache lines of a row of an array (``lines`` says how many to ask for).

    It is a hint, and affects speed only.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = arrayobj.make_array(signature.args[0])(context, builder, arguments[0])
        stride = cgutils.unpack_tuple(builder, made.strides)[0]
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        start = builder.bitcast(made.data, pointer)
        offset = builder.mul(arguments[2], ir.IntType(64)(_LINE))
        address = builder.gep(start, [builder.add(builder.mul(arguments[1], stride), offset)])
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        # For reading, kept in all caches, data.
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate


ask_for: Any = intrinsic(_ask_for)
"""The function above for compiled code: ``ask_for(array, row, line)``."""


@njit
def lines(array):  # type: ignore[no-untyped-def]
    """Return how many cache lines of a row of a matrix to ask for."""
    return min((array.shape[1] * array.itemsize + _LINE - 1) // _LINE, _MOST_LINES)


# Compiled loops over ids: their hash, and the numbers that rows begin with. Pure.
#
# The hash is SplitMix64 (Steele, Lea, Flood: *Fast Splittable Pseudorandom Number Generators*,
# OOPSLA 2014), used as a counter-based generator too, so that a row's initial values depend on the
# table's seed and the id alone: not on the number of servers nor on who asked first. The loops
# release the GIL; numba caches the machine code beside this file.

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


EMPTY = np.int32(-1)
"""Marks a free slot of a hash map."""

MOST_ROWS = 2**31
"""How many rows the int32 of a hash map can tell apart."""

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
    has no row yet. Returns how many ids have none.
    """
    missing = 0
    for i in range(ids.size):
        ahead = _first_slot(ids[min(i + AHEAD, ids.size - 1)], np.uint64(keys.size))
        ask_for(keys, np.int64(ahead), 0)
        ask_for(rows, np.int64(ahead), 0)
        row = rows[_slot(keys, rows, ids[i])]
        out[i] = row if row >= 0 else -1
        missing += row < 0
    return missing


@njit(cache=True, nogil=True)
def sight(keys, rows, ids, may, frequencies, count, free, out, by_row):  # type: ignore[no-untyped-def]
    """Look up ids; those sighted often enough get the next rows from ``count``.

    ``may`` (bool) says which may get one, or is empty: all may. ``by_row`` gets the id of each new
    row. Ends early when no slot may be taken any more (``free``), or ``by_row`` is full, or there
    are `MOST_ROWS`. Returns how many ids are done, the new count, and how many slots may still be
    taken.
    """
    for i in range(ids.size):
        ahead = _first_slot(ids[min(i + AHEAD, ids.size - 1)], np.uint64(keys.size))
        ask_for(keys, np.int64(ahead), 0)
        ask_for(rows, np.int64(ahead), 0)
        slot = _slot(keys, rows, ids[i])
        row = rows[slot]
        if row < 0 and (may.size == 0 or may[i]):
            if count == by_row.size or count == MOST_ROWS:
                return i, count, free
            if row == EMPTY:
                if free == 0:
                    return i, count, free
                keys[slot] = ids[i]
                free -= 1
            row -= 1
            if -1 - row >= frequencies:
                row = count
                by_row[row] = ids[i]
                count += 1
            rows[slot] = row
        out[i] = row if row >= 0 else -1
    return ids.size, count, free


@njit(cache=True, nogil=True)
def take_back(keys, rows, ids, left):  # type: ignore[no-untyped-def]
    """Take the rows of ids back, the last ones that `sight` gave; ``left`` is what they have then.

    `EMPTY` may be left only if nothing took a slot after them, and they took theirs in this order.
    """
    for i in range(ids.size - 1, -1, -1):
        rows[_slot(keys, rows, ids[i])] = left


@njit(cache=True, nogil=True)
def move_up(rows, kept):  # type: ignore[no-untyped-def]
    """Move the rows of a matrix that are ``kept`` (bool) to its front, in their order."""
    to = 0
    for i in range(kept.size):
        if kept[i]:
            for j in range(rows.shape[1]):
                rows[to, j] = rows[i, j]
            to += 1


@njit(cache=True, nogil=True)
def found_first(rows, gradients, out_rows, out):  # type: ignore[no-untyped-def]
    """Copy those rows (int64) that are not below 0, and their gradients; return how many."""
    count = 0
    for i in range(rows.size):
        if rows[i] >= 0:
            out_rows[count] = rows[i]
            for j in range(gradients.shape[1]):
                out[count, j] = gradients[i, j]
            count += 1
    return count


@njit(cache=True, nogil=True)
def add_rows(values, rows, learned):  # type: ignore[no-untyped-def]
    """Add ``learned`` to rows of ``values``, but for rows below 0."""
    for i in range(rows.size):
        if rows[i] >= 0:
            for j in range(values.shape[1]):
                values[rows[i], j] += learned[i, j]


@njit(cache=True, nogil=True)
def approach_rows(values, rows, learned, share):  # type: ignore[no-untyped-def]
    """Move rows of ``values`` a share of the way to ``learned``, but for rows below 0."""
    for i in range(rows.size):
        if rows[i] >= 0:
            for j in range(values.shape[1]):
                values[rows[i], j] += (learned[i, j] - values[rows[i], j]) * share


@njit(cache=True, nogil=True)
def record_use(use, rows, shows, clicks):  # type: ignore[no-untyped-def]
    """Add shows and clicks to rows of ``use``, which are seen today, but for rows below 0."""
    for i in range(rows.size):
        if rows[i] >= 0:
            use[rows[i], 0] += shows[i]
            use[rows[i], 1] += clicks[i]
            use[rows[i], 2] = 0


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


def heads_size(count: int) -> int:
    """Return how many heads `find_distinct` needs for ``count`` ids."""
    size = 64
    while size < min(2 * count, _FIRST_HEADS):
        size *= 2
    while size < 2 * count:
        size *= 4
    return size


@njit(cache=True, nogil=True)
def _enter(heads, ids):  # type: ignore[no-untyped-def]
    """Make a hash map from distinct ids to their positions; its size is a power of two."""
    heads[:] = EMPTY
    mask = np.uint64(heads.size - 1)
    for i in range(ids.size):
        slot = mix(ids[i] + GOLDEN) & mask
        while heads[slot] != EMPTY:
            slot = (slot + np.uint64(1)) & mask
        heads[slot] = i


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
def find_distinct(ids, found, position, heads):  # type: ignore[no-untyped-def]
    """Write each id (uint64) once into ``found``, in the order of first appearance.

    ``position`` gets the position of each id in ``found``. ``heads`` is memory, of `heads_size`.
    Returns how many distinct ids there are.
    """
    # Small as long as there are few distinct ids, so that it stays in a near cache.
    size = 64
    while size < min(2 * ids.size, _FIRST_HEADS):
        size *= 2
    _enter(heads[:size], found[:0])
    done, count = _find_more(ids, 0, found, 0, position, heads[:size])
    while done < ids.size:
        size *= 4
        _enter(heads[:size], found[:count])
        done, count = _find_more(ids, done, found, count, position, heads[:size])
    return count


@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def add_up(gradients, position, out, seen, factor):  # type: ignore[no-untyped-def]
    """Add up gradients of the same position, in their order, in ``out``; see `find_distinct`.

    Each is multiplied by ``factor``, of their dtype.

    The positions below ``seen`` have a sum already. Returns 0 if all of them are finite, and NaN if
    one is not; and how many positions have a sum now.
    """
    nothing = gradients.dtype.type(0)
    zero = gradients.dtype.type(0)
    for i in range(position.size):
        at = position[i]
        if at == seen:
            for j in range(gradients.shape[1]):
                out[at, j] = factor * gradients[i, j]
                nothing += gradients[i, j] * zero
            seen += 1
        else:
            for j in range(gradients.shape[1]):
                out[at, j] += factor * gradients[i, j]
                nothing += gradients[i, j] * zero
    return nothing, seen


@njit(cache=True, nogil=True)
def divide(ids, shards, count, rows):  # type: ignore[no-untyped-def]
    """Write the row of each id, the id divided by ``shards``; return the first not below ``count``.

    Its position, that is; the number of ids if all are. A single shard divides nothing.
    """
    for i in range(ids.size):
        row = ids[i] if shards == 1 else ids[i] // np.uint64(shards)
        if row >= np.uint64(count):
            return i
        rows[i] = np.int64(row)
    return ids.size


@njit(cache=True, nogil=True)
def set_bits(bits, rows):  # type: ignore[no-untyped-def]
    """Set the bits (in uint8, the lowest first) of rows, but for those that have none."""
    for i in range(rows.size):
        byte = rows[i] >> 3
        if 0 <= byte < bits.size:
            bits[byte] |= np.uint8(1 << (rows[i] & 7))


@njit(cache=True, nogil=True)
def mark_rows(marks, bits, mark):  # type: ignore[no-untyped-def]
    """Set the marks of the rows whose bits are set, as `set_bits` does that."""
    for byte in range(bits.size):
        if bits[byte]:  # mostly not
            for row in range(8 * byte, min(8 * byte + 8, marks.size)):
                if bits[byte] >> (row & 7) & 1:
                    marks[row] = mark


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


def square_norm(array: np.ndarray) -> float:
    """Return the square of `norm`."""
    return float(_squares(read_only(array.reshape(-1))))


def norm(array: np.ndarray) -> float:
    """Return the Euclidean norm of a contiguous array of floats, taken in double precision.

    NaN or infinite if one of the numbers is, or if it is too large for float64.
    """
    return math.sqrt(square_norm(array))


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


# Repeated ids: find the distinct ones, and add up the gradients of equal ids. Pure.

_SAMPLE = 1024


def often_repeated(ids: np.ndarray) -> bool:
    """Estimate from the first ids (uint64) whether `distinct` would return far fewer."""
    sample = ids[:_SAMPLE]
    return sample.size >= 64 and distinct(sample)[0].size < 0.75 * sample.size


def distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ids, and the position of each of ``ids`` among them.

    Parameters
    ----------
    ids : numpy.ndarray
        uint64 ``(n,)``.

    Returns
    -------
    tuple of numpy.ndarray
        The distinct ids in the order of their first appearance, uint64 ``(m,)``; a position in them
        for each of ``ids``, intp ``(n,)``.
    """
    found, position = scratch(ids.size, np.uint64), scratch(ids.size, np.intp)
    heads = scratch(heads_size(ids.size), np.int32)
    n = find_distinct(read_only(ids), found, position, heads)
    return found[:n], position


def summed(ids: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each id once, in the order of first appearance, with the sum of its gradients."""
    found, position = distinct(ids)
    sums = scratch((found.size, gradients.shape[1]), gradients.dtype)
    add_up_rows(gradients, position, sums)
    return found, sums


def add_up_rows(gradients: np.ndarray, position: np.ndarray, out: np.ndarray) -> bool:
    """Add up the gradients of each position, in their order, and tell whether all are finite.

    Parameters
    ----------
    gradients : numpy.ndarray
        ``(n, dim)``, contiguous.
    position : numpy.ndarray
        The position of each gradient's id, ``(n,)``, as `distinct` returns it.
    out : numpy.ndarray
        ``(m, dim)``; is overwritten.
    """
    nothing, _ = add_up(read_only(gradients), position, out, 0, gradients.dtype.type(1))
    return bool(nothing == 0)
