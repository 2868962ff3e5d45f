"""PlacedModule: a module whose values are on servers; its state is read and written here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.models.adopting import (
    LEARNING,
    MOVED,
    WantedModel,
    WantedTable,
    local_value,
    place_model,
)
from psnb._src.models.export.sources import DenseSources
from psnb._src.models.flat_variables import FlatVariables, OptimizerChoice, Strategy
from psnb._src.models.table_rows import read_rows, write_rows
from psnb._src.models.torch.buffers import as_kept, from_kept
from psnb._src.models.torch.checked_state import (
    CheckedState,
    IncompatibleKeys,
    check_keys,
    checked_array,
    checked_buffer,
    checked_rows,
)
from psnb._src.models.torch.module_graph import (
    ModuleGraph,
)
from psnb._src.models.torch.moving_averages import check_averages
from psnb._src.models.torch.split import SplitModule, TableForm
from psnb._src.models.torch.tensors import array_of, tensor_of
from psnb._src.protocol.modes import Sync
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, InvalidArrayError

IDS, ROWS = "ids", "rows"
"""What the state of a table of any id consists of."""


def read_table(name: str, table: Embedding) -> dict[str, Tensor]:
    """Return what a table holds: all rows, or those that ids have got, in their order."""
    if table.rows is not None:
        return {name: torch.from_numpy(read_rows(table))}
    states = shards_of(table).shard_states()
    ids = np.concatenate([state["ids"] for state in states]).view(np.int64)
    order = np.argsort(ids)
    rows = np.concatenate([state["values"] for state in states])
    return {f"{name}.{IDS}": tensor_of(ids[order]), f"{name}.{ROWS}": tensor_of(rows[order])}


def replace_rows(table: Embedding, ids: np.ndarray, rows: np.ndarray) -> None:
    """Let a table of any id hold these rows and no others; those that stay keep their use."""
    shards = shards_of(table)
    states = shards.shard_states()
    kept = [np.isin(state["ids"], ids.view(np.uint64)) for state in states]
    if not all(each.all() for each in kept):
        shards.load_states([_those(state, each) for state, each in zip(states, kept, strict=True)])
    write_rows(table, ids, rows)


def _those(state: dict[str, np.ndarray], kept: np.ndarray) -> dict[str, np.ndarray]:
    """Return the state of a shard with some of its rows."""
    return {
        key: array if key == "step" or key.startswith("waiting.") else array[kept]
        for key, array in state.items()
    }


def local_values(
    module: nn.Module, names: Mapping[str, str], served: Collection[str]
) -> dict[str, str]:
    """Return what the values are that stay in a module, by their keys in its state.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    names : mapping of str to str
        For each key of its state the name of what it is a value of.
    served : collection of str
        The names of what is on servers.
    """
    state = module.state_dict(keep_vars=True)
    kept = {key: state[key] for key, name in names.items() if name not in served}
    return {key: _identity(value) for key, value in kept.items() if isinstance(value, Tensor)}


def _identity(value: Tensor) -> str:
    whole = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return local_value(value.dtype, value.shape, whole)


@dataclass(frozen=True)
class ModelValues:
    """The values of a module on the servers.

    Attributes
    ----------
    tables : dict
        By the name of the parameter that each replaces, or of the module if it takes any id.
    parameters, buffers : FlatVariables
        All other values, by name.
    fixed : tuple of str
        See `SplitModule`.
    names : dict
        For each key of the module's state the name of what it is a value of.
    """

    tables: dict[str, Embedding]
    parameters: FlatVariables
    buffers: FlatVariables
    fixed: tuple[str, ...]
    names: dict[str, str]

    def state(self, module: nn.Module) -> OrderedDict[str, Any]:
        """Read the state of a module, with what is not on servers from the module."""
        values: dict[str, Any] = {
            name: torch.tensor(array) for name, array in self.parameters.read().items()
        }
        for name, array in self.buffers.read().items():
            values[name] = from_kept(torch.tensor(array), tensor_at(module, name).dtype)
        for name, table in self.tables.items():
            values |= read_table(name, table)
        own = module.state_dict(keep_vars=True)
        return OrderedDict(
            (key, values[name] if name in values else _detached(own[key]))
            for key, name in self.names.items()
        )

    def sources(self) -> DenseSources:
        """Return where parameters and buffers are on the servers, by their keys in the state."""
        found = FlatVariables.joined([self.parameters, self.buffers]).sources()
        keys = {key: found.parts[name] for key, name in self.names.items() if name in found.parts}
        return DenseSources(found.variables, {**found.parts, **keys})

    def is_local(self, key: str) -> bool:
        """Return whether a key of the state is of a value that is not on servers."""
        return self.names[key] not in self._served

    def local(self, module: nn.Module) -> dict[str, str]:
        """Return what the values of a module are that are not on servers; see `local_values`."""
        return local_values(module, self.names, self._served)

    @property
    def _served(self) -> set[str]:
        return _served(self.tables, self.parameters.places, self.buffers.places)

    def check(self, state: Mapping[str, Any], module: nn.Module) -> CheckedState:
        """Return what a state has of a module for the servers; it may lack some.

        Raises
        ------
        InvalidArrayError
            If something in it has another shape or kind than the model's.
        """
        # Of several keys of one value the last one counts, as in torch.
        given = {name: (key, state[key]) for key, name in self.names.items() if key in state}
        parameters = {
            name: checked_array(*given[name], place.shape)
            for name, place in self.parameters.places.items()
            if name in given
        }
        buffers = {
            name: array_of(as_kept(checked_buffer(*given[name], tensor_at(module, name))))
            for name in self.buffers.places
            if name in given
        }
        rows = {}
        for name, table in self.tables.items():
            if table.rows is None:
                ids, own = (given.get(f"{name}.{part}") for part in (IDS, ROWS))
                if ids or own:
                    rows[name] = checked_rows(ids, own, table.dim)
            elif name in given:
                shape = table.rows, table.dim
                rows[name] = np.arange(table.rows), checked_array(*given[name], shape)
        return CheckedState(parameters, buffers, rows)

    def write(self, state: CheckedState) -> None:
        """Replace values on servers; the state of optimizers stays as it is."""
        for flat, arrays in (
            (self.parameters, state.parameters),
            (self.buffers, state.buffers),
        ):
            if arrays:
                whole = arrays.keys() == flat.places.keys()
                flat.assign(arrays if whole else {**flat.read(), **arrays})
        for name, (ids, rows) in state.rows.items():
            table = self.tables[name]
            (write_rows if table.rows is not None else replace_rows)(table, ids, rows)


def place_values(
    strategy: Strategy,
    parts: SplitModule,
    sparse: OptimizerChoice | None,
    dense: OptimizerChoice | None,
    name: str,
    adopt: bool | None = None,
    apart: Callable[[str], object] = lambda name: None,
) -> ModelValues:
    """Put the values of a module on the servers, or find them there.

    Raises
    ------
    ConfigurationError
        If there is no optimizer for a parameter, an average needs mode `Sync`, a name is taken, or
        what is there does not fit; nothing was placed.
    """
    if not isinstance(strategy.mode, Sync):
        check_averages(parts.graph.module)
    forms = [form.name for form in parts.tables]
    served = _served(forms, parts.parameters, parts.buffers)
    local = local_values(parts.graph.module, parts.names, served)
    wanted = WantedModel(
        {LEARNING: parts.parameters, MOVED: parts.buffers},
        {form.name: _wanted(form) for form in parts.tables},
        local,
    )
    found = place_model(
        strategy,
        name,
        wanted,
        sparse=sparse,
        dense=dense,
        adopt=adopt,
        moved="buffers",
        apart=apart,
    )
    arrays = found.arrays[LEARNING], found.arrays[MOVED]
    return ModelValues(found.tables, *arrays, parts.fixed, parts.names)


def _served(tables: Collection[str], *others: Iterable[str]) -> set[str]:
    """Return the names of what is on servers."""
    return {*tables, *chain(*others), *(f"{n}.{part}" for n in tables for part in (IDS, ROWS))}


def _wanted(form: TableForm) -> WantedTable:
    """Return what a table must be to be adopted, and what it begins with otherwise."""
    weight, hashed = form.weight, form.hashed
    if weight is not None:
        of = form.dim, len(weight), array_of(weight[:0]).dtype
        return WantedTable(*of, begins=lambda: (np.arange(len(weight)), array_of(weight)))
    assert hashed is not None
    return WantedTable(
        form.dim,
        None,
        np.dtype(np.float32),
        hashed.initializer,
        lambda: (array_of(hashed.ids), array_of(hashed.rows)),
    )


def tensor_at(module: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer of a module."""
    path, _, attribute = name.rpartition(".")
    found: Tensor = getattr(module.get_submodule(path), attribute)
    return found


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


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
        InvalidArrayError
            If keys or shapes are not those of the module; nothing was changed.
        """
        keys = check_keys(state, self.values.names, strict=strict)
        checked = self.values.check(state, self.template)
        graph = self.graph.copied(torch.device("cpu"))
        local = {key: state[key] for key in self.values.names if key in state}
        local = {key: value for key, value in local.items() if self.values.is_local(key)}
        try:
            graph.module.load_state_dict(local, strict=False)
        except RuntimeError as error:
            raise InvalidArrayError(
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
            f"device={shown(device)} is not a device of PyTorch, such as 'cpu' or 'cuda': {error}"
        ) from error
