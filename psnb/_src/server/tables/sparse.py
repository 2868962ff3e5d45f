"""SparseTable: a shard of an embedding. Pure, without Dask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from psnb._src.server import stored
from psnb._src.server.hashing import distinct
from psnb._src.server.kernels import read_only
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.changed_rows import Watcher
from psnb._src.server.tables.checks import ROW_USE, check_array, check_ids, forms
from psnb._src.server.tables.fused import look_up, push_in_round, reserve_push
from psnb._src.server.tables.leaving_rows import LeavingRows
from psnb._src.server.tables.looking import look, read_rows
from psnb._src.server.tables.row_index import RowRequest
from psnb._src.server.tables.row_use import RowUse
from psnb._src.server.tables.sharding import as_items, evenly
from psnb.errors import InvalidArrayError

_COUNTS = np.dtype(np.float32)


class SparseTable(LeavingRows):
    """A shard of an embedding table."""

    writes = (ops.PushRows, ops.PutRows, ops.RecordUse, ops.MergeRows, ops.EndDay, ops.SkipUpdates)

    def run(self, operation: ops.TableOperation) -> Any:
        match operation:
            case ops.LookUpRows():
                return look_up([self], operation)
            case ops.FetchRows(ids):
                return self.fetch(ids)
            case ops.ReadUse(ids):
                return self.row_use(ids)
            case ops.ShrinkTable(threshold, days, forget_waiting):
                return self.shrink(threshold, days, forget_waiting)
            case ops.DescribeRows():
                return self.describe_rows()
            case ops.ReadRows(ids):
                return read_rows(self, ids)
            case ops.ScanRows():
                return look(self, operation)
            case ops.MeasureMoves():
                return self.updater.step, self.moved.moves(self.values)
            case ops.ChooseLeaving(ids):
                return self.choose(ids)
            case ops.ForgetWaiting(most):
                return self.forget_waiting(most)
            case ops.RemoveRows(ids):
                return self.remove(ids)
            case ops.CountMinute():
                return self.count_minute()
        if isinstance(operation, self.writes):
            return self.reserve(operation)()
        return super().run(operation)

    def reserve(self, write: ops.TableOperation, *, counting: bool = True) -> Callable[[], None]:
        match write:
            case ops.PushRows():
                return reserve_push([self], write, counting=counting)
            case ops.PutRows(ids, values):
                self._check_rows(ids, values, "values")
                return partial(self._assign, self.requested(ids, inserted=True), values)
            case ops.MergeRows(ids, values, slots):
                check_ids(f"ids for {self.name!r}", ids)
                self.expected.check_learned(values, slots, ids.size)
                request = self.requested(ids, counting=False)
                return partial(self._merge, request, write)
            case ops.RecordUse(ids, shows, clicks):
                use, rows = self._known_use(), self.index.find(ids)
                for name, counts in (("shows", shows), ("clicks", clicks)):
                    check_array(f"{name} for {self.name!r}", counts, _COUNTS, (ids.size,))
                return partial(self._record, use, RowRequest(ids, rows, min_count=0), shows, clicks)
            case ops.EndDay():
                return partial(self._end_day, self._known_use())
            case ops.SkipUpdates(count):
                return partial(self.updater.skip, count)
        raise self.unknown(write)

    def check_push(self, push: ops.PushRows) -> None:
        """Raise ConfigurationError unless a push can be made."""
        self.updater.required()
        self._check_rows(push.ids, push.gradients, "gradients")

    def round_push(
        self, push: ops.PushRows, rows: np.ndarray, admitted: np.ndarray
    ) -> Callable[[], None]:
        """Return what makes a push of distinct ids, for whose rows there is room.

        ``rows`` (int64) is memory; ``admitted`` is that of what `requested` returned.
        """
        request = RowRequest(push.ids, rows, admitted, self._admission.min_count)
        return push_in_round(self, push, request)

    def lookup(self, ids: np.ndarray, training: bool = True) -> np.ndarray:
        """Return the rows of ``ids`` (uint64, ``(n,)``), ``(n, dim)``; zeros if not admitted.

        Without ``training`` no row is made and no id counts as seen.
        """
        found = look_up([self], ops.LookUpRows(ids, None, training))
        assert isinstance(found, np.ndarray)  # not halved
        return found

    def _rehearse(self, write: ops.TableOperation) -> None:
        # Until it is committed, it counts neither as an occurrence of its ids nor as a use of its
        # rows. (`end_day` is never among the writes of a closure: it happens immediately.)
        if isinstance(write, ops.PushRows):
            self.reserve(write, counting=False)()

    def fetch(self, ids: np.ndarray) -> ops.Segment:
        """Return the rows of the distinct ids, where they have one, and the step."""
        rows = self.give(self.requested(ids))
        segment = self.pick(rows[rows >= 0])
        return {**segment, "step": np.array([self.updater.step])}

    def row_use(self, ids: np.ndarray) -> np.ndarray:
        """Return show, click and days unseen of ids, ``(n, 3)``; zeros for those without a row."""
        return self._known_use().of(self.index.find(ids))

    def shrink(self, threshold: float, days: float, forget_waiting: bool) -> int:
        """Remove rows with a lower score or more days unseen; return how many."""
        kept = self._known_use().kept(threshold, days)
        self._growing()
        self._keep(kept, forget_waiting=forget_waiting)
        return int(kept.size - np.count_nonzero(kept))

    # The rest takes no memory; see `reserve`.

    def _assign(self, request: RowRequest, values: np.ndarray) -> None:
        rows = self.give(request)
        self.changing(rows)
        with np.errstate(over="ignore"):  # as `half_width.rounded`
            for at in self.in_parts(rows.size):
                self.values[rows[at]] = values[at]

    def _merge(self, request: RowRequest, of: ops.MergeRows) -> None:
        rows = read_only(self.give(request))
        self.changing(rows)
        if self.moved.watches:
            self.moved.pushing(self.values, rows)
        # Those of several workers at one count of updates are rounded by other bits.
        seed = self.updater.update_seed() ^ xxh3_64_intdigest(np.ascontiguousarray(of.values).data)
        whole = of.values.dtype.type(1)
        arrays = self._values, *(self._slots[name] for name in self.updater.slots)
        learned = of.values, *(of.slots[name] for name in self.updater.slots)
        for at, (array, each) in enumerate(zip(arrays, learned, strict=True)):
            share = each.dtype.type(of.share) if at else whole
            for part in self.in_parts(rows.size):
                some = rows[part], of.ids[part], each[part]
                stored.merge_rows(array.rows, *some, share, seed, at)
        self.updater.step = max(self.updater.step, of.step)

    def _record(
        self, use: RowUse, request: RowRequest, shows: np.ndarray, clicks: np.ndarray
    ) -> None:
        rows = self.index.give(request)  # as they are now

        def note(watcher: Watcher) -> None:
            changing, _ = distinct(rows.view(np.uint64))  # sorting takes five times as long
            watcher.changing(changing.view(np.int64))

        self._watched(note)
        for at in self.in_parts(rows.size):
            use.record(rows[at], shows[at], clicks[at])

    def _end_day(self, use: RowUse) -> None:
        self._watched(lambda watcher: watcher.changing_use())
        use.end_day()

    def describe_rows(self) -> dict[str, int]:
        """Return how many rows there are and what they cost; see `EmbeddingStatistics`."""
        leaving = self._leaving
        return {
            "rows": self.index.count,
            "waiting": self.index.waiting,
            "nbytes": self.nbytes() - self.disk_nbytes(),
            "index_nbytes": self.index.nbytes(),
            "disk_nbytes": self.disk_nbytes(),
            "evicted": leaving.evicted if leaving else 0,
            "expired": leaving.expired if leaving else 0,
            "missed": leaving.gone if leaving else 0,
            "pushed": leaving.pushed if leaving else 0,
        }

    def segment(self, start: int, stop: int) -> ops.Segment:
        """Return copies of rows: ``ids``, ``values``, ``slot.*``, ``show``, ``click``, ...."""
        return self.pick(slice(start, stop))

    def pick(self, rows: slice | np.ndarray) -> ops.Segment:
        """Return copies of some rows, by their numbers, in the same form."""
        return {name: self.column(name, rows) for name in self._names}

    def column(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        if name == "ids":
            return self.index.ids(rows)
        if name in ROW_USE:
            return self._known_use().column(name, rows)
        if self._leaving is not None and name in self._leaving.names:
            return self._leaving.column(name, rows)
        array = self._values if name == "values" else self._slots[name.removeprefix("slot.")]
        dtype, _ = self.expected.form_of(name)
        return array.copy_of(rows).view(dtype)

    def make_room(self, rows: int) -> None:
        super().make_room(rows)
        if self._fixed is None:
            # All that are there now go first, and reserved writes may make some again.
            self.reserve_rows(self.promised + self.present + max(0, rows - self.index.count))
            self._coming = rows

    def clear(self) -> None:
        self._watched(lambda watcher: watcher.renumbering())
        self.moved.forget()
        self.updater.step = 0  # rows that are loaded next are not old before the tail is, too
        coming, self._coming = self._coming, 0
        # Not by how many rows there are: each restore may bring somewhat fewer than the one before.
        most = self.index.count + self.index.spare
        if not (self.promises or 2 * coming > most) and self._fixed is None:
            self._begin()
            if coming:  # much less than there is memory for
                self.reserve_rows(coming)
            return
        # In the memory that is there: prepared commits may make as many rows again. The ids of
        # fixed rows first, as these take memory.
        ids = self.index.ids(slice(None if self._fixed else 0))
        self._gone = True
        self.index.clear()
        for array in self.row_arrays():
            array.clear()
        if self._leaving is not None:
            self._leaving.restart()
        self._extend(0, ids)

    def put(self, segment: ops.Segment) -> None:
        """Load rows; that admits their ids."""
        self.expected.check_rows(forms(self.name, segment), segment.__getitem__)
        items = {name: as_items(segment[name]) for name in self.expected.numbers}
        self.moved.forget()
        before = self.index.count
        rows = self.give(self.to_load(segment["ids"]), begun=False)
        self.changing(rows)
        at, arrays = evenly(rows), (self._values, *self._slots.values())
        for array, each in zip(arrays, items.values(), strict=True):
            as_items(array.rows)[at] = each
        if self._use is not None:
            self._use.load(rows, segment)
        if self._leaving is not None:
            self._leaving.load(rows, before, segment)

    def tail(self) -> ops.Segment:
        """Return ``step``, and ``waiting.ids``, ``waiting.frequencies`` of ids without a row."""
        waiting = {}
        if self._admission.min_count > 1:
            waiting["waiting.ids"], waiting["waiting.frequencies"] = self._growing().waiting_ids()
        return {**super().tail(), **waiting}

    def finish(self, tail: ops.Segment) -> None:
        self.expected.check_tail(forms(self.name, tail), tail.__getitem__)
        if self._admission.min_count > 1:  # first: it may be refused
            rows, ids = self._growing(), tail["waiting.ids"]
            if (has := rows.find(ids) >= 0).any():
                raise InvalidArrayError(
                    f"waiting.ids of {self.name!r}: {ids[has][0]} has a row already"
                )
            rows.reserve(self.held + ids.size)
            rows.wait(ids, tail["waiting.frequencies"])
        super().finish(tail)

    def preview(self, writes: Sequence[ops.TableOperation], read: ops.TableRead) -> Any:
        if self._leaving is None:
            return super().preview(writes, read)
        # All rows first, so that none of them leaves while others are made.
        ids = [write.ids for write in writes if isinstance(write, ops.PushRows)]
        known = np.concatenate([np.empty(0, np.uint64), *ids])
        requests = [self.requested(known, counting=False)]
        if isinstance(read, ops.LookUpRows) and read.training:
            requests.append(self.requested(read.ids))
        for request in requests:
            self.give(request)
        self._rehearses = True
        try:
            return super().preview(writes, read)
        finally:
            self._rehearses = False

    def _saved(self, writes: Sequence[ops.TableOperation]) -> Callable[[], None]:
        # Rows made for ids that are only in the writes remain: they have their initial values.
        ids = [write.ids for write in writes if isinstance(write, ops.PushRows)]
        known = np.concatenate([np.empty(0, np.uint64), *ids])
        rows = self.give(self.requested(known, counting=False))
        rows = rows[rows >= 0]
        values = self._values.rows[rows]
        slots = {name: slot.rows[rows] for name, slot in self._slots.items()}

        def undo() -> None:
            self._values.rows[rows] = values
            for name, slot in slots.items():
                self._slots[name].rows[rows] = slot

        return undo
