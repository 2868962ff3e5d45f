"""RowLayout: how the rows of a batch get into a compiled program, and from there to its features.

The rows of all tables of one length and dtype are one matrix, so a program has one gather for
them, and its transpose is one sum by id. `Ragged` ids are bags: their rows are combined in the
program. The numbers of rows and of ids in bags are padded to few sizes, so that few programs are
compiled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import Handle, shards_of
from psnb._src.data.ragged import Ragged
from psnb._src.models.batch_rows import BatchRows

Ids = np.ndarray | Ragged


LocatedIds = tuple[Ids, np.ndarray]
"""The ids of a feature, and the position of each among the rows of its table."""


class GroupForm(NamedTuple):
    """Features whose rows have one length and dtype; equal forms need one program.

    Attributes
    ----------
    features : tuple of (str, tuple of int)
        By name the shapes of ids that have one.
    bags : tuple of (str, int)
        By name the numbers of bags.
    """

    features: tuple[tuple[str, tuple[int, ...]], ...]
    bags: tuple[tuple[str, int], ...]

    def rows(self, rows: Any, gather: GroupGather) -> dict[str, Any]:
        """Return the rows by feature, in a program."""
        dim = rows.shape[1]
        # Positions are right by construction; with this mode, XLA neither checks nor clips them.
        gathered = rows.at[gather.positions].get(mode="promise_in_bounds")
        found, start = {}, 0
        for name, shape in self.features:
            size = math.prod(shape)
            found[name] = gathered[start : start + size].reshape(*shape, dim)
            start += size
        if self.bags:
            total = sum(number for _, number in self.bags)
            # One more for ids that are left out: padding.
            sums = jax.ops.segment_sum(gathered[start:], gather.bag, total + 1)[:total]
            combined, first = sums * gather.scale[:, None].astype(rows.dtype), 0
            for name, number in self.bags:
                found[name] = combined[first : first + number]
                first += number
        return found


class GroupGather(NamedTuple):
    """The indices by which a program gets a group's rows to its features.

    Attributes
    ----------
    positions : int32 ``(n,)``
        The position of each id's row: first for features with a shape, then for bags.
    bag : int32 ``(m,)``
        The bag of each id in bags; the number of bags for ids that are left out.
    scale : float32 ``(bags,)``
        The factor of each bag's sum.
    """

    positions: np.ndarray
    bag: np.ndarray
    scale: np.ndarray


class _Group:
    """The features of tables whose rows have one length and dtype."""

    def __init__(self, features: Mapping[Embedding, Sequence[str]]) -> None:
        self.features, self.tables = features, list(features)
        self.rows_sizes, self.bag_sizes = SizeBuckets(), SizeBuckets()


class RowLayout:
    """Brings the rows of a batch into a program, and their gradients back.

    Threads: several may use one.

    Parameters
    ----------
    tables : mapping of str to Embedding
        The table of each feature; several features may have the same.
    combiners : mapping of str to str
        "sum", "mean" or "sqrtn", for features whose ids are bags.
    """

    def __init__(self, tables: Mapping[str, Embedding], combiners: Mapping[str, str]) -> None:
        # One handle for each table, also where a feature came with another one.
        known: dict[object, Embedding] = {}
        self._tables = {
            name: known.setdefault(shards_of(table).tables, table) for name, table in tables.items()
        }
        self._combiners = combiners
        kinds: dict[tuple[str, int], dict[Embedding, list[str]]] = {}
        for name, table in self._tables.items():
            kind = kinds.setdefault((table.dtype.name, table.dim), {})
            kind.setdefault(table, []).append(name)
        self._groups = [_Group(features) for features in kinds.values()]

    def locate(self, ids: Mapping[str, Ids], rows: BatchRows) -> dict[str, LocatedIds]:
        """Find the position of each id among the rows of its table, by feature."""
        wanted = {
            table: [_flat(ids[name]) for name in names]
            for group in self._groups
            for table, names in group.features.items()
        }
        positions = rows.locate(wanted)
        return {
            name: (ids[name], position)
            for group in self._groups
            for table, names in group.features.items()
            for name, position in zip(names, positions[table], strict=True)
        }

    def form(
        self,
        located: Mapping[str, LocatedIds],
        rows: BatchRows,
        fetched: Mapping[Embedding, np.ndarray],
    ) -> tuple[tuple[GroupForm, ...], list[np.ndarray], list[GroupGather]]:
        """Return the form of the groups, the rows of each, and what a program needs to use them."""
        forms, matrices, gathers = [], [], []
        for group in self._groups:
            starts, matrix = _joined(group, fetched)
            own = {name: each for name, each in located.items() if id(self._tables[name]) in starts}
            bags = {name: each for name, each in own.items() if isinstance(each[0], Ragged)}
            shaped = {name: each for name, each in own.items() if name not in bags}
            parts = [
                positions.reshape(-1) + starts[id(self._tables[name])]
                for name, (_, positions) in (*shaped.items(), *bags.items())
            ]
            bag, scale = self._bags(bags, rows)
            padding = 0
            if bags:
                padding = group.bag_sizes.at_least(bag.size) - bag.size
                bag = np.pad(bag, (0, padding), constant_values=scale.size)
            shapes = tuple((name, positions.shape) for name, (_, positions) in shaped.items())
            numbers = tuple((name, len(ids)) for name, (ids, _) in bags.items())
            forms.append(GroupForm(shapes, numbers))
            matrices.append(matrix)
            parts.append(np.zeros(padding, np.int64))
            positions = np.concatenate(parts, dtype=np.int32, casting="same_kind")
            gathers.append(GroupGather(positions, bag, scale))
        return tuple(forms), matrices, gathers

    def gradients(
        self, fetched: Mapping[Embedding, np.ndarray], matrices: Sequence[Any]
    ) -> dict[Handle, np.ndarray]:
        """Return the gradients of each table's rows from the groups' gradients."""
        found: dict[Handle, np.ndarray] = {}
        for group, matrix in zip(self._groups, matrices, strict=True):
            whole, start = np.asarray(matrix, group.tables[0].dtype), 0
            for table in group.tables:
                if table in fetched:
                    count = len(fetched[table])
                    found[table] = whole[start : start + count]
                    start += count
        return found

    def _bags(
        self, features: Mapping[str, LocatedIds], rows: BatchRows
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the bag of each id in bags, and what each bag's sum is multiplied by."""
        bags, scales, first = [], [], 0
        for name, (ids, positions) in features.items():
            assert isinstance(ids, Ragged)
            table, lengths, count = self._tables[name], ids.lengths, len(ids)
            bag = np.repeat(np.arange(first, first + count, dtype=np.int32), lengths)
            if table.padding_idx is not None:
                # Its row is of zeros, and it is not counted, as in `Embedding.lookup_bags`.
                real = positions.reshape(-1) != rows.find(table, table.padding_idx)
                lengths = np.bincount(bag[real] - first, minlength=count)
            bags.append(bag)
            scales.append(_scale(self._combiners[name], lengths))
            first += count
        if not bags:
            return np.empty(0, np.int32), np.empty(0, np.float32)
        return np.concatenate(bags), np.concatenate(scales)


