"""ForwardPass: what a JAX model says of a batch: predictions, scores, losses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from psnb._src.jax_models.program import Program, check_tables, name_of
from psnb._src.jax_models.tree_variables import TreeVariables
from psnb._src.parameters import Embedding
from psnb._src.runtime import current_context


class ForwardPass:
    """A function of a model for one batch; made by `psnb.jax.forward`.

    Works in the notebook and in closures. It trains nothing and leaves no trace in tables.

    Parameters
    ----------
    function, params, tables, ids, combiner, seed
        As `forward` takes them.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        params: TreeVariables | None,
        tables: Mapping[str, Embedding],
        ids: Callable[[Any], Mapping[str, Any]] | None,
        combiner: str | Mapping[str, str],
        seed: int | None,
    ) -> None:
        self._made_of = (function, params, tables, ids, combiner, seed)
        self.__wrapped__, self.__qualname__ = function, f"forward pass of {name_of(function)}"
        self._program = Program(*self._made_of, inside=_as_it_is, training=False)
        self._numbers = itertools.count()

    def __reduce__(self) -> tuple[Any, ...]:
        return ForwardPass, self._made_of

    @property
    def programs(self) -> int:
        """How many programs were compiled in this process."""
        return self._program.compiled

    def __call__(self, batch: Any) -> Any:
        """Return what the function returns for a batch, with numpy arrays."""
        context = current_context()
        number = next(self._numbers) if context is None else context.closure
        result, _ = self._program(batch, number)
        return jax.tree.map(np.asarray, result)


def forward(
    function: Callable[..., Any],
    *,
    params: TreeVariables | None = None,
    tables: Mapping[str, Embedding] | None = None,
    ids: Callable[[Any], Mapping[str, Any]] | None = None,
    combiner: str | Mapping[str, str] = "mean",
    seed: int | None = None,
) -> ForwardPass:
    """Make a function of batches from one of parameters, rows and a batch.

    Parameters
    ----------
    function : callable
        ``function(params, rows, batch)`` returns a tree of arrays; see `psnb.jax.step`.
    params, tables, ids, combiner, seed
        As in `psnb.jax.step`.

    Returns
    -------
    ForwardPass
        Takes a batch; a closure like any other.
    """
    return ForwardPass(function, params, check_tables(tables, optimizer=False), ids, combiner, seed)


def _as_it_is(function: Any, values: list[Any], matrices: list[Any]) -> Any:
    return function(values, matrices)
