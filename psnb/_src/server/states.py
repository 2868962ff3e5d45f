"""Checks of a table's state before it is loaded, from a file or from another server. Pure."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from psnb._src.server.kernels import fill_normal, fill_uniform, hash_ids, read_only
from psnb._src.utils.checks import integer, is_number, to_config
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError

# What arrays must be before numpy or a compiled loop takes them. Pure.
#
# Compiled loops check no bounds, and numpy converts or broadcasts other dtypes and shapes where it
# can. So whatever comes to a table, from a file or another process, is checked here first.

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


def check_distinct(what: str, ids: np.ndarray) -> None:
    """Raise InvalidArrayError if one of the ids is there twice."""
    ordered = np.sort(ids)  # faster than a hash map
    if (ordered[1:] == ordered[:-1]).any():
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


# How the rows and ids of a parameter are divided over its shards. Pure.
#
# Dense variables are split along their first axis into equal ranges of rows. Embedding ids are
# assigned one by one: by remainder if the number of rows is fixed, by hash if any id is allowed.


def row_ranges(rows: int, shards: int) -> list[tuple[int, int]]:
    """Return ``(start, stop)`` of each shard: ranges that differ by one row at most."""
    bounds = [rows * i // shards for i in range(shards + 1)]
    return list(itertools.pairwise(bounds))


def shard_of_ids(ids: np.ndarray, shards: int, *, growing: bool) -> np.ndarray:
    """Return the shard, int64 ``(n,)``, that holds each of the ids (uint64, ``(n,)``)."""
    if not growing:
        return (ids % np.uint64(shards)).astype(np.int64)
    hashed = np.empty_like(ids)
    hash_ids(ids, hashed)
    # The high bits: the server's own hash map uses the low ones.
    return ((hashed >> np.uint64(32)) % np.uint64(shards)).astype(np.int64)


# MergedDeltas: a shard of a table from several parts, of which later ones replace rows. Pure.


class MergedDeltas:
    """The rows of all parts, each as the last part that has it says; all else is the last part's.

    Rows are in the order in which they came first.

    Parameters
    ----------
    parts : sequence of mapping
        The arrays of each part, the oldest first; each was checked by itself.

    Raises
    ------
    ConfigurationError
        If they have different arrays.
    """

    def __init__(self, parts: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._parts = parts
        for part in parts:
            if part.keys() != parts[0].keys():
                raise InvalidArrayError(
                    f"its files have different arrays: {sorted(parts[0])} and {sorted(part)}"
                )

    def forms(self) -> dict[str, Form]:
        """Return the forms of all arrays."""
        count = self._rows.size
        return {
            name: (array.dtype, (count if _by_row(name) else len(array), *array.shape[1:]))
            for name, array in self._parts[-1].items()
        }

    def read(self, name: str) -> np.ndarray:
        """Return an array, which is a copy."""
        if not _by_row(name):
            return self._parts[-1][name].copy()
        first, *later = self._parts
        found = np.empty((self._rows.size, *first[name].shape[1:]), first[name].dtype)
        found[: len(first[name])] = first[name]
        for part, (at, rows) in zip(later, self._replaced, strict=True):
            found[at] = part[name][rows]
        return found

    def state(self) -> dict[str, np.ndarray]:
        """Return all arrays."""
        return {name: self.read(name) for name in self._parts[-1]}

    @cached_property
    def _replaced(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each part but the first: the rows that it has last, and where they are in it."""
        stops = np.cumsum([part["ids"].size for part in self._parts])
        at = np.flatnonzero(self._rows >= stops[0])
        rows = self._rows[at]
        owner = np.searchsorted(stops, rows, side="right")
        return [
            (at[owner == part], rows[owner == part] - stops[part - 1])
            for part in range(1, stops.size)
        ]

    @cached_property
    def _rows(self) -> np.ndarray:
        """Where each row is among the rows of all parts, one after the other."""
        ids = np.concatenate([part["ids"] for part in self._parts])
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        other, end = ordered[1:] != ordered[:-1], np.ones(min(1, ids.size), np.bool_)
        first, last = order[np.append(end, other)], order[np.append(other, end)]
        found: np.ndarray = last[np.argsort(first)]
        return found


