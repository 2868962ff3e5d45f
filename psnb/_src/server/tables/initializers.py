"""How the rows of an embedding table start: pure functions of (seed, id, column).

A row starts the same on any server, whichever worker asks first, so training is reproducible and a
table may grow when an id is first seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.server.hashing import fill_normal, fill_uniform
from psnb._src.server.schedules import is_finite
from psnb._src.utils.checks import integer, is_number
from psnb._src.utils.config import Described
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

_LARGEST_SEED = (1 << 63) - 1
_LARGEST = 1e36
"""What parameters may be: ten standard deviations and the mean are numbers of float32 then."""


@dataclass(frozen=True)
class Initializer(Described, ABC):
    """Makes the first values of embedding rows.

    Raises
    ------
    ConfigurationError
        If a parameter is not a number, or beyond 1e36, where rows of float32 would become infinite.
    """

    may_be_left_out: ClassVar[frozenset[str]] = frozenset({"seed"})
    """From a description; without a seed, as in releases that had no seeds."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "seed":
                if value is not None:
                    integer(f"{type(self).__name__}: seed", value, 0, _LARGEST_SEED)
                continue
            good = is_number(value) and is_finite(value)
            if not good or abs(value) > _LARGEST:
                wanted = f"be within ±{_LARGEST:g}" if good else "be a finite number"
                raise ConfigurationError(
                    f"{type(self).__name__}({name}={shown(value)}): {name} must {wanted}"
                )

    def describe(self) -> dict[str, Any]:
        """Return name and parameters as JSON can hold them; a seed only if there is one."""
        found = super().describe()
        return {name: each for name, each in found.items() if (name, each) != ("seed", None)}

    @abstractmethod
    def fill(self, out: np.ndarray, ids: np.ndarray, seed: int) -> None:
        """Write the initial rows of ``ids`` (uint64, ``(n,)``) into ``out`` (``(n, dim)``)."""


@dataclass(frozen=True)
class Constant(Initializer):
    """Every element starts with the same value."""

    value: float = 0.0

    def fill(self, out: np.ndarray, ids: np.ndarray, seed: int) -> None:
        out[...] = self.value


@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniform between ``low`` and ``high``; the default of an embedding, as in Keras.

    Rows follow from their ids and from ``seed`` (0 to 2**63 - 1), by default the table's name:
    tables with one seed begin alike.
    """

    low: float = -0.05
    high: float = 0.05
    seed: int | None = None

    def fill(self, out: np.ndarray, ids: np.ndarray, seed: int) -> None:
        fill_uniform(out, ids, np.uint64(seed if self.seed is None else self.seed))
        out *= self.high - self.low
        out += self.low


@dataclass(frozen=True)
class Normal(Initializer):
    """Normal with the given mean and standard deviation; ``seed`` as for `Uniform`."""

    mean: float = 0.0
    stddev: float = 0.05
    seed: int | None = None

    def fill(self, out: np.ndarray, ids: np.ndarray, seed: int) -> None:
        fill_normal(out, ids, np.uint64(seed if self.seed is None else self.seed))
        out *= self.stddev
        out += self.mean


INITIALIZERS: dict[str, type[Initializer]] = {
    each.__name__: each for each in (Constant, Normal, Uniform)
}
"""All of psnb, by name."""
