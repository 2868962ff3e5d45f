"""Beginnings: what parameters begin anew with when there is no checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.excerpt import NAME, excerpt
from psnb._src.parameters import Embedding, shards_of
from psnb._src.strategy.core import StrategyCore
from psnb._src.strategy.losses import begin_call
from psnb._src.strategy.placed_tables import MOST_KEPT
from psnb.errors import ConfigurationError


class Beginnings:
    """The values that variables begin anew with, and on which shards parameters do.

    Parameters
    ----------
    core : StrategyCore
        The strategy's.
    initialize : object
        True, or values of variables by name.
    everything : bool
        Whether all parameters begin anew, or only what was lost.

    Attributes
    ----------
    values : dict
        The given values, by shard and table.

    Raises
    ------
    ConfigurationError
        If ``initialize`` is neither, or a value has no variable, or another shape or dtype.
    """

    def __init__(self, core: StrategyCore, initialize: Any, everything: bool) -> None:
        if initialize is not True and not isinstance(initialize, Mapping):
            raise ConfigurationError(
                "initialize must be True, or a dict of initial values by the names of variables, "
                f"found {excerpt(repr(initialize))}"
            )
        self._core, self._everything = core, everything
        self._given: dict[str, Mapping[tuple[int, str], np.ndarray]] = {}
        for name, value in ({} if initialize is True else initialize).items():
            self._given[name] = self._by_table(name, value)
        self.values = {key: part for each in self._given.values() for key, part in each.items()}

    def shards(self, lost: Collection[int]) -> Collection[int]:
        """Return the shards that begin anew."""
        return range(len(self._core.shards)) if self._everything else lost

    def check(self, lost: Collection[int]) -> None:
        """Raise ConfigurationError unless there is a value for all that begins anew."""
        anew = self.shards(lost)
        for name, parts in self._given.items():
            if not any(shard in anew for shard, _ in parts):
                raise ConfigurationError(
                    f"initialize: variable {name!r:.200} has lost nothing, and with "
                    "consistent=False only what was lost begins anew: leave it out, or assign() "
                    "it; nothing was changed"
                )
        unkept = [each for each in self._core.tables.unkept(anew) if each not in self._given]
        if unkept:
            names = excerpt(", ".join(map(repr, unkept)))
            raise ConfigurationError(
                f"the initial values of {names} are not kept in this process, which keeps "
                f"{MOST_KEPT >> 20} MiB of them, and none of a strategy that was resumed or "
                f"attached. Give them: {begin_call(self._core.registry.all(), unkept)}; nothing "
                "was changed"
            )

    def _by_table(self, name: str, value: ArrayLike) -> Mapping[tuple[int, str], np.ndarray]:
        found = self._core.registry.all().get(name)
        if found is None:
            near = get_close_matches(str(name), self._core.registry.all(), 1)
            meant = f"; is {near[0]!r} meant?" if near else ""
            raise ConfigurationError(f"initialize: no variable is called {name!r:.200}{meant}")
        if isinstance(found, Embedding):
            raise ConfigurationError(
                f"initialize: {excerpt(repr(name), NAME)} is an embedding, whose rows begin by its "
                "initializer: leave it out"
            )
        shards = shards_of(found)
        return shards.by_table(shards.checked(value, "initial value"))
