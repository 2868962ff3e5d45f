"""DenseTable: a slice of a dense variable. Pure, without Dask."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from psnb._src.server.memory import answer_array, lasting, scratch
from psnb._src.server.optimizer import Optimizer, Workspace
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.checks import (
    COUNTS,
    POSITION,
    Expected,
    check_array,
    check_form,
    check_positions,
    check_within,
    forms,
)
from psnb._src.server.tables.presence import UpdateCounts, check_ranges, count_in, pieces
from psnb._src.server.tables.table import Table
from psnb._src.server.tables.updater import Updater
from psnb._src.transport.message import halved


class DenseTable(Table):
    """A slice of a dense variable.

    Parameters
    ----------
    name : str
        The variable's name, for messages.
    values : numpy.ndarray
        Initial values of the slice; copied.
    optimizer : Optimizer or None
        What `PushGradient` applies.
    """

    writes = (
        *(
            ops.PushGradient,
            ops.AssignValues,
            ops.AddValues,
            ops.AssignRows,
            ops.AddRows,
            ops.MergeValues,
        ),
        *(ops.BlendValues, ops.SkipUpdates),
    )

    def __init__(self, name: str, values: np.ndarray, optimizer: Optimizer | None) -> None:
        super().__init__()
        self.name = name
        self._values = _copy(values)
        make = partial(Workspace.of_variable, self._values.size, self._values.dtype)
        self.updater = Updater(name, optimizer, make)
        self._slots = {slot: _copy(self._values) for slot in self.updater.slots}
        for slot, array in self._slots.items():
            array.fill(self.updater.required().initial_slot(slot))
        slots = {f"slot.{slot}": array for slot, array in self._slots.items()}
        self._arrays = {"values": self._values, **slots}
        self.expected = Expected(name, self._values.dtype, self.updater.slots, self._values.shape)
        self._counts: UpdateCounts | None = None  # where they are not all the updater's step

    def run(self, operation: ops.TableOperation) -> Any:
        match operation:
            case ops.ReadValues(half):
                return halved(self.read()) if half else self.read()
            case ops.GatherRows(rows, half):
                return halved(self.gather(rows)) if half else self.gather(rows)
        if isinstance(operation, self.writes):
            return self.reserve(operation)()
        return super().run(operation)

    def read(self) -> np.ndarray:
        """Return the values."""
        return self._values

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Return some rows (int64, ``(n,)``), ``(n, ...)``."""
        self._check_rows(rows)
        out = answer_array((rows.size, *self._values.shape[1:]), self._values.dtype)
        return self._values.take(rows, axis=0, out=out, mode="clip")

    def reserve(self, write: ops.TableOperation) -> Callable[[], None]:
        match write:
            case ops.PushGradient(gradient, ranges=ranges):
                self.updater.required()
                if ranges is None:
                    self._check(gradient)
                else:
                    what = f"gradient for {self.name!r}"
                    check_array(what, gradient, self._values.dtype, (gradient.size,))
                    check_ranges(what, ranges, self.extent, gradient.size)
                return partial(self._push, write)
            case ops.AddRows(rows, values):
                self._check_rows(rows, values)
                return self._reserved_addition(rows, values)
            case ops.AssignRows(rows, values):
                self._check_rows(rows, values)
                return partial(self._assign, rows, values)
            case ops.AddValues(values):
                self._check(values)
                return partial(self._add, values)
            case ops.AssignValues(values):
                self._check(values)
                return partial(self._assign, None, values)
            case ops.BlendValues(shares, terms):
                self._check(shares)
                self._check(terms)
                kept, set_ = (scratch(shares.shape, kind) for kind in (shares.dtype, np.bool_))
                return partial(self.blend_in, shares, terms, kept, set_)
            case ops.MergeValues(values, slots, step, _, ranges, counts):
                self.expected.check_learned(values, slots)
                if ranges is not None:
                    check_ranges(f"values of {self.name!r}", ranges, self.extent, count_in(ranges))
                if counts is not None:
                    self.expected.check_counts(counts, step)
                room = scratch(self._values.shape, self._values.dtype) if slots else values
                return partial(self._merge, write, room)
            case ops.SkipUpdates(count):
                return partial(self.updater.skip, count)
        raise self.unknown(write)

    # The rest takes no memory; see `reserve`.

    def _push(self, push: ops.PushGradient) -> None:
        self.changing(None)
        if push.ranges is None and self._counts is None:
            self.updater.apply(
                self._values.reshape(1, -1),
                {name: slot.reshape(1, -1) for name, slot in self._slots.items()},
                np.zeros(1, np.int64),
                push.gradient.reshape(1, -1),
                push.norm,
                push.rate,
            )
            return
        counts = self._update_counts()
        self.updater.apply_runs(
            self._values.reshape(-1),
            {name: slot.reshape(-1) for name, slot in self._slots.items()},
            push.gradient.reshape(-1),
            counts.runs(push.ranges),
            push.norm,
            push.rate,
        )
        self._count(counts.advanced(None if push.together else push.ranges))

    def _update_counts(self) -> UpdateCounts:
        even = UpdateCounts.even(self.extent, self.updater.step)
        return even if self._counts is None else self._counts

    def _count(self, counts: UpdateCounts) -> None:
        self._counts = None if (counts.counts == self.updater.step).all() else counts

    def blend_in(
        self, shares: np.ndarray, terms: np.ndarray, kept: np.ndarray, set_: np.ndarray
    ) -> None:
        """Blend; ``kept`` and ``set_`` (bool) are memory of the shape of the values."""
        self.changing(None)
        np.equal(shares, 1, out=set_)
        np.copyto(self._values, 0, where=set_)  # also what is infinite
        np.subtract(1, shares, out=kept)
        self._values *= kept
        self._values += terms

    def _add(self, values: np.ndarray) -> None:
        self.changing(None)
        self._values += values

    def _assign(self, rows: np.ndarray | None, values: np.ndarray) -> None:
        if rows is None:
            self.changing(None)
        else:
            self._changing_rows(rows)
        self._values[... if rows is None else rows] = values

    def _changing_rows(self, rows: np.ndarray) -> None:
        width = math.prod(self._values.shape[1:])
        self._watched(lambda watcher: watcher.changing_parts(rows, width))

    def _reserved_addition(self, rows: np.ndarray, values: np.ndarray) -> Callable[[], None]:
        # Sorted and summed: five times as fast as `np.add.at` if a row is more than one number.
        order = np.argsort(rows, kind="stable")
        distinct, starts = np.unique(rows[order], return_index=True)
        sums = np.add.reduceat(values[order], starts, 0, values.dtype)
        room = scratch(sums.shape, sums.dtype)

        def add() -> None:
            self._changing_rows(rows)
            self._values.take(distinct, axis=0, out=room, mode="clip")
            np.add(room, sums, out=room)
            self._values[distinct] = room

        return add

    def _merge(self, of: ops.MergeValues, room: np.ndarray) -> None:
        self.changing(None)
        self._values += of.values
        for name, slot in of.slots.items():
            np.subtract(slot, self._slots[name], out=room)
            room *= slot.dtype.type(of.share)
            if of.ranges is None:
                self._slots[name] += room
                continue
            for columns, _ in pieces(of.ranges):
                self._slots[name].reshape(-1)[columns] += room.reshape(-1)[columns]
        own = self._update_counts()
        even = UpdateCounts.even(self.extent, of.step)
        of_copy = even if of.counts is None else UpdateCounts.of(of.counts)
        self.updater.step = max(self.updater.step, of.step)
        self._count(own.merged(of_copy))

    @property
    def extent(self) -> int:
        return self._values.size

    def segment(self, start: int, stop: int) -> ops.Segment:
        # In the variable's shape, if the segment is the whole slice.
        shape = self._values.shape if (start, stop) == (0, self.extent) else (-1,)
        part = slice(start, stop)
        return {name: self.column(name, part).reshape(shape) for name in self._arrays}

    def column(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        return self.flat(name)[rows].copy()

    def flat(self, name: str) -> np.ndarray:
        """Return one of its arrays itself, in one axis."""
        return self._arrays[name].reshape(-1)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the slice."""
        return self._values.shape

    def clear(self) -> None:
        pass  # segments replace everything

    def put(self, segment: ops.Segment) -> None:
        """Load numbers from position ``start`` on; 0 if it is left out."""
        found = forms(self.name, segment)
        shape = found.get("values", (None, ()))[1]
        replace(self.expected, shape=shape).check_numbers(found)
        start = 0
        if "start" in segment:
            check_form(f"start of {self.name!r}", found["start"], POSITION, (1,))
            start = int(segment["start"][0])
        what = f"numbers of {self.name!r}"
        check_within(what, np.array([start, start + math.prod(shape)]), 0, self.extent)
        self.changing(None)
        for name, array in self._arrays.items():
            part = segment[name].reshape(-1)
            array.reshape(-1)[start : start + part.size] = part

    def tail(self) -> ops.Segment:
        found = super().tail()
        return found if self._counts is None else {**found, COUNTS: self._counts.array()}

    def finish(self, tail: ops.Segment) -> None:
        super().finish(tail)
        self._counts = UpdateCounts.of(tail[COUNTS].copy()) if COUNTS in tail else None

    def _check(self, values: np.ndarray) -> None:
        what = f"values for {self.name!r}"
        check_array(what, values, self._values.dtype, self._values.shape)

    def _check_rows(self, rows: np.ndarray, values: np.ndarray | None = None) -> None:
        check_positions(f"rows of {self.name!r}", rows, len(self._values))
        if values is not None:
            shape = (rows.size, *self._values.shape[1:])
            check_array(f"values for {self.name!r}", values, self._values.dtype, shape)

    def _saved(self, writes: Sequence[ops.TableOperation]) -> Callable[[], None]:
        return partial(self.load, self.state())

    def nbytes(self) -> int:
        return self._values.nbytes + sum(slot.nbytes for slot in self._slots.values())


def _copy(array: np.ndarray) -> np.ndarray:
    copy = lasting(array.shape, array.dtype)
    copy[...] = array
    return copy


# Composing blends: several, one after the other, as one. Pure.
#
# A blend makes ``(1 - share) * value + term`` of each value. So it moves a value part of the way to
# another one, wherever the value is by then: after blends of shares from 0 to 1, a value lies
# between its former value and the blended ones, however late they come and in which order.


def composed(first: ops.BlendValues | None, second: ops.BlendValues) -> ops.BlendValues:
    """Return one blend with the effect of both, one after the other."""
    if first is None:
        return second
    shares, terms = first.shares.copy(), first.terms.copy()
    compose(shares, terms, second, np.empty_like(shares))
    return ops.BlendValues(shares, terms)


def compose(
    shares: np.ndarray, terms: np.ndarray, second: ops.BlendValues, kept: np.ndarray
) -> None:
    """Change the shares and terms of a blend so that it does what ``second`` does after it, too.

    ``kept`` is memory of their shape; no other is taken.
    """
    np.subtract(1, second.shares, out=kept)
    # Not 1 - (1 - a) * (1 - b), which rounds: shares are 0 where values are only added to.
    shares *= kept
    shares += second.shares
    terms *= kept
    terms += second.terms
