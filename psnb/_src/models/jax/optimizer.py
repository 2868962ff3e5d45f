"""Transformations of optax as an optimizer of psnb, which servers run with JAX.

An optimizer of psnb keeps arrays like the parameter and counts updates: then a server's machinery
(checkpoints, copies, moves, rounds) is for all optimizers one. So a transformation is taken if its
state is that; which state is an array and which a count is learned by running it on a sample.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from psnb._src.models.export.jax_program import with_x64
from psnb._src.server import stored
from psnb._src.server.optimizer import Array, Optimizer, Slots
from psnb._src.transport import half_width
from psnb._src.utils.text import text_of, truncate
from psnb.errors import ConfigurationError

_DOOR = "psnb.jax.optimizer"

_BY_ELEMENT = {
    *("abs", "add", "and", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "cos", "div"),
    *("eq", "erf", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le"),
    *("log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow"),
    *("rem", "round", "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient"),
    *("sub", "tanh", "xor"),
}
"""The operations of JAX that give each number of an array by the numbers at its place."""

_SCALES = (1.0, 1e-4, 0.0, 1e3, 1e6, 1.0)
"""The sizes of the gradients of a sample: clipping shows in them."""

_LATER = (9, 99, 1_000, 1 << 30)
"""After how many updates counts are compared, besides the first ones."""


@dataclass(frozen=True, repr=False)
class OptaxOptimizer(Optimizer):
    """A transformation of optax; made by `optimizer`.

    Its rate, decay and clipping are in it: `Optimizer`'s are refused, but for clipping and
    ``maximize`` of one that works by element.

    Parameters
    ----------
    learning_rate : float
        1: the result of the transformation is added as it is.
    transformation : optax.GradientTransformation
        It.
    starts : tuple of (str, float)
        The arrays of its state, and what each begins with.
    elements : bool
        See `by_element`.
    """

    learning_rate: float = 1.0
    transformation: Any = None
    starts: tuple[tuple[str, float], ...] = ()
    elements: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learning_rate != 1.0 or self.weight_decay:
            raise ConfigurationError(
                f"{self!r}: its learning rate and decay are in the transformation. Make it with a "
                "schedule, such as optax.adam(optax.cosine_decay_schedule(1e-3, 10_000))"
            )
        if self.changes_gradients and not self.elements:
            raise ConfigurationError(
                f"{self!r}: clipnorm, clipvalue and maximize belong into the transformation, which "
                "must see whole gradients: optax.chain(optax.clip(1.0), ...)"
            )

    def __repr__(self) -> str:
        return f"{_DOOR}(a transformation with state {[name for name, _ in self.starts]})"

    @property
    def by_element(self) -> bool:
        return self.elements

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.starts)

    def initial_slot(self, name: str) -> float:
        return dict(self.starts)[name]

    def _update(
        self,
        values: Array,
        slots: Slots,
        rows: Array,
        ids: Array,
        gradients: Array,
        rate: float,
        step: int,
        seed: int,
    ) -> None:
        if not rows.size:
            return
        # Few sizes, as each is compiled; a variable is one row.
        size = 1 << (rows.size - 1).bit_length()
        arrays = [values, *(slots[name] for name in self.slots)]
        given = [
            _padded(gradients, size),
            *(_padded(half_width.widened(each[rows]), size) for each in arrays),
        ]
        with _on_servers(gradients.dtype):
            found = _program(self.transformation)(np.int32(step), *given)
            after = [np.asarray(each) for each in found]
        for at, (array, new) in enumerate(zip(arrays, after, strict=True)):
            stored.put_rows(array, rows, ids, new[: rows.size], seed, at)

    def describe(self) -> dict[str, Any]:
        return {"name": _DOOR, "slots": list(self.slots)}


@lru_cache(maxsize=64)
def optimizer(transformation: Any) -> Optimizer:
    """Make a transformation of optax an optimizer that servers run.

    It may be given wherever psnb takes an optimizer. On tables it updates the rows of a push, with
    the state that these have, and counts the table's updates; so it must work by element there.

    Parameters
    ----------
    transformation : optax.GradientTransformation
        Such as ``optax.adamw(1e-3)``, or ``optax.chain(optax.clip_by_global_norm(1.0),
        optax.lion(1e-4))``. It travels to the servers, which need JAX, and what it refers to.

    Returns
    -------
    Optimizer
        For `variables`, ``strategy.variable``, ``strategy.embedding`` and ``distribute``.

    Raises
    ------
    ConfigurationError
        If its state is not made of arrays like the parameters that begin with one number, and of
        counts of updates; or if it tells parameters of a tree, or their shapes, apart: several lie
        in one variable.

    Notes
    -----
    A transformation works *by element* if JAX's trace of it has only operations that compute each
    number from the numbers at its place. Others, such as ``optax.clip_by_global_norm``, are
    possible for variables that are on one server as a whole, with the norm of all parameters in
    that variable; they are refused for tables.

    Masks are refused, and so are groups of parameters (``optax.multi_transform``). A sample tests
    that parameters and shapes are not treated differently otherwise: some steps for a tree of two
    arrays and for the same numbers in one, in double precision, with gradients of very different
    sizes. So ``optax.lamb`` and ``optax.adafactor`` are refused.

    An update takes two to three times the memory of variable and state for a moment. Each update of
    a number of rows that has not been met, to a power of two, is compiled.

    Examples
    --------
    >>> import numpy as np
    >>> import optax
    >>> import psnb.jax
    >>> found = psnb.jax.optimizer(optax.sgd(0.5, momentum=0.5))
    >>> found.slots
    ('[0].trace',)
    >>> w, slots = np.ones((1, 2)), {"[0].trace": np.zeros((1, 2))}
    >>> found.apply(w, slots, np.array([0]), np.ones((1, 2)), 0)  # as a server does
    >>> w.tolist()
    [[0.5, 0.5]]
    """
    if not all(callable(getattr(transformation, name, None)) for name in ("init", "update")):
        raise ConfigurationError(
            f"{_DOOR}: expected a transformation of optax, such as optax.adam(1e-3), found "
            f"{truncate(repr(transformation))}"
        )
    values = np.random.default_rng(0).normal(size=(1, 17)).astype(np.float32)
    with _on_servers(values.dtype):
        try:
            states, _ = _run(transformation, values)
            # A mask may go by names, by sizes, or by a number of axes that no sample has. Without
            # optax there are none.
            masked = getattr(sys.modules.get("optax"), "MaskedState", ())
            nodes = jax.tree.leaves(states[0], is_leaf=lambda node: isinstance(node, masked))
            if any(isinstance(node, masked) for node in nodes):
                raise _distinguishes()
            names = [*_arrays(transformation, states, values)]
            traced = jax.make_jaxpr(transformation.update)(values, states[0], values)
            elements = not any(map(np.shape, traced.consts)) and _by_element(traced.jaxpr)
        except ConfigurationError:
            raise
        except Exception as error:  # whatever a transformation may raise
            raise _refusal(
                "it does not run on gradients, its state and parameters alone, or its schedule "
                f"chooses by Python's if, not by jax.numpy.where: {truncate(text_of(error, repr))}"
            ) from error
    with _on_servers(np.dtype(np.float64)):
        values = values.astype(np.float64)
        _check_alike(transformation, values)
        starts = tuple(_starts(transformation, values, names))
    return OptaxOptimizer(transformation=transformation, starts=starts, elements=elements)


def as_optimizer(given: Any) -> Any:
    """Return the optimizer that a transformation is made, and all else as it is."""
    is_one = isinstance(given, tuple) and hasattr(given, "init") and hasattr(given, "update")
    return optimizer(given) if is_one else given


@contextmanager
def _on_servers(dtype: np.dtype) -> Iterator[None]:
    """Compute as servers do."""
    with jax.default_device(jax.devices("cpu")[0]), with_x64(dtype == np.float64):
        yield


@lru_cache(maxsize=64)
def _program(transformation: Any) -> Any:
    """Return the compiled update: of a step's number, gradients, values and the arrays of state."""

    def update(step: Any, gradients: Any, values: Any, *slots: Any) -> Any:
        leaves, form = jax.tree.flatten(jax.eval_shape(transformation.init, values))
        left = iter(slots)
        state = jax.tree.unflatten(
            form,
            [next(left) if each.shape else jax.numpy.asarray(step, each.dtype) for each in leaves],
        )
        updates, after = transformation.update(gradients, state, values)
        arrays = [each for each in jax.tree.leaves(after) if each.shape]
        return [(values + updates).astype(values.dtype), *arrays]

    return jax.jit(update)


