"""TreeVariables: the parameters of a model as a tree, kept in few variables on the servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from psnb._src.export import DenseSources
from psnb._src.models import FlatVariables, OptimizerChoice, Strategy, place_flat
from psnb._src.parameters import Variable
from psnb.errors import ConfigurationError, GradientError


class _Leaf:
    """Stands in a tree for a parameter that is on the servers."""

    def __init__(self, name: str) -> None:
        self.name = name


class TreeVariables:
    """A tree of parameters on the servers; made by `psnb.jax.variables`.

    Thread-safe, and travels with closures. The leaves that are arrays of floats are on the servers;
    all others (numbers, integers, functions, as in modules of Equinox) stay as they were.

    Parameters
    ----------
    flat : FlatVariables
        The leaves on the servers.
    form : pytree
        The tree, with a stand-in for each of them.
    """

    def __init__(self, flat: FlatVariables, form: Any) -> None:
        self._flat, self._form = flat, form

    def __repr__(self) -> str:
        count = sum(variable.shape[0] for variable in self.variables)
        return (
            f"<psnb.jax.TreeVariables {len(self._flat.places)} arrays with {count} numbers in "
            f"{len(self.variables)} variables>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A tree, not its definition: that of classes which registered themselves does not pickle.
        return TreeVariables, (self._flat, self._form)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables that hold the leaves, one after another; one for each optimizer."""
        return self._flat.variables

    def read(self) -> Any:
        """Fetch the tree, with numpy arrays.

        Raises
        ------
        ServerLostError
            If a server is gone.
        """
        return self.tree([variable.read() for variable in self.variables])

    def assign(self, tree: Any) -> None:
        """Replace all leaves that are on the servers; the state of optimizers stays as it is.

        Parameters
        ----------
        tree : pytree
            Of the form and shapes of the first one.

        Raises
        ------
        GradientError
            If a leaf is missing or has another shape; nothing was changed.
        ServerLostError
            If a server is gone.
        """
        arrays, _ = _parted(tree)
        self._flat.assign(arrays)

    def read_leaves(self) -> dict[str, np.ndarray]:
        """Fetch the leaves that are on the servers, by name."""
        return self._flat.read()

    def sources(self) -> DenseSources:
        """Return where the leaves are on the servers, by name."""
        return self._flat.sources()

    def tree(self, values: Sequence[Any]) -> Any:
        """Return the tree from the values of `variables`, which may be traced."""
        return self.tree_of(self.leaves(values))

    def leaves(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the leaves by name from the values of `variables`, which may be traced."""
        return self._flat.split(values)

    def flat(self, leaves: Mapping[str, Any]) -> list[Any]:
        """Return the values of `variables` from all leaves, in a program."""
        return [
            jax.numpy.concatenate([each.reshape(-1) for each in several])
            for several in self._flat.grouped(leaves)
        ]

    def tree_of(self, leaves: Mapping[str, Any]) -> Any:
        """Return the tree from the leaves by name."""
        return jax.tree.map(
            lambda leaf: leaves[leaf.name] if isinstance(leaf, _Leaf) else leaf, self._form
        )


def variables(
    strategy: Strategy, tree: Any, optimizer: OptimizerChoice, name: str = "params"
) -> TreeVariables:
    """Put the parameters of a model on the servers.

    Parameters
    ----------
    strategy : ParameterServerStrategy
        Whose servers.
    tree : pytree
        The initial values: any tree of JAX, as those of Haiku, Flax (``nnx.split(model)[1]``) and
        Equinox. Leaves that are float32 or float64 arrays go to the servers.
    optimizer : Optimizer or callable
        What the servers do with gradients; or a function from a leaf's name, such as
        ``"['dense']['kernel']"``, to an optimizer. ``clipnorm`` counts the norm of all leaves with
        the same optimizer together.
    name : str
        The name of the variable on the servers; unique within the strategy.

    Returns
    -------
    TreeVariables
        A handle, for the notebook and for closures.

    Raises
    ------
    ConfigurationError
        If there is no array of floats, a leaf is of half precision, there is no optimizer for one,
        or the name is taken; nothing was placed.
    ServerLostError
        If a server is gone.
    """
    arrays, form = _parted(tree)
    if not arrays:
        raise ConfigurationError(
            f"psnb.jax.variables: there is no array of floats in {type(tree).__name__}: a model's "
            "initial parameters are expected, such as those that its init function returns"
        )
    return TreeVariables(place_flat(strategy, name, arrays, optimizer), form)


def by_name(flat: FlatVariables) -> TreeVariables:
    """Return the tree of arrays that are on the servers: a dict by name."""
    return TreeVariables(flat, {name: _Leaf(name) for name in flat.places})


def _parted(tree: Any) -> tuple[dict[str, np.ndarray], Any]:
    """Return the leaves that are arrays of floats by name, and the tree without them."""
    arrays: dict[str, np.ndarray] = {}

    def part(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array | np.ndarray | np.floating):
            return leaf
        if not jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact):
            return leaf
        name = jax.tree_util.keystr(path)
        if jax.numpy.iscomplexobj(leaf):
            raise GradientError(f"parameter {name!r} is complex; servers keep floats")
        arrays[name] = np.asarray(leaf)
        return _Leaf(name)

    form = jax.tree_util.tree_map_with_path(part, tree)
    return arrays, form
