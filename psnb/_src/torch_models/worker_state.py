"""Finds modules whose calls depend on what earlier calls left behind in one worker. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from psnb.errors import ConfigurationError

State = dict[tuple[str, str], tuple[int, int]]
"""Which tensor each attribute has, by module and attribute, and how often it was changed."""


def state_of(module: nn.Module) -> State:
    """Return the tensors that are plain attributes: no parameters, no buffers."""
    return {
        (path, name): (id(value), value._version)
        for path, each in module.named_modules()
        for name, value in _tensors(each)
    }


def check_state(module: nn.Module, before: State) -> None:
    """Raise ConfigurationError if a tensor was there before a call, and is another one after it."""
    after = state_of(module)
    for (path, name), kept in before.items():
        if after.get((path, name), kept) != kept:
            where = f"{path}.{name}" if path else name
            raise ConfigurationError(
                f"{where!r} is a tensor that a call of the module leaves for the next one. It "
                "would be that of one worker, and the next batch is on another one, or on the same "
                "after others. Compute it in forward; or register_buffer(...) it: servers keep "
                "buffers, and with persistent=False each worker has its own"
            )


def _tensors(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            yield name, value
