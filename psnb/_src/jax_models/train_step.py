"""TrainStep: a closure that trains a JAX model on one batch.

Threads: those of all closures on a worker may share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from psnb._src.jax_models.batch_function import BatchFunction, batch_function
from psnb._src.jax_models.described_step import described_step
from psnb._src.jax_models.program import Program
from psnb._src.jax_models.tree_variables import TreeVariables
from psnb._src.jax_models.worker_programs import travelling
from psnb._src.models import StepDescription, batch_summary
from psnb._src.parameters import Blend, Embedding, Handle, Variable, writes_nothing
from psnb._src.runtime import report
from psnb.errors import ConfigurationError, GradientError

Blends = Callable[[Any], Mapping[Variable, Blend | None]]


class TrainStep:
    """One training step on the next batch of an iterator; made by `psnb.jax.step`.

    A closure like any other: ``coordinator.schedule(step, (iterator,))`` or ``run_epoch(step,
    iterator)``. It asks each server once and tells it once. It returns the loss, and reports
    ``loss``, ``examples``, what ``has_aux`` returns, and ``programs``: how many programs XLA has
    compiled on that worker, whenever there is another one.

    Functions may capture it, or be it, or take it as an argument: each worker compiles it once. A
    function with a batch at hand calls ``step.train_on(batch)``.

    Where a trainer evaluates with it, it computes the loss alone: no gradient is computed or even
    compiled.

    Parameters
    ----------
    of : BatchFunction
        The loss, with what it is applied to.
    has_aux : bool
        As `step` takes it.
    """

    def __init__(self, of: BatchFunction, has_aux: bool) -> None:
        self._of, self._has_aux = of, has_aux
        # So psnb names its closures, and notices when what the loss refers to has changed.
        self.__wrapped__, self.__qualname__ = of.function, f"step of {of.name}"
        self._program = Program(of, self._gradients, training=True)
        self._losses = Program(of, self._found, training=False)  # for evaluation
        self._told = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return travelling(TrainStep, self._of, self._has_aux)  # what is compiled stays

    def __repr__(self) -> str:
        return f"<psnb.jax {self.__qualname__}, {self.programs} programs compiled here>"

    @property
    def programs(self) -> int:
        """How many programs were compiled in this process."""
        return self._program.compiled + self._losses.compiled

    def __call__(self, iterator: Iterator[Any]) -> float:
        """Train on the next batch, and return its loss.

        Raises
        ------
        ConfigurationError
            If it is given no iterator, the batch lacks a feature, ``loss`` uses what no program can
            take or changes what it refers to, or the device is not there.
        GradientError
            If ids are no integers, or the loss or a gradient is not finite.
        IdOutOfRangeError
            If an id is outside its table.
        StopIteration
            If the iterator has no further batch.
        """
        if not hasattr(iterator, "__next__"):
            raise ConfigurationError(
                f"{self.__qualname__} takes an iterator of batches, found "
                f"{type(iterator).__name__}: schedule(step, (iter([batch]),)) trains on one batch, "
                "run_epoch(step, iter(dataset)) on all of a dataset"
            )
        return self.train_on(next(iterator))

    def train_on(self, batch: Any) -> float:
        """Train on a batch that is here, and return its loss; see the class."""
        found = self._evaluated(batch) if writes_nothing() else self.trained(batch)
        loss, metrics, examples = found
        self._report(loss, metrics, examples)
        return loss

    def trained(self, batch: Any, blends: Blends | None = None) -> tuple[float, Any, int]:
        """Train on a batch, and return its loss, metrics and examples without a report.

        ``blends`` tells of the metrics what variables get that have no gradient.
        """
        ((loss, metrics), (by_values, by_rows)), pulled = self._program(batch)
        moved = {} if blends is None else blends(metrics)
        gradients: dict[Handle, np.ndarray | Blend] = {
            variable: np.asarray(gradient, variable.dtype)
            for variable, gradient in zip(self._of.variables, by_values, strict=True)
            if variable not in moved
        }
        gradients.update((v, blend) for v, blend in moved.items() if blend is not None)
        gradients.update(self._program.layout.gradients(pulled.fetched, by_rows))
        value = float(loss)
        try:
            pulled.rows.push(gradients, loss=value)
        except GradientError as error:
            raise GradientError(
                f"the loss is {value} in step {pulled.number}, for a batch of {pulled.examples} "
                f"examples: {_summary(batch)}. {error}"
            ) from error
        return value, metrics, pulled.examples

    def _evaluated(self, batch: Any) -> tuple[float, Any, int]:
        (loss, metrics), pulled = self._losses(batch)
        return float(loss), metrics, pulled.examples

    def _found(self, function: Any, *given: Any) -> Any:
        """Return loss and metrics, in a program."""
        return function(*given) if self._has_aux else (function(*given), None)

    def _gradients(self, function: Any, *given: Any) -> Any:
        """Return loss, metrics and gradients, in the program."""
        of_loss = partial(self._found, function)
        found, (by_leaves, by_rows) = jax.value_and_grad(of_loss, (0, 1), has_aux=True)(*given)
        # Not by the variables' values: the gradient of a part of an array is a whole array.
        by_values = [] if self._of.params is None else self._of.params.flat(by_leaves)
        return found, (by_values, by_rows)

    def describe(self, batch: Any) -> StepDescription:
        """Return the operations of a step for a batch, in their order; nothing is carried out.

        First what is pulled from which servers; then JAX's operations with their dtypes and shapes,
        those of functions within them indented, and marked where they compute a gradient; then what
        is pushed. Printed, it has a line for each.

        Parameters
        ----------
        batch : object
            As the iterator gives it.

        Raises
        ------
        ConfigurationError, GradientError, IdOutOfRangeError
            As a call.
        """
        return described_step(self._program, self._of.variables, batch)

    def _report(self, loss: float, metrics: Any, examples: int) -> None:
        told = {"examples": float(examples)}
        if self._told != self.programs:
            self._told = self.programs
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
    device: Any = None,
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
    device : str or jax.Device, optional
        Where workers compute: ``"cuda"``, ``"cuda:1"``, ``"cpu"``. What a batch needs is moved
        there in one copy for each dtype. By default where JAX computes.

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
    of = batch_function(loss, params, tables, ids, combiner, seed, device)
    if params is None and not of.tables:
        raise ConfigurationError("psnb.jax.step: give params=, tables= or both")
    for name, table in of.tables.items():
        if table.optimizer is None:
            raise ConfigurationError(
                f"tables[{name!r}], embedding {table.name!r}, was made without an optimizer: "
                "strategy.embedding(..., optimizer=psnb.Adagrad(0.05))"
            )
    return TrainStep(of, bool(has_aux))


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
