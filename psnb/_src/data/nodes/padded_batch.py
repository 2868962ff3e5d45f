"""Consecutive elements of different shapes, padded and stacked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import Block
from psnb._src.data.nesting import (
    Nesting,
    flatten,
    flatten_like,
    is_text,
    map_leaves,
    unflatten,
)
from psnb._src.data.nodes.batch import Batching, different, named
from psnb._src.data.ragged import Ragged
from psnb._src.data.spec import ArraySpec, Spec
from psnb._src.excerpt import with_article
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class PaddedBatch(Batching):
    """Pads elements to a shape, or to the largest sizes in the batch."""

    name: ClassVar[str] = "padded_batch"

    padded_shapes: Any = None
    padding_values: Any = None

    def join(self, block: Block, index: int) -> Any:
        """Return the elements padded and stacked."""
        column = block.columns[index]
        text = isinstance(column, np.ndarray) and column.dtype == object and column.ndim == 1
        if text and all(map(is_text, column)):
            return column
        shapes = _shapes(block, index)
        target = self._target(shapes, block, index)
        for row in np.flatnonzero((shapes > target).any(axis=1))[:1]:
            raise DatasetError(
                f"{named(block, index)} has shape {tuple(shapes[row].tolist())}, which does not "
                f"fit padded_shapes {tuple(target.tolist())}"
            )
        if isinstance(column, np.ndarray) and column.shape[1:] == tuple(target):
            return column
        rows = list(column)
        value = self._value(rows[0].dtype, block, index)
        if isinstance(column, Ragged) and tuple(target[1:]) == column.values.shape[1:]:
            return column.pad(int(target[0]), value)
        out = np.full((len(rows), *target.tolist()), value, rows[0].dtype)
        for place, row in zip(out, rows, strict=True):
            place[tuple(slice(size) for size in row.shape)] = row
        return out

    def spec(self, run: bool) -> Spec:
        """Return that of the input with one more axis, and the shapes that were given."""
        spec = super().spec(run)
        if spec is None or self.padded_shapes is None:
            return spec
        leaves, nesting = flatten(spec)
        made = []
        for index, leaf in enumerate(leaves):
            sizes = self._shape(nesting, index)
            shape = leaf.shape if sizes is None else (leaf.shape[0], *sizes)
            made.append(ArraySpec(shape, leaf.dtype))
        return unflatten(nesting, iter(made))

    def _shape(self, nesting: Nesting, index: int) -> list[int | None] | None:
        """Return the shape that was given for a leaf, None for the largest."""
        if self.padded_shapes is None:
            return None
        sizes = flatten_like(nesting, _shapes_as_leaves(self.padded_shapes))[index]
        return None if sizes is None else [None if size in (None, -1) else size for size in sizes]

    def _target(self, shapes: np.ndarray, block: Block, index: int) -> np.ndarray:
        largest, sizes = shapes.max(axis=0), self._shape(block.nesting, index)
        if sizes is None:
            return largest
        if len(sizes) != len(largest):
            raise DatasetError(
                f"{named(block, index)} has {len(largest)} axes, padded_shapes says {sizes}"
            )
        found = [big if size is None else size for big, size in zip(largest, sizes, strict=True)]
        return np.array(found, np.int64)

    def _value(self, dtype: np.dtype, block: Block, index: int) -> Any:
        value = self.padding_values
        if flatten(value)[1] is not None:
            value = flatten_like(block.nesting, value)[index]
        if value is None:
            return "" if dtype.hasobject else np.zeros((), dtype)[()]
        if not dtype.hasobject and value == value and np.asarray(value).astype(dtype) != value:
            raise DatasetError(f"padding value {value!r} of {named(block, index)} is no {dtype}")
        return value


def filled(structure: Any, size: int) -> Any:
    """Return padded shapes with a size in place of those that are not given."""

    def of(shape: Any) -> Any:
        if shape is None:
            raise DatasetError("padded_shapes must say each axis where they are to be filled")
        return [size if each in (None, -1) else each for each in shape]

    return map_leaves(of, _shapes_as_leaves(structure))


def _shapes_as_leaves(structure: Any) -> Any:
    """Return shapes as lists, which are leaves: a tuple of sizes would be taken for nesting."""
    if structure is None or isinstance(structure, list):
        return structure
    if isinstance(structure, dict):
        return {key: _shapes_as_leaves(each) for key, each in structure.items()}
    if all(each is None or isinstance(each, int) for each in structure):
        return list(structure)
    return tuple(_shapes_as_leaves(each) for each in structure)


def _shapes(block: Block, index: int) -> np.ndarray:
    """Return the shape that a leaf has in each element, ``(n, axes)``."""
    column = block.columns[index]
    if isinstance(column, Ragged):
        rest = np.array(column.values.shape[1:], np.int64)
        return np.column_stack([column.lengths, np.broadcast_to(rest, (len(column), len(rest)))])
    if column.dtype == object and column.ndim == 1:
        for leaf in column:
            if not isinstance(leaf, np.ndarray):
                raise different(block, index, f"{with_article(type(leaf).__name__)} each")
        return np.array([leaf.shape for leaf in column], np.int64)
    shape = np.array(column.shape[1:], np.int64)
    return np.broadcast_to(shape, (len(column), len(shape)))
