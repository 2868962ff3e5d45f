"""Compiled loops over ids: their hash, hash maps from ids to rows, and sums by id. Pure.

The hash is SplitMix64 (Steele, Lea, Flood: *Fast Splittable Pseudorandom Number Generators*,
OOPSLA 2014), used as a counter-based generator too, so that a row's initial values depend on the
table's seed and the id alone: not on the number of servers nor on which request came first. As in
`psnb._src.server.kernels`, numba caches the machine code.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numba import carray, njit  # type: ignore[attr-defined]

from psnb._src.server.kernels import AHEAD, ask_for, divide, pointer, read_only
from psnb._src.server.memory import scratch

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


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
def find_own(ids, shards, number, hashed, out):  # type: ignore[no-untyped-def]
    """Write into ``out`` where the ids of a shard are; return how many it has.

    An id is in the shard whose number the division by ``shards`` leaves: of the id, or, if it is to
    be ``hashed``, of the high half of its hash.
    """
    count = 0
    for i in range(ids.size):
        what = mix(ids[i] + GOLDEN) >> np.uint64(32) if hashed else ids[i]
        out[count] = i
        count += what % np.uint64(shards) == np.uint64(number)
    return count


@njit(cache=True, nogil=True)
def take_range(ids, mask, number, out):  # type: ignore[no-untyped-def]
    """Write the ids whose hashes have this number in the bits of a mask; return how many."""
    count = 0
    for i in range(ids.size):
        out[count] = ids[i]
        count += mix(ids[i] + GOLDEN) & np.uint64(mask) == np.uint64(number)
    return count


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
def first_slot(key, slots):  # type: ignore[no-untyped-def]
    """Return where the search for an id begins."""
    # The low 32 bits, mapped to the range by a multiplication (Lemire, 2019): works for any size.
    return ((mix(key + GOLDEN) & np.uint64(0xFFFFFFFF)) * slots) >> np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def slot_of(keys, rows, key):  # type: ignore[no-untyped-def]
    """Return the slot that an id has in the hash map, or the free one that it would get."""
    slots = np.uint64(keys.size)
    slot = first_slot(key, slots)
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
    id's row, or `EMPTY` if the slot is free, or ``-1 - n`` if the id was seen ``n`` times but
    has no row yet. Returns how many ids have none.
    """
    missing = 0
    for i in range(ids.size):
        ahead = first_slot(ids[min(i + AHEAD, ids.size - 1)], np.uint64(keys.size))
        ask_for(keys, np.int64(ahead), 0)
        ask_for(rows, np.int64(ahead), 0)
        row = rows[slot_of(keys, rows, ids[i])]
        out[i] = row if row >= 0 else -1
        missing += row < 0
    return missing


INDEX_PLACE = 5
"""How many numbers the place of an index has; see `psnb._src.server.tables.row_index`."""

_ROW = np.empty(0, np.int32)


@njit(cache=True, nogil=True)
def _find_in(index, all_ids, start, stop, all_out):  # type: ignore[no-untyped-def]
    slots = index[2]
    keys, rows = carray(pointer(index[0], all_ids), slots), carray(pointer(index[1], _ROW), slots)
    ids, out = all_ids[start:stop], all_out[start:stop]
    missing = 0
    for i in range(ids.size):
        ahead = first_slot(ids[min(i + AHEAD, ids.size - 1)], np.uint64(keys.size))
        ask_for(keys, np.int64(ahead), 0)
        ask_for(rows, np.int64(ahead), 0)
        row = rows[slot_of(keys, rows, ids[i])]
        out[i] = row if row >= 0 else -1
        missing += row < 0
    return missing


@njit(cache=True, nogil=True)
def find_rows(places, ids, offsets, out, missing):  # type: ignore[no-untyped-def]
    """Look up ids in tables at their places: as `find` does, or `divide` where rows are fixed.

    ``missing`` gets how many ids of each have no row; with fixed rows -1 less the position of an id
    that is none of them, if there is one.
    """
    for table in range(places.size):
        place = carray(pointer(places[table], places), (1,))
        index = carray(pointer(place[0], places), (INDEX_PLACE,))
        start, stop = offsets[table], offsets[table + 1]
        if index[2]:
            missing[table] = _find_in(index, ids, start, stop, out)
        else:
            bad = divide(ids[start:stop], index[3], index[4], out[start:stop])
            missing[table] = -1 - bad if bad < stop - start else 0


