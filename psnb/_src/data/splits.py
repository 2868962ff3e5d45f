"""Cutting a dataset into splits that can be read independently."""

from __future__ import annotations

import dataclasses

from psnb._src.data import nodes
from psnb._src.data.dataset import Dataset
from psnb._src.data.formats import size_of
from psnb._src.data.node import Node
from psnb.errors import ConfigurationError

_LOCAL = (
    nodes.Batch,
    nodes.RaggedBatch,
    nodes.Buckets,
    nodes.Filter,
    nodes.FlatMap,
    nodes.IgnoreErrors,
    nodes.Interleave,
    nodes.Map,
    nodes.PaddedBatch,
    nodes.Prefetch,
    nodes.Shuffle,
    nodes.Unbatch,
    nodes.WithOptions,
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
        The number of parts; there are fewer if the source has fewer elements or files.

    Raises
    ------
    ConfigurationError
        If the chain has a part that depends on the elements before it, or a source that cannot be
        cut.
    """
    return [Dataset(node) for node in _cut(dataset.node, count, 1)]


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


def _check_order(node: Node) -> None:
    mixed = isinstance(node, nodes.Shuffle | nodes.Interleave | nodes.Sample | nodes.Buckets)
    free = isinstance(node, nodes.Map) and node.deterministic is False
    if mixed or free or (isinstance(node, nodes.WithOptions) and not node.options.deterministic):
        raise ConfigurationError(
            f"{node.label()}: this has no order that its parts keep when they are read apart from "
            "each other; leave it out (of MultiSlot files: threads=1)"
        )
    for each in node.inputs:
        _check_order(each)


def _cut(node: Node, count: int, quantum: int) -> list[Node]:
    # A part has whole batches, so that only the last one is smaller.
    if isinstance(node, nodes.Batch | nodes.RaggedBatch | nodes.PaddedBatch):
        quantum *= node.batch_size
    if isinstance(node, _LOCAL):
        parts = _cut(node.source, count, quantum)
        return [dataclasses.replace(node, source=part) for part in parts]
    if isinstance(node, nodes.Files):
        ranges = _ranges(node, count)
        return [dataclasses.replace(node, files=(each,)) for each in ranges] or [node]
    indexed = None if node.inputs else node.indexed()
    if indexed is None:
        raise _uncuttable(node)
    size = -(-max(1, indexed.count) // max(1, count))
    size = -(-size // quantum) * quantum
    return [
        nodes.Take(nodes.Skip(node, start), size) for start in range(0, indexed.count, size)
    ] or [node]


def _ranges(node: nodes.Files, count: int) -> list[nodes.FileRange]:
    """Return the files; if there are too few, cut into ranges, if their format allows it."""
    cut = getattr(node.format, "splits", None)
    if cut is None or len(node.files) >= count:
        return list(node.files)
    whole = [each.path for each in node.files if each == nodes.FileRange(each.path)]
    size = max(1, sum(map(size_of, whole)) // count)
    return [
        part
        for each in node.files
        for part in (
            [nodes.FileRange(each.path, *span) for span in cut(each.path, size)]
            if each.path in whole
            else [each]
        )
    ]


def _sharded(node: Node, count: int, index: int) -> Node:
    if isinstance(node, _LOCAL):
        return dataclasses.replace(node, source=_sharded(node.source, count, index))
    if isinstance(node, nodes.Files) and len(node.files) >= count:
        return dataclasses.replace(node, files=node.files[index::count])
    if node.inputs:
        raise _uncuttable(node)
    return nodes.EveryNth(node, count, index)


def _uncuttable(node: Node) -> ConfigurationError:
    return ConfigurationError(
        f"{node.label()} cannot be cut into parts that are read apart from each other: it depends "
        "on what comes before. Leave it out, and make the dataset of a part of the files or "
        "arrays; or use sharding='none', with which every worker sees everything"
    )
