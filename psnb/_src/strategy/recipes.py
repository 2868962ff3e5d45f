"""Parameters that are made again as a checkpoint describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
from msgspec import Struct, structs

from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import OPTIMIZERS
from psnb._src.server.tables.admission import ADMISSIONS
from psnb._src.server.tables.eviction.policy import Eviction
from psnb._src.server.tables.initializers import INITIALIZERS
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.strategy.strategy import ParameterServerStrategy, core_of
from psnb._src.utils.config import from_config
from psnb._src.utils.sealed_json import typed
from psnb.errors import ConfigurationError

Make = Callable[[ParameterServerStrategy], object]
"""Makes a parameter of a strategy."""

_KINDS: dict[str, Mapping[str, type]] = {
    "optimizer": OPTIMIZERS,
    "initializer": INITIALIZERS,
    "admission": ADMISSIONS,
    "accessor": {CtrAccessor.__name__: CtrAccessor},
    "eviction": {Eviction.__name__: Eviction},
}


class _VariableRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    nonfinite: str


class _EmbeddingRecipe(_VariableRecipe, frozen=True, forbid_unknown_fields=True):
    padding_idx: int | None
    initializer: dict[str, Any]
    admission: dict[str, Any] | None
    accessor: dict[str, Any] | None
    storage: str
    eviction: dict[str, Any] | None = None


def described_optimizer(description: Mapping[str, Any] | None) -> Optimizer | None:
    """Return an optimizer as `LiveOptimizer.describe` has described it.

    None if there is none, or it has a function of the user's.
    """
    try:
        found = None if description is None else from_config("optimizer", description, OPTIMIZERS)
    except ValueError:
        return None
    assert found is None or isinstance(found, Optimizer)
    return found


def described_parameter(
    name: str,
    description: Mapping[str, Any],
    optimizer: Mapping[str, Any] | None,
    recipe: Mapping[str, Any],
) -> Make:
    """Return a function that makes a parameter again, with its initial values.

    Parameters
    ----------
    name : str
        Its name.
    description, recipe
        From ``describe`` and ``recipe`` of its shards.
    optimizer : mapping or None
        From `LiveOptimizer.describe`.

    Raises
    ------
    ValueError
        If the recipe is none.
    ConfigurationError
        If it was made with something of the user's, of which a checkpoint has the name alone.
    """
    variable = description["kind"] == "variable"
    read = structs.asdict(typed(recipe, _VariableRecipe if variable else _EmbeddingRecipe))
    how = {"optimizer": optimizer, **read, "dtype": np.dtype(description["dtype"])}
    if "slot_dtype" in description:
        how["slot_dtype"] = np.dtype(description["slot_dtype"])
    for part, kinds in _KINDS.items():
        if how.get(part) is not None:
            try:
                how[part] = from_config(f"its {part}", how[part], kinds)
            except ValueError as error:
                raise ConfigurationError(
                    f"parameter {name!r:.200} cannot be made again: {error}, which is none of "
                    "psnb's own, and checkpoints have no pickles. Make a strategy with all its "
                    "parameters and models as before, with the same names, and restore them: "
                    "psnb.CheckpointManager(coordinator, directory).restore()"
                ) from error

    if (eviction := how.pop("eviction", None)) is not None:
        how["max_rows"], how["evict"] = eviction.max_rows, eviction.evict
        minutes = eviction.minutes
        how["time_to_live"] = eviction.updates if minutes is None else timedelta(minutes=minutes)

    def make(strategy: ParameterServerStrategy) -> None:
        if variable:
            strategy.variable(np.zeros(description["shape"], how["dtype"]), name, **how)
            core_of(strategy).tables.forget_values(name)  # zeros were never its initial values
        else:
            strategy.embedding(name, description["dim"], description["rows"], **how)

    return make