def _by_row(name: str) -> bool:
    return name != "step" and not name.startswith("waiting.")


# How the rows of an embedding table start: pure functions of (seed, id, column).
#
# A row starts the same on any server, whichever worker asks first, so training is reproducible and
# a table may grow at the first sight of an id.

_LARGEST_SEED = (1 << 63) - 1
_LARGEST = 1e36
"""What parameters may be: ten standard deviations and the mean are numbers of float32 then."""


@dataclass(frozen=True)
class Initializer(ABC):
    """Makes the first values of embedding rows.

    Raises
    ------
    ConfigurationError
        If a parameter is not a number, or beyond 1e36, where rows of float32 would become infinite.
    """

    may_be_left_out: ClassVar[frozenset[str]] = frozenset({"seed"})
    """Of a description: without a seed it is as those of psnb that knew none."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "seed":
                if value is not None:
                    integer(f"{type(self).__name__}: seed", value, 0, _LARGEST_SEED)
                continue
            try:
                good = is_number(value) and math.isfinite(value)
                small = good and abs(value) <= _LARGEST
            except (TypeError, OverflowError):  # complex, or an int that no float holds
                good = small = False
            if not small:
                wanted = f"be within ±{_LARGEST:g}" if good else "be a finite number"
                raise ConfigurationError(
                    f"{type(self).__name__}({name}={shown(value)}): {name} must {wanted}"
                )

    def describe(self) -> dict[str, Any]:
        """Return name and parameters as JSON can hold them; a seed only if there is one."""
        found = to_config(self)
        return {name: each for name, each in found.items() if (name, each) != ("seed", None)}

    @abstractmethod
    def fill(self, out: np.ndarray, ids: np.ndarray, seed: int) -> None:
        """Write the initial rows of ``ids`` (uint64, ``(n,)``) into ``out`` (``(n, dim)``)."""


@dataclass(frozen=True)
class Constant(Initializer):
    """Every element starts with the same value."""

    value: float = 0.0

    def fill(self, out: np.ndarray, ids: np.ndarray, seed: int) -> None:
        out[...] = self.value


@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniform between ``low`` and ``high``; the default of an embedding, as in Keras.

    Rows follow from their ids and from ``seed`` (0 to 2**63 - 1), by default the table's name:
    tables with one seed begin alike.
    """

    low: float = -0.05
    high: float = 0.05
    seed: int | None = None

    def fill(self, out: np.ndarray, ids: np.ndarray, seed: int) -> None:
        fill_uniform(out, ids, np.uint64(seed if self.seed is None else self.seed))
        out *= self.high - self.low
        out += self.low


@dataclass(frozen=True)
class Normal(Initializer):
    """Normal with the given mean and standard deviation; ``seed`` as for `Uniform`."""

    mean: float = 0.0
    stddev: float = 0.05
    seed: int | None = None

    def fill(self, out: np.ndarray, ids: np.ndarray, seed: int) -> None:
        fill_normal(out, ids, np.uint64(seed if self.seed is None else self.seed))
        out *= self.stddev
        out += self.mean


INITIALIZERS: dict[str, type[Initializer]] = {
    each.__name__: each for each in (Constant, Normal, Uniform)
}
"""All of psnb, by name."""


# Which ids of a growing table get a row: always, by chance, or after some occurrences. Pure.
#
# After the entry attributes of PaddlePaddle's sparse tables (``ProbabilityEntry``,
# ``CountFilterEntry``).

MOST_SIGHTINGS = 2**31 - 2
"""The hash map can count up to one more than this."""


