"""TrainStep, ForwardPass, PipelinePart: what trains a JAX model on a batch, or computes it.

Threads: the closures of a worker may share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from psnb._src.client.dense_shards import Blend, PartialGradient
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import Handle
from psnb._src.client.local.dry_run import writes_nothing
from psnb._src.client.variable import Variable
from psnb._src.models.batch_rows import Pushed, batch_summary
from psnb._src.models.export.exported import Exported
from psnb._src.models.jax.batch import Applied, BatchFunction, batch_function, travelling
from psnb._src.models.jax.export import exported
from psnb._src.models.jax.optimizer import inner_programs
from psnb._src.models.jax.program import Program
from psnb._src.models.jax.variables import TreeVariables
from psnb._src.models.step_description import StepDescription, StepOperation, array_text, described
from psnb._src.worker.context import report
from psnb.errors import ConfigurationError, InvalidArrayError


class ForwardPass(Applied):
    """A function of a model for one batch; made by `psnb.jax.forward`.

    Works in the notebook and in closures. It trains nothing and leaves no trace in tables.

    Parameters
    ----------
    of : BatchFunction
        The function, with what it is applied to.
    """

    def __init__(self, of: BatchFunction) -> None:
        super().__init__(of, "forward pass")
        self._program = Program(of, inside=as_it_is, training=False)

    @property
    def programs(self) -> int:
        """How many programs were compiled in this process."""
        return self._program.compiled

    def to_export(self, example: Any) -> Exported:
        """Return what `psnb.export` writes of it."""
        return exported(self._of, example)

    def __call__(self, batch: Any) -> Any:
        """Return what the function returns for a batch, with numpy arrays.

        Raises
        ------
        ConfigurationError
            If the batch lacks a feature, or the device is not there.
        InvalidArrayError, IdOutOfRangeError
            If ids are not integers, or outside their table.
        ServerLostError
            If a server is gone.
        """
        return self._program(batch)[0]


def forward(
    function: Callable[..., Any],
    *,
    params: TreeVariables | None = None,
    tables: Mapping[str, Embedding] | None = None,
    ids: Callable[[Any], Mapping[str, Any]] | None = None,
    combiner: str | Mapping[str, str] = "mean",
    seed: int | None = None,
    device: Any = None,
) -> ForwardPass:
    """Make a function of batches from one of parameters, rows and a batch.

    Parameters
    ----------
    function : callable
        ``function(params, rows, batch)`` returns a tree of arrays; see `psnb.jax.step`.
    params, tables, ids, combiner, seed, device
        As in `psnb.jax.step`.

    Returns
    -------
    ForwardPass
        Takes a batch; a closure like any other.

    Raises
    ------
    ConfigurationError
        If an argument is of the wrong kind.
    """
    return ForwardPass(batch_function(function, params, tables, ids, combiner, seed, device))


def as_it_is(function: Any, leaves: dict[str, Any], matrices: list[Any]) -> Any:
    return function(leaves, matrices)


def _operations(jaxpr: Any, depth: int) -> Iterator[StepOperation]:
    for equation in jaxpr.eqns:
        name, parameters = equation.primitive.name, equation.params
        # A function within it has a name of its own: jit(relu).
        inner = parameters.get("name")
        yield StepOperation(
            f"{name}({inner})" if isinstance(inner, str) else name,
            tuple(map(_text, equation.invars)),
            tuple(map(_text, equation.outvars)),
            "gradient" if "transpose" in str(equation.source_info.name_stack) else "",
            depth,
        )
        for each in inner_programs(parameters.values()):
            yield from _operations(each, depth + 1)


def _text(variable: Any) -> str:
    if hasattr(variable, "val"):
        return str(variable.val)  # a constant
    kind = variable.aval
    return array_text(kind.dtype.name, kind.shape) if hasattr(kind, "dtype") else str(kind)


Blends = Callable[[Any], Mapping[Variable, Blend | None]]


class TrainStep(Applied):
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
    draws : bool
        As `Program` takes it.
    """

    def __init__(self, of: BatchFunction, has_aux: bool, draws: bool = True) -> None:
        super().__init__(of, "step")
        self._has_aux = has_aux
        self._program = Program(of, self._gradients, training=True, draws=draws)
        self._losses = Program(of, self._found, training=False)  # for evaluation
        self._learning = of.learning
        self._reported = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return travelling(TrainStep, self._of, self._has_aux)

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
        InvalidArrayError
            If ids are not integers, or the loss or a gradient is not finite.
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
        if writes_nothing():
            (number, metrics), pulled = self._losses(batch)
            loss, examples = float(number), pulled.examples
        else:
            loss, metrics, examples = self.trained(batch)
        reported = {"examples": float(examples)}
        if self._reported != self.programs:
            self._reported = self.programs
            reported["programs"] = float(self._reported)
        report(**{**reported, "loss": loss, **_named(metrics)})
        return loss

    def trained(
        self, batch: Any, blends: Blends | None = None, weight: Callable[[Any], float] | None = None
    ) -> tuple[float, Any, int]:
        """Train on a batch, and return its loss, metrics and examples without a report.

        ``blends`` says which metrics are the new values of variables without a gradient, and
        ``weight`` what the batch counts, given the metrics.
        """
        ((loss, metrics), (by_values, by_rows)), pulled = self._program(batch)
        moved = {} if blends is None else blends(metrics)
        gradients: dict[Handle, Pushed] = {}
        for (variable, _, ranges), by in zip(self._learning, by_values, strict=True):
            if variable not in moved:
                flat = np.asarray(by, variable.dtype)
                gradients[variable] = flat if ranges is None else PartialGradient(flat, ranges)
        gradients.update((v, blend) for v, blend in moved.items() if blend is not None)
        gradients.update(self._program.layout.gradients(pulled.fetched, by_rows))
        value = float(loss)
        counts = pulled.examples if weight is None else weight(metrics)
        if self._of.weight is not None:
            counts = float(self._of.weight(batch))
        try:
            pulled.rows.push(gradients, loss=value, weight=counts)
        except InvalidArrayError as error:
            fields = (
                (jax.tree_util.keystr(path), np.asarray(getattr(leaf, "values", leaf)))
                for path, leaf in jax.tree_util.tree_flatten_with_path(batch)[0]
            )
            raise InvalidArrayError(
                f"the loss is {value} in step {pulled.number}, for a batch of {pulled.examples} "
                f"examples: {batch_summary(fields)}. {error}"
            ) from error
        return value, metrics, pulled.examples

    def _found(self, function: Any, *given: Any) -> Any:
        """Return loss and metrics, in a program."""
        return function(*given) if self._has_aux else (function(*given), None)

    def _gradients(self, function: Any, *given: Any) -> Any:
        """Return loss, metrics and gradients, in the program."""
        leaves, rows = given
        learning = self._learning
        by = {name: leaves[name] for _, names, _ in learning for name in names}

        def of_loss(some: dict[str, Any], rows: list[Any]) -> Any:
            return self._found(function, {**leaves, **some}, rows)

        found, (by_leaves, by_rows) = jax.value_and_grad(of_loss, (0, 1), has_aux=True)(by, rows)
        # Not by the variables' values: the gradient of a part of an array is a whole array.
        flat = [
            jnp.concatenate([by_leaves[name].reshape(-1) for name in names])
            for _, names, _ in learning
        ]
        return found, (flat, by_rows)

    def describe(self, batch: Any) -> StepDescription:
        """Return the operations of a step for a batch, in their order; nothing is carried out.

        First the pulls from each server; then JAX's operations with their dtypes and shapes,
        operations of inner functions indented, and marked where they compute a gradient; then the
        pushes. Printed, it has a line for each.

        Parameters
        ----------
        batch : object
            As the iterator gives it.

        Raises
        ------
        ConfigurationError, InvalidArrayError, IdOutOfRangeError
            As a call.
        """
        jaxpr, rows = self._program.traced(batch)
        learning = [variable for variable, *_ in self._learning]
        return described(
            [*rows.items(), *((each, None) for each in self._of.params.variables)],
            _operations(jaxpr, 0),
            [*rows.items(), *((each, None) for each in learning)],
        )


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
    learns: Callable[[str], bool] | None = None,
    weight: Callable[[Any], Any] | None = None,
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
        If given, ``loss`` gets ``key=``, a random key that differs in each closure, and is the same
        when the closure runs again.
    device : str or jax.Device, optional
        Where workers compute: ``"cuda"``, ``"cuda:1"``, ``"cpu"``. What a batch needs is moved
        there in one copy for each dtype. By default where JAX computes.
    learns : callable, optional
        Says by a leaf's name, such as ``"['generator']['w']"``, whether it learns in this step;
        by default all do. What does not is not differentiated by, and stays as it is, with the
        state of its optimizer and its count of updates, as with a transformation of optax of its
        own. (A leaf that learns, and that the loss does not depend on, has a gradient of zeros, as
        in JAX.)
    weight : callable, optional
        Takes a batch, returns what it counts in its round in mode `psnb.Sync`: of how much the loss
        is the mean, for instance ``lambda batch: batch["mask"].sum()``. By default the number of
        examples: the length of the first ids, or arrays.

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
    of = replace(of, learns=learns, weight=weight)
    if params is None and not of.tables:
        raise ConfigurationError("psnb.jax.step: give params=, tables= or both")
    if learns is not None and not of.learning and not of.tables:
        raise ConfigurationError("psnb.jax.step: learns= says that nothing learns")
    for name, table in of.tables.items():
        if table.optimizer is None:
            raise ConfigurationError(
                f"tables[{name!r}], embedding {table.name!r}, was made without an optimizer: "
                "strategy.embedding(..., optimizer=psnb.Adagrad(0.05))"
            )
    return TrainStep(of, bool(has_aux))


def _named(metrics: Any) -> dict[str, float]:
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise ConfigurationError(
            "has_aux=True: loss must return (loss, metrics) with metrics a dict of numbers by "
            f"name, found {type(metrics).__name__}"
        )
    return {str(name): np.asarray(value).item() for name, value in metrics.items()}


class PipelinePart(Applied):
    """A part of a model; made by `psnb.jax.stage`, used by `psnb.Section`.

    `backward` and `train` compute the stage once more from its inputs, so nothing has to stay on
    the worker that computed it first.
    """

    def __init__(self, of: BatchFunction) -> None:
        super().__init__(of, "stage")
        again = replace(
            of, function=_Recomputed(of.function), ids=lambda batch: of.ids_of(batch["inputs"])
        )
        self._forward = Program(of, as_it_is, training=True)
        # It draws the same again.
        self._backward = TrainStep(again, has_aux=True, draws=False)

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
