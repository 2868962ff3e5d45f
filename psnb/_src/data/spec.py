"""Specs: shapes and dtypes of elements, known without the elements. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from psnb._src.data.nesting import as_leaf, flatten, is_text, unflatten
from psnb._src.data.ragged import Ragged


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one leaf.

    Parameters
    ----------
    shape : tuple of int or None
        None for an axis whose size differs between elements.
    dtype : dtype
        ``object`` for str and bytes.
    ragged : bool
        Whether it is a `Ragged`; ``shape`` is then as in `Ragged.shape`.
    """

    describes_leaf: ClassVar[bool] = True

    shape: tuple[int | None, ...]
    dtype: np.dtype
    ragged: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def __repr__(self) -> str:
        shape = ", ".join("?" if size is None else str(size) for size in self.shape)
        kind = "Ragged" if self.ragged else "ArraySpec"
        return f"{kind}(({shape}{',' if len(self.shape) == 1 else ''}), {self.dtype})"

    def batched(self, size: int | None) -> ArraySpec:
        """Return the spec of several such leaves, stacked."""
        return ArraySpec((size, *self.shape), self.dtype, self.ragged)


@dataclass(frozen=True)
class DatasetSpec:
    """A leaf that is a dataset itself, as `Dataset.window` makes them."""

    describes_leaf: ClassVar[bool] = True

    element_spec: Any


Spec = Any
"""A structure of `ArraySpec`; None if nothing is known."""


def leaf_spec(leaf: Any) -> Any:
    """Return the spec of a leaf as elements hold it."""
    if is_text(leaf):
        return ArraySpec((), np.dtype(object))
    if isinstance(leaf, (np.ndarray, np.generic, Ragged)):
        return ArraySpec(leaf.shape, leaf.dtype, isinstance(leaf, Ragged))
    return DatasetSpec(leaf.element_spec)


def element_spec(element: Any) -> Spec:
    """Return the spec of one element."""
    leaves, nesting = flatten(element)
    return unflatten(nesting, iter([leaf_spec(as_leaf(leaf)) for leaf in leaves]))


def of_arrays(spec: Spec) -> bool:
    """Return whether all leaves are known to be arrays."""
    return spec is not None and all(isinstance(leaf, ArraySpec) for leaf in flatten(spec)[0])


def merged(left: Any, right: Any) -> Any:
    """Return the spec of leaves of either kind; None if there is no common one."""
    if isinstance(left, ArraySpec) and isinstance(right, ArraySpec):
        form = left.dtype, len(left.shape), left.ragged
        if form != (right.dtype, len(right.shape), right.ragged):
            return None
        sizes = (a if a == b else None for a, b in zip(left.shape, right.shape, strict=True))
        return ArraySpec(tuple(sizes), left.dtype, left.ragged)
    return left if left == right else None


class Kind(NamedTuple):
    """What leaves at one place have in common: dtype, axes, and the class of their scalars."""

    dtype: Any
    axes: int
    scalar: type | None


def kind_of(leaf: Any) -> Kind:
    if is_text(leaf):
        return Kind(np.dtype(object), 0, type(leaf))
    if isinstance(leaf, Ragged):
        return Kind(Ragged, leaf.values.ndim + 1, None)
    if isinstance(leaf, (np.ndarray, np.generic)):
        scalar = type(leaf) if leaf.ndim == 0 and leaf.dtype.kind in "iufb" else None
        dtype = np.dtype(object) if leaf.dtype.kind in "SU" else leaf.dtype
        return Kind(dtype, leaf.ndim, scalar)
    return Kind(type(leaf), 0, None)


def named(kind: Kind) -> str:
    """Return the name of a kind in messages."""
    dtype, axes, _ = kind
    if axes == 0:
        return "text" if dtype is np.dtype(object) else f"a scalar of {dtype}"
    return f"{dtype} with {axes} {'axis' if axes == 1 else 'axes'}"
