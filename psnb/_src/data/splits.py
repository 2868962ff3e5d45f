"""Cutting a dataset into splits that can be read independently."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from xxhash import xxh3_64

from psnb._src.data.dataset import Dataset
from psnb._src.data.formats.files import size_of
from psnb._src.data.node import Node, short
from psnb._src.data.nodes.batching import Batch, PaddedBatch, RaggedBatch, Unbatch
from psnb._src.data.nodes.buckets import Buckets
from psnb._src.data.nodes.combine import Interleave, Sample
from psnb._src.data.nodes.files import FileNames, FileRange, Files, FileShares
from psnb._src.data.nodes.functions import Filter, Map
from psnb._src.data.nodes.partitions import Partitions
from psnb._src.data.nodes.prefetch import Prefetch
from psnb._src.data.nodes.selection import EveryNth, IgnoreErrors, Skip, Take, WithOptions
from psnb._src.data.nodes.shuffle import Shuffle
from psnb._src.utils.text import truncate
from psnb.errors import ConfigurationError, DatasetError

_ASKED = 16
"""How many files a filesystem is asked about at a time: of remote ones each takes a while."""


def splits(dataset: Dataset, count: int) -> list[Dataset]:
    """Cut a dataset into parts; each is the same chain over a part of the source.

    Together they have all elements. Shuffles mix only within a part, and the last batch of each
    part may be smaller. A part of files is several, one after another, or a piece of one: parts
    have about as many bytes.

    Parameters
    ----------
    dataset : Dataset
        The dataset to cut.
    count : int
        The number of parts. There are fewer if the source has fewer elements, and of fewer files
        if these cannot be cut: compressed ones and TFRecord files cannot, and Parquet is by its row
        groups only. So take no part for held-out rows without a look at how many there are.

    Raises
    ------
    ConfigurationError
        If the chain has a part that depends on the elements before it, or a source that cannot be
        cut.
    """
    return [Dataset(node) for node in _cut(dataset.node, max(1, count), 1)]


def file_bytes(node: Node) -> int:
    """Return how large the files are that a chain reads; 0 where they cannot be seen."""
    total = 0
    for each in node.walk():
        if isinstance(each, Files):
            with contextlib.suppress(OSError, DatasetError):
                total += sum(map(size_of, {file.path for file in each.files}))
    return total


def files_of(node: Any) -> list[str]:
    """Return the files of a chain that, having given nothing, has read none with a record.

    None where it leaves elements out itself, or makes them of something else.
    """
    if isinstance(node, Files):
        return [each.path for each in node.files]
    if isinstance(node, FileNames | FileShares):
        return list(node.names)
    if isinstance(node, Filter | IgnoreErrors | Unbatch) or getattr(node, "drop_remainder", False):
        return []
    if not node.local or (
        isinstance(node, Interleave)
        and any(isinstance(each, Files | Interleave) for each in node.source.walk())
    ):
        return []
    return files_of(node.source)


def sharded(dataset: Dataset, count: int, index: int) -> Dataset:
    """Return the part with those elements of the source whose number % ``count`` is ``index``.

    Raises
    ------
    ConfigurationError
        As for `splits`.
    """
    return Dataset(_sharded(dataset.node, count, index))


def is_deterministic(node: Node) -> bool:
    """Return whether a node, by itself, gives its elements in the same order each time."""
    if isinstance(node, Map):
        return node.deterministic is not False
    return not isinstance(node, WithOptions) or node.options.deterministic


def check_order(node: Node) -> None:
    """Check that the splits of a dataset, one after another, have its order.

    Raises
    ------
    ConfigurationError
        If a part of the chain mixes elements, or need not keep their order.
    """
    for each in node.walk():
        mixed = isinstance(each, Shuffle | Interleave | Sample | Buckets)
        if mixed or not is_deterministic(each):
            raise ConfigurationError(
                f"{each.label()}: this has no order that its parts keep when they are read apart "
                "from each other; leave it out (of MultiSlot files: threads=1)"
            )


def ends_with_prefetch(dataset: Dataset) -> bool:
    """Return whether a chain ends with `Dataset.prefetch`; options do not count."""
    node = dataset.node
    while isinstance(node, WithOptions):
        node = node.source
    return isinstance(node, Prefetch)


def partitions_of(node: Node) -> Partitions | None:
    """Return the partitions of another library that a chain reads; None if it reads none."""
    return next((each for each in node.walk() if isinstance(each, Partitions)), None)


def _cut(node: Any, count: int, quantum: int) -> list[Node]:
    # A part has whole batches, so that only the last one is smaller.
    if isinstance(node, Batch | RaggedBatch | PaddedBatch):
        quantum *= node.batch_size
    if isinstance(node, Interleave | Unbatch):
        quantum = 1  # batches are of the results for an element
    if node.local:
        parts = _cut(node.source, count, quantum)
        return [dataclasses.replace(node, source=part) for part in parts]
    if isinstance(node, Files):
        several = _ranges(node, count)
        return [dataclasses.replace(node, files=each, partial=True) for each in several] or [node]
    if isinstance(node, FileNames | FileShares) and quantum == 1:
        cuts = np.flatnonzero(np.diff(balanced(_sizes(node.names, count), count))) + 1
        runs = pairwise([0, *cuts.tolist(), len(node.names)])
        return [node.over(node.names[slice(*run)], partial=True) for run in runs]
    if isinstance(node, Partitions):
        return list(node.cut(count))
    indexed = None if node.inputs else node.indexed()
    if indexed is None:
        raise _uncuttable(node)
    size = -(-max(1, indexed.count) // count)
    size = -(-size // quantum) * quantum
    return [Take(Skip(node, start), size) for start in range(0, indexed.count, size)] or [node]


def _ranges(node: Files, count: int) -> list[tuple[FileRange, ...]]:
    """Return the files of each part: neighbours, and pieces of large ones."""
    sizes = _sizes([each.path for each in node.files], count)
    share = max(1, sum(sizes) // count)
    # Where there are enough files, one is cut only if it would delay the others.
    large = share if len(node.files) < count else 2 * share
    cut = getattr(node.format, "splits", None)
    pieces: list[FileRange] = []
    weights: list[float] = []
    for each, size in zip(node.files, sizes, strict=True):
        spans = [each]
        if cut is not None and size > large and each == FileRange(each.path):
            spans = [FileRange(each.path, *span) for span in cut(each.path, share)]
        pieces += spans
        weights += [size / len(spans)] * len(spans)
    groups: dict[int, list[FileRange]] = {}
    for number, each in zip(balanced(weights, count).tolist(), pieces, strict=True):
        group = groups.setdefault(number, [])
        if group and (group[-1].path, group[-1].end) == (each.path, each.offset):
            group[-1] = group[-1]._replace(end=each.end)
        else:
            group.append(each)
    return [tuple(group) for group in groups.values()]


def _sizes(paths: Sequence[str], count: int) -> list[int]:
    """Return the bytes of each file; 1 each where workers alone see them, if there are enough."""
    try:
        with ThreadPoolExecutor(_ASKED, "psnb-sizes") as pool:
            return list(pool.map(size_of, paths))
    except DatasetError:
        if len(paths) < count:
            raise
        return [1] * len(paths)


def balanced(weights: Sequence[float], count: int) -> np.ndarray:
    """Return the group of each of some things in a row, of ``count`` groups of about one weight.

    Each group is of neighbours; items without weight go with them. Numbers rise, and some may be
    missing. An item that outweighs a group is mostly alone in it.
    """
    heavy = np.asarray(weights, np.float64)
    if np.count_nonzero(heavy) <= count:
        return np.maximum(0, np.cumsum(heavy > 0) - 1)
    falling = np.sort(heavy)[::-1]
    for several in range(count):
        share = falling[several:].sum() / (count - several)
        if falling[several] <= share:
            break
    counted = np.minimum(heavy, share)
    middles = np.cumsum(counted) - counted / 2
    return np.minimum(count - 1, middles // share).astype(np.int64)


def _sharded(node: Any, count: int, index: int) -> Node:
    if node.local:
        return dataclasses.replace(node, source=_sharded(node.source, count, index))
    if isinstance(node, Files) and len(node.files) >= count:
        return dataclasses.replace(node, files=node.files[index::count], partial=True)
    if isinstance(node, FileNames | FileShares):
        return node.over(node.names[index::count], partial=True)
    if isinstance(node, Partitions) and len(node.parts) >= count:
        return dataclasses.replace(node, parts=node.parts[index::count])
    if node.inputs:
        raise _uncuttable(node)
    return EveryNth(node, count, index)


def _uncuttable(node: Node) -> ConfigurationError:
    return ConfigurationError(
        f"{node.label()} cannot be cut into parts that are read apart from each other: it depends "
        "on what comes before. Leave it out, and make the dataset of a part of the files or "
        "arrays; or save(path) it, and read that by Dataset.load(path). In a per-worker dataset, "
        "sharding='none' has every worker see everything"
    )


_LENGTH = 200
"""Characters that show people what the chain is."""


def identity(splits: Sequence[Dataset]) -> str:
    """Return a text for a dataset that is cut into splits: a checksum, and the chain in short.

    It differs between different datasets, also between long lists of files. The content of files
    and arrays and the code of functions are not compared, only their names.
    """
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
