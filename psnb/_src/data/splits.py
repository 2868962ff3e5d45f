"""Cutting a dataset into splits that can be read independently."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from xxhash import xxh3_64

from psnb._src.data.dataset import Dataset
from psnb._src.data.formats.files import size_of
from psnb._src.data.node import Node, short
from psnb._src.data.nodes.batching import Batch, Buckets, PaddedBatch, RaggedBatch, Unbatch
from psnb._src.data.nodes.combine import FlatMap, Interleave, Sample
from psnb._src.data.nodes.parallel import Prefetch
from psnb._src.data.nodes.partitions import Partitions
from psnb._src.data.nodes.shuffle import Shuffle
from psnb._src.data.nodes.sources import FileRange, Files
from psnb._src.data.nodes.transforms import (
    EveryNth,
    Filter,
    IgnoreErrors,
    Map,
    Skip,
    Take,
    WithOptions,
)
from psnb._src.utils.text import truncate
from psnb.errors import ConfigurationError, DatasetError

_LOCAL = (
    Batch,
    RaggedBatch,
    Buckets,
    Filter,
    FlatMap,
    IgnoreErrors,
    Interleave,
    Map,
    PaddedBatch,
    Prefetch,
    Shuffle,
    Unbatch,
    WithOptions,
)
"""Nodes that treat a part of their input as they treat it within the whole, except for the order
and for where batches end."""


def splits(dataset: Dataset, count: int) -> list[Dataset]:
    """Cut a dataset into parts; each is the same chain over a part of the source.

    Together they have all elements. Shuffles mix only within a part, and the last batch of each
    part may be smaller.

    Parameters
    ----------
    dataset : Dataset
        The dataset to cut.
    count : int
        The number of parts. There are fewer if the source has fewer elements, and of fewer files
        if these cannot be cut: compressed ones cannot, and Parquet is by its row groups only. So
        take no part for held-out rows without a look at how many there are.

    Raises
    ------
    ConfigurationError
        If the chain has a part that depends on the elements before it, or a source that cannot be
        cut.
    """
    return [Dataset(node) for node in _cut(dataset.node, count, 1)]


def file_bytes(node: Node) -> int:
    """Return how large the files are that a chain reads; 0 where they cannot be seen."""
    if isinstance(node, Files):
        with contextlib.suppress(OSError, DatasetError):
            return sum(map(size_of, {each.path for each in node.files}))
        return 0
    return sum(map(file_bytes, node.inputs))


def sharded(dataset: Dataset, count: int, index: int) -> Dataset:
    """Return the part with those elements of the source whose number % ``count`` is ``index``.

    Raises
    ------
    ConfigurationError
        As for `splits`.
    """
    return Dataset(_sharded(dataset.node, count, index))


def check_order(dataset: Dataset) -> None:
    """Check that the splits of a dataset, one after another, have its order.

    Raises
    ------
    ConfigurationError
        If a part of the chain mixes elements, or need not keep their order.
    """
    _check_order(dataset.node)


def is_deterministic(node: Node) -> bool:
    """Return whether a node, by itself, gives its elements in the same order each time."""
    if isinstance(node, Map):
        return node.deterministic is not False
    return not isinstance(node, WithOptions) or node.options.deterministic


def _check_order(node: Node) -> None:
    mixed = isinstance(node, Shuffle | Interleave | Sample | Buckets)
    if mixed or not is_deterministic(node):
        raise ConfigurationError(
            f"{node.label()}: this has no order that its parts keep when they are read apart from "
            "each other; leave it out (of MultiSlot files: threads=1)"
        )
    for each in node.inputs:
        _check_order(each)


def ends_with_prefetch(dataset: Dataset) -> bool:
    """Return whether a chain ends with `Dataset.prefetch`; options do not count."""
    node = dataset.node
    while isinstance(node, WithOptions):
        node = node.source
    return isinstance(node, Prefetch)


def partitions_of(node: Node) -> Partitions | None:
    """Return the partitions of another library that a chain reads; None if it reads none."""
    if isinstance(node, Partitions):
        return node
    return next(filter(None, map(partitions_of, node.inputs)), None)


def _cut(node: Node, count: int, quantum: int) -> list[Node]:
    # A part has whole batches, so that only the last one is smaller.
    if isinstance(node, Batch | RaggedBatch | PaddedBatch):
        quantum *= node.batch_size
    if isinstance(node, _LOCAL):
        parts = _cut(node.source, count, quantum)
        return [dataclasses.replace(node, source=part) for part in parts]
    if isinstance(node, Files):
        ranges = _ranges(node, count)
        return [dataclasses.replace(node, files=(each,)) for each in ranges] or [node]
    if isinstance(node, Partitions):
        return list(node.cut(count))
    indexed = None if node.inputs else node.indexed()
    if indexed is None:
        raise _uncuttable(node)
    size = -(-max(1, indexed.count) // max(1, count))
    size = -(-size // quantum) * quantum
    return [Take(Skip(node, start), size) for start in range(0, indexed.count, size)] or [node]


def _ranges(node: Files, count: int) -> list[FileRange]:
    """Return the files; if there are too few, cut into ranges, if their format allows it."""
    cut = getattr(node.format, "splits", None)
    if cut is None or len(node.files) >= count:
        return list(node.files)
    whole = [each.path for each in node.files if each == FileRange(each.path)]
    size = max(1, sum(map(size_of, whole)) // count)
    return [
        part
        for each in node.files
        for part in (
            [FileRange(each.path, *span) for span in cut(each.path, size)]
            if each.path in whole
            else [each]
        )
    ]


def _sharded(node: Node, count: int, index: int) -> Node:
    if isinstance(node, _LOCAL):
        return dataclasses.replace(node, source=_sharded(node.source, count, index))
    if isinstance(node, Files) and len(node.files) >= count:
        return dataclasses.replace(node, files=node.files[index::count])
    if isinstance(node, Partitions) and len(node.parts) >= count:
        return dataclasses.replace(node, parts=node.parts[index::count])
    if node.inputs:
        raise _uncuttable(node)
    return EveryNth(node, count, index)


def _uncuttable(node: Node) -> ConfigurationError:
    return ConfigurationError(
        f"{node.label()} cannot be cut into parts that are read apart from each other: it depends "
        "on what comes before. Leave it out, and make the dataset of a part of the files or "
        "arrays; or use sharding='none', with which every worker sees everything"
    )


# identity: a text that differs between different datasets, also between long lists of files. Pure.
#
# The content of files and arrays and the code of functions are not compared, only their names.

_LENGTH = 200
"""Characters that show people what the chain is."""


def identity(splits: Sequence[Dataset]) -> str:
    """Return a text for a dataset that is cut into splits: a checksum, and the chain in short."""
    digest = xxh3_64()
    for each in splits:
        for part in _parts(each.node):
            digest.update(part.encode() + b"\0")
    chain = " → ".join(line.strip() for line in splits[0].node.lines())
    return f"{digest.hexdigest()} ({truncate(chain, _LENGTH)})"


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, Node) or (dataclasses.is_dataclass(value) and not callable(value)):
        yield type(value).__name__
        for field in dataclasses.fields(value):  # type: ignore[arg-type]
            if field.repr:
                yield field.name
                yield from _parts(getattr(value, field.name))
    elif isinstance(value, dict):
        yield from _parts(tuple(value.items()))
    elif isinstance(value, tuple | list):
        yield str(len(value))
        for each in value:
            yield from _parts(each)
    else:
        yield repr(value) if isinstance(value, str | bytes) else short(value)