def _flat(ids: Ids) -> np.ndarray:
    return ids.values if isinstance(ids, Ragged) else ids


def _joined(
    group: _Group, fetched: Mapping[Embedding, np.ndarray]
) -> tuple[dict[int, int], np.ndarray]:
    """Return where each table's rows start in the matrix of a group, and the matrix."""
    starts, count = {}, 0
    for table in group.tables:
        starts[id(table)] = count
        count += len(fetched[table]) if table in fetched else 0
    first = group.tables[0]
    # Padding is never read.
    matrix = np.empty((group.rows_sizes.at_least(count), first.dim), first.dtype)
    for table in group.tables:
        if table in fetched:
            start = starts[id(table)]
            matrix[start : start + len(fetched[table])] = fetched[table]
    return starts, matrix


def _scale(combiner: str, lengths: np.ndarray) -> np.ndarray:
    if combiner == "sum":
        return np.ones(lengths.size, np.float32)
    divisors = lengths if combiner == "mean" else np.sqrt(lengths)
    inverse = np.zeros(lengths.size, np.float32)
    np.divide(1.0, divisors, out=inverse, where=lengths > 0, casting="same_kind")
    return inverse


_SPARE = 16
"""A sixteenth is left free, for batches that need a little more than the first one."""


class SizeBuckets:
    """Chooses sizes, preferably ones that it has chosen before, as these are compiled.

    Threads: several may use one; at worst, one of them uses another size than it would have alone.
    """

    def __init__(self) -> None:
        self._used: tuple[int, ...] = ()

    def at_least(self, count: int) -> int:
        """Return a size that is not below ``count`` nor far above it."""
        for size in self._used:
            # A size that was used is compiled: it may be twice too large.
            if count <= size <= max(8, 2 * count):
                return size
        size = padded_size(count + count // _SPARE)
        self._used = tuple(sorted({*self._used, size}))
        return size


def padded_size(count: int) -> int:
    """Return the next size that is 4, 5, 6 or 7 times a power of two; 8 at the least."""
    if count <= 8:
        return 8
    step: int = 1 << max(0, (count - 1).bit_length() - 3)
    return -(-count // step) * step
