"""Elements of similar length as batches: tf.data's ``bucket_by_sequence_length``.

The state has no elements. Buckets hold the latest elements that were read for them: to resume,
everything since the oldest of these is read again, and its lengths are computed again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import BLOCK, Block, concatenate
from psnb._src.data.nesting import map_leaves
from psnb._src.data.node import Context, Node, State
from psnb._src.data.nodes.batching import Batch, Batching, PaddedBatch, filled
from psnb._src.data.reader import ENOUGH, Reader, ReadingIterator, call, failure
from psnb._src.data.spec import Spec, of_arrays
from psnb._src.utils.checks import is_integer
from psnb.errors import DatasetError


class _BucketsIterator(ReadingIterator):
    """The state: the reader's, that before the oldest element, and how many each bucket has."""

    def __init__(self, node: Buckets, context: Context, state: State) -> None:
        self._node = node
        buckets = len(node.bucket_batch_sizes)
        self._held: list[list[Block]] = [[] for _ in range(buckets)]
        self._positions: list[list[int]] = [[] for _ in range(buckets)]  # of the held elements
        self._bases: list[tuple[int, State]] = []  # the reader's state at some positions, sorted
        now: Any
        self._batches: int
        now, base, counts, self._batches = state or (None, None, [], 0)
        if sum(counts):
            self._refill(context, base, now[0], counts)
        self._reader = Reader(node.source, context.child(0), now)

    def next_block(self, limit: int) -> Block | None:
        while True:
            for bucket, size in enumerate(self._node.bucket_batch_sizes):
                if len(self._positions[bucket]) == size:
                    return self._batch(bucket)
            if not self._read():
                break
        for bucket, held in enumerate(self._positions):
            if held and not self._node.drop_remainder:
                return self._batch(bucket)
        return None

    def state(self) -> State:
        oldest = min((each[0] for each in self._positions if each), default=None)
        base = None if oldest is None else self._bases[self._base_of(oldest)][1]
        counts = [len(each) for each in self._positions]
        return [self._reader.state(), base, counts, self._batches]

    def level(self) -> tuple[int, int]:
        return sum(map(len, self._positions)), sum(self._node.bucket_batch_sizes)

    def _read(self) -> bool:
        """Read elements into buckets, none of which overflows; return whether there are any."""
        sizes, reader = self._node.bucket_batch_sizes, self._reader
        self._remember()
        room = min(size - len(held) for size, held in zip(sizes, self._positions, strict=True))
        block = reader.take(min(room, BLOCK))
        if block is None:
            return False
        first = reader.position - block.count
        buckets = []
        for index in range(block.count):
            try:
                buckets.append(self._bucket_of(block.element(index)))
            except Exception as error:  # the user's function may raise anything
                self._put(block, first, buckets)
                reader.put_back(block.part(index + 1, block.count))
                raise failure(self._node, first + index, error, block, index) from error
        self._put(block, first, buckets)
        return True

    def _bucket_of(self, element: Any) -> int:
        length = np.asarray(call(self._node.element_length_func, element))[()]
        if not is_integer(length):
            raise DatasetError(
                "element_length_func must return the length as an integer, found "
                f"{type(length).__name__}"
            )
        return bisect_right(self._node.bucket_boundaries, length)

    def _put(self, block: Block, first: int, buckets: list[int]) -> None:
        found = np.array(buckets, np.int64)
        for bucket in np.unique(found).tolist():
            places = np.flatnonzero(found == bucket)
            self._held[bucket].append(block.take(places))
            self._positions[bucket] += (first + places).tolist()

    def _batch(self, bucket: int) -> Block:
        held, positions = self._held[bucket], self._positions[bucket]
        self._held[bucket], self._positions[bucket] = [], []
        number, self._batches = self._batches, self._batches + 1
        try:
            return self._node.batching(bucket).as_one(concatenate(held))
        except DatasetError as error:
            which = f"of input elements {positions[0]} to {positions[-1]}: "
            raise self._node.error(number, f"{which}{error}", held[0].place(0)) from error

    def _base_of(self, position: int) -> int:
        return bisect_right(self._bases, position, key=lambda base: base[0]) - 1

    def _remember(self) -> None:
        """Note the reader's state now and then; keep what the buckets' oldest elements need."""
        position = self._reader.position
        if self._bases and position - self._bases[-1][0] < ENOUGH:
            return
        self._bases.append((position, self._reader.state()))
        if len(self._bases) > 2 * len(self._node.bucket_batch_sizes) + ENOUGH:
            oldest = {self._base_of(each[0]) for each in self._positions if each}
            self._bases = [self._bases[each] for each in sorted(oldest | {len(self._bases) - 1})]

    def _refill(self, context: Context, base: State, stop: int, counts: list[int]) -> None:
        """Read again what is in the buckets: the last elements of each."""
        self._reader = Reader(self._node.source, context.child(0), base)
        self._bases.append((base[0], base))
        while (missing := stop - self._reader.position) > 0:
            try:
                block = self._reader.take(min(missing, BLOCK))
            except DatasetError:
                continue  # raised before
            if block is None:
                raise DatasetError(
                    f"{self._node.name}: the input has fewer elements than when the state was taken"
                )
            first = self._reader.position - block.count
            for index in range(block.count):
                try:
                    bucket = self._bucket_of(block.element(index))
                except Exception:  # it was raised before
                    continue
                # Of each bucket the last ones stay.
                self._held[bucket].append(block.take(np.array([index])))
                self._positions[bucket].append(first + index)
                del self._held[bucket][: -counts[bucket] or None]
                del self._positions[bucket][: -counts[bucket] or None]
        self._reader.close()


