"""Replica: one thread's copy of a module, whose parameters are parts of few flat tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from psnb._src.parameters import Handle, Variable
from psnb._src.torch_models.as_tensors import tensor_of
from psnb._src.torch_models.model_pass import ModelPass
from psnb._src.torch_models.model_values import ModelValues


class Replica:
    """A module that computes with values from the servers.

    Parameters
    ----------
    template : torch.nn.Module
        The module without values.
    values : ModelValues
        Where the values are.
    device : torch.device
        Where it computes.

    Attributes
    ----------
    module : torch.nn.Module
        The module.
    current : ModelPass or None
        The step that the thread is in.
    calls : int
        How often the module was called.
    """

    def __init__(self, template: nn.Module, values: ModelValues, device: torch.device) -> None:
        self.module = copy.deepcopy(template).to(device)
        self.current: ModelPass | None = None
        self.calls = 0
        self._values = values
        self._flat = [
            torch.from_numpy(np.zeros(variable.shape, variable.dtype)).to(device)
            for variable in values.parameters.variables
        ]
        self._parameters = {
            name: self.module.get_parameter(name) for name in values.parameters.places
        }
        for name, part in values.parameters.split(self._flat).items():
            self._parameters[name].data = part
        self._before: dict[str, Tensor] = {}

    @property
    def variables(self) -> tuple[Variable, ...]:
        """What it needs of the servers beside rows."""
        return (*self._values.parameters.variables, *self._values.buffers.variables)

    @torch.no_grad()
    def load(self, found: Mapping[Variable, np.ndarray]) -> None:
        """Take values from the servers."""
        parameters, buffers = self._values.parameters, self._values.buffers
        for flat, variable in zip(self._flat, parameters.variables, strict=True):
            flat.copy_(tensor_of(found[variable]))
        for name, value in buffers.split([found[each] for each in buffers.variables]).items():
            buffer = self.module.get_buffer(name)
            buffer.copy_(torch.as_tensor(value))
            self._before[name] = buffer.clone()

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that learn, with their names."""
        yield from self._parameters.items()

    def gradients(self) -> dict[Handle, np.ndarray]:
        """Return the gradients of variables; none for variables without any."""
        parameters = self._values.parameters
        given = {
            name: parameter.grad.detach().cpu().numpy()
            for name, parameter in self._parameters.items()
            if parameter.grad is not None
        }
        pairs = zip(parameters.variables, parameters.join(given), strict=True)
        return {variable: joined for variable, joined in pairs if joined is not None}

    def changes(self) -> dict[Handle, np.ndarray]:
        """Return what to push so that buffers get the changes that they had here."""
        buffers, given = self._values.buffers, {}
        for name, before in self._before.items():
            now = self.module.get_buffer(name).detach()
            if not torch.equal(now, before):
                given[name] = (before.double() - now.double()).cpu().numpy()
        pairs = zip(buffers.variables, buffers.join(given), strict=True)
        return {variable: joined for variable, joined in pairs if joined is not None}

    def clear(self) -> None:
        """Forget gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None