@njit(cache=True, nogil=True)
def find_or_add(keys, rows, ids, admitted, min_count, count, free, out, by_row):  # type: ignore[no-untyped-def]
    """Look up ids; ids that were seen often enough get the next rows from ``count``.

    ``admitted`` (bool) says which may get one, or is empty: all may. ``by_row`` gets the id of each
    new row. Ends early when no slot may be taken any more (``free``), or ``by_row`` is full, or
    there are `MOST_ROWS`. Returns how many ids are done, the new count, and how many slots may be
    taken.
    """
    for i in range(ids.size):
        ahead = first_slot(ids[min(i + AHEAD, ids.size - 1)], np.uint64(keys.size))
        ask_for(keys, np.int64(ahead), 0)
        ask_for(rows, np.int64(ahead), 0)
        slot = slot_of(keys, rows, ids[i])
        row = rows[slot]
        if row < 0 and (admitted.size == 0 or admitted[i]):
            if count == by_row.size or count == MOST_ROWS:
                return i, count, free
            if row == EMPTY:
                if free == 0:
                    return i, count, free
                keys[slot] = ids[i]
                free -= 1
            row -= 1
            if -1 - row >= min_count:
                row = count
                by_row[row] = ids[i]
                count += 1
            rows[slot] = row
        out[i] = row if row >= 0 else -1
    return ids.size, count, free


@njit(cache=True, nogil=True)
def take_back(keys, rows, ids, left):  # type: ignore[no-untyped-def]
    """Take the rows of ids back, the last that `find_or_add` gave; ``left`` is what they have then.

    `EMPTY` may be left only if nothing took a slot after them, and they took theirs in this order.
    """
    for i in range(ids.size - 1, -1, -1):
        rows[slot_of(keys, rows, ids[i])] = left


@njit(cache=True, nogil=True)
def move(keys, rows, new_keys, new_rows):  # type: ignore[no-untyped-def]
    """Copy a hash map into an empty one of another size."""
    for i in range(keys.size):
        if rows[i] != EMPTY:
            slot = slot_of(new_keys, new_rows, keys[i])
            new_keys[slot] = keys[i]
            new_rows[slot] = rows[i]


@njit(cache=True, nogil=True)
def put(keys, rows, ids, values):  # type: ignore[no-untyped-def]
    """Set the values of ids in the hash map; new ids are added."""
    for i in range(ids.size):
        slot = slot_of(keys, rows, ids[i])
        keys[slot] = ids[i]
        rows[slot] = values[i]


def heads_size(count: int) -> int:
    """Return how many heads `find_distinct` needs for ``count`` ids."""
    size = max(64, 1 << (min(2 * count, _FIRST_HEADS) - 1).bit_length())
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


@njit(cache=True, nogil=True)
def find_distinct_of_parts(ids, offsets, found, position, counts, heads):  # type: ignore[no-untyped-def]
    """Do what `find_distinct` does for each part of ids, whose results lie where its ids do."""
    for part in range(counts.size):
        start, stop = offsets[part], offsets[part + 1]
        # A linear and a deep part of a model, say, have a table each for the same ids.
        before, same = part, False
        while before > 0 and not same:
            before -= 1
            first = offsets[before]
            same = offsets[before + 1] - first == stop - start
            for i in range(start, stop):
                if not same:
                    break
                same = ids[i] == ids[first + i - start]
        if same:
            counts[part] = counts[before]
            position[start:stop] = position[first : first + stop - start]
            found[start : start + counts[part]] = found[first : first + counts[part]]
        else:
            some = ids[start:stop]
            counts[part] = find_distinct(some, found[start:stop], position[start:stop], heads)


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


_DEALT = 1 << 13
"""Ids of a bucket, about: their heads and they themselves are in a near cache."""


