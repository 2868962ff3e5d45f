"""ModelValues: where the values of a module are on the servers, and its state as torch knows it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from psnb._src.models import (
    FlatVariables,
    OptimizerChoice,
    Strategy,
    check_free,
    optimizer_for,
    place_flat,
)
from psnb._src.parameters import Embedding, shards_of
from psnb._src.server import SGD
from psnb._src.torch_models.as_tensors import tensor_of
from psnb._src.torch_models.split_module import SplitModule
from psnb.errors import GradientError

_PART = 4 << 20
"""Bytes of a table that are read or written at a time."""

_ADDED = SGD(1.0)
"""What buffers learn with: the servers subtract what is pushed."""


@dataclass(frozen=True)
class ModelValues:
    """The values of a module on the servers.

    Attributes
    ----------
    tables : dict
        By the name of the parameter that each replaces, or of the module if it takes any id.
    parameters, buffers : FlatVariables
        All other values, by name.
    names : dict
        For each key of the module's state the name of what it is a value of.
    """

    tables: dict[str, Embedding]
    parameters: FlatVariables
    buffers: FlatVariables
    names: dict[str, str]

    def state(self, module: nn.Module) -> OrderedDict[str, Any]:
        """Read the state of a module, with what is not on servers from the module."""
        values: dict[str, Any] = {
            name: torch.tensor(array) for name, array in self.parameters.read().items()
        }
        for name, array in self.buffers.read().items():
            values[name] = torch.tensor(array).to(module.get_buffer(name).dtype)
        for name, table in self.tables.items():
            values |= _read_table(name, table)
        own = module.state_dict()
        return OrderedDict(
            (key, values[name] if name in values else own[key]) for key, name in self.names.items()
        )

    def is_local(self, key: str) -> bool:
        """Return whether a key of the state is of a value that is not on servers."""
        name = self.names[key]
        hashed = {f"{n}.{part}" for n in self.tables for part in ("ids", "rows")}
        on_servers = (self.tables, self.parameters.places, self.buffers.places, hashed)
        return not any(name in each for each in on_servers)

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace all values on servers; optimizer state stays as it is.

        Raises
        ------
        GradientError
            If keys or shapes are not those of the module; nothing was changed.
        """
        if wrong := sorted(state.keys() ^ self.names.keys()):
            raise GradientError(
                f"the state is of another model: {len(wrong)} keys are in one of both only, such "
                f"as {wrong[:4]}"
            )
        given = {name: state[key] for key, name in reversed(self.names.items())}
        arrays = {
            name: _as_array(value) for name, value in given.items() if isinstance(value, Tensor)
        }
        for name, table in self.tables.items():
            if table.rows is not None and arrays[name].shape != (table.rows, table.dim):
                raise GradientError(
                    f"table {name!r} was made with shape {(table.rows, table.dim)}, and the state "
                    f"has {arrays[name].shape}"
                )
        flat = (self.parameters, self.buffers)
        for each in flat:
            each.check({name: arrays[name] for name in each.places})
        for each in flat:
            each.assign({name: arrays[name] for name in each.places})
        for name, table in self.tables.items():
            if table.rows is None:
                write_rows(table, arrays[f"{name}.ids"], arrays[f"{name}.rows"])
            else:
                write_rows(table, np.arange(table.rows), arrays[name])


def place_values(
    strategy: Strategy,
    parts: SplitModule,
    sparse: OptimizerChoice | None,
    dense: OptimizerChoice | None,
    name: str,
) -> ModelValues:
    """Put the values of a module on the servers.

    Raises
    ------
    ConfigurationError
        If there is no optimizer for a parameter, or a name is taken; nothing was placed.
    """
    optimizers = {form.name: optimizer_for(sparse, form.name) for form in parts.tables}  # type: ignore[arg-type]
    for each in parts.parameters:
        optimizer_for(dense, each)  # type: ignore[arg-type]
    tables = {form.name: f"{name}.{form.name}" for form in parts.tables}
    check_free(strategy, [name, f"{name}.buffers", *tables.values()])
    parameters = place_flat(strategy, name, parts.parameters, dense)  # type: ignore[arg-type]
    buffers = place_flat(strategy, f"{name}.buffers", parts.buffers, _ADDED)
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
    return ModelValues(placed, parameters, buffers, parts.names)


def write_rows(table: Embedding, ids: np.ndarray, rows: np.ndarray) -> None:
    """Write rows in parts, so that no server stands still for long."""
    step = max(1, _PART // (table.dim * table.dtype.itemsize))
    for start in range(0, len(ids), step):
        part = slice(start, start + step)
        table.assign(ids[part], np.ascontiguousarray(rows[part], table.dtype))


def _read_table(name: str, table: Embedding) -> dict[str, Tensor]:
    """Return what a table holds: all rows, or those that ids have got, in their order."""
    if table.rows is not None:
        step = max(1, _PART // (table.dim * table.dtype.itemsize))
        parts = [
            table.lookup(np.arange(start, min(start + step, table.rows)), training=False)
            for start in range(0, table.rows, step)
        ]
        return {name: torch.from_numpy(np.concatenate(parts))}
    states = shards_of(table).shard_states()
    ids = np.concatenate([state["ids"] for state in states]).view(np.int64)
    order = np.argsort(ids)
    rows = np.concatenate([state["values"] for state in states])
    return {f"{name}.ids": tensor_of(ids[order]), f"{name}.rows": tensor_of(rows[order])}


def _as_array(value: Tensor) -> np.ndarray:
    return value.detach().cpu().numpy()
