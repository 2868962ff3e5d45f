"""TrainStep: a closure that trains a JAX model on one batch.

Threads: those of all closures on a worker may share one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from psnb._src.jax_models.program import Program, check_tables, name_of
from psnb._src.jax_models.tree_variables import TreeVariables
from psnb._src.models import batch_summary
from psnb._src.parameters import Embedding, Handle
from psnb._src.runtime import current_context, report
from psnb.errors import ConfigurationError, GradientError


class TrainStep:
    """One training step on the next batch of an iterator; made by `psnb.jax.step`.

    A closure like any other: ``coordinator.schedule(step, (iterator,))`` or ``run_epoch(step,
    iterator)``. It asks each server once and tells it once. It returns the loss, and reports
    ``loss``, ``examples``, what ``has_aux`` returns, and ``programs``: how many programs XLA has
    compiled on that worker, whenever there is another one.

    Let functions capture it, or be it: as an argument it would be made, and compiled, anew in each
    closure. A function with a batch at hand calls ``step.train_on(batch)``.

    Parameters
    ----------
    loss, params, tables, ids, combiner, has_aux, seed
        As `step` takes them.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        params: TreeVariables | None,
        tables: Mapping[str, Embedding],
        ids: Callable[[Any], Mapping[str, Any]] | None,
        combiner: str | Mapping[str, str],
        has_aux: bool,
        seed: int | None,
    ) -> None:
        self._made_of = (loss, params, tables, ids, combiner, has_aux, seed)
        # So psnb names its closures, and notices when what the loss refers to has changed.
        self.__wrapped__, self.__qualname__ = loss, f"step of {name_of(loss)}"
        self._program = Program(
            *(loss, params, tables, ids, combiner, seed),
            inside=_with_gradients if has_aux else _without_aux,
            training=True,
        )
        self._params, self._told = params, 0
        self._numbers = itertools.count()  # where there is no closure

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainStep, self._made_of  # what is compiled stays

    def __repr__(self) -> str:
        return f"<psnb.jax {self.__qualname__}, {self._program.compiled} programs compiled here>"

    @property
    def programs(self) -> int:
        """How many programs were compiled in this process."""
        return self._program.compiled

    def __call__(self, iterator: Iterator[Any]) -> float:
        """Train on the next batch, and return its loss.

        Raises
        ------
        ConfigurationError
            If the batch lacks a feature, or ``loss`` uses what no program can take.
        GradientError
            If ids are no integers, or a gradient is not finite.
        IdOutOfRangeError
            If an id is outside its table.
        StopIteration
            If the iterator has no further batch.
        """
        return self.train_on(next(iterator))

    def train_on(self, batch: Any) -> float:
        """Train on a batch that is here, and return its loss; see the class."""
        loss, metrics, examples = self.trained(batch)
        self._report(loss, metrics, examples)
        return loss

    def trained(self, batch: Any) -> tuple[float, Any, int]:
        """Train on a batch, and return its loss, metrics and examples without a report."""
        context = current_context()
        number = next(self._numbers) if context is None else context.closure
        ((loss, metrics), (by_values, by_rows)), pulled = self._program(batch, number)
        variables = self._params.variables if self._params is not None else ()
        gradients: dict[Handle, np.ndarray] = {
            variable: np.asarray(gradient, variable.dtype)
            for variable, gradient in zip(variables, by_values, strict=True)
        }
        gradients.update(self._program.layout.gradients(pulled.fetched, by_rows))
        value = float(loss)
        try:
            pulled.rows.push(gradients)
        except GradientError as error:
            if not np.isfinite(value):
                raise GradientError(
                    f"the loss is {value} in step {number}, for a batch of {pulled.examples} "
                    f"examples: {_summary(batch)}. {error}"
                ) from error
            raise
        return value, metrics, pulled.examples

    def _report(self, loss: float, metrics: Any, examples: int) -> None:
        told = {"examples": float(examples)}
        if self._told != self._program.compiled:
            self._told = self._program.compiled
            told["programs"] = float(self._told)
        report(**{**told, "loss": loss, **_named(metrics)})


def step(
    loss: Callable[..., Any],
    *,
    params: TreeVariables | None = None,
    tables: Mapping[str, Embedding] | None = None,
    ids: Callable[[Any], Mapping[str, Any]] | None = None,
    combiner: str | Mapping[str, str] = "mean",
    has_aux: bool = False,
    seed: int | None = None,
) -> TrainStep:
    """Make a training step from a loss function.

    Parameters
    ----------
    loss : callable
        ``loss(params, rows, batch)`` returns a number, in JAX, and is pure: it is compiled.
        ``params`` is the tree that `variables` was given. ``rows[feature]`` has the shape of the
        feature's ids and one axis more, of the table's ``dim``; if the ids are `Ragged`, their rows
        are combined, and the shape is ``(bags, dim)``. ``batch`` is what the iterator gave.
    params : TreeVariables, optional
        The model's parameters.
    tables : mapping of str to Embedding, optional
        The table of each feature; several features may have the same.
    ids : callable, optional
        Takes a batch and returns the ids of each feature, integers of any shape and 64 bits if
        wanted, or `psnb.data.Ragged`. By default ``batch[feature]``.
    combiner : {"mean", "sum", "sqrtn"} or mapping
        How the rows of a bag become one, for all features or by feature; as in
        `Embedding.lookup_bags`.
    has_aux : bool
        ``loss`` returns ``(loss, metrics)``, and ``metrics``, numbers by name, are reported.
    seed : int, optional
        If given, ``loss`` gets ``key=``, a random key that is another one in each closure, and the
        same when the closure runs again.

    Returns
    -------
    TrainStep
        A closure that takes an iterator.

    Raises
    ------
    ConfigurationError
        If there is nothing to train, or an argument is of the wrong kind.

    Notes
    -----
    The gradients of rows are summed by id in the program. The number of distinct ids is padded to
    few sizes, so that XLA compiles a handful of programs; batches of another length need their own
    (``batch(n, drop_remainder=True)``).
    """
    if not callable(loss):
        raise ConfigurationError(f"psnb.jax.step: loss must be a function, found {loss!r}")
    if params is not None and not isinstance(params, TreeVariables):
        raise ConfigurationError(
            "psnb.jax.step: params must be what psnb.jax.variables(strategy, tree, optimizer) "
            f"returns, found {type(params).__name__}"
        )
    found = check_tables(tables, optimizer=True)
    if params is None and not found:
        raise ConfigurationError("psnb.jax.step: give params=, tables= or both")
    return TrainStep(loss, params, found, ids, combiner, bool(has_aux), seed)


def _summary(batch: Any) -> str:
    leaves = jax.tree_util.tree_flatten_with_path(batch)[0]
    return batch_summary(
        (jax.tree_util.keystr(path), np.asarray(getattr(leaf, "values", leaf)))
        for path, leaf in leaves
    )


def _named(metrics: Any) -> dict[str, float]:
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise ConfigurationError(
            "has_aux=True: loss must return (loss, metrics) with metrics a dict of numbers by "
            f"name, found {type(metrics).__name__}"
        )
    return {str(name): np.asarray(value).item() for name, value in metrics.items()}


def _with_gradients(function: Any, values: list[Any], matrices: list[Any]) -> Any:
    return jax.value_and_grad(function, argnums=(0, 1), has_aux=True)(values, matrices)


def _without_aux(function: Any, values: list[Any], matrices: list[Any]) -> Any:
    def with_none(*given: Any) -> Any:
        return function(*given), None

    return _with_gradients(with_none, values, matrices)
