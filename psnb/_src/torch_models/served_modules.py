"""Modules that take the place of embeddings whose rows are on servers."""

from __future__ import annotations

import torch.nn.functional as functional
from torch import Tensor, nn

from psnb._src.torch_models.model_pass import current_pass
from psnb.errors import ConfigurationError


class ServedEmbedding(nn.Module):
    """In place of ``nn.Embedding``.

    Parameters
    ----------
    table : str
        The name of the parameter that became a table.
    padding_idx : int or None
        The id whose row takes no gradient.
    scale_grad_by_freq : bool
        Whether gradients are divided by how often their id is in the batch.
    """

    def __init__(
        self, table: str, padding_idx: int | None = None, scale_grad_by_freq: bool = False
    ) -> None:
        super().__init__()
        self.table, self.padding_idx, self.scale_grad_by_freq = (
            table,
            padding_idx,
            scale_grad_by_freq,
        )

    def extra_repr(self) -> str:
        """Return what is shown of it."""
        return repr(self.table)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ids of any shape."""
        found = current_pass()
        weight, position = found.look_up(self.table, ids)
        return functional.embedding(
            position,
            weight,
            found.find(self.table, self.padding_idx),
            scale_grad_by_freq=self.scale_grad_by_freq,
        )


class ServedEmbeddingBag(nn.Module):
    """In place of ``nn.EmbeddingBag``.

    Parameters
    ----------
    table : str
        The name of the parameter that became a table.
    replaced : torch.nn.EmbeddingBag
        How bags are combined.
    """

    def __init__(self, table: str, replaced: nn.EmbeddingBag) -> None:
        super().__init__()
        self.table, self.padding_idx = table, replaced.padding_idx
        self.mode = replaced.mode
        self.include_last_offset = replaced.include_last_offset

    def extra_repr(self) -> str:
        """Return what is shown of it."""
        return f"{self.table!r}, mode={self.mode!r}"

    def forward(
        self,
        input: Tensor,  # noqa: A002  # as torch calls it
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the combined rows of each bag, as ``nn.EmbeddingBag``."""
        found = current_pass()
        weight, position = found.look_up(self.table, input)
        return functional.embedding_bag(
            position,
            weight,
            None if offsets is None else offsets.long(),
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=found.find(self.table, self.padding_idx),
        )


def check_embedding(name: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
    """Raise ConfigurationError if servers cannot do what an embedding does."""
    if module.max_norm is not None:
        raise ConfigurationError(
            f"{name!r} has max_norm={module.max_norm}, which shrinks rows whenever they are looked "
            "up: with several workers that would be lost or done twice. Leave it out; an optimizer "
            "with weight_decay= or clipnorm= keeps rows small"
        )
    if isinstance(module, nn.EmbeddingBag) and module.scale_grad_by_freq:
        # PyTorch 2.13 divides by counts of other ids: of [1, 3, 3, 5] it halves the gradient of 5.
        raise ConfigurationError(
            f"{name!r} is an EmbeddingBag with scale_grad_by_freq=True, of which PyTorch's own "
            "gradient is wrong on the CPU. Leave it out; an nn.Embedding may have it"
        )
