"""Updater: the optimizer of one table, which may be tuned live, and the count of its updates.

Pure. Not thread-safe; the server's one thread uses it, like the table that it belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from psnb._src.server import kernels
from psnb._src.server.optimizer import Optimizer, Workspace
from psnb._src.server.schedules import is_users, rate_at
from psnb._src.server.tables.presence import Piece
from psnb.errors import ConfigurationError


class Updater:
    """Applies gradients to a table's rows.

    Parameters
    ----------
    name : str
        The table's name, for messages.
    optimizer : Optimizer or None
        The optimizer; without one, pushes are refused.
    make_workspace : callable
        Makes the memory in which gradients are clipped or negated.
    gaps : bool
        Whether some rows may be below 0: their gradients are left out.

    Attributes
    ----------
    step : int
        Updates applied: one for each push. Part of checkpoints.
    skipped : int
        Updates (of a dense table) or rows (of a sparse one) left out because they were not finite.
    """

    def __init__(
        self,
        name: str,
        optimizer: Optimizer | None,
        make_workspace: Callable[[], Workspace],
        *,
        gaps: bool = False,
    ) -> None:
        self._name, self._gaps = name, gaps
        self._make_workspace = make_workspace
        self._workspace: Workspace | None = None
        self._optimizer: Optimizer | None = None
        self.optimizer = optimizer
        self.step = self.skipped = 0

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer, as it is now."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer | None) -> None:
        # First: there may be no memory. Changing gradients needs it before they are used.
        if self._workspace is None and optimizer and (self._gaps or optimizer.changes_gradients):
            self._workspace = self._make_workspace()
        self._optimizer = optimizer

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state arrays."""
        return self.optimizer.slots if self.optimizer else ()

    def required(self) -> Optimizer:
        """Return the optimizer, or raise ConfigurationError if there is none."""
        if self._optimizer is None:
            raise ConfigurationError(
                f"{self._name!r} has no optimizer, so gradients cannot be pushed to it: "
                "make it with optimizer=psnb.SGD(...) or another one, or use assign_sub"
            )
        return self._optimizer

    def apply(
        self,
        values: np.ndarray,
        slots: Mapping[str, np.ndarray],
        rows: np.ndarray,
        gradients: np.ndarray,
        norm: float | None,
        rate: float | None,
    ) -> None:
        """Take one step; see `Optimizer.apply`. The given rate is for functions of users only.

        It is not a step if there are rows, and all are below 0.
        """
        optimizer = self.required()
        if not is_users(optimizer.learning_rate):
            rate = None
        gaps = self._gaps and rows.size > 0 and int(rows.min()) < 0
        if gaps and int(rows.max()) < 0:
            return
        optimizer.apply(
            *(values, slots, rows, gradients, self.step, norm, rate, self._workspace), gaps=gaps
        )
        self.step += 1

    def apply_runs(
        self,
        values: np.ndarray,
        slots: Mapping[str, np.ndarray],
        gradient: np.ndarray,
        runs: Sequence[tuple[Piece, int]],
        norm: float | None,
        rate: float | None,
    ) -> None:
        """Take one step of some numbers of a variable; all arrays have one axis.

        For each run its numbers, where their gradients are, and how many updates they have had. The
        rate is the one at the variable's count of updates.
        """
        optimizer = self.required()
        if rate is None or not is_users(optimizer.learning_rate):
            rate = rate_at(optimizer.learning_rate, self.step)
        if norm is None and optimizer.clipnorm is not None:
            norm = kernels.norm(gradient.reshape(1, -1))
        for (columns, part), count in runs:
            optimizer.apply(
                values[columns].reshape(1, -1),
                {name: slot[columns].reshape(1, -1) for name, slot in slots.items()},
                np.zeros(1, np.int64),
                gradient[part].reshape(1, -1),
                count,
                norm,
                rate,
                self._workspace,
            )
        self.step += 1

    def rate(self, ahead: int) -> float:
        """Return the learning rate of the next update, or of one ``ahead`` updates after it.

        Raises
        ------
        ConfigurationError
            If there is no optimizer, or its schedule fails.
        """
        rate = self.required().learning_rate
        try:
            return rate_at(rate, self.step + ahead)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{self._name!r}: {error}. Nothing was changed; set another: "
                "parameter.optimizer.learning_rate = ..."
            ) from error

    def shown_rate(self) -> float:
        """Return the learning rate of the next push, for views; NaN if there is none."""
        try:
            return self.rate(0)
        except ConfigurationError:  # a push would say so
            return math.nan

    def skip(self, count: int) -> None:
        """Count updates, or rows of them, that were left out because they were not finite."""
        self.skipped += count

    def tune(self, hyperparameters: Mapping[str, Any]) -> None:
        """Change hyperparameters, from the next update on.

        Raises
        ------
        ConfigurationError
            If one is out of its range, or would need other optimizer state; nothing was changed.
        """
        self.optimizer = tuned(self.required(), self._name, hyperparameters)


def tuned(optimizer: Optimizer, name: str, hyperparameters: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer with other hyperparameters that work with its present state.

    Raises
    ------
    ConfigurationError
        If one is out of its range, or would need other state.
    """
    changed = replace(optimizer, **hyperparameters)
    if changed.slots != optimizer.slots:
        raise ConfigurationError(
            f"{name!r} was made with {optimizer!r}, whose state is {list(optimizer.slots)}; "
            f"{', '.join(f'{key}={value!r}' for key, value in hyperparameters.items())} needs "
            f"{list(changed.slots)}: make another variable or embedding with it"
        )
    return changed
