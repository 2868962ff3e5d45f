"""TreeVariables: the parameters of a model as a tree, kept in few variables on the servers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from psnb._src.client.variable import Variable
from psnb._src.models.flat_variables import (
    FlatVariables,
    OptimizerChoice,
    check_strategy,
)
from psnb._src.models.jax.optimizer import as_optimizer
from psnb._src.models.placing import WantedModel, place_model
from psnb._src.server.optimizer import Optimizer
from psnb._src.strategy.strategy import ParameterServerStrategy
from psnb.errors import ConfigurationError


class _Leaf:
    """Stands in a tree for a parameter that is on the servers."""

    def __init__(self, name: str) -> None:
        self.name = name


class TreeVariables:
    """A tree of parameters on the servers; made by `psnb.jax.variables`.

    Thread-safe, and travels with closures. The leaves that are floats are on the servers; other
    leaves (functions, bools) stay as they were.

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
        # A tree, not its definition: definitions with classes that registered themselves do not
        # pickle.
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
        return self.tree_of(self._flat.read())

    def assign(self, tree: Any) -> None:
        """Replace all leaves that are on the servers; the state of optimizers stays as it is.

        Parameters
        ----------
        tree : pytree
            Of the form and shapes of the first one.

        Raises
        ------
        InvalidArrayError
            If a leaf is missing or has another shape; nothing was changed.
        ServerLostError
            If a server is gone.
        """
        arrays, _ = _parted(tree)
        self._flat.assign(arrays)

    def tree(self, values: Sequence[Any]) -> Any:
        """Return the tree from the values of `variables`, which may be traced."""
        return self.tree_of(self._flat.split(values))

    def tree_of(self, leaves: Mapping[str, Any]) -> Any:
        """Return the tree from the leaves by name."""
        return jax.tree.map(
            lambda leaf: leaves[leaf.name] if isinstance(leaf, _Leaf) else leaf, self._form
        )


def flat_of(tree: TreeVariables) -> FlatVariables:
    """Return the leaves that are on the servers; for psnb only."""
    return tree._flat


def variables(
    strategy: ParameterServerStrategy,
    tree: Any,
    optimizer: OptimizerChoice | Any | None = None,
    name: str = "params",
    *,
    adopt: bool | None = None,
) -> TreeVariables:
    """Put the parameters of a model on the servers, or take up what the strategy has of them.

    On a strategy of `psnb.attach` or `psnb.resume`, the tree *adopts* the parameters that had its
    name there, if the leaves have the same names, shapes and dtypes: they stay as they are, with
    the state of their optimizers, and training goes on; a warning says so. The values of the tree
    are not used then. Tables are there again as ``strategy.parameters["ads"]``.

    Parameters
    ----------
    strategy : ParameterServerStrategy
        Whose servers.
    tree : pytree
        The initial values: any tree of JAX, as those of Haiku, Flax (``nnx.split(model,
        nnx.Param, ...)[1]``) and Equinox. Leaves by which JAX would differentiate go to the
        servers: floats, arrays and Python's. Bools and leaves that are no numbers stay in the tree;
        in modules of Equinox all but arrays of floats, as with ``equinox.filter_grad``.
    optimizer : Optimizer, optax.GradientTransformation or callable
        Not needed to adopt: servers keep their optimizers, with the hyperparameters that they have
        now. One of another kind is refused, and a warning says which hyperparameters are others.
        What the servers do with gradients, see also `psnb.jax.optimizer`; or a function from a
        leaf's name, such as ``"['dense']['kernel']"``, to an optimizer. ``clipnorm`` counts the
        norm of all leaves with the same optimizer together.
    name : str
        The name of the variable on the servers; unique within the strategy.
    adopt : bool, optional
        True: there must be parameters to adopt, also those that this process has placed itself;
        both handles then train the same ones. False: there must be none. By default those from
        before are adopted, those of this process are refused, and where there are none, the tree is
        placed.

    Returns
    -------
    TreeVariables
        A handle, for the notebook and for closures.

    Raises
    ------
    ConfigurationError
        If there are no floats; a leaf is an integer, complex, of half precision, or state of nnx
        that is no ``nnx.Param``, or of linen; there is no optimizer for one, the name is taken, or
        what is to be adopted does not fit, which the message lists; nothing was placed.
    ServerLostError
        If a server is gone.

    Notes
    -----
    The optimizers of psnb have defaults of their own, of which some are not optax's:

    ========  =======================================  =======================================
    ..        psnb                                     optax
    ========  =======================================  =======================================
    SGD       rate 0.01; ``Momentum``: 0.9             no default rate; no momentum
    Adagrad   accumulator from 0,                      accumulator from 0.1,
              ``sqrt(a) + 1e-7``                       ``sqrt(a + 1e-7)``
    Adam      ``sqrt(v̂) + 1e-8``, no decay             the same; adamw: decay 1e-4
    RMSProp   ``rho=0.9``, ``sqrt(s + 1e-7)``          ``decay=0.9``, ``sqrt(s + 1e-8)``
    ========  =======================================  =======================================
    """
    check_strategy("psnb.jax.variables", strategy)
    _check_linen(tree)
    arrays, form = _parted(tree)
    if not arrays:
        raise ConfigurationError(
            f"psnb.jax.variables: there are no floats in {type(tree).__name__}: a model's "
            "initial parameters are expected, such as those that its init function returns"
        )
    choice = None if optimizer is None else _as_choice(optimizer)
    wanted = WantedModel(arrays)
    found = place_model(strategy, name, wanted, sparse=None, dense=choice, adopt=adopt)
    return TreeVariables(found.parameters, form)


