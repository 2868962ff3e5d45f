"""Rows of ``.npy`` files, which stay on disk: memory maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnb._src.data.block import Block, Column, column_spec
from psnb._src.data.formats import missing
from psnb._src.data.iteration_context import Context
from psnb._src.data.nesting import Nesting, paths, unflatten
from psnb._src.data.node import Indexed, Node, State
from psnb._src.data.nodes.indexed import InOrder
from psnb._src.data.spec import Spec, merged
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Npy(Node):
    """For each leaf some files, whose rows are its elements, one file after another."""

    name: ClassVar[str] = "npy"

    files: tuple[tuple[str, ...], ...]
    nesting: Nesting = None

    def iterate(self, context: Context, state: State = None) -> InOrder:
        """Begin."""
        return InOrder(self.indexed(), state)

    def indexed(self) -> Indexed:
        """Open the files and return their rows."""
        leaves = [_NpyFiles(self, files) for files in self.files]
        for leaf, name in zip(leaves, paths(self.nesting), strict=True):
            if leaf.count != leaves[0].count:
                raise DatasetError(
                    f"{self.label()}: {name} has {leaf.count} rows in its files, "
                    f"{paths(self.nesting)[0]} has {leaves[0].count}"
                )
        return _Leaves(self.nesting, leaves)

    def spec(self, run: bool) -> Spec:
        """Return that of a row; opens the files."""
        leaves = [_NpyFiles(self, files) for files in self.files]
        return unflatten(self.nesting, iter([leaf.spec for leaf in leaves]))

    def cardinality(self) -> int:
        """Return how many rows there are; opens the files."""
        indexed = self.indexed()
        return indexed.count


class _NpyFiles:
    """The rows of one leaf."""

    def __init__(self, node: Npy, files: tuple[str, ...]) -> None:
        self._arrays = [_opened(node, file) for file in files]
        self._ends = np.cumsum([len(array) for array in self._arrays])
        self.count = int(self._ends[-1])
        self.spec = column_spec(self._arrays[0])
        for array, file in zip(self._arrays, files, strict=True):
            if merged(self.spec, column_spec(array)) != self.spec:
                raise DatasetError(
                    f"{node.label()}: {file} has rows of {column_spec(array)}, {files[0]} of "
                    f"{self.spec}"
                )

    def gather(self, indices: np.ndarray) -> Column:
        first = self._arrays[0]
        if len(self._arrays) == 1:
            return np.take(first, indices, axis=0)
        out = np.empty((len(indices), *first.shape[1:]), first.dtype)
        file = np.searchsorted(self._ends, indices, "right")
        for number in np.unique(file):
            array, here = self._arrays[number], file == number
            out[here] = array[indices[here] - (self._ends[number] - len(array))]
        return out

    def part(self, start: int, stop: int) -> Column:
        number = int(np.searchsorted(self._ends, start, "right"))
        if stop > self._ends[number]:
            return self.gather(np.arange(start, stop))
        begin = int(self._ends[number]) - len(self._arrays[number])
        return self._arrays[number][start - begin : stop - begin]


class _Leaves(Indexed):
    def __init__(self, nesting: Nesting, leaves: list[_NpyFiles]) -> None:
        self.count, self._nesting, self._leaves = leaves[0].count, nesting, leaves

    def gather(self, indices: np.ndarray) -> Block:
        columns = tuple(leaf.gather(indices) for leaf in self._leaves)
        return Block(self._nesting, columns, len(indices))

    def part(self, start: int, stop: int) -> Block:
        columns = tuple(leaf.part(start, stop) for leaf in self._leaves)
        return Block(self._nesting, columns, stop - start)


def _opened(node: Npy, file: str) -> np.ndarray:
    try:
        array: np.ndarray = np.lib.format.open_memmap(file, mode="r")  # never unpickles
    except FileNotFoundError as error:
        raise DatasetError(f"{node.label()}: {missing(file)}") from error
    except Exception as error:
        # A damaged header is parsed as Python text, which raises errors of many classes.
        raise DatasetError(
            f"{node.label()}: {file} cannot be mapped, it is damaged or no .npy file: "
            f"{type(error).__name__}: {error}"
        ) from error
    if array.ndim == 0:
        raise DatasetError(f"{node.label()}: {file} holds no array with rows")
    return array.view(np.ndarray)  # of a memory map: a plain one is faster
