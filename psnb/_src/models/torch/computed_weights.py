"""Weights that torch computes of parameters: by parametrizations, and by hooks before a call.

``torch.nn.utils.parametrize`` gives each module a class of its own, whose property computes the
weight and whose objects refuse to be pickled. A copy gets another such class, made by the same
functions of torch: they are not public, but what they make is, and ``register_parametrization``
would compute the parameters again from a weight that is not there yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def reduced(module: nn.Module) -> tuple[Any, ...]:
    """Return how a module with parametrizations is pickled, as ``__reduce_ex__`` does."""
    kind = parametrize.type_before_parametrizations(module)
    names = tuple(module.parametrizations)  # type: ignore[arg-type]
    state = super(type(module), module).__getstate__()
    return _made, (kind, names), state


def computed_before_calls(module: nn.Module) -> Iterator[Tensor]:
    """Yield the weights in attributes that hooks compute before each call."""
    for each in module.modules():
        for hook in each._forward_pre_hooks.values():
            match hook:
                case WeightNorm() | SpectralNorm():
                    name = hook.name
                case prune.BasePruningMethod():
                    name = hook._tensor_name
                case _:
                    continue
            if isinstance(found := vars(each).get(name), Tensor):
                yield found


def placeholder(value: Tensor) -> Tensor:
    """Return a tensor of the same form that takes no memory."""
    with torch.no_grad():
        return value.new_zeros(()).expand(value.shape)


def _made(kind: type[nn.Module], names: Sequence[str]) -> nn.Module:
    """Return a module without state, whose weights of these names are computed."""
    made = kind.__new__(kind)
    parametrize._inject_new_class(made)
    for name in names:
        parametrize._inject_property(made, name)
    type(made).__reduce_ex__ = lambda self, protocol: reduced(self)  # type: ignore[method-assign, arg-type]
    return made
