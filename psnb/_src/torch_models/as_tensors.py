"""Elements of `psnb.data` as tensors, without a copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from psnb._src.data import Ragged

_SIGNED = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}


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


class _Features(dict[Any, Any]):
    """What `as_torch` makes of a mapping: a dict that says what it has if it is asked for more."""

    def __missing__(self, name: Any) -> Any:
        error = KeyError(name)
        told = f"the batch has no feature {name!r}: it has {sorted(map(str, self))}"
        close = get_close_matches(str(name), map(str, self), 1)
        error.add_note("".join([told, *(f". Is it {each!r}?" for each in close)]))
        raise error


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
    element : array, Ragged or nested structure of them
        As `psnb.data.Dataset` yields. Its memory becomes the tensors': do not write to them.

    Returns
    -------
    object
        The same structure. A mapping becomes a dict; asked for what it lacks, it raises a KeyError
        that says what it has. `psnb.data.Ragged` becomes `TensorBags`; uint16, uint32 and uint64
        become signed integers of the same bits, as torch takes them for ids; what torch has no
        dtype for (str, bytes) stays.
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
        case Mapping():
            return _Features((name, as_torch(each)) for name, each in element.items())
        case tuple() if hasattr(element, "_fields"):
            return type(element)(*map(as_torch, element))
        case tuple() | list():
            return type(element)(map(as_torch, element))
    if dataclasses.is_dataclass(element) and not isinstance(element, type):
        fields = {each.name: getattr(element, each.name) for each in dataclasses.fields(element)}
        return dataclasses.replace(element, **{name: as_torch(v) for name, v in fields.items()})
    return element


def tensor_of(array: np.ndarray) -> Tensor:
    """Return a tensor with an array's memory; it must not be written to if the array must not."""
    if array.dtype.name in _SIGNED:
        array = array.view(_SIGNED[array.dtype.name])
    if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))
    return torch.from_numpy(array)
