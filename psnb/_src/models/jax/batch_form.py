"""BatchForm: the part of a batch for a compiled program, and how it becomes a batch there again.

A batch is any tree of JAX. Leaves that no program can take stay behind, and raise where they are
used: strings, `Ragged` rows, and integers that do not fit 32 bits, which JAX would truncate without
a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from psnb._src.data.ragged import Ragged
from psnb.errors import ConfigurationError


class StayedBehind:
    """Stands in a batch for what a program cannot take; any use of it raises ConfigurationError."""

    def __init__(self, name: str, why: str) -> None:
        self._why = f"batch{name} is not there in a compiled function: {why}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise ConfigurationError(self._why)

    def _refuse(self, *_: Any) -> Any:
        raise ConfigurationError(self._why)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __array__ = __jax_array__ = __getitem__ = __len__ = __iter__ = __float__ = __bool__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __matmul__ = __rtruediv__ = _refuse


class BatchForm(NamedTuple):
    """The form of a batch without its arrays; equal forms need one program.

    Attributes
    ----------
    tree : PyTreeDef
        The tree.
    behind : tuple of (int, str, str)
        Which leaves stay behind, their names, and why.
    """

    tree: Any
    behind: tuple[tuple[int, str, str], ...]

    def batch(self, arrays: Sequence[Any]) -> Any:
        given = iter(arrays)
        behind = {at: StayedBehind(name, why) for at, name, why in self.behind}
        leaves = [behind[i] if i in behind else next(given) for i in range(self.tree.num_leaves)]
        return jax.tree.unflatten(self.tree, leaves)


def form_of(batch: Any) -> tuple[BatchForm, list[np.ndarray]]:
    """Return the form of a batch and its arrays."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(batch)
    arrays: list[np.ndarray] = []
    behind = []
    for at, (path, leaf) in enumerate(leaves):
        why, array = _array(leaf)
        if array is None:
            behind.append((at, jax.tree_util.keystr(path), why))
        else:
            arrays.append(array)
    return BatchForm(tree, tuple(behind)), arrays


def _array(leaf: Any) -> tuple[str, np.ndarray | None]:
    """Return what a program can take; or why it cannot."""
    if isinstance(leaf, jax.Array):
        return "", leaf  # type: ignore[return-value]  # a program takes it as it is
    if isinstance(leaf, Ragged):
        return "it is Ragged; rows[...] has the rows of its ids, and pad() makes an array", None
    try:
        array = np.asarray(leaf)
    except ValueError as error:
        return f"it is not an array: {error}", None
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        return f"it is of {array.dtype}", None
    if (
        array.dtype.kind in "iu"
        and array.itemsize == 8
        and jax.dtypes.canonicalize_dtype(np.int64) != np.int64
    ):
        limits = np.iinfo(np.int32)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            return "its integers do not fit 32 bits; rows[...] has the rows of ids", None
        array = array.astype(np.int32)
    return "", array