@dataclass(frozen=True, eq=False)
class Buckets(Node):
    """Batches of elements whose lengths are between the same two boundaries."""

    name: ClassVar[str] = "bucket_by_sequence_length"
    iterator: ClassVar[Any] = _BucketsIterator
    local: ClassVar[bool] = True
    ahead: ClassVar[int] = 1

    source: Node
    element_length_func: Callable[..., Any]
    bucket_boundaries: tuple[int, ...]
    bucket_batch_sizes: tuple[int, ...]
    padded_shapes: Any = None
    padding_values: Any = None
    pad_to_bucket_boundary: bool = False
    no_padding: bool = False
    drop_remainder: bool = False

    def batching(self, bucket: int) -> Batching:
        """Return what makes the batches of a bucket.

        Raises
        ------
        DatasetError
            If the bucket has no boundary, and its elements should be padded to it.
        """
        size = self.bucket_batch_sizes[bucket]
        if self.no_padding:
            return Batch(self.source, size, self.drop_remainder)
        shapes = self.padded_shapes
        if self.pad_to_bucket_boundary:
            if bucket == len(self.bucket_boundaries):
                raise DatasetError(
                    f"a length is {self.bucket_boundaries[-1]} or more, and with "
                    "pad_to_bucket_boundary each must be below the last boundary"
                )
            shapes = filled(self._shapes(), self.bucket_boundaries[bucket] - 1)
        return PaddedBatch(self.source, size, self.drop_remainder, shapes, self.padding_values)

    def spec(self, run: bool) -> Spec:
        """Return the input's spec, padded, with one more axis."""
        if self.no_padding:
            spec = self.source.spec(run)
            return map_leaves(lambda leaf: leaf.batched(None), spec) if of_arrays(spec) else None
        return PaddedBatch(self.source, 1, False, self.padded_shapes).spec(run)

    def _shapes(self) -> Any:
        """Return the shapes to pad to, as far as they are known."""
        if self.padded_shapes is not None:
            return self.padded_shapes
        spec = self.source.spec(run=False)
        if not of_arrays(spec):
            raise DatasetError(
                "which axes to pad to the bucket's boundary is not known, as a function makes the "
                "elements: say it with padded_shapes, None for such an axis"
            )
        return map_leaves(lambda leaf: list(leaf.shape), spec)
