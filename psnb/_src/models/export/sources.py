"""DenseSources: in which variables of a strategy a model's dense parameters are. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from psnb._src.utils.sealed_json import one_of, require

Start = Annotated[int, Meta(ge=0)]


Float = Annotated[str, one_of("float32", "float64")]


class DenseSources(Struct, frozen=True, forbid_unknown_fields=True):
    """Where dense parameters are on servers: many may lie one after another in a variable.

    Attributes
    ----------
    variables : mapping of str to (int, str)
        How many numbers each variable has, and its dtype.
    parts : mapping of str to (str, int)
        Of each dense parameter, by its name in the model, the variable, and where it begins there.
        What is not there, such as a constant, never changes.
    """

    variables: Mapping[str, tuple[Start, Float]]
    parts: Mapping[str, tuple[str, Start]]

    def __post_init__(self) -> None:
        for name, (variable, _) in self.parts.items():
            require(variable in self.variables, f"there is no variable of {name!r:.80}")

    def of(self, dense: Collection[str]) -> DenseSources:
        """Return those of some dense parameters."""
        parts = {name: each for name, each in self.parts.items() if name in dense}
        used = {variable for variable, _ in parts.values()}
        return DenseSources({n: e for n, e in self.variables.items() if n in used}, parts)

    def check(self, dense: Mapping[str, np.ndarray]) -> None:
        """Raise ValueError unless dense parameters may lie so."""
        for name, (variable, start) in self.parts.items():
            require(name in dense, f"there is no dense parameter {name!r:.80}")
            fits = start + _kept_size(dense[name]) <= self.variables[variable][0]
            require(fits, f"{name!r:.80} is beyond the end of {variable!r:.80}")

    def taken(
        self, values: Mapping[str, np.ndarray], dense: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return dense parameters of the shapes and dtypes that they have, from new values."""
        found = dict(dense)
        for name, (variable, start) in self.parts.items():
            old = dense[name]
            part = values[variable][start : start + _kept_size(old)]
            found[name] = _from_kept(part, old.dtype).reshape(old.shape)
        return found


def _kept_size(dense: np.ndarray) -> int:
    pairs = dense.dtype.kind == "c" or (dense.dtype.kind in "iu" and dense.dtype.itemsize == 8)
    return dense.size * (2 if pairs else 1)


def _from_kept(kept: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return kept > 0
    if dtype.kind == "c":
        return kept.view(f"c{2 * kept.itemsize}").astype(dtype)
    if dtype.kind in "iu":
        high, low = kept.reshape(-1, 2).T if dtype.itemsize == 8 else (np.zeros(()), kept)
        upper = np.floor(high)
        lower = np.rint((high - upper) * 2.0**32 + low).astype(np.int64)
        return (upper.astype(np.int64) * 2**32 + lower).astype(dtype)
    return kept.astype(dtype)
