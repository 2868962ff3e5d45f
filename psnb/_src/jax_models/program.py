"""Program: a function of parameters, rows and a batch, compiled, with the pull that goes before it.

Threads: closures of several threads may use one. Each has its own `BatchRows`; what is kept are the
compiled programs and the sizes that they were compiled for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from psnb._src.data import Ragged
from psnb._src.jax_models.batch_form import BatchForm, form_of
from psnb._src.jax_models.row_layout import GroupForm, GroupGather, Ids, RowLayout
from psnb._src.jax_models.tree_variables import TreeVariables
from psnb._src.models import BatchRows
from psnb._src.parameters import Embedding, Variable
from psnb.errors import ConfigurationError, GradientError

COMBINERS = ("sum", "mean", "sqrtn")

Inside = Callable[[Callable[[list[Any], list[Any]], Any], list[Any], list[Any]], Any]
"""What is done in the program: takes the function, the variables' values and the groups' rows."""


class Pulled:
    """What one batch needs, and what it was pulled with.

    Attributes
    ----------
    rows : BatchRows
        The rows that the batch uses.
    values : dict
        Of the variables.
    fetched : dict
        The rows of each table.
    examples : int
        How many the batch has: the length of its first ids, or of its first array.
    """

    def __init__(
        self,
        rows: BatchRows,
        values: dict[Variable, np.ndarray],
        fetched: dict[Embedding, np.ndarray],
        examples: int,
    ) -> None:
        self.rows, self.values, self.fetched, self.examples = rows, values, fetched, examples


class Program:
    """A function of the user's, compiled for each form of batches.

    Parameters
    ----------
    function : callable
        ``function(params, rows, batch)``, with ``key`` if there is a seed; pure.
    params : TreeVariables or None
        Its parameters.
    tables : mapping of str to Embedding
        The table of each feature.
    ids : callable or None
        Takes a batch, returns the ids of each feature; None for ``batch[feature]``.
    combiner : str or mapping of str to str
        How the rows of bags become one, for all features or by feature.
    seed : int or None
        Of the random keys.
    inside : callable
        See `Inside`.
    training : bool
        Whether ids that are not known get rows.

    Attributes
    ----------
    layout : RowLayout
        How rows get into the program.
    compiled : int
        How many programs were compiled so far.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        params: TreeVariables | None,
        tables: Mapping[str, Embedding],
        ids: Callable[[Any], Mapping[str, Any]] | None,
        combiner: str | Mapping[str, str],
        seed: int | None,
        inside: Inside,
        *,
        training: bool,
    ) -> None:
        self._function, self._params, self._tables = function, params, dict(tables)
        self._ids, self._seed, self._inside, self._training = ids, seed, inside, training
        self.layout = RowLayout(tables, _combiners(combiner, tables))
        self.compiled = 0
        self._run = jax.jit(self._traced, static_argnames=("forms", "batch_form"))

    def __call__(self, batch: Any, number: int) -> tuple[Any, Pulled]:
        """Pull what a batch needs and run; ``number`` makes the random key."""
        ids = self._ids_of(batch)
        rows = BatchRows(training=self._training)
        positions = self.layout.locate(ids, rows)
        variables = self._params.variables if self._params is not None else ()
        values, fetched = rows.fetch(variables)
        forms, matrices, gathers = self.layout.form(ids, positions, rows, fetched)
        batch_form, arrays = form_of(batch)
        result = self._run(
            [values[each] for each in variables],
            matrices,
            gathers,
            arrays,
            np.uint32(number & 0xFFFFFFFF),
            forms=forms,
            batch_form=batch_form,
        )
        first = next((len(each) for each in (*ids.values(), *arrays) if each.shape), 1)
        return result, Pulled(rows, values, fetched, first)

    def _traced(
        self,
        values: list[Any],
        matrices: list[Any],
        gathers: list[GroupGather],
        arrays: list[Any],
        number: Any,
        *,
        forms: tuple[GroupForm, ...],
        batch_form: BatchForm,
    ) -> Any:
        self.compiled += 1  # runs once for each program, while it is traced
        batch = batch_form.batch(arrays)
        options = {}
        if self._seed is not None:
            options["key"] = jax.random.fold_in(jax.random.key(self._seed), number)

        def function(values: list[Any], matrices: list[Any]) -> Any:
            rows: dict[str, Any] = {}
            for form, matrix, gather in zip(forms, matrices, gathers, strict=True):
                rows |= form.rows(matrix, gather)
            params = self._params.tree(values) if self._params is not None else None
            return self._function(params, rows, batch, **options)

        return self._inside(function, values, matrices)

    def _ids_of(self, batch: Any) -> dict[str, Ids]:
        names = list(self._tables)
        try:
            if self._ids is None:
                found: Mapping[str, Any] = {name: batch[name] for name in names}
            else:
                found = self._ids(batch)
        except (KeyError, IndexError, TypeError) as error:
            raise ConfigurationError(
                f"the ids of a batch could not be found ({type(error).__name__}: {error}): the "
                f"batch has {_described(batch)}, and tables are there for {names}. ids= takes a "
                "function from a batch to a dict of ids, one for each table"
            ) from error
        if not isinstance(found, Mapping) or (missing := [n for n in names if n not in found]):
            given = list(found) if isinstance(found, Mapping) else type(found).__name__
            raise ConfigurationError(
                f"ids(batch) must return the ids of {names}, found {given}; missing are "
                f"{missing if isinstance(found, Mapping) else names}"
            )
        return {name: _as_ids(name, found[name]) for name in names}


def _as_ids(name: str, given: Any) -> Ids:
    ids = given if isinstance(given, Ragged) else np.asarray(given)
    if ids.dtype.kind not in "iu":
        raise GradientError(
            f"the ids of feature {name!r} are of {ids.dtype}: ids are integers. A column that lost "
            "its type on the way (missing values make floats) is converted where it is read"
        )
    if isinstance(ids, Ragged) and ids.values.ndim != 1:
        raise GradientError(f"the bags of feature {name!r} must have one id a place, found {ids!r}")
    return ids


def _described(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"the fields {sorted(map(str, batch))}"
    return f"no fields: it is a {type(batch).__name__}"


def _combiners(
    combiner: str | Mapping[str, str], tables: Mapping[str, Embedding]
) -> dict[str, str]:
    given = combiner if isinstance(combiner, Mapping) else dict.fromkeys(tables, combiner)
    found = {name: given.get(name, "mean") for name in tables}
    if unknown := sorted(set(given) - set(tables)):
        raise ConfigurationError(f"combiner has features that are none of the tables: {unknown}")
    if wrong := {name: each for name, each in found.items() if each not in COMBINERS}:
        raise ConfigurationError(f"combiner must be one of {', '.join(COMBINERS)}; found {wrong}")
    return found


def check_tables(
    tables: Mapping[str, Embedding] | None, *, optimizer: bool
) -> dict[str, Embedding]:
    """Return the tables, or raise ConfigurationError if they are none, or cannot learn."""
    found = dict(tables or {})
    for name, table in found.items():
        if not isinstance(table, Embedding):
            raise ConfigurationError(
                f"tables[{name!r}] must be a psnb.Embedding, as strategy.embedding(...) makes, "
                f"found {table!r}"
            )
        if optimizer and table.optimizer is None:
            raise ConfigurationError(
                f"tables[{name!r}], embedding {table.name!r}, was made without an optimizer: "
                "strategy.embedding(..., optimizer=psnb.Adagrad(0.05))"
            )
    return found


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, for messages."""
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name
