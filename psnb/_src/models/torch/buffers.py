"""Buffers as servers keep them, and what a step has made of one. Pure.

Servers keep float32 and float64. So of each dtype there is a form in floats that has all of its
values; `psnb._src.models.export.manifest.DenseSources` reads it, too. Integers of 64 bits are two
numbers, the upper and the lower 32 bits: one float64 is exact up to 2**53 only. Complex numbers are
two as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

from psnb.errors import ConfigurationError, InvalidArrayError

_WIDE = (torch.int64, torch.uint64)
_HALF = 1 << 32


def check_buffer(name: str, value: Tensor) -> None:
    """Raise ConfigurationError if servers cannot keep a buffer, or what is frozen."""
    if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.is_meta:
        kind = value.layout if value.layout is not torch.strided else "not a plain array"
        raise ConfigurationError(
            f"{name!r} is {kind}, and servers keep dense arrays of numbers. If no call changes it, "
            "such as the matrix of a graph, let each worker have it as it is: "
            "register_buffer(..., persistent=False). Otherwise register what it is made of, such "
            "as indices and values, and make it in forward"
        )


def is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def as_kept(value: Tensor) -> Tensor:
    """Return the form in which servers keep a value."""
    if value.dtype in _WIDE:
        whole = value.view(torch.int64)
        low = whole & (_HALF - 1)
        carry = low >> 31  # so that a change of -1 is one of the lower part alone
        return torch.stack(((whole >> 32) + carry, low - carry * _HALF), -1).double()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    if value.dtype == torch.float64 or is_integer(value.dtype):
        return value.double()
    return value.float()


def from_kept(kept: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a value of its own dtype.

    Averaged over a round, integers have fractions, and so have bools: one is set if a closure of
    the round has set it.
    """
    if dtype in _WIDE:
        high, low = kept.unbind(-1)
        upper = high.floor()
        lower = ((high - upper) * _HALF + low).round()
        return (upper.long() * _HALF + lower.long()).view(dtype)
    if dtype == torch.bool:
        return kept > 0
    if dtype.is_complex:
        return torch.complex(*kept.to(dtype.to_real()).unbind(-1))
    return kept.round().long().to(dtype) if is_integer(dtype) else kept.to(dtype)


def moved(before: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
    """Return the share and the term of a step's change; see `Blend`.

    Integers count: their change is added. The effect of a late change on others is unknown, so they
    are set to the step's values: bools one by one, as each is a mark of its own, others as a whole,
    or elements would be of several steps.
    """
    if is_integer(now.dtype):
        if now.dtype in _WIDE:
            change = as_kept(now.view(torch.int64) - before.view(torch.int64))
        else:
            change = now.double() - before.double()
        return change.new_zeros(()), change
    was, found = as_kept(before), as_kept(now)
    changed = (found != was) & ~(found.isnan() & was.isnan())
    if now.dtype != torch.bool:
        # Numbers that stay infinite or NaN, in masks, could not be pushed.
        changed = changed.any() & (changed | found.isfinite())
    return changed.to(found.dtype), torch.where(changed, found, 0.0)


def not_finite(names: list[str]) -> InvalidArrayError:
    """Return the error for buffers that a step makes NaN or infinite."""
    return InvalidArrayError(
        f"the step makes buffer {', '.join(map(repr, names[:5]))} ({len(names)} in all) NaN or "
        "infinite, and nothing of it was written: servers take such values only as what a buffer "
        "begins with. If the data are right, keep a number for what is not known yet, such as "
        "torch.finfo(torch.float32).max, or a bool next to it"
    )
