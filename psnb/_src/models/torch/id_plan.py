"""IdPlan: where in the inputs of a model the ids of its tables are, as learned from a batch. Pure.

A model is given a batch, and its layers take ids from it: a whole tensor, a column, a few
columns. From a first batch it is known how, and so the ids of the next batch are known before the
model runs, so that the rows of all tables come in one round trip. Ids that a layer computes (``ids
+ offset``) are not part of an input, and their rows are pulled when they are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from psnb._src.models.torch.tensors import TensorBags

Path = tuple[Any, ...]

Index = tuple[int | tuple[int, int | None], ...] | None
"""For each axis an index, or where a slice starts and stops."""


class PlannedIds(NamedTuple):
    """The ids of a table: which input, and which part of it; None for all of it."""

    table: str
    path: Path
    part: Index


def inputs_of(given: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Yield the tensors in a nested structure, and where they are."""
    if isinstance(given, Tensor):
        yield path, given
    elif isinstance(given, Mapping):
        for key, each in given.items():
            yield from inputs_of(each, (*path, key))
    elif isinstance(given, tuple | list):
        for number, each in enumerate(given):
            yield from inputs_of(each, (*path, number))


def located(table: str, ids: Tensor, inputs: Mapping[Path, Tensor]) -> PlannedIds | None:
    """Return where ids are in the inputs; None if they are not part of one."""
    for path, given in inputs.items():
        if ids.dtype != given.dtype or ids.device != given.device or not given.is_contiguous():
            continue
        if ids.untyped_storage().data_ptr() != given.untyped_storage().data_ptr():
            continue
        if ids.is_contiguous() and ids.numel() == given.numel():
            if ids.data_ptr() == given.data_ptr():
                return PlannedIds(table, path, None)
            continue
        index = _index(ids, given)
        if index is not None and same_memory(_taken(given, index), ids):
            return PlannedIds(table, path, index)
    return None


def examples_of(given: Any) -> int | None:
    """Return how many examples inputs have: as many as the first tensor in them, or its bags."""
    if isinstance(given, Tensor):
        return len(given) if given.ndim else None
    if isinstance(given, TensorBags):
        return len(given.offsets)
    inner = given.values() if isinstance(given, Mapping) else given
    if not isinstance(inner, tuple | list) and not isinstance(given, Mapping):
        return None
    return next((found for each in inner if (found := examples_of(each)) is not None), None)


def planned(entry: PlannedIds, inputs: Mapping[Path, Tensor]) -> Tensor | None:
    """Return the ids of another batch; None if it does not have them there."""
    given = inputs.get(entry.path)
    if given is None or entry.part is None:
        return given
    if len(entry.part) != given.ndim:
        return None
    for part, size in zip(entry.part, given.shape, strict=True):
        if (part >= size) if isinstance(part, int) else ((part[1] or 0) > size):
            return None
    return _taken(given, entry.part)


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same elements in the same order."""
    if one.data_ptr() != other.data_ptr() or one.numel() != other.numel():
        return False
    if one.is_contiguous() and other.is_contiguous():
        return True
    return one.shape == other.shape and one.stride() == other.stride()


def shown(part: Index) -> str:
    """Return which part it is, as Python writes it."""
    if part is None:
        return ""
    texts = (
        str(each)
        if isinstance(each, int)
        else f"{each[0] or ''}:{'' if each[1] is None else each[1]}"
        for each in part
    )
    return f"[{', '.join(texts)}]"


def _taken(given: Tensor, index: Index) -> Tensor:
    assert index is not None
    return given[tuple(each if isinstance(each, int) else slice(*each) for each in index)]


def _index(ids: Tensor, given: Tensor) -> Index:
    """Return how ids could have been taken out of a contiguous tensor."""
    left = int(ids.storage_offset()) - int(given.storage_offset())
    if left < 0:
        return None
    index: list[int | tuple[int, int | None]] = []
    kept = 0
    for size, stride in zip(given.shape, given.stride(), strict=True):
        start, left = divmod(left, stride)
        if kept < ids.ndim and ids.stride(kept) == stride:
            stop = start + ids.shape[kept]
            index.append((0, None) if stop - start == size else (start, stop))
            kept += 1
        else:
            index.append(start)
    return tuple(index) if kept == ids.ndim and not left else None
