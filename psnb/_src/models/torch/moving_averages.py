"""MovingAverages: how calls of BatchNorm and its like blend into running statistics. Pure.

A call makes ``(1 - share) * average + share * statistic`` of an average, and its result depends
on the batch alone. So it is called with zeros for averages, which gives ``share * statistic`` to
the last digit: computed from the average before and after, a variance near zero would be lost in
the rounding of one that is not. Belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from psnb.errors import ConfigurationError

_AVERAGES = ("running_mean", "running_var")


class MovingAverages:
    """Notes what calls of a module blend into averages, from one `begin` to the next.

    Other changes of an average are noticed by its value: by the user's code, a compiled call, or
    one under ``torch.inference_mode``.

    Parameters
    ----------
    module : torch.nn.Module
        The module; its calls are followed from now on.
    names : container of str
        The buffers that are wanted.
    """

    def __init__(self, module: nn.Module, names: Container[str]) -> None:
        self._layers = []
        for path, each in averaging(module):
            prefix = f"{path}." if path else ""
            if averages := {prefix + a: a for a in _AVERAGES if prefix + a in names}:
                self._layers.append(_Layer(each, averages))

    def begin(self, values: Mapping[str, Tensor]) -> None:
        """Forget what was noted: averages are what the servers have, which ``values`` are."""
        for each in self._layers:
            each.begin(values)

    def blends(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the share and the term of averages that were moved as averages are, by name.

        Where something else has changed them, these are 1 and what they are now.
        """
        return {name: blend for each in self._layers for name, blend in each.blends()}


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
        self._buffers, self._attribute = module._buffers, attribute
        self.begin(torch.zeros(()))

    def begin(self, value: Tensor) -> None:
        self._share, self._term = 0.0, value
        self._expected = value  # unless something else changes it

    def put_zeros(self) -> Tensor:
        """Let the layer be called with zeros; return its former averages."""
        before = self._now()
        # Another tensor: autograd keeps what a call was given, and allows no change of it.
        self.put_back(torch.zeros_like(before))
        return before

    def put_back(self, before: Tensor) -> None:
        self._buffers[self._attribute] = before

    def blend(self, before: Tensor, share: float) -> None:
        """Blend the result of a call with zeros into the former averages."""
        term, kept = self._now(), 1 - share
        self.put_back(torch.add(term, before, alpha=kept))
        self._expected = torch.add(term, self._expected, alpha=kept)
        self._term = torch.add(term, self._term, alpha=kept) if self._share else term
        self._share = share + kept * self._share

    def blended(self) -> tuple[Tensor, Tensor] | None:
        if not self._share:
            return None
        now = self._now()
        # Not asked for on the CPU: that would be a copy from the device.
        changed = (now != self._expected).any()
        share = torch.full_like(changed, self._share, dtype=now.dtype).masked_fill(changed, 1.0)
        return share, torch.where(changed, now, self._term)

    def _now(self) -> Tensor:
        found = self._buffers[self._attribute]
        assert found is not None
        return found


class _Layer:
    """One layer, whose calls are followed."""

    def __init__(self, module: _NormBase, averages: dict[str, str]) -> None:
        self._module = module
        self._averages = {name: _Average(module, each) for name, each in averages.items()}
        self._before: list[Tensor] = []  # during a call
        # Nearest to the call: hooks of the user's see the averages.
        module.register_forward_pre_hook(self._calling)
        module.register_forward_hook(self._called, prepend=True, always_call=True)

    def begin(self, values: Mapping[str, Tensor]) -> None:
        for name, each in self._averages.items():
            each.begin(values[name])

    def blends(self) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
        for name, each in self._averages.items():
            if (blend := each.blended()) is not None:
                yield name, blend

    def _calling(self, module: nn.Module, given: Any) -> None:
        # Compiled modules, and modules in inference mode, move averages by themselves.
        if (
            not module.training
            or torch.compiler.is_compiling()
            or torch.is_inference_mode_enabled()
        ):
            return
        with torch.no_grad():
            self._before = [each.put_zeros() for each in self._averages.values()]

    def _called(self, module: nn.Module, given: Any, result: Any) -> None:
        share = self._share() if self._before and result is not None else None
        with torch.no_grad():
            for each, before in zip(self._averages.values(), self._before, strict=False):
                if share is None:  # it has raised
                    each.put_back(before)
                else:
                    each.blend(before, share)
        self._before = []

    def _share(self) -> float:
        if self._module.momentum is not None:
            return float(self._module.momentum)
        # InstanceNorm does not count, and moves nothing then.
        count = self._module.num_batches_tracked
        return 1 / float(count) if count is not None and count > 0 else 0.0
