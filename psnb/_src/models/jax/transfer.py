"""PackedTransfer: many arrays to a device in one copy for each dtype, taken apart there.

A copy to an accelerator costs about as much for a few numbers as for a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from psnb.errors import ConfigurationError


class PackedTransfer(NamedTuple):
    """How arrays of a tree lie one after another; equal ones need one program.

    Attributes
    ----------
    tree : PyTreeDef
        The tree.
    shapes : tuple
        Dtype and shape of each leaf.
    """

    tree: Any
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    def apart(self, flat: Sequence[Any]) -> Any:
        """Return the tree from the arrays that `together` has made, in a program."""
        whole = dict(zip(dict.fromkeys(dtype for dtype, _ in self.shapes), flat, strict=True))
        starts = dict.fromkeys(whole, 0)
        leaves = []
        for dtype, shape in self.shapes:
            start = starts[dtype]
            starts[dtype] += math.prod(shape)
            leaves.append(whole[dtype][start : starts[dtype]].reshape(shape))
        return jax.tree.unflatten(self.tree, leaves)


def together(given: Any) -> tuple[PackedTransfer, list[np.ndarray]]:
    """Return the arrays of a tree as one for each dtype, and how to take them apart."""
    leaves, tree = jax.tree.flatten(given)
    arrays = [np.asarray(leaf) for leaf in leaves]
    parts: dict[str, list[np.ndarray]] = {}
    for each in arrays:
        parts.setdefault(each.dtype.name, []).append(each.reshape(-1))
    form = PackedTransfer(tree, tuple((each.dtype.name, each.shape) for each in arrays))
    return form, [np.concatenate(several) for several in parts.values()]


def device_called(name: str) -> jax.Device:
    """Return a device of this process, or raise ConfigurationError if there is none."""
    platform, _, number = name.partition(":")
    try:
        return jax.local_devices(backend=platform)[int(number or 0)]
    except (RuntimeError, IndexError, ValueError) as error:
        here = ", ".join(f"{each.platform}:{each.id}" for each in jax.local_devices())
        raise ConfigurationError(
            f"device={name!r} is not there in this process, where JAX has {here} "
            f"({type(error).__name__}: {error}). Workers on machines with an accelerator need the "
            "JAX that is made for it, such as jax[cuda12]"
        ) from error