@njit(cache=True, nogil=True)
def _deal(ids, bits, stops, out):  # type: ignore[no-untyped-def]
    """Write ids in the order of the highest bits of their hashes, and where each of these ends.

    Returns how many of them have the same bits, at most. Other ids may be there when they are read
    again, if another process shares their memory: then what is written is wrong, but nowhere else.
    """
    if bits == 0:
        out[:] = ids
        stops[0] = ids.size
        return ids.size
    shift = np.uint64(64 - bits)
    for i in range(ids.size):
        stops[mix(ids[i] + GOLDEN) >> shift] += 1
    start = 0
    for bucket in range(stops.size):
        count = stops[bucket]
        stops[bucket] = start
        start += count
    for i in range(ids.size):
        bucket = mix(ids[i] + GOLDEN) >> shift
        if stops[bucket] < out.size:
            out[stops[bucket]] = ids[i]
            stops[bucket] += 1
    start = most = 0
    for bucket in range(stops.size):
        stop = max(start, stops[bucket])
        most = max(most, stop - start)
        stops[bucket] = start = stop
    return most


@njit(cache=True, nogil=True)
def _keep_first(ids, stops, heads):  # type: ignore[no-untyped-def]
    """Move each id of dealt ones to the front, once; return how many there are.

    ``heads`` is memory, twice as much as a bucket has ids, a power of two.
    """
    count = start = 0
    for stop in stops:
        size = 64
        while size < 2 * (stop - start):
            size *= 2
        heads[:size] = EMPTY
        first = count
        for i in range(start, stop):
            # Neither the bits of `_deal`, nor those of ids that are in one shard or range.
            slot = (mix(ids[i] + GOLDEN) >> np.uint64(12)) & np.uint64(size - 1)
            at = heads[slot]
            while at != EMPTY and ids[first + at] != ids[i]:
                slot = (slot + np.uint64(1)) & np.uint64(size - 1)
                at = heads[slot]
            if at == EMPTY:
                heads[slot] = count - first
                ids[count] = ids[i]
                count += 1
        start = stop
    return count


# Repeated ids: find the distinct ones, and add up the gradients of equal ids. Pure.


def each_once(ids: np.ndarray) -> np.ndarray:
    """Return each of ids, uint64 ``(n,)``, once, in any order; sorting takes four times as long."""
    bits = (ids.size // (8 * _DEALT)).bit_length() and (ids.size // _DEALT).bit_length()
    stops, found = np.zeros(1 << bits, np.int64), scratch(ids.size, np.uint64)
    most = _deal(read_only(ids), bits, stops, found)
    heads = scratch(max(64, 1 << (2 * most - 1).bit_length()), np.int32)
    return found[: _keep_first(found, stops, heads)]


Distinct = tuple[np.ndarray, np.ndarray]
"""The distinct ids in the order of their first appearance, uint64 ``(m,)``; a position in them for
each of all ids, intp ``(n,)``."""


def distinct(ids: np.ndarray) -> Distinct:
    """Return the distinct of ids, uint64 ``(n,)``; read-only, as all of them are."""
    (found,) = distinct_of_parts([ids])
    return found


def distinct_of_parts(parts: Sequence[np.ndarray]) -> list[Distinct]:
    """Return the `distinct` ids of each of several arrays."""
    if not parts:
        return []
    ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return distinct_within(ids, [0, *accumulate([part.size for part in parts])])


def distinct_within(ids: np.ndarray, bounds: Sequence[int]) -> list[Distinct]:
    """Return the `distinct` ids of each part of an array, in one call of a compiled loop.

    ``bounds`` say where the parts begin and end, as ``offsets`` do elsewhere.
    """
    found, position = scratch(ids.size, np.uint64), scratch(ids.size, np.intp)
    counts, heads = np.empty(len(bounds) - 1, np.int64), scratch(heads_size(ids.size), np.int32)
    find_distinct_of_parts(read_only(ids), np.array(bounds), found, position, counts, heads)
    found.flags.writeable = False  # parts of what may change would be copied before they are sent
    several = zip(pairwise(bounds), counts.tolist(), strict=True)
    return [(found[a : a + count], position[a:b]) for (a, b), count in several]


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