def _padded(array: np.ndarray, rows: int) -> np.ndarray:
    if len(array) == rows:
        return array
    return np.concatenate([array, np.zeros((rows - len(array), array.shape[1]), array.dtype)])


def _run(transformation: Any, values: Any) -> tuple[list[Any], list[Any]]:
    """Return the states before and after each step of a sample, and the updates, leaf by leaf."""
    leaves, form = jax.tree.flatten(values)
    count = sum(each.size for each in leaves)
    rng = np.random.default_rng(1)
    state = transformation.init(values)
    states, updates = [state], []
    for scale in _SCALES:
        numbers = (scale * rng.normal(size=count)).astype(leaves[0].dtype)
        stops = np.cumsum([each.size for each in leaves])[:-1]
        parts = zip(np.split(numbers, stops), leaves, strict=True)
        gradients = jax.tree.unflatten(form, [part.reshape(leaf.shape) for part, leaf in parts])
        moved, state = transformation.update(gradients, state, values)
        values = jax.tree.map(lambda value, by: value + by, values, moved)
        states.append(state)
        updates.append(np.concatenate([np.ravel(each) for each in jax.tree.leaves(moved)]))
    return states, updates


def _arrays(transformation: Any, states: list[Any], values: np.ndarray) -> Iterator[str]:
    """Yield the names of the arrays of a state."""
    for path, first in jax.tree_util.tree_leaves_with_path(states[0]):
        name = jax.tree_util.keystr(path)
        history = [dict(jax.tree_util.tree_leaves_with_path(state))[path] for state in states]
        whole = jax.numpy.issubdtype(history[0].dtype, np.integer)
        counts = whole and [*map(int, history)] == [*range(len(history))]
        if np.shape(first) == values.shape and first.dtype == values.dtype:
            yield name
        elif np.shape(first) or not counts:
            raise _refusal(
                f"its state {name} ({first.dtype}, shape {np.shape(first)}) is neither an array "
                "like the parameter, of its dtype, nor a count of updates; for rates use a "
                "schedule instead of inject_hyperparams"
            )
    for step in _LATER:  # some counts start over, or end
        state = jax.tree.map(
            lambda each, step=step: each if each.shape else np.asarray(step, each.dtype), states[0]
        )
        _, after = transformation.update(values, state, values)
        for path, count in jax.tree_util.tree_leaves_with_path(after):
            if not np.shape(count) and int(count) != step + 1:
                raise _refusal(
                    f"its state {jax.tree_util.keystr(path)} is not a count of updates: after "
                    f"{step:,} of them comes {int(count):,}"
                )


