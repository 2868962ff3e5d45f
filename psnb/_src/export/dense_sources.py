"""DenseSources: in which variables of a strategy a model's dense parameters are. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from psnb._src.checks import is_integer
from psnb._src.sealed_json import keys, require


@dataclass(frozen=True)
class DenseSources:
    """Where dense parameters are on servers: many may lie one after another in a variable.

    Attributes
    ----------
    variables : mapping of str to (int, str)
        How many numbers each variable has, and its dtype.
    parts : mapping of str to (str, int)
        Of each dense parameter, by its name in the model, the variable, and where it begins there.
        What is not there, such as a constant, never changes.
    """

    variables: Mapping[str, tuple[int, str]]
    parts: Mapping[str, tuple[str, int]]

    def of(self, dense: Collection[str]) -> DenseSources:
        """Return those of some dense parameters."""
        parts = {name: each for name, each in self.parts.items() if name in dense}
        used = {variable for variable, _ in parts.values()}
        return DenseSources({n: e for n, e in self.variables.items() if n in used}, parts)

    def described(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    def check(self, dense: Mapping[str, np.ndarray]) -> None:
        """Raise ValueError unless dense parameters may lie so."""
        for name, (variable, start) in self.parts.items():
            require(name in dense, f"there is no dense parameter {name!r:.80}")
            fits = start + dense[name].size <= self.variables[variable][0]
            require(fits, f"{name!r:.80} is beyond the end of {variable!r:.80}")

    def taken(
        self, values: Mapping[str, np.ndarray], dense: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return dense parameters of the shapes and dtypes that they have, from new values."""
        found = dict(dense)
        for name, (variable, start) in self.parts.items():
            old = dense[name]
            part = values[variable][start : start + old.size]
            found[name] = part.reshape(old.shape).astype(old.dtype)
        return found


def read_sources(given: Any) -> DenseSources:
    """Return what `DenseSources.described` returned, or raise ValueError."""
    require(isinstance(given, dict), "its sources are no JSON object")
    keys("its sources", given, {"variables", "parts"})
    variables, parts = given["variables"], given["parts"]
    require(isinstance(variables, dict) and isinstance(parts, dict), "its sources are no objects")
    for name, each in variables.items():
        good = isinstance(each, list) and len(each) == 2
        good = good and is_integer(each[0]) and each[0] >= 0 and each[1] in ("float32", "float64")
        require(good, f"variable {name!r:.80} is {each!r:.80}")
    for name, each in parts.items():
        good = isinstance(each, list) and len(each) == 2 and isinstance(each[0], str)
        good = good and each[0] in variables and is_integer(each[1]) and each[1] >= 0
        require(good, f"the source of {name!r:.80} is {each!r:.80}")
    return DenseSources(
        {name: tuple(each) for name, each in variables.items()},
        {name: tuple(each) for name, each in parts.items()},
    )
