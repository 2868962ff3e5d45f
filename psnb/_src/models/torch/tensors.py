"""Elements of `psnb.data` as tensors, without a copy; to a device and back, many in one copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from psnb._src.data.ragged import Ragged
from psnb._src.utils.arrays import frame_text
from psnb._src.utils.text import Named
from psnb.errors import ConfigurationError

_WIDER = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}
"""Wider dtypes, in place of those with which torch does next to nothing."""


class TensorBags(NamedTuple):
    """Bags of ids as ``nn.EmbeddingBag`` takes them: ``bag(*bags)``.

    Attributes
    ----------
    input : torch.Tensor
        The ids of all bags, one after another.
    offsets : torch.Tensor
        Where each bag begins.
    """

    input: Tensor
    offsets: Tensor


class _Writable:
    """Shows numpy an array's memory as writable: torch cannot say that memory is not."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = {
            **array.__array_interface__,
            "data": (array.__array_interface__["data"][0], False),
        }


def as_torch(element: Any) -> Any:
    """Return an element of a dataset with tensors in place of its arrays, without a copy.

    In a closure: ``batch = psnb.torch.as_torch(next(iterator))``.

    Parameters
    ----------
    element : array, column of a frame, Ragged or nested structure of them
        As `psnb.data.Dataset` yields. Its memory becomes the tensors': do not write to them.

    Returns
    -------
    object
        The same structure. A mapping becomes a dict; its KeyError for a missing key lists the keys.
        `psnb.data.Ragged` becomes `TensorBags`; uint16 becomes int32, and uint32 int64 (copies,
        with the same numbers); uint64 becomes int64 of the same bits, as torch takes them for ids;
        values that torch has no dtype for (str, bytes) stay.
    """
    match element:
        case Tensor():
            return element
        case np.ndarray():
            return tensor_of(element) if element.dtype.kind in "biufc" else element
        case np.generic():
            return as_torch(np.asarray(element))
        case Ragged():
            return TensorBags(tensor_of(element.values), tensor_of(element.offsets[:-1]))
    if (parts := parts_of(element)) is None:
        if wrong := frame_text(element):
            raise ConfigurationError(f"psnb.torch.as_torch: {wrong}")
        return as_torch(np.asarray(element)) if hasattr(element, "__array__") else element
    return rebuilt(element, {name: as_torch(each) for name, each in parts.items()})


def parts_of(value: Any) -> dict[Any, Any] | None:
    """Return what a structure consists of, by name or number; None if it is none."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return dict(zip(getattr(value, "_fields", range(len(value))), value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return None


def rebuilt(value: Any, parts: dict[Any, Any]) -> Any:
    """Return the same structure of other parts; of a mapping, a dict that says what it has."""
    if isinstance(value, Mapping):
        return Named(parts, "feature of the batch")
    if hasattr(value, "_fields"):
        return type(value)(*parts.values())
    if isinstance(value, tuple | list):
        return type(value)(parts.values())
    return dataclasses.replace(value, **parts)


def tensor_of(array: np.ndarray) -> Tensor:
    """Return a tensor with an array's memory; it must not be written to if the array must not."""
    if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    if array.dtype == np.uint64:
        array = array.view(np.int64)
    elif array.dtype in _WIDER:
        array = array.astype(_WIDER[array.dtype])
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))
    return torch.from_numpy(array)


_ALIGNED = 16
"""Bytes, at multiples of which numbers of all kinds may begin."""


def array_of(tensor: Tensor) -> np.ndarray:
    """Return the numbers of a tensor, wherever they are."""
    found: np.ndarray = tensor.detach().cpu().numpy()
    return found


def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Return arrays as tensors on a device: views of one buffer, which is copied there."""
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
