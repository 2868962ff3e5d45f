"""Parameters that are made again as a checkpoint describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from psnb._src.descriptions import made
from psnb._src.first_rows import ADMISSIONS, INITIALIZERS
from psnb._src.sealed_json import keys
from psnb._src.server import OPTIMIZERS, CtrAccessor
from psnb._src.strategy.strategy import ParameterServerStrategy, core_of
from psnb.errors import ConfigurationError

Make = Callable[[ParameterServerStrategy], object]
"""Makes a parameter of a strategy."""

_KINDS: dict[str, Mapping[str, type]] = {
    "optimizer": OPTIMIZERS,
    "initializer": INITIALIZERS,
    "admission": ADMISSIONS,
    "accessor": {CtrAccessor.__name__: CtrAccessor},
}


_OF_ALL = {"nonfinite"}
_OF_EMBEDDINGS = {"padding_idx", "initializer", "admission", "accessor"}


def described_parameter(
    name: str,
    description: Mapping[str, Any],
    optimizer: Mapping[str, Any] | None,
    recipe: Mapping[str, Any],
) -> Make:
    """Return what makes a parameter again; its values are those of the beginning.

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
    keys(f"the recipe of {name!r:.80}", recipe, _OF_ALL if variable else _OF_ALL | _OF_EMBEDDINGS)
    how = {"optimizer": optimizer, **recipe, "dtype": np.dtype(description["dtype"])}
    for part, kinds in _KINDS.items():
        if how.get(part) is not None:
            try:
                how[part] = made(f"its {part}", how[part], kinds)
            except ValueError as error:
                raise ConfigurationError(
                    f"parameter {name!r:.200} cannot be made again: {error}, which is none of "
                    "psnb's own, and checkpoints have no pickles. Make a strategy with all its "
                    "parameters and models as before, with the same names, and restore them: "
                    "psnb.CheckpointManager(coordinator, directory).restore()"
                ) from error
    if variable:
        return partial(_variable, name, tuple(description["shape"]), how)
    size = {key: description[key] for key in ("dim", "rows")}
    return partial(_embedding, name, {**how, **size})


def _variable(
    name: str, shape: tuple[int, ...], how: dict[str, Any], strategy: ParameterServerStrategy
) -> None:
    strategy.variable(np.zeros(shape, how["dtype"]), name, **how)
    core_of(strategy).tables.forget_values(name)  # zeros were never its initial values


def _embedding(name: str, how: dict[str, Any], strategy: ParameterServerStrategy) -> None:
    strategy.embedding(name, **how)
