"""What arrays and states must be before numpy or a compiled loop takes them. Pure.

Compiled loops check no bounds, and numpy converts or broadcasts other dtypes and shapes where it
can. So whatever comes to a table, from a file or another process, is checked here first. Most
checks need the *forms* of arrays only, so large arrays of a file are not read for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from psnb._src.server.hashing import each_once, take_range
from psnb._src.server.kernels import read_only
from psnb._src.server.tables.admission import MOST_COUNT
from psnb._src.server.tables.sharding import Owner, row_ranges, shard_of_ids
from psnb._src.transport.half_width import computed
from psnb.errors import IdOutOfRangeError, InvalidArrayError

Form = tuple[np.dtype, tuple[int, ...]]
"""The dtype and shape of an array."""

ID, POSITION = np.dtype(np.uint64), np.dtype(np.int64)


def form(what: str, array: Any) -> Form:
    """Return the form of an array, or raise InvalidArrayError if it is not an array."""
    # Numpy returns a scalar from computations on arrays without axes.
    if not isinstance(array, np.ndarray | np.generic):
        raise InvalidArrayError(f"{what}: expected an array, found {type(array).__name__}")
    return array.dtype, array.shape


def forms(what: str, arrays: Mapping[str, Any]) -> dict[str, Form]:
    """Return the forms of a parameter's arrays; InvalidArrayError if one is not an array."""
    return {name: form(f"{name} of {what!r}", array) for name, array in arrays.items()}


