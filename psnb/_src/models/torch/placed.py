"""PlacedModule: a module whose values are on servers; its state is read and written here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.models.export.sources import DenseSources
from psnb._src.models.placing import ModelValues
from psnb._src.models.table_rows import read_rows
from psnb._src.models.torch.buffers import as_kept, from_kept
from psnb._src.models.torch.checked_state import (
    IncompatibleKeys,
    check_keys,
    checked_array,
    checked_buffer,
    checked_rows,
)
from psnb._src.models.torch.module_graph import ModuleGraph
from psnb._src.models.torch.tables import IDS, ROWS
from psnb._src.models.torch.tensors import array_of, tensor_of
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, InvalidArrayError


@dataclass(frozen=True)
class PlacedModule:
    """What of a distributed model is the same in all processes and threads. Immutable.

    Attributes
    ----------
    graph : ModuleGraph
        The module without values that are on servers.
    values : ModelValues
        Where its values are; its tables are called as the parameters that they replace, or as
        the modules that take any id.
    fixed, names, local
        See `SplitModule`.
    device : str
        Where workers compute.
    """

    graph: ModuleGraph
    values: ModelValues
    fixed: tuple[str, ...]
    names: dict[str, str]
    local: tuple[str, ...]
    device: str

    @property
    def template(self) -> nn.Module:
        return self.graph.module

    def sources(self) -> DenseSources:
        """Return where parameters and buffers are on the servers, by their keys in the state."""
        found = self.values.flat.sources()
        keys = {key: found.parts[name] for key, name in self.names.items() if name in found.parts}
        return DenseSources(found.variables, {**found.parts, **keys})

    def state(self) -> OrderedDict[str, Any]:
        """Read the state of the undistributed module."""
        values: dict[str, Any] = {
            name: torch.tensor(array) for name, array in self.values.parameters.read().items()
        }
        for name, array in self.values.state.read().items():
            values[name] = from_kept(torch.tensor(array), tensor_at(self.template, name).dtype)
        for name, table in self.values.tables.items():
            values |= _read_table(name, table)
        for key, value in self.template.state_dict(keep_vars=True).items():
            if key in self.local:
                values[key] = value.detach() if isinstance(value, Tensor) else value
        return OrderedDict(
            (key, values[key if key in self.local else name]) for key, name in self.names.items()
        )

    def loaded(
        self, state: Mapping[str, Any], *, strict: bool
    ) -> tuple[PlacedModule, IncompatibleKeys]:
        """Write a state to the servers; return the module that has what stays here.

        Raises
        ------
        InvalidArrayError
            If keys or shapes are not the module's; nothing was changed.
        """
        keys = check_keys(state, self.names, strict=strict)
        checked = self._checked(state)
        graph = self.graph.copied(torch.device("cpu"))
        try:
            graph.module.load_state_dict(
                {key: state[key] for key in self.local if key in state}, strict=False
            )
        except RuntimeError as error:
            raise InvalidArrayError(
                f"what stays on workers cannot be loaded: {error}. Nothing was changed"
            ) from error
        self.values.write(*checked)
        return replace(self, graph=graph), keys

    def _checked(
        self, state: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, tuple[np.ndarray, np.ndarray]]]:
        """Return the arrays and the rows that a state has for the servers; it may lack some.

        Raises
        ------
        InvalidArrayError
            If something in it has another shape or kind than the model's.
        """
        # If a value has several keys, the last one counts, as in torch.
        given = {name: (key, state[key]) for key, name in self.names.items() if key in state}
        arrays = {
            name: checked_array(*given[name], place.shape)
            for name, place in self.values.parameters.places.items()
            if name in given
        }
        for name in self.values.state.places.keys() & given.keys():
            like = tensor_at(self.template, name)
            arrays[name] = array_of(as_kept(checked_buffer(*given[name], like)))
        rows = {}
        for name, table in self.values.tables.items():
            if table.rows is None:
                ids, own = (given.get(f"{name}.{part}") for part in (IDS, ROWS))
                if ids or own:
                    rows[name] = checked_rows(ids, own, table.dim)
            elif name in given:
                shape = table.rows, table.dim
                rows[name] = np.arange(table.rows), checked_array(*given[name], shape)
        return arrays, rows

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


def _read_table(name: str, table: Embedding) -> dict[str, Tensor]:
    """Return a table's rows: all, or the rows of known ids, in their order."""
    if table.rows is not None:
        return {name: torch.from_numpy(read_rows(table))}
    states = shards_of(table).shard_states()
    ids = np.concatenate([state["ids"] for state in states]).view(np.int64)
    order = np.argsort(ids)
    rows = np.concatenate([state["values"] for state in states])
    return {f"{name}.{IDS}": tensor_of(ids[order]), f"{name}.{ROWS}": tensor_of(rows[order])}


def tensor_at(module: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer of a module."""
    path, _, attribute = name.rpartition(".")
    found: Tensor = getattr(module.get_submodule(path), attribute)
    return found


def device_name(device: str | torch.device) -> str:
    """Return the name of a device, or raise ConfigurationError if torch knows none of this name."""
    try:
        return str(torch.device(device))
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(
            f"device={shown(device)} is not a device of PyTorch, such as 'cpu' or 'cuda': {error}"
        ) from error