def _starts(
    transformation: Any, values: np.ndarray, names: list[str]
) -> Iterator[tuple[str, float]]:
    """Yield the arrays of a state with what they begin with."""
    for path, first in jax.tree_util.tree_leaves_with_path(transformation.init(values)):
        if (name := jax.tree_util.keystr(path)) in names:
            numbers = np.unique(first)
            if len(numbers) > 1:
                raise _refusal(f"its state {name} begins with a copy or function of parameters")
            yield name, float(numbers[0])


def _check_alike(transformation: Any, values: np.ndarray) -> None:
    """Raise ConfigurationError if parameters of a tree, or of other shapes, are distinguished."""
    tree = {"a": values[0, :12].reshape(3, 4), "b": values[0, 12:]}
    try:
        _, found = _run(transformation, tree)
        _, expected = _run(transformation, values)
        alike = all(
            np.allclose(one, other, rtol=1e-9, atol=1e-12 * float(np.abs(other).max()))
            for one, other in zip(found, expected, strict=True)
        )
    except Exception:  # as above: of a mask for another tree
        alike = False
    if not alike:
        raise _distinguishes()


def _distinguishes() -> ConfigurationError:
    return _refusal(
        "it tells parameters of a tree or their shapes apart (by a mask, or norms of each), "
        "and on servers many lie in one variable. Give groups of parameters transformations "
        "of their own: psnb.jax.variables(optimizer=lambda name: ...)"
    )


def _by_element(program: Any) -> bool:
    """Return whether all operations on arrays, and all that make some, are by element."""
    for operation in program.eqns:
        if inner := [*inner_programs(operation.params.values())]:
            if not all(map(_by_element, inner)):
                return False
            continue
        takes = any(each.aval.shape for each in operation.invars)
        gives = any(each.aval.shape for each in operation.outvars)
        name = operation.primitive.name
        if takes and name not in _BY_ELEMENT:
            return False
        if gives and not takes and name != "broadcast_in_dim":
            return False
    return True


def inner_programs(parameters: Any) -> Iterator[Any]:
    """Yield the programs in an operation's parameters."""
    for each in parameters:
        if isinstance(each, tuple | list):
            yield from inner_programs(each)
        elif hasattr(each, "eqns"):
            yield each
        elif hasattr(each, "jaxpr"):
            yield each.jaxpr


def _refusal(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{_DOOR}: servers cannot keep this transformation of optax: {why}. psnb's own optimizers "
        "(psnb.Adam, psnb.Adagrad, ...) are an alternative"
    )
