"""Elements that belong to one instance as one: Paddle's merging by instance id.

All elements are read before the first one comes, and kept. The state has none of them: how many
were returned, and how many errors the input has raised; to resume, all are read again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from psnb._src.data.block import BLOCK, Block, Column, concatenate, leaf_name, take
from psnb._src.data.nesting import paths
from psnb._src.data.node import Context, Node, State
from psnb._src.data.ragged import Ragged, as_rows, offsets_of
from psnb._src.data.reader import FromStartIterator

logger = logging.getLogger("psnb")


class _MergeIterator(FromStartIterator["MergeBy"]):
    def __init__(self, node: MergeBy, context: Context, state: State) -> None:
        super().__init__(node, context, state)
        self._read: list[Block] | None = []  # None when all are merged
        self._merged: Block | None = None

    def next_block(self, limit: int) -> Block | None:
        if self._read is not None:
            while (block := self._take(BLOCK)) is not None:
                self._read.append(block)
            read, self._read = self._read, None
            self._merged = _merged_instances(concatenate(read), self._node) if read else None
        if self._merged is None or self._far >= self._merged.count:
            return None
        start, self._far = self._far, min(self._far + limit, self._merged.count)
        return self._merged.part(start, self._far)


@dataclass(frozen=True, eq=False)
class MergeBy(Node):
    """Joins the elements that have one key, in the order in which keys come first."""

    name: ClassVar[str] = "merge_by"
    iterator: ClassVar[Any] = _MergeIterator

    source: Node
    key: str
    min_merge_size: int = 2
    keep_unmerged: bool = True
    erase_duplicates: bool = True


class _Groups(NamedTuple):
    """Which elements make one.

    Attributes
    ----------
    order : numpy.ndarray
        The kept elements, group after group.
    starts : numpy.ndarray
        Where in ``order`` each group begins.
    group : numpy.ndarray
        The group of each of ``order``.
    """

    order: np.ndarray
    starts: np.ndarray
    group: np.ndarray


def _merged_instances(block: Block, node: MergeBy) -> Block | None:
    """Return the elements of a block merged; None if none is left.

    Raises
    ------
    DatasetError
        If an element has no such key.
    """
    whole = block.whole()
    if not isinstance(whole, dict) or node.key not in whole:
        raise node.error(0, f"elements are not dicts with {node.key!r}")
    keys = whole[node.key]
    if isinstance(keys, Ragged) or keys.ndim != 1:
        raise node.error(0, f"{node.key!r} is not one value for each element")
    # If the first axis of elements may differ in length, they are joined along it.
    block = block._replace(
        columns=tuple(
            as_rows(each)
            if block.loose and isinstance(each, np.ndarray) and each.ndim > 1
            else each
            for each in block.columns
        )
    )
    groups = _agreeing(block, _groups(keys, node))
    if not groups.starts.size:
        return None
    columns = [_joined(column, groups, node.erase_duplicates) for column in block.columns]
    return Block(block.nesting, tuple(columns), len(groups.starts), loose=block.loose)


def _groups(keys: np.ndarray, node: MergeBy) -> _Groups:
    _, first, inverse, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    large = (counts >= node.min_merge_size)[inverse]
    # Each element goes where the first one of its group is; one that is not merged stays alone.
    place = np.where(large, first[inverse], np.arange(len(keys)))
    kept = np.flatnonzero(large | node.keep_unmerged)
    order = kept[np.argsort(place[kept], kind="stable")]
    return _sorted(order, place[order])


def _sorted(order: np.ndarray, places: np.ndarray) -> _Groups:
    _, starts, group = np.unique(places, return_index=True, return_inverse=True)
    return _Groups(order, starts, group)


def _agreeing(block: Block, groups: _Groups) -> _Groups:
    """Leave out groups whose elements differ in a dense column; as Paddle does."""
    bad = np.zeros(len(groups.starts), bool)
    for column, name in zip(block.columns, paths(block.nesting), strict=True):
        if isinstance(column, Ragged):
            continue
        values = take(column, groups.order)
        same = values == values[groups.starts][groups.group]
        differing = ~same.all(axis=tuple(range(1, same.ndim)))
        if differing.any():
            wrong = np.unique(groups.group[differing])
            bad[wrong] = True
            logger.warning(
                "merge_by: %d instances are left out, whose elements differ in %s",
                len(wrong),
                leaf_name(name),
            )
    if not bad.any():
        return groups
    left = ~bad[groups.group]
    return _sorted(groups.order[left], groups.group[left])


def _joined(column: Column, groups: _Groups, erase_duplicates: bool) -> Column:
    if not isinstance(column, Ragged):
        return take(column, groups.order[groups.starts])
    rows = column.take(groups.order)
    values, group = rows.values, np.repeat(groups.group, rows.lengths)
    if erase_duplicates and values.ndim == 1 and values.dtype.kind in "iu":
        # The first of equal ones in a group stays.
        pairs = np.lexsort((np.arange(len(values)), values, group))
        again = np.zeros(len(values), bool)
        again[pairs[1:]] = (values[pairs[1:]] == values[pairs[:-1]]) & (
            group[pairs[1:]] == group[pairs[:-1]]
        )
        # An element without others is not a merged instance, and stays as it is.
        again &= (np.bincount(groups.group) > 1)[group]
        values, group = values[~again], group[~again]
    return Ragged(values, offsets_of(np.bincount(group, minlength=len(groups.starts))))
