"""Buffers as servers keep them, and what a step has made of one; moving averages. Pure.

Servers keep float32 and float64. So of each dtype there is a form in floats that has all of its
values; `psnb._src.models.export.manifest.DenseSources` reads it, too. Integers of 64 bits are two
numbers, the upper and the lower 32 bits: one float64 is exact up to 2**53 only. Complex numbers are
two as well.

*Averages.* A call of BatchNorm makes ``(1 - share) * average + share * statistic`` of an average,
and its result depends on the batch alone. So it is called with zeros for averages, which gives
``share * statistic`` to the last digit: computed from the average before and after, a variance near
zero would be lost in the rounding of one that is not.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

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


_AVERAGES = ("running_mean", "running_var")


class MovingAverages:
    """Notes what calls of a module blend into averages, from one `begin` to the next.

    Other changes of an average are noticed by its value: by the user's code, a compiled call, or
    one under ``torch.inference_mode``. Belongs to one thread.

    Parameters
    ----------
    module : torch.nn.Module
        The module; its calls are followed from now on.
    names : container of str
        The buffers that are wanted.
    """

    def __init__(self, module: nn.Module, names: Container[str]) -> None:
        self._averages: dict[str, _Average] = {}
        for path, each in averaging(module):
            keys = {f"{path}.{a}" if path else a: a for a in _AVERAGES}
            own = {key: _Average(each, a) for key, a in keys.items() if key in names}
            if own:
                _Calls(each, [*own.values()])
                self._averages |= own

    def begin(self, values: Mapping[str, Tensor]) -> None:
        """Forget what was noted: averages are what the servers have, which ``values`` are."""
        for name, each in self._averages.items():
            each.begin(values[name])

    def blends(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the share and the term of averages that were moved as averages are, by name.

        Where something else has changed them, these are 1 and what they are now.
        """
        found = ((name, each.blended()) for name, each in self._averages.items())
        return {name: blend for name, blend in found if blend is not None}


def averaging(module: nn.Module) -> Iterator[tuple[str, _NormBase]]:
    """Yield the layers of torch that move averages, with their paths."""
    for path, each in module.named_modules():
        own = type(each).forward.__module__.startswith("torch.nn.modules.")
        if isinstance(each, _NormBase) and own and each.running_mean is not None:
            yield path, each


def check_averages(module: nn.Module) -> None:
    """Raise ConfigurationError if a late step would not know its share in an average."""
    for path, each in averaging(module):
        if isinstance(each, _BatchNorm) and each.momentum is None:
            raise ConfigurationError(
                f"{path or type(each).__name__!r} has momentum=None, an average of all batches: "
                "the share of a batch depends on how many came before, and a step of several "
                "workers does not know how many there will be when it is applied. Give it a "
                "momentum, such as 0.1, or train in mode psnb.Sync"
            )


class _Average:
    """One average of a layer, and what calls blend into it."""

    def __init__(self, module: nn.Module, attribute: str) -> None:
        # Not by setattr, which takes longer than what is computed here.
        self._buffers: dict[str, Any] = module._buffers
        self._attribute = attribute
        self.begin(torch.zeros(()))

    def begin(self, value: Tensor) -> None:
        self._share, self._term = 0.0, value
        self._expected = value  # unless something else changes it

    def put(self, value: Tensor) -> Tensor:
        """Give the layer another value; return the one that it has had."""
        before: Tensor = self._buffers[self._attribute]
        self._buffers[self._attribute] = value
        return before

    def put_zeros(self) -> Tensor:
        # Another tensor: autograd keeps what a call was given, and allows no change of it.
        return self.put(torch.zeros_like(self._buffers[self._attribute]))

    def blend(self, before: Tensor, share: float) -> None:
        """Blend the result of a call with zeros into the former averages."""
        kept = 1 - share
        term = self.put(before)
        self.put(torch.add(term, before, alpha=kept))
        self._expected = torch.add(term, self._expected, alpha=kept)
        self._term = torch.add(term, self._term, alpha=kept) if self._share else term
        self._share = share + kept * self._share

    def blended(self) -> tuple[Tensor, Tensor] | None:
        if not self._share:
            return None
        now: Tensor = self._buffers[self._attribute]
        # Not asked for on the CPU: that would be a copy from the device.
        changed = (now != self._expected).any()
        share = torch.full_like(changed, self._share, dtype=now.dtype).masked_fill(changed, 1.0)
        return share, torch.where(changed, now, self._term)


class _Calls:
    """The calls of one layer."""

    def __init__(self, layer: nn.Module, averages: Sequence[_Average]) -> None:
        self._averages = averages
        self._before: list[Tensor] = []  # during a call
        # Nearest to the call: hooks of the user's see the averages.
        layer.register_forward_pre_hook(self._begin)
        layer.register_forward_hook(self._end, prepend=True, always_call=True)

    def _begin(self, layer: nn.Module, given: Any) -> None:
        # Compiled modules, and modules in inference mode, move averages by themselves.
        alone = torch.compiler.is_compiling() or torch.is_inference_mode_enabled()
        if layer.training and not alone:
            with torch.no_grad():
                self._before = [each.put_zeros() for each in self._averages]

    def _end(self, layer: Any, given: Any, result: Any) -> None:
        if not self._before:
            return
        share = layer.momentum
        if share is None:
            # InstanceNorm does not count, and moves nothing then.
            count = layer.num_batches_tracked
            share = 1 / float(count) if count is not None and count > 0 else 0.0
        with torch.no_grad():
            for each, before in zip(self._averages, self._before, strict=True):
                if result is None:  # it has raised
                    each.put(before)
                else:
                    each.blend(before, float(share))
        self._before = []
