"""PipelinePart: a part of a JAX model, for a pipeline of several.

Threads: the closures of a worker may share one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from psnb._src.client.embedding import Embedding
from psnb._src.models.jax.batch import BatchFunction, batch_function
from psnb._src.models.jax.program import Program
from psnb._src.models.jax.step import TrainStep, as_it_is
from psnb._src.models.jax.travel import travelling
from psnb._src.models.jax.variables import TreeVariables


class PipelinePart:
    """A part of a model; made by `psnb.jax.stage`, used by `psnb.Section`.

    `backward` and `train` compute the stage once more from its inputs, so nothing has to stay on
    the worker that computed it first.
    """

    def __init__(self, of: BatchFunction) -> None:
        self._of = of
        self.__wrapped__, self.__qualname__ = of.function, f"stage of {of.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return travelling(PipelinePart, self._of)

    def __repr__(self) -> str:
        return f"<psnb.jax {self.__qualname__}>"

    def forward(self, inputs: Any) -> Any:
        """Return the stage's outputs, with numpy arrays."""
        return self._forward(inputs)[0]

    def backward(self, inputs: Any, gradient: list[np.ndarray], scale: float) -> list[np.ndarray]:
        """Push the gradients of the parameters, and return the inputs' gradient.

        Parameters
        ----------
        inputs : pytree
            As `forward` had them.
        gradient : list of numpy.ndarray
            That of the outputs: of each array of floats, in the order of the tree.
        scale : float
            By what the gradients of the parameters are multiplied.

        Returns
        -------
        list of numpy.ndarray
            That of the inputs, likewise.
        """
        batch = {"inputs": inputs, "gradient": gradient, "scale": np.float32(scale)}
        _, (_, back), _ = self._backward.trained(batch)
        return list(back)

    def train(self, inputs: Any, scale: float) -> tuple[float, int, list[np.ndarray]]:
        """Do what `backward` does where the stage is the last, and returns the loss.

        Returns
        -------
        tuple
            The loss; how many examples there were; the gradient of the inputs.
        """
        batch = {"inputs": inputs, "scale": np.float32(scale)}
        _, (loss, back), examples = self._backward.trained(batch)
        return float(loss), examples, list(back)

    @cached_property
    def _forward(self) -> Program:
        return Program(self._of, as_it_is, training=True)

    @cached_property
    def _backward(self) -> TrainStep:
        of = self._of
        again = replace(
            of, function=_Recomputed(of.function), ids=lambda batch: of.ids_of(batch["inputs"])
        )
        return TrainStep(again, has_aux=True, draws=False)  # it draws the same again


class _Recomputed:
    """A number whose gradients by the parameters are a stage's."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__wrapped__, self._function = function, function
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __call__(self, params: Any, rows: Any, batch: Any) -> Any:
        leaves, tree = jax.tree.flatten(batch["inputs"])
        at = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]

        def number(floats: list[Any]) -> Any:
            given = list(leaves)
            for i, each in zip(at, floats, strict=True):
                given[i] = each
            outputs = self._function(params, rows, jax.tree.unflatten(tree, given))
            if "gradient" not in batch:
                return outputs  # the loss
            found = [each for each in jax.tree.leaves(outputs) if _is_float(each)]
            return sum(jnp.vdot(*both) for both in zip(found, batch["gradient"], strict=True))

        value, back = jax.value_and_grad(number)([leaves[i] for i in at])
        return value * batch["scale"], jax.lax.stop_gradient((value, back))


def stage(
    function: Callable[..., Any],
    *,
    params: TreeVariables | None = None,
    tables: Mapping[str, Embedding] | None = None,
    ids: Callable[[Any], Mapping[str, Any]] | None = None,
    combiner: str | Mapping[str, str] = "mean",
    device: Any = None,
) -> PipelinePart:
    """Make a part of a model, for a pipeline: ``psnb.Section([first, second, last])``.

    Parameters
    ----------
    function : callable
        ``function(params, rows, inputs)``, pure. ``inputs`` is the batch in the first stage, and
        what the stage before has returned in the others: any tree of arrays. Gradients go back
        through arrays of floats; others, such as labels, pass along. The last stage returns the
        loss, a number.
    params, tables, ids, combiner, device
        As `step` takes them; ``ids`` gets the inputs.

    Returns
    -------
    PipelinePart
        For `psnb.Section`.

    Raises
    ------
    ConfigurationError
        If an argument is of the wrong kind.
    """
    return PipelinePart(batch_function(function, params, tables, ids, combiner, None, device))


def _is_float(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
