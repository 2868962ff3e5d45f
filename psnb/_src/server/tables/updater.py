"""Updater: the optimizer of one table, which may be tuned live, and the count of its updates.

Pure. Not thread-safe; the server's one thread uses it, like the table that it belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from psnb._src.server import kernels
from psnb._src.server.disk import Paging
from psnb._src.server.optimizer import Matrices, Optimizer, Workspace, norm_of
from psnb._src.server.optimizers import OPTIMIZERS
from psnb._src.server.schedules import is_users, rate_at
from psnb._src.server.stored import seed_of
from psnb._src.server.tables.presence import Piece
from psnb.errors import ConfigurationError

_known: WeakValueDictionary[tuple[Any, ...], Optimizer] = WeakValueDictionary()
"""Optimizers by all that they are made of. (As their own keys, they would never go.)"""


def _shared(optimizer: Optimizer | None) -> Optimizer | None:
    """Return the one of equal optimizers by which tables are known to have the same."""
    # What users wrote may compare as it likes, and have more in it than is compared.
    if optimizer is None or type(optimizer) not in OPTIMIZERS.values():
        return optimizer
    if is_users(optimizer.learning_rate):
        return optimizer
    try:
        return _known.setdefault((type(optimizer), *vars(optimizer).items()), optimizer)
    except TypeError:  # it cannot be hashed
        return optimizer


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
    seed : int
        The table's, for what is stored in half width.
    paging : Paging, optional
        How rows that lie in files are touched.

    Attributes
    ----------
    optimizer : Optimizer or None
        The optimizer, as it is now; equal ones are the same object.
    changes_gradients, by_user : bool
        Whether gradients may have to be clipped or negated first, and whether the learning rate is
        a function of users.
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
        seed: int = 0,
        paging: Paging | None = None,
    ) -> None:
        self._name, self.gaps, self._seed, self.paging = name, gaps, seed, paging
        self._make_workspace = make_workspace
        self._workspace: Workspace | None = None
        self.optimizer: Optimizer | None = None
        self.follow(optimizer)
        self.step = self.skipped = 0

    def follow(self, optimizer: Optimizer | None) -> None:
        """Have another optimizer, of the same state, from the next update on."""
        changes = optimizer is not None and optimizer.changes_gradients
        # First: there may be no memory. Changing gradients needs it before they are used.
        if self._workspace is None and optimizer and (self.gaps or changes):
            self._workspace = self._make_workspace()
        self.changes_gradients = changes
        self.by_user = optimizer is not None and is_users(optimizer.learning_rate)
        self.optimizer = _shared(optimizer)

    def check_state(self, optimizer: Optimizer | None) -> None:
        """Raise ConfigurationError unless an optimizer has the same state, for `follow`."""
        if (slots := optimizer.slots if optimizer else ()) != self.slots:
            raise ConfigurationError(
                f"{self._name!r} has the state {list(self.slots)}, and an optimizer that is to "
                f"follow has {list(slots)}. Nothing was changed"
            )

    @property
    def alone(self) -> bool:
        """Whether its table takes steps by itself, not in one call with others."""
        return self.changes_gradients or self.paging is not None

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state arrays."""
        return self.optimizer.slots if self.optimizer else ()

    def required(self) -> Optimizer:
        """Return the optimizer, or raise ConfigurationError if there is none."""
        if self.optimizer is None:
            raise ConfigurationError(
                f"{self._name!r} has no optimizer, so gradients cannot be pushed to it: "
                "make it with optimizer=psnb.SGD(...) or another one, or use assign_sub"
            )
        return self.optimizer

    def update_seed(self) -> int:
        """Return the seed of the next update; see `stored.seed_of`."""
        return seed_of(self._seed, self.step)

    def rates_at(self, steps: Sequence[int], rates: Sequence[float] | None) -> Sequence[float]:
        """Return the learning rates at steps, where the given ones are for functions of users."""
        if rates is not None and self.by_user:
            return rates
        rate = self.required().learning_rate
        known = {step: rate_at(rate, step) for step in {*steps}}
        return [known[step] for step in steps]

    def apply(
        self,
        values: np.ndarray,
        slots: Mapping[str, np.ndarray],
        rows: np.ndarray,
        gradients: np.ndarray,
        norm: float | None,
        rate: float | None,
        ids: np.ndarray | None = None,
    ) -> None:
        """Take one step; see `Optimizer.apply`. The given rate is for functions of users only.

        It is not a step if there are rows, and all are below 0.
        """
        optimizer = self.required()
        if not self.by_user:
            rate = None
        gaps = self.gaps and rows.size > 0 and int(rows.min()) < 0
        if gaps and int(rows.max()) < 0:
            return
        ids = rows.view(np.uint64) if ids is None else ids
        parts: Iterable[slice] = [slice(0, rows.size)]
        if self.paging is not None and rows.size > self.paging.rows:
            parts = self.paging.parts(0, rows.size)
            if rate is None:  # once for all
                rate = rate_at(optimizer.learning_rate, self.step)
            if norm is None and optimizer.clipnorm is not None:
                assert self._workspace is not None
                norm = norm_of(rows, ids, gradients, self._workspace, gaps=gaps)
        for at in parts:
            optimizer.apply(
                *(values, slots, rows[at], gradients[at], self.step, norm, rate, self._workspace),
                gaps=gaps,
                ids=ids[at],
                seed=self.update_seed(),
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
        if rate is None or not self.by_user:
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
        self.follow(tuned(self.required(), self._name, hyperparameters))


class Updated(NamedTuple):
    """Rows of tables, and their gradients.

    Attributes
    ----------
    places, offsets : numpy.ndarray
        int64: the place of each table, and where its rows begin and end.
    rows, ids, gradients : numpy.ndarray
        int64 and uint64 ``(n,)``, and ``(n, dim)``, of which the tables may have a part.
    """

    places: np.ndarray
    offsets: np.ndarray
    rows: np.ndarray
    ids: np.ndarray
    gradients: np.ndarray


def apply_to_tables(
    updaters: Sequence[Updater],
    matrices: Sequence[Matrices],
    of: Updated,
    norms: Sequence[float | None] | None,
    rates: Sequence[float] | None,
    unsure: Collection[int],
) -> None:
    """Take one step of each of several tables; see `Updater.apply`.

    Tables with the same optimizer take it in one call, but for those whose rows are touched some at
    a time, or whose gradients must be changed first: clipped, or left out where a row is below 0,
    which may be in the ``unsure``.
    """
    start = 0
    for stop in range(1, len(updaters) + 1):
        first = updaters[start]
        alone = first.alone or (first.gaps and start in unsure)
        if not alone and stop < len(updaters):
            other = updaters[stop]
            apart = other.alone or (other.gaps and stop in unsure)
            if other.optimizer is first.optimizer and not apart:
                continue
        offsets, some = of.offsets[start : stop + 1], updaters[start:stop]
        if alone:
            at = slice(offsets[0], offsets[1])
            norm = None if norms is None else norms[start]
            rate = None if rates is None else rates[start]
            values, slots = matrices[start]()
            first.apply(values, slots, of.rows[at], of.gradients[at], norm, rate, of.ids[at])
        else:
            steps = [each.step for each in some]
            found = first.rates_at(steps, rates and rates[start:stop])
            own, places = matrices[start:stop], of.places[start:stop]
            seeds = [each.update_seed() for each in some]
            first.required().apply_to_tables(
                own, places, offsets, of.rows, of.ids, of.gradients, found, steps, seeds
            )
            for each in some:
                each.step += 1
        start = stop


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