@dataclass(frozen=True)
class Admission(ABC):
    """Decides which ids get a row when they are pushed, or looked up for training.

    An id that is not admitted gives zeros, takes no gradient and costs no row. Once admitted it
    starts as the initializer says, and stays until `Embedding.shrink` removes it.
    """

    @property
    def frequencies(self) -> int:
        """In how many lookups and pushes an id must appear before it gets a row."""
        return 1

    @abstractmethod
    def may_enter(self, ids: np.ndarray, seed: int) -> np.ndarray:
        """Return which of the ids (uint64, ``(n,)``) may ever get a row, bool ``(n,)``."""

    def describe(self) -> dict[str, Any]:
        """Return name and parameters as JSON can hold them."""
        return to_config(self)


@dataclass(frozen=True)
class Always(Admission):
    """Every id gets a row at first sight; the default."""

    def may_enter(self, ids: np.ndarray, seed: int) -> np.ndarray:
        return np.ones(ids.size, bool)


@dataclass(frozen=True)
class Probability(Admission):
    """A share of all ids get rows, the others never.

    Which ids these are depends on table and id alone, not on servers or the order of requests.
    (In Paddle an id may try again each time.)

    Parameters
    ----------
    probability : float
        Above 0, at most 1.

    Raises
    ------
    ConfigurationError
        If it is outside this range.
    """

    probability: float

    def __post_init__(self) -> None:
        if not is_number(self.probability) or not 0 < self.probability <= 1:
            raise ConfigurationError(f"{shown(self)}: probability must be above 0 and at most 1")

    def may_enter(self, ids: np.ndarray, seed: int) -> np.ndarray:
        hashed = np.empty(ids.size, np.uint64)
        hash_ids(read_only(ids), hashed)
        # Hashed twice, with the seed in between: independent of the choice of the shard and of the
        # row's first values.
        hash_ids(read_only(hashed ^ ~np.uint64(seed)), hashed)
        chosen: np.ndarray = (hashed >> np.uint64(11)) < np.uint64(self.probability * 2**53)
        return chosen


@dataclass(frozen=True)
class CountFilter(Admission):
    """An id gets a row with the ``count``-th lookup or push that contains it.

    A lookup or push that has an id several times counts once. (Paddle counts each time, and counts
    lookups alone.) A training step that looks an id up and pushes it counts twice. What a closure
    pushes counts once, when it is committed. An id that waits takes a slot of the hash map.

    Parameters
    ----------
    count : int
        At least 1; 1 admits an id at first sight.

    Raises
    ------
    ConfigurationError
        If it is not a whole number in this range.
    """

    count: int

    def __post_init__(self) -> None:
        count = integer(f"{shown(self)}: count", self.count, 1, MOST_SIGHTINGS)
        object.__setattr__(self, "count", count)

    @property
    def frequencies(self) -> int:
        return self.count

    def may_enter(self, ids: np.ndarray, seed: int) -> np.ndarray:
        return np.ones(ids.size, bool)


ADMISSIONS: dict[str, type[Admission]] = {
    each.__name__: each for each in (Always, CountFilter, Probability)
}
"""All of psnb, by name."""


_MOST_STEPS = 2**62
"""More steps than there will ever be; a table can still count on from here."""


ROW_USE = ("show", "click", "unseen_days")
"""The arrays that tell how rows were used."""

COUNTS = "updates"
"""The counts of updates of a variable's numbers, in a tail, where they differ."""

_STEP, _SIGHTINGS, _USE = np.dtype(np.int64), np.dtype(np.uint32), np.dtype(np.float32)


