"""ModelValues: where the values of a module are on the servers, and its state as torch knows it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from psnb._src.export import DenseSources
from psnb._src.models import (
    LEARNING,
    MOVED,
    FlatVariables,
    OptimizerChoice,
    Strategy,
    WantedModel,
    WantedTable,
    adopted,
    check_free,
    optimizer_for,
    place_flat,
    place_record,
    place_state,
)
from psnb._src.modes import Sync
from psnb._src.parameters import Embedding
from psnb._src.torch_models.checked_state import CheckedState, checked_array, checked_rows
from psnb._src.torch_models.local_values import local_values
from psnb._src.torch_models.moving_averages import check_averages
from psnb._src.torch_models.split_module import SplitModule, TableForm
from psnb._src.torch_models.whole_tables import IDS, ROWS, read_table, replace_rows, write_rows


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
            values[name] = torch.tensor(array).to(tensor_at(module, name).dtype)
        for name, table in self.tables.items():
            values |= read_table(name, table)
        own = module.state_dict(keep_vars=True)
        return OrderedDict(
            (key, values[name] if name in values else _detached(own[key]))
            for key, name in self.names.items()
        )

    def sources(self) -> DenseSources:
        """Return where parameters and buffers are on the servers, by their keys in the state."""
        both = self.parameters.sources(), self.buffers.sources()
        parts = {**both[0].parts, **both[1].parts}
        keys = {key: parts[name] for key, name in self.names.items() if name in parts}
        return DenseSources({**both[0].variables, **both[1].variables}, {**parts, **keys})

    def is_local(self, key: str) -> bool:
        """Return whether a key of the state is of a value that is not on servers."""
        return self.names[key] not in self._served

    def local(self, module: nn.Module) -> dict[str, str]:
        """Return what the values of a module are that are not on servers; see `local_values`."""
        return local_values(module, self.names, self._served)

    @property
    def _served(self) -> set[str]:
        return _served(self.tables, self.parameters.places, self.buffers.places)

    def check(self, state: Mapping[str, Any]) -> CheckedState:
        """Return what a state has for the servers; it may lack some.

        Raises
        ------
        GradientError
            If something in it has another shape or kind than the model's.
        """
        # Of several keys of one value the last one counts, as in torch.
        given = {name: (key, state[key]) for key, name in self.names.items() if key in state}
        parameters, buffers = (
            {
                name: checked_array(*given[name], place.shape)
                for name, place in each.places.items()
                if name in given
            }
            for each in (self.parameters, self.buffers)
        )
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
    found = adopted(strategy, name, wanted, sparse=sparse, dense=dense, adopt=adopt)
    if found is not None:
        arrays = found.arrays[LEARNING], found.arrays[MOVED]
        return ModelValues(found.tables, *arrays, parts.fixed, parts.names)
    optimizers = {form.name: optimizer_for(sparse, form.name) for form in parts.tables}  # type: ignore[arg-type]
    for each in parts.parameters:
        optimizer_for(dense, each)  # type: ignore[arg-type]
    tables = {form.name: f"{name}.{form.name}" for form in parts.tables}
    check_free(strategy, [name, f"{name}.buffers", *tables.values()])
    parameters = place_flat(strategy, name, parts.parameters, dense)  # type: ignore[arg-type]
    buffers = place_state(strategy, f"{name}.buffers", parts.buffers)
    placed = {}
    for form in parts.tables:
        weight = None if form.weight is None else _as_array(form.weight)
        table = strategy.embedding(
            tables[form.name],
            form.dim,
            None if weight is None else len(weight),
            initializer=0.0 if form.hashed is None else form.hashed.initializer,
            optimizer=optimizers[form.name],
            dtype=np.float32 if weight is None else weight.dtype,
        )
        if weight is not None:
            write_rows(table, np.arange(len(weight)), weight)
        elif form.hashed is not None and len(form.hashed.ids):
            write_rows(table, _as_array(form.hashed.ids), _as_array(form.hashed.rows))
        placed[form.name] = table
    place_record(strategy, name, {LEARNING: parameters, MOVED: buffers}, placed, local)
    return ModelValues(placed, parameters, buffers, parts.fixed, parts.names)


def _served(tables: Collection[str], *others: Iterable[str]) -> set[str]:
    """Return the names of what is on servers."""
    return {*tables, *chain(*others), *(f"{n}.{part}" for n in tables for part in (IDS, ROWS))}


def _wanted(form: TableForm) -> WantedTable:
    """Return what a table must be to be adopted."""
    if form.weight is None:
        assert form.hashed is not None
        return WantedTable(form.dim, None, np.dtype(np.float32), form.hashed.initializer)
    return WantedTable(form.dim, len(form.weight), _as_array(form.weight[:0]).dtype)


def tensor_at(module: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer of a module."""
    path, _, attribute = name.rpartition(".")
    found: Tensor = getattr(module.get_submodule(path), attribute)
    return found


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _as_array(value: Tensor) -> np.ndarray:
    return value.detach().cpu().numpy()
