"""Program: a function of a batch, compiled, with the pull that goes before it.

Threads: closures of several threads may use one. Each has its own `BatchRows`; compiled programs,
and the sizes that they were compiled for, are kept.

A copy to an accelerator costs about as much for a few numbers as for a thousand: so arrays go there
in one copy for each dtype, and are taken apart there (`PackedTransfer`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from psnb._src.client.embedding import Embedding
from psnb._src.models.batch_rows import BatchRows
from psnb._src.models.jax.batch import BatchForm, BatchFunction, batch_text, form_of
from psnb._src.models.jax.purity import kept_state, pure
from psnb._src.models.jax.row_layout import GroupForm, RowLayout
from psnb._src.models.jax.variables import flat_of
from psnb._src.worker.context import current_context
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


Inside = Callable[[Callable[[dict[str, Any], list[Any]], Any], dict[str, Any], list[Any]], Any]
"""The body of a program: takes the function, the parameters by name and the groups' rows."""


class Pulled(NamedTuple):
    """The rows that one batch needs, and its numbers.

    Attributes
    ----------
    rows : BatchRows
        The rows that the batch uses.
    fetched : dict
        The rows of each table.
    examples : int
        How many the batch has: the length of its first ids, or of its first array.
    number : int
        Of the step: the closure's, or how many there were before, where there is no closure.
    """

    rows: BatchRows
    fetched: dict[Embedding, np.ndarray]
    examples: int
    number: int


class Program:
    """A function of the user's, compiled for each form of batches.

    Parameters
    ----------
    of : BatchFunction
        The function.
    inside : callable
        See `Inside`.
    training : bool
        Whether ids that are not known get rows; then state of libraries must not move.
    draws : bool
        Whether random numbers that the function draws from captured objects change with each step.

    Attributes
    ----------
    layout : RowLayout
        How rows get into the program.
    compiled : int
        How many programs were compiled so far.
    """

    def __init__(
        self, of: BatchFunction, inside: Inside, *, training: bool, draws: bool = False
    ) -> None:
        self._of, self._inside, self._training, self._draws = of, inside, training, draws
        self.layout = RowLayout(of.tables, of.combiners)
        self.compiled = 0
        self._numbers = itertools.count()  # where there is no closure
        self._run = jax.jit(self._traced, static_argnames=("forms", "batch_form", "copy"))

    def __call__(self, batch: Any) -> tuple[Any, Pulled]:
        """Pull what a batch needs and run; return the result, in arrays of numpy."""
        ids = self._of.ids_of(batch)
        rows = BatchRows(training=self._training)
        located = self.layout.locate(ids, rows)
        values, fetched = rows.fetch(self._of.params.variables)
        forms, matrices, gathers = self.layout.form(located, rows, fetched)
        batch_form, arrays = form_of(batch)
        context = current_context()
        number = next(self._numbers) if context is None else context.closure
        dense = [values[each] for each in self._of.params.variables]
        given: Any = dense, matrices, gathers, arrays, np.uint32(number & 0xFFFFFFFF)
        copy = None
        if self._device is not None:
            copy, flat = together(given)
            given = jax.device_put(flat, self._device)
        result = self._run(given, forms=forms, batch_form=batch_form, copy=copy)
        examples = next((len(each) for each in (*ids.values(), *arrays) if each.shape), 1)
        return self._on_host(result), Pulled(rows, fetched, examples, number)

    def traced(self, batch: Any) -> tuple[Any, dict[Embedding, int]]:
        """Return the program for a batch as JAX's expression, and how many rows each table gives.

        Servers are not asked: shapes are enough.
        """
        rows, compiled = BatchRows(training=False), self.compiled
        located = self.layout.locate(self._of.ids_of(batch), rows)
        counts = rows.counts()
        fetched = {each: np.zeros((count, each.dim), each.dtype) for each, count in counts.items()}
        forms, matrices, gathers = self.layout.form(located, rows, fetched)
        batch_form, arrays = form_of(batch)
        values = [np.zeros(each.shape, each.dtype) for each in self._of.params.variables]
        given = values, matrices, gathers, arrays, np.uint32(0)
        run = partial(self._traced, forms=forms, batch_form=batch_form, copy=None)
        expression = jax.make_jaxpr(run)(given)
        self.compiled = compiled  # nothing was
        return expression, counts

    @cached_property
    def _on_host(self) -> Callable[[Any], Any]:
        if self._device is None and jax.default_backend() == "cpu":
            # They are here: `device_get` takes twice as long to find that out.
            return partial(jax.tree.map, np.asarray)
        return jax.device_get

    @cached_property
    def _device(self) -> jax.Device | None:
        if (name := self._of.device) is None:
            return None
        platform, _, number = name.partition(":")
        try:
            return jax.local_devices(backend=platform)[int(number or 0)]
        except (RuntimeError, IndexError, ValueError) as error:
            here = ", ".join(f"{each.platform}:{each.id}" for each in jax.local_devices())
            raise ConfigurationError(
                f"device={name!r} is not there in this process, where JAX has {here} "
                f"({type(error).__name__}: {error}). Workers on machines with an accelerator need "
                "the JAX that is made for it, such as jax[cuda12]"
            ) from error

    def _traced(
        self,
        given: Any,
        *,
        forms: tuple[GroupForm, ...],
        batch_form: BatchForm,
        copy: PackedTransfer | None,
    ) -> Any:
        self.compiled += 1  # runs once for each program, while it is traced
        of = self._of
        values, matrices, gathers, arrays, number = given if copy is None else copy.apart(given)
        batch = batch_form.batch(arrays)
        options = {}
        if of.seed is not None:
            options["key"] = jax.random.fold_in(jax.random.key(of.seed), number)

        def function(leaves: dict[str, Any], matrices: list[Any]) -> Any:
            rows: dict[str, Any] = {}
            for form, matrix, gather in zip(forms, matrices, gathers, strict=True):
                rows |= form.rows(matrix, gather)
            params = of.params.tree_of(leaves)
            try:
                return of.function(params, rows, batch, **options)
            except KeyError as error:
                if isinstance(batch, Mapping) and error.args[0] not in batch:
                    raise ConfigurationError(
                        f"{of.name} asks for {error.args[0]!r}: the batch has {batch_text(batch)}, "
                        f"and rows are there of {sorted(rows)}"
                    ) from error
                raise

        still = kept_state(number if self._draws else None) if self._training else nullcontext()
        with pure(of.function), still:
            return self._inside(function, flat_of(of.params).split(values), matrices)
