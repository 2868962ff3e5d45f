"""Kind: what the leaves at one place of all elements have in common. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from psnb._src.data.nesting import is_text
from psnb._src.data.ragged import Ragged


class Kind(NamedTuple):
    """What leaves at one place have in common: dtype, axes, and the class of their scalars."""

    dtype: Any
    axes: int
    scalar: type | None


def kind_of(leaf: Any) -> Kind:
    """Return the kind of a leaf."""
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
