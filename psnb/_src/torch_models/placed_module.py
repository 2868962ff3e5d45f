"""PlacedModule: a module without values, where its values are, and where it computes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from psnb._src.excerpt import shown
from psnb._src.torch_models.checked_state import IncompatibleKeys, check_keys
from psnb._src.torch_models.model_values import ModelValues
from psnb._src.torch_models.module_graph import ModuleGraph
from psnb.errors import ConfigurationError, GradientError


@dataclass(frozen=True)
class PlacedModule:
    """What of a distributed model is the same in all processes and threads. Immutable.

    Attributes
    ----------
    graph : ModuleGraph
        The module without values that are on servers.
    values : ModelValues
        Where its values are.
    device : str
        Where workers compute.
    """

    graph: ModuleGraph
    values: ModelValues
    device: str

    @property
    def template(self) -> nn.Module:
        """The module."""
        return self.graph.module

    def state(self) -> OrderedDict[str, Any]:
        """Read the state of the undistributed module."""
        return self.values.state(self.template)

    def loaded(
        self, state: Mapping[str, Any], *, strict: bool
    ) -> tuple[PlacedModule, IncompatibleKeys]:
        """Write a state to the servers; return the module that has what stays here.

        Raises
        ------
        GradientError
            If keys or shapes are not those of the module; nothing was changed.
        """
        keys = check_keys(state, self.values.names, strict=strict)
        checked = self.values.check(state)
        graph = self.graph.copied(torch.device("cpu"))
        local = {key: state[key] for key in self.values.names if key in state}
        local = {key: value for key, value in local.items() if self.values.is_local(key)}
        try:
            graph.module.load_state_dict(local, strict=False)
        except RuntimeError as error:
            raise GradientError(
                f"what stays on workers cannot be loaded: {error}. Nothing was changed"
            ) from error
        self.values.write(checked)
        return replace(self, graph=graph), keys

    def copied(self) -> tuple[ModuleGraph, torch.device]:
        """Return a copy of the module on its device, and the device.

        Raises
        ------
        ConfigurationError
            If this process does not have the device.
        """
        device = torch.device(self.device)
        try:
            return self.graph.copied(device), device
        except (AssertionError, RuntimeError) as error:
            raise ConfigurationError(
                f"this process cannot compute on device {self.device!r}: {error}. Each worker "
                "that trains needs the device and a PyTorch made for it; without, leave device= "
                "out"
            ) from error


def device_name(device: str | torch.device) -> str:
    """Return the name of a device, or raise ConfigurationError if torch knows none of this name."""
    try:
        return str(torch.device(device))
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(
            f"device={shown(device)} is no device of PyTorch, such as 'cpu' or 'cuda': {error}"
        ) from error
