"""What identifies the values of a module that are not on servers, such as frozen embeddings."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from xxhash import xxh3_64_hexdigest


def local_values(
    module: nn.Module, names: Mapping[str, str], served: Collection[str]
) -> dict[str, str]:
    """Return what the values are that stay in a module, by their keys in its state.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    names : mapping of str to str
        For each key of its state the name of what it is a value of.
    served : collection of str
        The names of what is on servers.
    """
    state = module.state_dict(keep_vars=True)
    kept = {key: state[key] for key, name in names.items() if name not in served}
    return {key: _identity(value) for key, value in kept.items() if isinstance(value, Tensor)}


def _identity(value: Tensor) -> str:
    whole = value.detach().cpu().contiguous()
    digest = xxh3_64_hexdigest(whole.reshape(-1).view(torch.uint8).numpy().data)
    return f"{value.dtype} of shape {tuple(value.shape)} with checksum {digest}, on no server"