def check_form(what: str, found: Form, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Raise InvalidArrayError unless a form is this one: nothing is converted or broadcast."""
    if found != (dtype, shape):
        raise InvalidArrayError(
            f"{what}: expected {dtype} of shape {shape}, found {found[0]} of shape {found[1]}"
        )


def check_array(what: str, array: Any, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Raise InvalidArrayError unless an array has this form."""
    check_form(what, form(what, array), dtype, shape)


def check_ids(what: str, ids: Any) -> None:
    """Raise InvalidArrayError unless these are ids: uint64, one axis."""
    check_flat(what, form(what, ids), ID)


def check_offsets(what: str, offsets: Any, parts: int, count: int) -> None:
    """Raise InvalidArrayError unless these divide ``count`` numbers into so many parts."""
    if form(what, offsets) != (POSITION, (parts + 1,)) or not (
        offsets[0] == 0 and offsets[-1] == count and (offsets[1:] >= offsets[:-1]).all()
    ):
        raise InvalidArrayError(
            f"{what}: expected {POSITION} from 0 to {count} that never fall, for {parts} parts, "
            f"found {offsets}"
        )


def check_distinct(what: str, ids: np.ndarray) -> None:
    """Raise InvalidArrayError if one of the ids is there twice."""
    if (ids[1:] > ids[:-1]).all():
        return
    if each_once(ids).size < ids.size:
        found, counts = np.unique(ids, return_counts=True)
        most = counts.argmax()
        raise InvalidArrayError(f"{what}: id {found[most]} is there {counts[most]} times")


def check_within(what: str, numbers: np.ndarray, low: int, high: int) -> None:
    """Raise IdOutOfRangeError unless all numbers are from ``low`` to ``high``, both included."""
    if numbers.size:
        least, most = int(numbers.min()), int(numbers.max())
        if least < low or most > high:
            bad = least if least < low else most
            raise IdOutOfRangeError(f"{what}: expected {low} to {high}, found {bad}")


def check_positions(what: str, rows: Any, count: int) -> None:
    """Raise ConfigurationError unless these are positions below ``count``: int64, one axis."""
    check_flat(what, form(what, rows), POSITION)
    check_within(what, rows, 0, count - 1)


def check_flat(what: str, found: Form, dtype: np.dtype) -> int:
    """Return how many numbers there are, or raise InvalidArrayError unless they are of one axis."""
    kind, shape = found
    if kind != dtype or len(shape) != 1:
        raise InvalidArrayError(
            f"{what}: expected {dtype} of one axis, found {kind} of shape {shape}"
        )
    return shape[0]


_MOST_STEPS = 2**62
"""More steps than there will ever be; a table can still count on from here."""

ROW_USE = ("show", "click", "unseen_days")
"""The arrays that tell how rows were used."""

RECENCY: dict[str, np.dtype] = {
    "last_update": np.dtype(np.int64),
    "uses": np.dtype(np.uint32),
    "last_minute": np.dtype(np.int64),
}
"""The arrays that tell when rows were used, of tables of which rows leave, as they are saved."""

MINUTES, REMOVED = "minutes", "removed"
"""Of such a table, in a tail: how many minutes it has counted, and the ids that have lost their
rows since what was saved before."""

COUNTS = "updates"
"""The counts of updates of a variable's numbers, in a tail, where they differ."""

_COUNT, _USE = np.dtype(np.uint32), np.dtype(np.float32)

Read = Callable[[str], np.ndarray]
"""Returns one of the arrays whose forms are known, by its name."""


@dataclass(frozen=True)
class Expected:
    """What the state of a variable's slice must be; the common part for embeddings too.

    Attributes
    ----------
    name : str
        The parameter's, for messages.
    dtype : numpy.dtype
        Of the values.
    slots : tuple of str
        Those of the optimizer.
    shape : tuple of int
        Of the slice; of a row of an embedding.
    """

    name: str
    dtype: np.dtype
    slots: tuple[str, ...]
    shape: tuple[int, ...]

    optional: ClassVar[frozenset[str]] = frozenset({COUNTS})
    """The names of the arrays that a tail may also have."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of values and slots."""
        return ("values", *(f"slot.{slot}" for slot in self.slots))

    @property
    def arrays(self) -> frozenset[str]:
        """The names of the arrays that travel in segments."""
        return frozenset(self.numbers)

    @property
    def tail(self) -> frozenset[str]:
        """The names of the arrays in the tail."""
        return frozenset({"step"})

    def form_of(self, name: str) -> Form:
        """Return the dtype and shape of values or a slot; of a row of an embedding."""
        return self.dtype, self.shape

    @property
    def row_nbytes(self) -> int:
        """The bytes of a number of a variable, with its state."""
        return len(self.numbers) * self.dtype.itemsize

    def check_names(self, found: Mapping[str, Form]) -> None:
        """Raise InvalidArrayError unless these are exactly the arrays of a state."""
        if found.keys() - self.optional != (expected := self.arrays | self.tail):
            raise InvalidArrayError(f"expected arrays {sorted(expected)}, found {sorted(found)}")

    def check_numbers(self, found: Mapping[str, Form], *rows: int) -> None:
        """Raise InvalidArrayError unless values and slots are there, of that number of rows."""
        self._require(found, frozenset(self.numbers))
        for name in self.numbers:
            dtype, shape = self.form_of(name)
            check_form(self._what(name), found[name], dtype, (*rows, *shape))

    def check_learned(
        self, values: np.ndarray, slots: Mapping[str, np.ndarray], *rows: int
    ) -> None:
        """Raise InvalidArrayError unless these are values and all slots, of that number of rows.

        They are computed numbers, not stored ones.
        """
        if slots.keys() != {*self.slots}:
            raise InvalidArrayError(
                f"{self.name!r}: expected slots {sorted(self.slots)}, found {sorted(slots)}"
            )
        for name in self.numbers:
            array = values if name == "values" else slots[name.removeprefix("slot.")]
            dtype, shape = self.form_of(name)
            check_array(self._what(name), array, computed(dtype), (*rows, *shape))

    def check_tail_forms(self, found: Mapping[str, Form]) -> None:
        """Raise InvalidArrayError unless the arrays of the tail are there, each of its form."""
        self._require(found, self.tail)
        check_form(self._what("step"), found["step"], POSITION, (1,))

    def check_tail(self, found: Mapping[str, Form], read: Read) -> None:
        """Raise ConfigurationError unless this tail can be loaded."""
        self.check_tail_forms(found)
        step = read("step")
        check_within(self._what("step"), step, 0, _MOST_STEPS)
        if COUNTS in self.optional and COUNTS in found:
            self.check_counts(read(COUNTS), int(step[0]))

    def check_state(self, found: Mapping[str, Form], read: Read) -> None:
        """Raise ConfigurationError unless this whole state can be loaded."""
        self.check_numbers(found)
        self.check_tail(found, read)

    def check_counts(self, counts: np.ndarray, step: int) -> None:
        """Raise InvalidArrayError unless these may be the counts of updates of the numbers."""
        what, extent = self._what(COUNTS), math.prod(self.shape)
        check_array(what, counts, POSITION, (len(counts) if counts.ndim else 0, 2))
        stops = counts[:, 0]
        # Compared, as a difference may be too large for an int64.
        if not (stops > np.append(0, stops[:-1])).all() or stops[-1:].tolist() != [extent]:
            raise InvalidArrayError(f"{what}: expected runs of {extent} numbers, found {counts}")
        check_within(what, counts[:, 1], 0, step)

    def _what(self, name: str) -> str:
        return f"{name} of {self.name!r}"

    def _require(self, found: Mapping[str, Form], names: frozenset[str]) -> None:
        if missing := names - found.keys():
            raise InvalidArrayError(f"{self.name!r}: arrays {sorted(missing)} are missing")


@dataclass(frozen=True)
class ExpectedRows(Expected):
    """What the state of an embedding's shard must be.

    Attributes
    ----------
    fixed : tuple of int or None
        Rows of the whole table, the number of this shard and of all shards; None if any 64-bit id
        is allowed.
    uses, waits : bool
        Whether the use of rows is remembered, and whether ids may wait for a row.
    slot_dtype : numpy.dtype, optional
        Of the slots, unless it is the one in which rows are computed with.
    row_wise : frozenset of str
        The slots that have one number a row.
    recency : tuple of str
        The arrays that tell when rows were used. What is saved may lack them, or have others.
    """

    fixed: tuple[int, int, int] | None
    uses: bool
    waits: bool
    slot_dtype: np.dtype | None = None
    row_wise: frozenset[str] = frozenset()
    recency: tuple[str, ...] = ()

    optional = frozenset({*RECENCY, MINUTES, REMOVED})

    @property
    def arrays(self) -> frozenset[str]:
        return super().arrays | {"ids", *(ROW_USE if self.uses else ())}

    @property
    def tail(self) -> frozenset[str]:
        return super().tail | ({"waiting.ids", "waiting.frequencies"} if self.waits else set())

    def form_of(self, name: str) -> Form:
        if name == "values":
            return self.dtype, self.shape
        by_row = name.removeprefix("slot.") in self.row_wise
        return self.slot_dtype or computed(self.dtype), (1,) if by_row else self.shape

    @property
    def row_nbytes(self) -> int:
        """The bytes of a row, with its state and id."""
        use = len(ROW_USE) * _USE.itemsize if self.uses else 0
        use += len(self.recency) * _COUNT.itemsize
        forms_ = [self.form_of(name) for name in self.numbers]
        return ID.itemsize + use + sum(dtype.itemsize * math.prod(of) for dtype, of in forms_)

    def check_row_forms(self, found: Mapping[str, Form]) -> int:
        """Return how many rows there are, or raise InvalidArrayError unless their arrays fit."""
        self._require(found, self.arrays)
        count = check_flat(self._what("ids"), found["ids"], ID)
        self.check_numbers(found, count)
        for name in ROW_USE if self.uses else ():
            check_form(self._what(name), found[name], _USE, (count,))
        for name, dtype in RECENCY.items():
            if name in found:
                check_form(self._what(name), found[name], dtype, (count,))
        return count

    def check_rows(self, found: Mapping[str, Form], read: Read) -> None:
        """Raise ConfigurationError unless these are rows of this shard, each once."""
        self.check_row_forms(found)
        what, ids = self._what("ids"), read("ids")
        if self.fixed is not None:
            rows, index, shards = self.fixed
            check_within(what, ids, 0, rows - 1)
            foreign = ids[ids % np.uint64(shards) != np.uint64(index)]
            if foreign.size:
                raise InvalidArrayError(
                    f"{what}: {foreign[0]} is none of shard {index} of {shards}"
                )
        check_distinct(what, ids)

    def check_state(self, found: Mapping[str, Form], read: Read) -> None:
        self.check_tail_forms(found)
        self.check_rows(found, read)
        self.check_tail(found, read)
        if self.waits:
            both = np.concatenate([read("ids"), read("waiting.ids")])
            check_distinct(f"ids and waiting.ids of {self.name!r}", both)

    def check_tail_forms(self, found: Mapping[str, Form]) -> None:
        super().check_tail_forms(found)
        if self.waits:
            count = check_flat(self._what("waiting.ids"), found["waiting.ids"], ID)
            what, counts = self._what("waiting.frequencies"), found["waiting.frequencies"]
            check_form(what, counts, _COUNT, (count,))
        if REMOVED in found:
            check_flat(self._what(REMOVED), found[REMOVED], ID)
        if MINUTES in found:
            check_form(self._what(MINUTES), found[MINUTES], POSITION, (1,))

    def check_tail(self, found: Mapping[str, Form], read: Read) -> None:
        super().check_tail(found, read)
        if self.waits:
            what, counts = self._what("waiting.frequencies"), read("waiting.frequencies")
            check_within(what, counts, 1, MOST_COUNT)
            check_distinct(self._what("waiting.ids"), read("waiting.ids"))
        if MINUTES in found:
            check_within(self._what(MINUTES), read(MINUTES), 0, _MOST_STEPS)


class ReadRows(Protocol):
    """Returns one of the arrays of a part, or some of its rows."""

    def __call__(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class SavedShard:
    """A shard of a parameter, as it was saved; or one of its parts.

    Attributes
    ----------
    number, shards : int
        Its number, and how many shards there are.
    forms : mapping of str to Form
        The arrays that it has.
    read : callable
        Returns one of these arrays, by its name. The checks ask for the first one when all forms
        have turned out to be right.
    part : bool
        Whether it is only some rows of the shard.
    """

    number: int
    shards: int
    forms: Mapping[str, Form]
    read: ReadRows
    part: bool = False


def check_saved(expected: Expected, saved: SavedShard, passes: int | None = None) -> None:
    """Raise ConfigurationError unless a part of a parameter's shard can be loaded.

    Each id must be in the shard that it is assigned to. So no id is in two shards, and each shard
    can be checked alone. It takes memory for a few million ids, however many there are: they are
    read again for the next ones, but in no more ``passes`` than these.
    """
    if isinstance(expected, ExpectedRows):
        _check_saved_rows(expected, saved, passes)
    else:
        _check_saved_slice(expected, saved)


def _check_saved_slice(expected: Expected, saved: SavedShard) -> None:
    if saved.part:
        raise InvalidArrayError(f"{expected.name!r} must be in one part a shard")
    expected.check_names(saved.forms)
    shape = expected.shape
    if saved.shards > max((1, *shape[:1])):
        raise InvalidArrayError(f"{expected.name!r} cannot be in {saved.shards} shards")
    if saved.shards > 1:
        start, stop = row_ranges(shape[0], saved.shards)[saved.number]
        expected = replace(expected, shape=(stop - start, *shape[1:]))
    expected.check_state(saved.forms, saved.read)


def _check_saved_rows(expected: ExpectedRows, saved: SavedShard, passes: int | None) -> None:
    expected.check_names(saved.forms)
    count = expected.check_row_forms(saved.forms)
    expected.check_tail_forms(saved.forms)
    growing = expected.fixed is None
    if not growing and (found := sorted(saved.forms.keys() & expected.optional)):
        raise InvalidArrayError(f"{expected.name!r} has fixed rows, and {found}, which none has")
    if expected.fixed is not None and not saved.part:
        rows = len(range(saved.number, expected.fixed[0], saved.shards))
        if count != rows:
            raise InvalidArrayError(f"expected {rows} rows, found {count}")
    expected.check_tail(saved.forms, saved.read)
    what, ascends, last = f"ids of {expected.name!r}", True, -1
    for ids in _pieces(saved, "ids"):
        if expected.fixed is not None:
            check_within(what, ids, 0, expected.fixed[0] - 1)
        _check_own(what, ids, saved, growing=growing)
        ascends = ascends and int(ids[0]) > last and bool((ids[1:] > ids[:-1]).all())
        last = int(ids[-1])
    if not ascends:  # else each is there once
        for (ids,) in _in_ranges([(saved, "ids")], passes):
            check_distinct(what, ids)
    if expected.waits:
        waiting = saved.read("waiting.ids")
        _check_own(f"waiting.{what}", waiting, saved, growing=growing)
    if REMOVED in saved.forms:
        for ids in _pieces(saved, REMOVED):
            if not saved.part:
                raise InvalidArrayError(f"{REMOVED} {what}: nothing was saved before")
            _check_own(f"{REMOVED} {what}", ids, saved, growing=growing)


def _check_own(what: str, ids: np.ndarray, saved: SavedShard, *, growing: bool) -> None:
    if Owner(saved.number, saved.shards, growing).takes(ids).size < ids.size:
        foreign = shard_of_ids(ids, saved.shards, growing=growing) != saved.number
        raise InvalidArrayError(
            f"{what}: {ids[foreign][0]} is none of shard {saved.number} of {saved.shards}"
        )


def check_saved_parts(
    expected: Expected, parts: Sequence[SavedShard], owners: int = 1, passes: int | None = None
) -> np.ndarray:
    """Check the parts of a shard together, the oldest first; each was checked by itself.

    ``passes`` as for `check_saved`.

    Returns
    -------
    numpy.ndarray
        int64 ``(owners,)``: of a table of any id, how many rows each of so many shards will get.

    Raises
    ------
    ConfigurationError
        If they cannot be loaded.
    """
    counts = np.zeros(owners, np.int64)
    for each in parts[1:]:
        if each.forms.keys() != parts[0].forms.keys():
            names = sorted(parts[0].forms), sorted(each.forms)
            raise InvalidArrayError(f"its parts have different arrays: {names[0]} and {names[1]}")
    if not isinstance(expected, ExpectedRows) or expected.fixed is not None:
        return counts
    last = parts[-1]
    if len(parts) == 1 and not expected.waits:
        if owners == last.shards:
            counts[last.number] = last.forms["ids"][1][0]
            return counts
        for ids in _pieces(last, "ids"):
            counts += _by_owner(ids, owners)
        return counts
    removes = REMOVED in last.forms
    of_part = (REMOVED, "ids") if removes else ("ids",)
    sources = [(each, name) for each in parts for name in of_part]
    waits = [(last, "waiting.ids")] if expected.waits else []
    for found in _in_ranges([*sources, *waits], passes):
        rows = _left(found[: len(sources)]) if removes else np.concatenate(found[: len(sources)])
        rows = each_once(rows)
        counts += _by_owner(rows, owners)
        for waiting in found[len(sources) :]:
            both = np.concatenate([rows, waiting])
            check_distinct(f"ids and waiting.ids of {expected.name!r}", both)
    return counts


def _left(found: Sequence[np.ndarray]) -> np.ndarray:
    """Return the ids that have a row: of each part come those that it removes, then its own."""
    rows = found[1]
    for removed, ids in zip(found[2::2], found[3::2], strict=True):
        rows = np.concatenate([rows[~np.isin(rows, removed)], ids])
    return rows


def _by_owner(ids: np.ndarray, owners: int) -> np.ndarray:
    return np.bincount(shard_of_ids(ids, owners, growing=True), minlength=owners)


_PIECE = 1 << 18
"""Ids that are read at a time."""

_AT_A_TIME = 1 << 21
"""Ids that are compared at a time: others are read again for that, in another pass."""


def _pieces(saved: SavedShard, name: str) -> Iterator[np.ndarray]:
    count = saved.forms[name][1][0]
    for start in range(0, count, _PIECE):
        yield saved.read(name, start, min(start + _PIECE, count))


def _in_ranges(
    sources: Sequence[tuple[SavedShard, str]], most: int | None
) -> Iterator[list[np.ndarray]]:
    """Yield the ids of arrays whose hashes are in one range, of one range after the other."""
    total = sum(saved.forms[name][1][0] for saved, name in sources)
    passes = 1 << (total // _AT_A_TIME).bit_length()
    passes = passes if most is None else min(passes, most)
    for at in range(passes):
        yield [
            np.concatenate(
                [
                    np.empty(0, ID),
                    *(_of_range(ids, at, passes) for ids in _pieces(saved, name)),
                ]
            )
            for saved, name in sources
        ]


def _of_range(ids: np.ndarray, at: int, passes: int) -> np.ndarray:
    if passes == 1:
        return ids
    found = np.empty_like(ids)
    # The low bits: of a shard's ids, the high ones are alike.
    return found[: take_range(read_only(ids), passes - 1, at, found)].copy()
