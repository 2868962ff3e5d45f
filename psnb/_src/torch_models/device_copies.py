"""Arrays to a device and back, many in one copy each way; no copy where the device is the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from psnb._src.torch_models.as_tensors import tensor_of

_ALIGNED = 16
"""Bytes, at multiples of which numbers of all kinds may begin."""


def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Return arrays as tensors on a device: those of one buffer, which is copied there."""
    tensors = [tensor_of(each) for each in arrays]
    return tensors if device.type == "cpu" else _unpacked(_packed(tensors).to(device), tensors)


def from_device(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Return tensors of one device as arrays."""
    plain = [each.detach() for each in tensors]
    if all(each.device.type == "cpu" for each in plain):
        return [each.numpy() for each in plain]
    return [each.numpy() for each in _unpacked(_packed(plain).cpu(), plain)]


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bytes of tensors in one tensor, on their device."""
    parts = []
    for each in tensors:
        found = each.contiguous().reshape(-1).view(torch.uint8)
        parts += [found, found.new_zeros(-found.numel() % _ALIGNED)]
    return torch.cat(parts)


def _unpacked(whole: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors in a buffer, as parts of it."""
    found, start = [], 0
    for each in like:
        size = each.numel() * each.element_size()
        found.append(whole[start : start + size].view(each.dtype).view(each.shape))
        start += size + -size % _ALIGNED
    return found