def _as_choice(given: Any) -> OptimizerChoice:
    """Return what chooses psnb's optimizers, given what may choose transformations of optax."""
    if callable(given) and not isinstance(given, Optimizer | type):
        return lambda name: as_optimizer(given(name))
    choice: OptimizerChoice = as_optimizer(given)
    return choice


def by_name(flat: FlatVariables) -> TreeVariables:
    """Return the tree of arrays that are on the servers: a dict by name."""
    return TreeVariables(flat, {name: _Leaf(name) for name in flat.places})


def _parted(tree: Any) -> tuple[dict[str, np.ndarray], Any]:
    """Return the leaves that learn by name, and the tree without them.

    Raises
    ------
    ConfigurationError
        If a leaf is a number that cannot learn.
    """
    arrays: dict[str, np.ndarray] = {}

    def part(path: Any, leaf: Any) -> Any:
        found = _parameter(jax.tree_util.keystr(path), leaf)
        if found is None:
            return leaf
        arrays[jax.tree_util.keystr(path)] = found
        return _Leaf(jax.tree_util.keystr(path))

    def inner(path: Any, node: Any) -> Any:
        """Part what a library has its own rules for."""
        _check_equinox(jax.tree_util.keystr(path), node)
        if (kind := _kind_of_nnx(node)) is not None:
            _check_nnx(jax.tree_util.keystr(path), kind)
        elif not _is_equinox(node):
            return part(path, node)

        def below(more: Any, leaf: Any) -> Any:
            # In a module of Equinox, arrays of floats are learned, and all else is its
            # configuration.
            stays = _is_equinox(node) and not _is_inexact(leaf)
            return leaf if stays else part((*path, *more), leaf)

        return jax.tree_util.tree_map_with_path(below, node)

    form = jax.tree_util.tree_map_with_path(
        inner, tree, is_leaf=lambda e: _kind_of_nnx(e) is not None or _is_equinox(e) or _is_state(e)
    )
    return arrays, form


def _parameter(name: str, leaf: Any) -> np.ndarray | None:
    """Return the value of a leaf that JAX would differentiate by; None if it is not a number."""
    if isinstance(leaf, bool) or not isinstance(leaf, int | float | complex | np.number | _ARRAYS):
        return None
    if isinstance(leaf, float) and not isinstance(leaf, np.floating):
        return np.asarray(leaf, jax.dtypes.canonicalize_dtype(np.float64))
    if isinstance(leaf, int | complex):
        kind = f"a Python {type(leaf).__name__}"
    elif leaf.dtype == np.bool_:
        return None
    elif _is_inexact(leaf) and not jax.numpy.iscomplexobj(leaf):
        return np.asarray(leaf)
    else:
        kind = f"of {leaf.dtype}"
    raise ConfigurationError(
        f"parameter {name!r} is {kind}: servers train floats. Make it one if it is to learn; what "
        "is not does not belong among the parameters: let the loss refer to it, or have it "
        "in the batch. A random key would be the same in each step: psnb.jax.step(seed=) gives the "
        "loss another one for each"
    )


_ARRAYS = jax.Array | np.ndarray


def _is_inexact(leaf: Any) -> bool:
    return isinstance(leaf, np.inexact | _ARRAYS) and jax.numpy.issubdtype(
        leaf.dtype, jax.numpy.inexact
    )


def _is_equinox(node: Any) -> bool:
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(node, equinox.Module)


def _is_state(node: Any) -> bool:
    """Return whether a node is state of Equinox, or an index with what the state begins with."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return False
    index = isinstance(node, equinox.nn.StateIndex) and bool(jax.tree.leaves(node))
    return index or isinstance(node, equinox.nn.State)


_NOT_KEPT = (
    "Averages that a call moves (BatchNorm) are not kept, as a loss returns no state: take "
    "LayerNorm, or psnb.torch or psnb.keras, which keep them"
)


def _check_equinox(name: str, node: Any) -> None:
    if any(map(_is_state, jax.tree.leaves(node, is_leaf=_is_state))):
        raise ConfigurationError(
            f"{name or 'the tree'!r} has state of Equinox, such as averages of BatchNorm, which "
            "would learn as if it were parameters. `model, state = equinox.nn.make_with_state("
            "Model)(...)` parts it: give the model here, and let the loss refer to state. Layers "
            f"that use it as it is (equinox.nn.inference_mode) work then. {_NOT_KEPT}"
        )


_COLLECTIONS = {"batch_stats", "cache", "intermediates"}
"""Collections of Flax's linen besides ``"params"`` in the variables of a module."""


def _check_linen(tree: Any) -> None:
    if isinstance(tree, Mapping) and "params" in tree and (state := _COLLECTIONS & tree.keys()):
        raise ConfigurationError(
            f"{', '.join(map(repr, sorted(state)))} of a Flax module would learn, or stay what "
            'init made of it: it is state, which a loss does not return. Give variables["params"] '
            f"here. {_NOT_KEPT}"
        )


def _kind_of_nnx(node: Any) -> type | None:
    """Return what a node of the state of an nnx module is, such as ``nnx.Param``."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return None
    # Before Flax 0.12, states had a class of their own.
    kind = node.type if type(node).__name__ == "VariableState" else type(node)
    return kind if issubclass(kind, nnx.Variable) else None


def _check_nnx(name: str, kind: type) -> None:
    if not issubclass(kind, sys.modules["flax.nnx"].Param):
        raise ConfigurationError(
            f"{name!r} is of nnx.{kind.__name__}: of the state of an nnx module, nnx.Param alone "
            "learns, and all else would be the same in every step. `graph, params, rest = "
            "nnx.split(model, nnx.Param, ...)` splits it: give params here, and let the loss call "
            "nnx.merge(graph, params, rest, copy=True). Random numbers, as of dropout, are others "
            f"in each step then. {_NOT_KEPT}"
        )
