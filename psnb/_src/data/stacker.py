"""Stacker: collects single elements into columns. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from psnb._src.data.block import Block, Origin, leaf_name, stack
from psnb._src.data.kind import Kind, kind_of, named
from psnb._src.data.nesting import Nesting, as_leaf, flatten, flatten_like, paths
from psnb._src.data.spec import Spec
from psnb.errors import DatasetError


class Stacker:
    """Collects single elements into blocks, and checks that all have the same form.

    Parameters
    ----------
    spec : structure of ArraySpec, optional
        The form of the elements; by default the first one decides.
    """

    def __init__(self, spec: Spec = None) -> None:
        self._nesting: Nesting = None
        self._kinds: list[Kind] | None = None
        self._columns: list[list[Any]] = []
        self._names: list[str] = []
        self._shapes: list[tuple[int | None, ...]] | None = None
        if spec is not None:
            specs, nesting = flatten(spec)
            self._begin(nesting, [Kind(each.dtype, len(each.shape), None) for each in specs])
            self._shapes = [each.shape for each in specs]

    def add(self, element: Any) -> None:
        """Add an element.

        Raises
        ------
        DatasetError
            If it differs in form from those before; then it is not added.
        """
        if self._kinds is None:
            leaves, nesting = flatten(element)
            names = paths(nesting)
            leaves = [as_leaf(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
            self._begin(nesting, [kind_of(leaf) for leaf in leaves])
        else:
            leaves = [element] if self._nesting is None else flatten_like(self._nesting, element)
            for index, (leaf, kind) in enumerate(zip(leaves, self._kinds, strict=True)):
                # The common case, without further checks.
                if type(leaf) is np.ndarray:
                    if leaf.dtype is kind[0] and leaf.ndim == kind[1] > 0:
                        continue
                elif type(leaf) is kind[2]:
                    continue
                leaves[index] = self._checked(leaf, index)
        if self._shapes is not None:
            self._check_shapes(leaves)
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.append(leaf)

    def block(self, origin: Origin | None = None) -> Block:
        """Return the elements since the last call, at least one."""
        columns = tuple(stack(column) for column in self._columns)
        count = len(self._columns[0]) if self._columns else 0
        self._columns = [[] for _ in self._columns]
        return Block(self._nesting, columns, count, origin, loose=True)

    def _begin(self, nesting: Nesting, kinds: list[Kind]) -> None:
        if not kinds:
            raise DatasetError("an element must have at least one array; this one is empty")
        self._nesting, self._kinds, self._names = nesting, kinds, paths(nesting)
        self._columns = [[] for _ in kinds]

    def _checked(self, value: Any, index: int) -> Any:
        assert self._kinds is not None  # an element was there before, or a spec
        leaf, expected = as_leaf(value, self._names[index]), self._kinds[index]
        kind = kind_of(leaf)
        if kind[:2] != expected[:2]:
            raise DatasetError(
                f"{leaf_name(self._names[index])} is {named(kind)}, but {named(expected)} before"
            )
        return leaf

    def _check_shapes(self, leaves: list[Any]) -> None:
        assert self._shapes is not None
        for leaf, shape, name in zip(leaves, self._shapes, self._names, strict=True):
            found = () if isinstance(leaf, (str, bytes)) else leaf.shape
            if any(b is not None and a != b for a, b in zip(found, shape, strict=True)):
                raise DatasetError(f"{leaf_name(name)} has shape {found}, expected {shape}")
