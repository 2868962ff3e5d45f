"""EmbeddingSpec: what an embedding is, wherever it lies. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnb._src.parameters.gradients import NonFinite
from psnb._src.server import Admission, Always, CtrAccessor, Optimizer

_ALWAYS = Always()


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
