"""PlacedValues: where the values of a Keras model are on the servers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from psnb._src.keras_models.automatic_names import named_alike, numbered_kinds
from psnb._src.keras_models.keras_network import KerasNetwork
from psnb._src.keras_models.split_keras import SplitKeras, as_array
from psnb._src.models import (
    LEARNING,
    MOVED,
    FlatVariables,
    OptimizerChoice,
    Place,
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
from psnb._src.parameters import Embedding, Variable
from psnb.errors import GradientError

_PART = 4 << 20
"""Bytes of a table that are read or written at a time, so that no server stands still for long."""


@dataclass(frozen=True)
class PlacedValues:
    """The values of a model on the servers; travels with closures.

    Attributes
    ----------
    weights, state : FlatVariables
        The values of `KerasNetwork.weights` and `KerasNetwork.state`, by name.
    tables : dict
        The tables of embeddings, by name.
    """

    weights: FlatVariables
    state: FlatVariables
    tables: dict[str, Embedding]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables."""
        return (*self.weights.variables, *self.state.variables)

    @property
    def flat(self) -> FlatVariables:
        """Weights and state together."""
        return _joined([self.weights, self.state])

    def split(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the arrays by name, as parts of the values of `variables`."""
        count = len(self.weights.variables)
        return {**self.weights.split(values[:count]), **self.state.split(values[count:])}

    def read(self, names: Collection[str]) -> dict[str, np.ndarray]:
        """Read values, those of tables too, by name; what comes with them may be there as well."""
        found: dict[str, np.ndarray] = {}
        for flat in (self.weights, self.state):
            if not flat.places.keys().isdisjoint(names):
                found |= flat.read()
        for name in self.tables.keys() & names:
            table = self.tables[name]
            parts = [table.lookup(ids, training=False) for ids in _parts(table)]
            found[name] = np.concatenate(parts)
        return found

    def write(self, values: Mapping[str, np.ndarray]) -> None:
        """Replace all values; the state of optimizers stays as it is.

        Raises
        ------
        GradientError
            If a value has another shape; nothing was changed.
        """
        for name, table in self.tables.items():
            if values[name].shape != (table.rows, table.dim):
                raise GradientError(
                    f"embedding {name!r} has shape {(table.rows, table.dim)}, found "
                    f"{values[name].shape}"
                )
        for each in (self.weights, self.state):
            each.check({name: values[name] for name in each.places})
        for each in (self.weights, self.state):
            each.assign({name: values[name] for name in each.places})
        for name, table in self.tables.items():
            for ids in _parts(table):
                table.assign(ids, np.ascontiguousarray(values[name][ids], table.dtype))


def place(
    strategy: Strategy,
    parts: SplitKeras,
    network: KerasNetwork,
    sparse: OptimizerChoice,
    dense: OptimizerChoice,
    name: str,
    adopt: bool | None = None,
) -> PlacedValues:
    """Put the values of a model on the servers, or find them there.

    Raises
    ------
    ConfigurationError
        If there is no optimizer for one, a name is taken, or what is there does not fit; nothing
        was placed.
    """
    arrays = {each: as_array(variable) for each, variable in network.weights.items()}
    state = {each: as_array(variable) for each, variable in network.state.items()}
    wanted = WantedModel(
        {LEARNING: arrays, MOVED: state},
        {each: _wanted(layer) for each, layer in parts.tables.items()},
        network.local_values(),
    )
    there = adopted(
        strategy,
        name,
        wanted,
        sparse=sparse,
        dense=dense,
        adopt=adopt,
        named=partial(named_alike, numbered_kinds(parts.tail)),
    )
    if there is not None:
        return PlacedValues(there.arrays[LEARNING], there.arrays[MOVED], there.tables)
    optimizers = {each: optimizer_for(sparse, each) for each in parts.tables}
    for each in network.weights:
        optimizer_for(dense, each)
    names = {each: f"{name}.{each}" for each in parts.tables}
    check_free(strategy, [name, f"{name}.state", *names.values()])
    # Keras clips the norm of each weight by itself, servers that of each variable.
    clipped = [each for each in arrays if optimizer_for(dense, each).clipnorm is not None]
    groups = [[each] for each in clipped]
    groups.insert(0, [each for each in arrays if each not in clipped])
    placed = [
        place_flat(
            strategy,
            name if not number else f"{name}.{group[0]}",
            {each: arrays[each] for each in group},
            dense,
        )
        for number, group in enumerate(groups)
    ]
    tables = {
        each: strategy.embedding(
            names[each], layer.output_dim, layer.input_dim, 0.0, optimizers[each]
        )
        for each, layer in parts.tables.items()
    }
    flat = place_state(strategy, f"{name}.state", state)
    found = PlacedValues(_joined(placed), flat, tables)
    rows = {each: as_array(layer.embeddings) for each, layer in parts.tables.items()}
    for each, table in tables.items():
        for ids in _parts(table):
            table.assign(ids, rows[each][ids])
    arrays_there = {LEARNING: found.weights, MOVED: flat}
    place_record(strategy, name, arrays_there, tables, wanted.local)
    return found


def _wanted(layer: Any) -> WantedTable:
    return WantedTable(layer.output_dim, layer.input_dim, np.dtype(np.float32))


def _joined(several: Sequence[FlatVariables]) -> FlatVariables:
    variables: list[Variable] = []
    places: dict[str, Place] = {}
    for each in several:
        start = len(variables)
        places |= {n: p._replace(variable=p.variable + start) for n, p in each.places.items()}
        variables += each.variables
    return FlatVariables(variables, places)


def _parts(table: Embedding) -> list[np.ndarray]:
    assert table.rows is not None
    step = max(1, _PART // (table.dim * table.dtype.itemsize))
    return [np.arange(at, min(at + step, table.rows)) for at in range(0, table.rows, step)]
