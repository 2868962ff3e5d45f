"""Loops that numpy has no vectorised function for, compiled by numba.

They release the GIL, work in place, and are compiled once: numba caches the machine code next to
this file. Rows of a table are numbered densely from 0; an id is any 64-bit pattern.

Loops over ids are in `psnb._src.server.hashing`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

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


# Kernels over the rows of many tables.
#
# A call from Python takes longer than a table's share of a step, so one call has the rows of all
# tables of one kind. It finds the arrays of each by its *place*: int64 numbers in memory that does
# not move, of which the first is the address of the place of its index
# (`psnb._src.server.tables.row_index`) and each of the others that of an array of rows. How many
# columns these have, and of which dtype they are, an empty array says that is ``like`` them; see
# `psnb._src.server.stored` for dtypes that numba does not know.
#
# Loops go over slices, from 0 on: numba then knows that no index counts from the end, which saves a
# tenth.

VALUES, SLOT = 1, 2
"""Where in a place the addresses of the values and of the first slot are."""

PLACE = 6
"""How many numbers a place has: the longest optimizer has three slots, one is to spare."""


def address(array: np.ndarray) -> int:
    """Return where the memory of an array begins."""
    found: int = array.__array_interface__["data"][0]
    return found


def _pointer(typing_context: Any, number: Any, like: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.int64, like), generate


pointer: Any = intrinsic(_pointer)
"""For compiled code: ``pointer(address, like)``, to numbers of the dtype of an array."""


@njit
def at_place(places, table, field, like):  # type: ignore[no-untyped-def]
    """Return one of the arrays of a table, a matrix with rows of the columns of ``like``."""
    place = carray(pointer(places[table], places), (PLACE,))
    # How many rows it has does not matter: none is counted from the end.
    return carray(pointer(place[field], like), (1, like.shape[1]))


@njit
def lines(array):  # type: ignore[no-untyped-def]
    """Return how many cache lines of a row of a matrix to ask for."""
    return min((array.shape[1] * array.itemsize + _LINE - 1) // _LINE, _MOST_LINES)


@njit
def ask_for_row(array, row):  # type: ignore[no-untyped-def]
    """Ask for a row of a matrix; no row, below 0, is taken for the first one."""
    for line in range(lines(array)):
        ask_for(array, max(row, 0), line)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view that cannot be written, or the array if that cannot.

    numba compiles separate versions for writable and for read-only arguments. Inputs may be either;
    as read-only views they are of one kind, so each kernel is compiled once.
    """
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


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
def copy_rows(rows, source, to):  # type: ignore[no-untyped-def]
    """Copy rows of a matrix of bytes to other places in it."""
    for i in range(source.size):
        for j in range(rows.shape[1]):
            rows[to[i], j] = rows[source[i], j]


@njit(cache=True, nogil=True)
def found_first(rows, ids, gradients, out_rows, out_ids, out):  # type: ignore[no-untyped-def]
    """Copy those rows (int64) that are not below 0, their ids and gradients; return how many."""
    count = 0
    for i in range(rows.size):
        if rows[i] >= 0:
            out_rows[count], out_ids[count] = rows[i], ids[i]
            for j in range(gradients.shape[1]):
                out[count, j] = gradients[i, j]
            count += 1
    return count


@njit(cache=True, nogil=True)
def record_use(use, rows, shows, clicks):  # type: ignore[no-untyped-def]
    """Add shows and clicks to rows of ``use``, which are seen today, but for rows below 0."""
    for i in range(rows.size):
        if rows[i] >= 0:
            use[rows[i], 0] += shows[i]
            use[rows[i], 1] += clicks[i]
            use[rows[i], 2] = 0


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
    """Set the bits (in uint8, the lowest first) of rows; rows without one are left out."""
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
def take_rows(places, offsets, rows, out):  # type: ignore[no-untyped-def]
    """Copy rows of the values of tables to ``out``; zeros for rows below 0."""
    for table in range(places.size):
        values = at_place(places, table, VALUES, out)
        start, stop = offsets[table], offsets[table + 1]
        some, own = rows[start:stop], out[start:stop]
        for i in range(some.size):
            ask_for_row(values, some[min(i + AHEAD, some.size - 1)])
            row = some[i]
            if row >= 0:
                for j in range(own.shape[1]):
                    own[i, j] = values[row, j]
            else:
                for j in range(own.shape[1]):
                    own[i, j] = 0


@njit(cache=True, nogil=True)
def add_rows_to_bags(rows, position, bounds, factors, out):  # type: ignore[no-untyped-def]
    """Write the sum of the rows of each bag's members, in their order, to ``out``.

    ``position`` (int32) says which row each member is; ``bounds`` (int64) where the members of each
    bag begin and end. Each row is multiplied by its factor, if there are factors.
    """
    # Not in one loop with `take_rows`: that would save a third at most where no id is repeated, and
    # takes up to three times as long where ids are.
    last, stop = np.uint64(rows.shape[0] - 1), np.int64(0)
    for bag in range(out.shape[0]):
        total = out[bag]
        for j in range(total.size):
            total[j] = 0
        # Within its array, as positions are: another process may write to shared memory after they
        # were checked.
        start, stop = stop, max(stop, min(bounds[bag + 1], position.size))
        for i in range(start, stop):
            ahead = min(np.uint64(position[min(i + AHEAD, position.size - 1)]), last)
            for line in range(lines(rows)):
                ask_for(rows, np.int64(ahead), line)
            row = rows[min(np.uint64(position[i]), last)]
            factor = factors[i] if factors.size else rows.dtype.type(1)
            for j in range(total.size):
                total[j] += factor * row[j]


@njit(cache=True, nogil=True)
def add_bags_to_rows(bags, position, bounds, factors, out):  # type: ignore[no-untyped-def]
    """Write the sum of the bags that each row is in, in their order, to ``out``.

    As `add_rows_to_bags` with what is read and written exchanged: the one's gradient.
    """
    last, stop = np.uint64(out.shape[0] - 1), np.int64(0)
    out[:] = 0
    for bag in range(bags.shape[0]):
        given = bags[bag]
        start, stop = stop, max(stop, min(bounds[bag + 1], position.size))
        for i in range(start, stop):
            ahead = min(np.uint64(position[min(i + AHEAD, position.size - 1)]), last)
            for line in range(lines(out)):
                ask_for(out, np.int64(ahead), line)
            row = out[min(np.uint64(position[i]), last)]
            factor = factors[i] if factors.size else out.dtype.type(1)
            for j in range(row.size):
                row[j] += factor * given[j]


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


def copy_finite(array: np.ndarray, out: np.ndarray) -> bool:
    """Copy a contiguous array of floats to another, and return whether it is `all_finite`."""
    return math.isfinite(copy_with_norm(array, out)) or bool(np.isfinite(out).all())
