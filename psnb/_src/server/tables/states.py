"""Checks of a table's state before it is loaded, from a file or from another server. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from psnb._src.server.tables.admission import MOST_COUNT
from psnb._src.server.tables.checks import (
    ID,
    Form,
    check_distinct,
    check_flat,
    check_form,
    check_within,
    forms,
)
from psnb._src.server.tables.sharding import row_ranges, shard_of_ids
from psnb.errors import InvalidArrayError

_MOST_STEPS = 2**62
"""More steps than there will ever be; a table can still count on from here."""


ROW_USE = ("show", "click", "unseen_days")
"""The arrays that tell how rows were used."""

COUNTS = "updates"
"""The counts of updates of a variable's numbers, in a tail, where they differ."""

_STEP, _COUNT, _USE = np.dtype(np.int64), np.dtype(np.uint32), np.dtype(np.float32)


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
        """The names of the arrays that a tail may also have."""
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
            what, counts = self._what("waiting.frequencies"), found["waiting.frequencies"]
            check_form(what, counts, _COUNT, (count,))

    def check_tail(self, found: Mapping[str, Form], tail: Mapping[str, np.ndarray]) -> None:
        super().check_tail(found, tail)
        if self.waits:
            what, counts = self._what("waiting.frequencies"), tail["waiting.frequencies"]
            check_within(what, counts, 1, MOST_COUNT)
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
