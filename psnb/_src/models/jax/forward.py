"""ForwardPass: a function of a JAX model for a batch, which trains nothing.

Threads: those of all closures on a worker may share one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from psnb._src.client.embedding import Embedding
from psnb._src.models.export.exported import Exported
from psnb._src.models.jax.batch import BatchFunction, batch_function
from psnb._src.models.jax.export import exported
from psnb._src.models.jax.program import Program
from psnb._src.models.jax.travel import travelling
from psnb._src.models.jax.variables import TreeVariables


class ForwardPass:
    """A function of a model for one batch; made by `psnb.jax.forward`.

    Works in the notebook and in closures. It trains nothing and leaves no trace in tables.

    Parameters
    ----------
    of : BatchFunction
        The function, with what it is applied to.
    """

    def __init__(self, of: BatchFunction) -> None:
        self._of = of
        self.__wrapped__, self.__qualname__ = of.function, f"forward pass of {of.name}"
        self._program = Program(of, inside=as_it_is, training=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return travelling(ForwardPass, self._of)

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
