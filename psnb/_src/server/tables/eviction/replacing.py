"""Compiled loops by which new ids take the rows of others, and rows are removed. Pure.

A table with a bound has a *queue* of ids that are to leave next. The rows of those that still are
have a flag in their *stamp*, which says when they were used last: to use a row takes the flag away.
So whatever is in the queue, a row leaves only if it was not used since it was chosen.

The hash maps are those of `psnb._src.server.hashing`. An id is deleted by moving those behind it
back (Knuth, *The Art of Computer Programming*, vol. 3, 6.4, algorithm R): no marks of deleted ids
remain, so probes stay as short as in a table that never lost one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from psnb._src.server.hashing import EMPTY, first_slot, slot_of
from psnb._src.server.kernels import AHEAD, ask_for, lines

FLAG = np.uint32(1 << 31)
"""Of a stamp: its row is to leave next."""

MOST_STAMP = (1 << 31) - 1
"""The largest stamp."""

_STAMP = np.uint32(MOST_STAMP)
_MOST_USES = np.uint32(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def _delete(keys, rows, slot):  # type: ignore[no-untyped-def]
    """Free a slot of a hash map."""
    hole = at = np.int64(slot)
    while True:
        at += 1
        if at == keys.size:
            at = np.int64(0)
        if rows[at] == EMPTY:
            break
        home = np.int64(first_slot(keys[at], np.uint64(keys.size)))
        # Only an id that is looked for at the hole, too, may move there.
        between = (hole < home and home <= at) if hole <= at else (hole < home or home <= at)
        if not between:
            keys[hole] = keys[at]
            rows[hole] = rows[at]
            hole = at
    rows[hole] = EMPTY


@njit(cache=True, nogil=True)
def _ask(keys, rows, key):  # type: ignore[no-untyped-def]
    ahead = np.int64(first_slot(key, np.uint64(keys.size)))
    ask_for(keys, ahead, 0)
    ask_for(rows, ahead, 0)


@njit(cache=True, nogil=True)
def choose_rows(  # type: ignore[no-untyped-def]
    keys, rows, ids, admitted, min_count, stamps, queue, head, count, bound, known, out
):
    """Find the rows of ids, and choose rows for those that are to get one.

    ``out`` gets the row of each id; -1 if it gets none now; -2 less the row that it is to get: one
    of those at the end as long as there are fewer than ``bound``, then those in the ``queue``
    (int64) that have a flag, from ``head`` on. ``admitted`` and ``min_count`` are as for
    `find_or_add`; where one occurrence is enough, what `find` gives may be ``known``, and be in
    ``out``. Only flags are changed. Ids that are to get a row must be distinct.

    Returns how many are done, the next head, the next count, and how many flags were taken away.
    """
    taken = 0
    for i in range(ids.size):
        if not known:
            _ask(keys, rows, ids[min(i + AHEAD, ids.size - 1)])
            out[i] = rows[slot_of(keys, rows, ids[i])]
        row = out[i]
        # First of all ids: none takes the row of another one.
        if row >= 0 and stamps[row] & FLAG:
            stamps[row] &= _STAMP
            taken += 1
    for i in range(ids.size):
        row = out[i]
        if row >= 0:
            continue
        out[i] = -1
        if min_count == 0 or not (admitted.size == 0 or admitted[i]) or -row < min_count:
            continue
        if count < bound:
            out[i] = -2 - count
            count += 1
            continue
        row = -1
        while row < 0:
            if head == queue.size:
                return i, head, count, taken
            ask_for(stamps, max(0, queue[min(head + AHEAD, queue.size - 1)]), 0)
            row = queue[head]
            head += 1
            if row >= 0 and not stamps[row] & FLAG:
                row = -1
        stamps[row] &= _STAMP
        taken += 1
        out[i] = -2 - row
    return ids.size, head, count, taken


@njit(cache=True, nogil=True)
def next_chosen(out, ids, start, into_rows, into_ids):  # type: ignore[no-untyped-def]
    """Write the next chosen rows, and their ids; return where to go on, and how many these are."""
    count = 0
    while start < out.size and count < into_rows.size:
        if out[start] <= -2:
            into_rows[count] = -2 - out[start]
            into_ids[count] = ids[start]
            count += 1
        start += 1
    return start, count


@njit(cache=True, nogil=True)
def take_rows_of(keys, rows, ids, admitted, min_count, before, by_row, out):  # type: ignore[no-untyped-def]
    """Give ids the rows that `choose_rows` has chosen, and let others count as seen once more.

    ``before`` is the count before that. Returns how many more slots are in use.
    """
    used = 0
    for i in range(ids.size):
        # First where the id is that goes, then its slot: each is elsewhere in memory.
        ahead = min(i + 2 * AHEAD, ids.size - 1)
        if out[ahead] < -1:
            ask_for(by_row, -2 - out[ahead], 0)
        ahead = min(i + AHEAD, ids.size - 1)
        _ask(keys, rows, ids[ahead])
        if out[ahead] < -1 and -2 - out[ahead] < before:
            _ask(keys, rows, by_row[-2 - out[ahead]])
        row = out[i]
        if row >= 0:
            continue
        if row == -1:
            if min_count > 1 and (admitted.size == 0 or admitted[i]):
                slot = slot_of(keys, rows, ids[i])
                if rows[slot] == EMPTY:
                    keys[slot] = ids[i]
                    used += 1
                rows[slot] -= 1
            continue
        row = -2 - row
        if row < before:
            _delete(keys, rows, slot_of(keys, rows, by_row[row]))
            used -= 1
        slot = slot_of(keys, rows, ids[i])
        if rows[slot] == EMPTY:
            keys[slot] = ids[i]
            used += 1
        rows[slot] = row
        by_row[row] = ids[i]
        out[i] = row
    return used


@njit(cache=True, nogil=True)
def put_rows(matrix, rows, values):  # type: ignore[no-untyped-def]
    """Copy ``values``, a row each, to rows of a matrix; both are of bytes."""
    for i in range(rows.size):
        row = rows[min(i + AHEAD, rows.size - 1)]
        for line in range(lines(matrix)):
            ask_for(matrix, row, line)
        for j in range(matrix.shape[1]):
            matrix[rows[i], j] = values[i, j]


@njit(cache=True, nogil=True)
def touch(rows, stamps, stamp, uses, minutes, minute):  # type: ignore[no-untyped-def]
    """Note that rows (int64; none below 0 has one) are used; return how many flags were taken away.

    ``uses`` and ``minutes`` may be empty. A row counts as used once, however often it is there.
    """
    taken = 0
    if uses.size:
        for i in range(rows.size):
            ask_for(stamps, max(0, rows[min(i + AHEAD, rows.size - 1)]), 0)
            if rows[i] >= 0 and stamps[rows[i]] & FLAG:
                stamps[rows[i]] &= _STAMP
                taken += 1
        # Now no row has the flag: from here to the end of this function it says that it counts.
        for i in range(rows.size):
            ask_for(uses, max(0, rows[min(i + AHEAD, rows.size - 1)]), 0)
            row = rows[i]
            if row >= 0 and not stamps[row] & FLAG:
                stamps[row] |= FLAG
                uses[row] += np.uint32(uses[row] != _MOST_USES)
    for i in range(rows.size):
        ask_for(stamps, max(0, rows[min(i + AHEAD, rows.size - 1)]), 0)
        row = rows[i]
        if row < 0:
            continue
        if not uses.size:
            taken += int(stamps[row] >> np.uint32(31))
        stamps[row] = stamp
        if minutes.size:
            minutes[row] = minute
    return taken


@njit(cache=True, nogil=True)
def set_flags(rows, stamps, flag):  # type: ignore[no-untyped-def]
    """Flag rows, or take flags away (0), but for those below 0; return how many change."""
    count = 0
    for i in range(rows.size):
        ask_for(stamps, max(0, rows[min(i + AHEAD, rows.size - 1)]), 0)
        if rows[i] >= 0 and stamps[rows[i]] & FLAG != flag:
            stamps[rows[i]] ^= FLAG
            count += 1
    return count


@njit(cache=True, nogil=True)
def lower_stamps(stamps, by):  # type: ignore[no-untyped-def]
    """Count stamps from a later moment on; what was before that was at it. Flags stay."""
    for i in range(stamps.size):
        stamp = stamps[i] & _STAMP
        stamps[i] = (stamps[i] & FLAG) | (stamp - min(stamp, by))


@njit(cache=True, nogil=True)
def delete_rows(keys, rows, by_row, gone, holes, movers):  # type: ignore[no-untyped-def]
    """Delete the ids of rows that are ``gone``, and give those of ``movers`` the ``holes``."""
    for i in range(gone.size):
        _delete(keys, rows, slot_of(keys, rows, by_row[gone[i]]))
    for i in range(holes.size):
        key = by_row[movers[i]]
        rows[slot_of(keys, rows, key)] = holes[i]
        by_row[holes[i]] = key


@njit(cache=True, nogil=True)
def delete_ids(keys, rows, ids):  # type: ignore[no-untyped-def]
    """Delete ids of which none has a row."""
    for i in range(ids.size):
        _ask(keys, rows, ids[min(i + AHEAD, ids.size - 1)])
        _delete(keys, rows, slot_of(keys, rows, ids[i]))


@njit(cache=True, nogil=True)
def find_below(order, number, alike, start, out):  # type: ignore[no-untyped-def]
    """Write which rows, from ``start`` on, have a number below this one, or of the first ``alike``.

    Those are the rows that have the same number. Returns how many it writes, and how many that are
    alike may still come.
    """
    count = 0
    for i in range(order.size):
        out[count] = start + i
        same = order[i] == number and alike > 0
        alike -= same
        count += order[i] < number or same
    return count, alike
