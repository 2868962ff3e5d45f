"""EmbeddingSpec: what an embedding is, wherever it lies. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnb._src.first_rows import Admission, Always, Initializer, Uniform
from psnb._src.parameters.gradients import NonFinite
from psnb._src.server import CtrAccessor, Optimizer

_ALWAYS, _UNIFORM = Always(), Uniform()


@dataclass(frozen=True)
class EmbeddingSpec:
    """What an embedding was made as; see `ParameterServerStrategy.embedding`."""

    name: str
    dim: int
    rows: int | None
    dtype: np.dtype
    optimizer: Optimizer | None = None
    nonfinite: NonFinite = NonFinite.REFUSE
    padding_idx: int | None = None
    admission: Admission = _ALWAYS
    accessor: CtrAccessor | None = None
    initializer: Initializer = _UNIFORM
    half: bool = False
    """Whether rows and gradients travel with 16 bits."""

    def recipe(self) -> dict[str, Any]:
        """Return what `SparseShards.describe` does not tell, as JSON can hold it."""
        return {
            "nonfinite": self.nonfinite.value,
            "padding_idx": self.padding_idx,
            "initializer": self.initializer.describe(),
            "admission": self.admission.describe() if self.rows is None else None,
            "accessor": None if self.accessor is None else self.accessor.describe(),
        }

    @property
    def seed(self) -> int:
        """The seed of the initial rows: of the name, so it is the same on any cluster."""
        return int.from_bytes(hashlib.blake2b(self.name.encode(), digest_size=8).digest())