@dataclass(frozen=True)
class Expected:
    """What the state of a variable's slice must be; the common part for embeddings too.

    Attributes
    ----------
    name : str
        The parameter's, for messages.
    dtype : numpy.dtype
        Of values and slots.
    slots : tuple of str
        Those of the optimizer.
    """

    name: str
    dtype: np.dtype
    slots: tuple[str, ...]

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

    @property
    def read(self) -> frozenset[str]:
        """The names of the arrays whose numbers are checked, not just their forms."""
        return self.tail

    @property
    def optional(self) -> frozenset[str]:
        """The names of the arrays that a tail may have besides."""
        return frozenset({COUNTS})

    def check_names(self, found: Mapping[str, Form]) -> None:
        """Raise InvalidArrayError unless these are exactly the arrays of a state."""
        if found.keys() - self.optional != (expected := self.arrays | self.tail):
            raise InvalidArrayError(f"expected arrays {sorted(expected)}, found {sorted(found)}")

    def check_numbers(self, found: Mapping[str, Form], shape: tuple[int, ...]) -> None:
        """Raise InvalidArrayError unless values and slots are there, all of this shape."""
        self._require(found, frozenset(self.numbers))
        for name in self.numbers:
            check_form(self._what(name), found[name], self.dtype, shape)

    def check_learned(
        self, values: np.ndarray, slots: Mapping[str, np.ndarray], shape: tuple[int, ...]
    ) -> None:
        """Raise InvalidArrayError unless these are values and all slots, all of this shape."""
        if slots.keys() != {*self.slots}:
            raise InvalidArrayError(
                f"{self.name!r}: expected slots {sorted(self.slots)}, found {sorted(slots)}"
            )
        named = {f"slot.{name}": slot for name, slot in slots.items()}
        self.check_numbers(forms(self.name, {"values": values, **named}), shape)

    def check_tail_forms(self, found: Mapping[str, Form]) -> None:
        """Raise InvalidArrayError unless the arrays of the tail are there, each of its form."""
        self._require(found, self.tail)
        check_form(self._what("step"), found["step"], _STEP, (1,))

    def check_tail(self, found: Mapping[str, Form], tail: Mapping[str, np.ndarray]) -> None:
        """Raise ConfigurationError unless this tail can be loaded."""
        self.check_tail_forms(found)
        check_within(self._what("step"), tail["step"], 0, _MOST_STEPS)

    def check_counts(self, counts: np.ndarray, extent: int, step: int) -> None:
        """Raise InvalidArrayError unless these may be the counts of updates of some numbers."""
        what = self._what(COUNTS)
        check_form(
            what, (counts.dtype, counts.shape), _STEP, (len(counts) if counts.ndim else 0, 2)
        )
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
    dim : int
        Floats a row.
    fixed : tuple of int or None
        Rows of the whole table, the number of this shard and of all shards; None if any 64-bit id
        is allowed.
    uses, waits : bool
        Whether the use of rows is remembered, and whether ids may wait for a row.
    """

    dim: int
    fixed: tuple[int, int, int] | None
    uses: bool
    waits: bool

    @property
    def arrays(self) -> frozenset[str]:
        return super().arrays | {"ids", *(ROW_USE if self.uses else ())}

    @property
    def optional(self) -> frozenset[str]:
        return frozenset()

    @property
    def tail(self) -> frozenset[str]:
        return super().tail | ({"waiting.ids", "waiting.frequencies"} if self.waits else set())

    @property
    def read(self) -> frozenset[str]:
        return self.tail | {"ids"}

    def check_row_forms(self, found: Mapping[str, Form]) -> int:
        """Return how many rows there are, or raise InvalidArrayError unless their arrays fit."""
        self._require(found, self.arrays)
        count = check_flat(self._what("ids"), found["ids"], ID)
        self.check_numbers(found, (count, self.dim))
        for name in ROW_USE if self.uses else ():
            check_form(self._what(name), found[name], _USE, (count,))
        return count

    def check_rows(self, found: Mapping[str, Form], arrays: Mapping[str, np.ndarray]) -> None:
        """Raise ConfigurationError unless these are rows of this shard, each once.

        Parameters
        ----------
        found : mapping of str to Form
            What arrays there are.
        arrays : mapping of str to numpy.ndarray
            At least the arrays named by `read`.
        """
        self.check_row_forms(found)
        ids = arrays["ids"]
        if self.fixed is not None:
            self._check_own(ids, *self.fixed)
        check_distinct(self._what("ids"), ids)

    def check_state(self, found: Mapping[str, Form], arrays: Mapping[str, np.ndarray]) -> None:
        """Raise ConfigurationError unless this whole state can be loaded."""
        self.check_rows(found, arrays)
        self.check_tail(found, arrays)
        if self.waits:
            both = np.concatenate([arrays["ids"], arrays["waiting.ids"]])
            check_distinct(f"ids and waiting.ids of {self.name!r}", both)

    def check_tail_forms(self, found: Mapping[str, Form]) -> None:
        super().check_tail_forms(found)
        if self.waits:
            count = check_flat(self._what("waiting.ids"), found["waiting.ids"], ID)
            what, frequencies = self._what("waiting.frequencies"), found["waiting.frequencies"]
            check_form(what, frequencies, _SIGHTINGS, (count,))

    def check_tail(self, found: Mapping[str, Form], tail: Mapping[str, np.ndarray]) -> None:
        super().check_tail(found, tail)
        if self.waits:
            what, frequencies = self._what("waiting.frequencies"), tail["waiting.frequencies"]
            check_within(what, frequencies, 1, MOST_SIGHTINGS)
            check_distinct(self._what("waiting.ids"), tail["waiting.ids"])

    def _check_own(self, ids: np.ndarray, rows: int, index: int, shards: int) -> None:
        what = self._what("ids")
        check_within(what, ids, 0, rows - 1)
        foreign = ids[ids % np.uint64(shards) != np.uint64(index)]
        if foreign.size:
            raise InvalidArrayError(f"{what}: {foreign[0]} is none of shard {index} of {shards}")


# SavedShard: a shard of a parameter in a file, and the checks before it is loaded or read. Pure.
#
# Most checks need the forms of arrays only, so large arrays of a file need not be read.

_NO_IDS = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class SavedShard:
    """A shard of a parameter, as it was saved.

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
    read: Callable[[str], np.ndarray]
    part: bool = False


