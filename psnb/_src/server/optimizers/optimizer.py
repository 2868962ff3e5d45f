"""What all optimizers have in common: a frozen description, and how a table applies it. Pure.

The state of an optimizer (the *slots*, the step) belongs to the table. The optimizer sees every
table as a matrix: a dense variable is one row, an embedding table has one row for each id. So each
optimizer needs one kernel for both. A kernel works in place, without the GIL, on distinct rows of
float32 or float64. It gets hyperparameters of the same dtype, or it would compute in the wider one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from psnb._src.descriptions import described
from psnb._src.first_rows import read_only
from psnb._src.server import kernels
from psnb._src.server.optimizers.hyperparameters import require_number
from psnb._src.server.optimizers.schedules import LearningRate, rate_at, require_rate


@dataclass(frozen=True)
class Optimizer(ABC):
    """How a parameter server turns gradients into updates.

    One push to a table is one step. In an embedding table only the rows that were pushed change:
    the others neither decay nor move by their momentum (as in TensorFlow's lazy optimizers). Each
    shard of a variable or embedding counts its own steps; a push without ids of a shard is no step
    there.

    Parameters
    ----------
    learning_rate : float or callable
        Step size, finite and not below 0; or a function of the step, 0 for the first update: a
        `Schedule`, one of optax's, or any other that can be pickled. See below.
    weight_decay : float
        Pulls parameters towards zero: ``weight_decay * w`` is added to the gradient (L2, as in
        PyTorch), after clipping. `Adam` applies it separately from the gradient (decoupled, AdamW).
    clipnorm : float, optional
        A gradient with a larger Euclidean norm is scaled down to it. The norm is that of the whole
        push to one variable or embedding, over all servers, with the gradients of equal ids summed.
    clipvalue : float, optional
        Each element of the (summed) gradient is clipped to ``[-clipvalue, clipvalue]``, after
        ``clipnorm``.

    Raises
    ------
    ConfigurationError
        If a hyperparameter is out of its range, or a function has no rate for step 0.

    Notes
    -----
    Servers call the function of a learning rate (in mode `Geo`, workers do), so the modules that it
    needs must be there: jax, for those of optax. It must be fast, because a server does nothing
    else meanwhile. It is called once for an update, when that reaches the server, before anything
    of it is applied; a copy on another server takes the same rate. (So while closures commit to
    several servers, it may be asked for one step more than once. And for step 0 whenever
    hyperparameters are set, for reads that show a closure its own pushes, and for a dashboard that
    shows the rate.) If it raises, or
    returns no number that is finite and not below 0, the whole commit is refused with
    ConfigurationError. A checkpoint has the function's name only.
    """

    learning_rate: LearningRate = 0.01
    _: KW_ONLY
    weight_decay: float = 0.0
    clipnorm: float | None = None
    clipvalue: float | None = None

    def __post_init__(self) -> None:
        require_rate(self)
        require_number(self, "weight_decay")
        for name in ("clipnorm", "clipvalue"):
            if getattr(self, name) is not None:
                require_number(self, name, positive=True)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state arrays, each of the parameter's shape and dtype."""
        return ()

    def initial_slot(self, name: str) -> float:
        """Return the value that every element of the slot starts with."""
        return 0.0

    def apply(
        self,
        values: np.ndarray,
        slots: Mapping[str, np.ndarray],
        rows: np.ndarray,
        gradients: np.ndarray,
        step: int,
        norm: float | None = None,
        rate: float | None = None,
    ) -> None:
        """Update rows in place.

        Parameters
        ----------
        values : numpy.ndarray
            The parameters, ``(rows, dim)``, float32 or float64.
        slots : mapping of str to numpy.ndarray
            The state, each like ``values``.
        rows : numpy.ndarray
            int64 ``(n,)``, distinct.
        gradients : numpy.ndarray
            ``(n, dim)`` of the dtype of ``values``; not changed.
        step : int
            How many updates the table has had before this one.
        norm : float, optional
            For ``clipnorm``: the Euclidean norm of the whole gradient that these rows are a part
            of; if it is left out, these rows are the whole gradient.
        rate : float, optional
            The learning rate of this update, if it was computed before.

        Raises
        ------
        ConfigurationError
            If the learning rate cannot be computed; nothing was changed.
        """
        if rate is None:
            rate = rate_at(self.learning_rate, step)
        if self.clipnorm is not None:
            whole = kernels.norm(gradients) if norm is None else norm
            if whole > self.clipnorm:
                gradients = gradients * values.dtype.type(self.clipnorm / whole)
        if self.clipvalue is not None:
            bound = values.dtype.type(self.clipvalue)
            gradients = np.clip(gradients, -bound, bound)
        self._update(values, slots, rows, read_only(gradients), rate, step)

    @abstractmethod
    def _update(
        self,
        values: np.ndarray,
        slots: Mapping[str, np.ndarray],
        rows: np.ndarray,
        gradients: np.ndarray,
        rate: float,
        step: int,
    ) -> None:
        """Run the kernel; see `apply`."""

    def describe(self) -> dict[str, Any]:
        """Return name and hyperparameters as JSON can hold them."""
        return described(self)


def above_zero(value: float, scalar: type[np.floating[Any]]) -> np.floating[Any]:
    """Return a value above 0 as a scalar above 0, even if it is too small for float32.

    An epsilon of 0 would let a row without gradient divide 0 by 0.
    """
    return max(scalar(value), np.finfo(scalar).tiny)
