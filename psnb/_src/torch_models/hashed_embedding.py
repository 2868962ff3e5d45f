"""HashedEmbedding: an embedding module of any 64-bit id; public as `psnb.torch.Embedding`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from psnb._src.server import Initializer
from psnb._src.torch_models.model_pass import current_pass


class HashedEmbedding(nn.Module):
    """Rows for any 64-bit id, which are made when an id is first seen in training.

    Part of a module that `psnb.torch.distribute` takes, which makes a table with ``rows=None`` of
    it. On its own it only looks up: in a module that was loaded with the distributed model's
    ``state_dict()``, it gives what was learned, and zeros for ids that were not seen.

    Parameters
    ----------
    dim : int
        Floats a row.
    initializer : Initializer or float, optional
        How a row starts, as for `ParameterServerStrategy.embedding`.
    """

    ids: Tensor
    rows: Tensor
    table: str
    owner: object

    def __init__(self, dim: int, initializer: Initializer | float | None = None) -> None:
        super().__init__()
        self.dim, self.initializer = int(dim), initializer
        self.table, self.owner = "", None  # of a distributed module: whose passes it looks up with
        self.register_buffer("ids", torch.empty(0, dtype=torch.int64))  # ascending
        self.register_buffer("rows", torch.empty(0, self.dim))

    def extra_repr(self) -> str:
        """Return what is shown of it."""
        held = f"table {self.table!r}" if self.table else f"{len(self.ids)} rows"
        return f"dim={self.dim}, {held}"

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ids of any shape; zeros for those without one."""
        if self.table:
            weight, position = current_pass(self.owner, self.table).look_up(self.table, ids)
            return functional.embedding(position, weight)
        if not len(self.ids):
            return self.rows.new_zeros(*ids.shape, self.dim)
        wide = ids.long()
        at = torch.searchsorted(self.ids, wide).clamp_max(len(self.ids) - 1)
        known = (self.ids[at] == wide).unsqueeze(-1)
        return self.rows[at] * known

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # The number of rows is that of the state.
        for name in ("ids", "rows"):
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name]))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