def check_saved_slice(expected: Expected, shape: tuple[int, ...], saved: SavedShard) -> None:
    """Raise ConfigurationError unless this is a shard of a variable of this shape."""
    if saved.part:
        raise InvalidArrayError(f"{expected.name!r} must be in one file a shard")
    expected.check_names(saved.forms)
    if saved.shards > max((1, *shape[:1])):
        raise InvalidArrayError(f"{expected.name!r} cannot be in {saved.shards} shards")
    if saved.shards > 1:
        start, stop = row_ranges(shape[0], saved.shards)[saved.number]
        shape = (stop - start, *shape[1:])
    expected.check_numbers(saved.forms, shape)
    expected.check_tail_forms(saved.forms)
    step = saved.read("step")
    expected.check_tail(saved.forms, {"step": step})
    if COUNTS in saved.forms:
        expected.check_counts(saved.read(COUNTS), math.prod(shape), int(step[0]))


def check_saved_rows(expected: ExpectedRows, saved: SavedShard) -> None:
    """Raise ConfigurationError unless this is a shard of a table.

    Each id must be in the shard that it is assigned to. So no id is in two shards, and each shard
    can be checked alone.
    """
    expected.check_names(saved.forms)
    count = expected.check_row_forms(saved.forms)
    expected.check_tail_forms(saved.forms)
    if expected.fixed is not None and not saved.part:
        rows = len(range(saved.number, expected.fixed[0], saved.shards))
        if count != rows:
            raise InvalidArrayError(f"expected {rows} rows, found {count}")
    arrays = {name: saved.read(name) for name in expected.read}
    expected.check_state(saved.forms, arrays)
    if expected.fixed is not None:
        return
    for name in ("ids", "waiting.ids"):
        ids = arrays.get(name, _NO_IDS)
        foreign = shard_of_ids(ids, saved.shards, growing=True) != saved.number
        if foreign.any():
            raise InvalidArrayError(
                f"{name} of {expected.name!r}: {ids[foreign][0]} is none of shard {saved.number} "
                f"of {saved.shards}"
            )
