"""Sources in memory: numbers, arrays, what a generator yields; and files that are mapped to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import Block, block_spec, column_spec
from psnb._src.data.formats.files import missing
from psnb._src.data.nesting import Nesting, paths, unflatten
from psnb._src.data.node import Context, Indexed, Node, NodeIterator, State
from psnb._src.data.nodes.indexed import Joined, Numbers, SelectedRows, Zipped
from psnb._src.data.spec import ArraySpec, Spec, element_spec, merged
from psnb._src.data.stacker import Stacker
from psnb._src.utils.text import error_text
from psnb.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Range(Node):
    """The numbers of Python's ``range``, as int64."""

    name: ClassVar[str] = "range"

    start: int
    stop: int
    step: int

    def indexed(self) -> Indexed:
        return Numbers(range(self.start, self.stop, self.step))

    def spec(self, run: bool) -> Spec:
        return ArraySpec((), np.dtype(np.int64))

    def cardinality(self) -> int:
        return len(range(self.start, self.stop, self.step))


@dataclass(frozen=True, eq=False)
class Slices(Node):
    """The rows of a block, whose arrays are read-only."""

    name: ClassVar[str] = "from_tensor_slices"

    block: Block

    def indexed(self) -> Indexed:
        return SelectedRows(self.block)

    def spec(self, run: bool) -> Spec:
        spec = block_spec(self.block)
        if spec is None and self.block.count:
            spec = element_spec(self.block.element(0))
        return spec

    def cardinality(self) -> int:
        return self.block.count


@dataclass(frozen=True, eq=False)
class TableRows(Slices):
    """The rows of a table, whose columns are arrays."""

    name: ClassVar[str] = "from_table"


@dataclass(frozen=True, eq=False)
class Tensors(Slices):
    """One element, which is all of some arrays."""

    name: ClassVar[str] = "from_tensors"


class _GeneratorIterator(NodeIterator):
    """The state: how many elements were returned, which the function is to yield again."""

    def __init__(self, node: Generator, context: Context, state: State) -> None:
        self._node = node
        self._given = self._skip = state or 0
        self._elements: Iterator[Any] | None = None
        self._stacker = Stacker(node.output_signature)
        self._failed: DatasetError | None = None
        self._ended = False

    def next_block(self, limit: int) -> Block | None:
        count = 0
        while count < limit and self._failed is None and not self._ended:
            try:
                if self._elements is None:
                    self._elements = iter(self._node.function(*self._node.args))
                    for _ in range(self._skip):
                        next(self._elements)
                self._stacker.add(next(self._elements))
                count += 1
            except StopIteration:
                self._ended = True
            except Exception as error:  # whatever the generator raises; it is over then
                problem = error_text(error)
                self._failed = self._node.error(self._given + count, problem)
                self._failed.__cause__ = error
        if count:
            self._given += count
            return self._stacker.block()
        failed, self._failed = self._failed, None
        if failed is not None:
            self._ended = True
            raise failed
        return None

    def state(self) -> State:
        return self._given

    def close(self) -> None:
        close = getattr(self._elements, "close", None)
        self._ended = True
        if close is not None:
            close()


@dataclass(frozen=True, eq=False)
class Generator(Node):
    """Calls a function for each iteration, and takes elements from the iterable that it returns."""

    name: ClassVar[str] = "from_generator"
    iterator: ClassVar[Any] = _GeneratorIterator
    ahead: ClassVar[int] = 1  # a generator may have side effects, or be slow

    function: Callable[..., Iterable[Any]]
    output_signature: Spec = None
    args: tuple[Any, ...] = ()

    def spec(self, run: bool) -> Spec:
        """Return the signature; without one, what the first element says."""
        if self.output_signature is not None or not run:
            return self.output_signature
        return self.first_spec()


@dataclass(frozen=True, eq=False)
class Npy(Node):
    """For each leaf some files, whose rows are its elements, one file after another."""

    name: ClassVar[str] = "npy"

    files: tuple[tuple[str, ...], ...]
    nesting: Nesting = None

    def indexed(self) -> Indexed:
        """Open the files and return their rows."""
        leaves = [
            Joined(self, [SelectedRows(Block(None, (array,), len(array))) for array in arrays])
            for arrays in self._arrays()
        ]
        for leaf, name in zip(leaves, paths(self.nesting), strict=True):
            if leaf.count != leaves[0].count:
                raise DatasetError(
                    f"{self.label()}: {name} has {leaf.count} rows in its files, "
                    f"{paths(self.nesting)[0]} has {leaves[0].count}"
                )
        return Zipped(self.nesting, leaves)

    def spec(self, run: bool) -> Spec:
        """Return the spec of a row; opens the files."""
        specs = [column_spec(arrays[0]) for arrays in self._arrays()]
        return unflatten(self.nesting, iter(specs))

    def cardinality(self) -> int:
        """Return how many rows there are; opens the files."""
        return self.indexed().count

    def _arrays(self) -> list[list[np.ndarray]]:
        """Open the files of each leaf, and check that all have the same rows."""
        leaves = []
        for files in self.files:
            arrays = [_opened(self, file) for file in files]
            spec = column_spec(arrays[0])
            for array, file in zip(arrays, files, strict=True):
                if merged(spec, column_spec(array)) != spec:
                    raise DatasetError(
                        f"{self.label()}: {file} has rows of {column_spec(array)}, {files[0]} of "
                        f"{spec}"
                    )
            leaves.append(arrays)
        return leaves


def _opened(node: Npy, file: str) -> np.ndarray:
    try:
        array: np.ndarray = np.lib.format.open_memmap(file, mode="r")  # never unpickles
    except FileNotFoundError as error:
        raise DatasetError(f"{node.label()}: {missing(file)}") from error
    except Exception as error:  # a damaged header, parsed as Python text, raises many classes
        raise DatasetError(
            f"{node.label()}: {file} cannot be mapped, it is damaged or no .npy file: "
            f"{type(error).__name__}: {error}"
        ) from error
    if array.ndim == 0:
        raise DatasetError(f"{node.label()}: {file} holds no array with rows")
    return array.view(np.ndarray)  # of a memory map: a plain one is faster
