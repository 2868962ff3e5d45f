"""PlacedModule: a module whose values are on servers; its state is read and written here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.models.export.manifest import DenseSources, fits
from psnb._src.models.placing import ModelValues
from psnb._src.models.table_rows import read_rows
from psnb._src.models.torch.buffers import as_kept, from_kept
from psnb._src.models.torch.module_graph import ModuleGraph
from psnb._src.models.torch.tables import IDS, ROWS
from psnb._src.models.torch.tensors import array_of, tensor_of
from psnb._src.transport.half_width import widened
from psnb.errors import InvalidArrayError

_SHOWN = 4


class IncompatibleKeys(NamedTuple):
    """The result of ``load_state_dict``, as that of torch.

    Attributes
    ----------
    missing_keys : list of str
        Keys of the model that the state lacks.
    unexpected_keys : list of str
        Keys of the state that the model lacks.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


def check_keys(
    state: Mapping[str, Any], expected: Mapping[str, Any], *, strict: bool
) -> IncompatibleKeys:
    """Return the keys that only one of both has; raise InvalidArrayError if none may be missing."""
    found = IncompatibleKeys(
        [key for key in expected if key not in state], [key for key in state if key not in expected]
    )
    if strict and any(found):
        texts = [
            f"{len(keys)} keys are {what}, such as {keys[:_SHOWN]}"
            for what, keys in (("missing", found[0]), ("unexpected", found[1]))
            if keys
        ]
        raise InvalidArrayError(
            f"the state is of another model: {'; '.join(texts)}. strict=False loads what is in both"
        )
    return found


def checked_array(key: str, value: Any, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return a value of a state as an array of this shape, in which None is any length."""
    plain = _checked(key, value, shape)
    # A dtype that numpy lacks (bfloat16) fits into float32.
    wide = plain.is_floating_point() and plain.element_size() < 4
    return (plain.float() if wide else plain).numpy()


def _checked(
    key: str, value: Any, shape: tuple[int | None, ...], *, takes_complex: bool = False
) -> Tensor:
    if not isinstance(value, Tensor):
        raise InvalidArrayError(
            f"{key!r} of the state is of type {type(value).__name__}: values of a state are tensors"
        )
    if value.is_complex() and not takes_complex:
        raise InvalidArrayError(
            f"{key!r} of the state is of {value.dtype}, and the model's is of no complex numbers"
        )
    sizes = tuple(value.shape)
    if not fits(sizes, shape):
        expected = str(shape).replace("None", "n")
        raise InvalidArrayError(
            f"{key!r} was made with shape {expected}, and the state has {sizes}: a model whose "
            "layers changed is another model; place it again, under another name="
        )
    return value.detach().cpu()


def checked_rows(
    ids: tuple[str, Any] | None, rows: tuple[str, Any] | None, dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and rows of a table of any id; each is given with its key."""
    key, _ = ids or rows or ("", None)
    if ids is None or rows is None:
        raise InvalidArrayError(
            f"the state has {key!r} alone: ids and rows of a table belong together"
        )
    numbers = checked_array(*ids, (None,))
    if numbers.dtype.kind not in "iu":
        raise InvalidArrayError(f"{key!r} of the state is of {numbers.dtype}: ids are integers")
    values = checked_array(*rows, (len(numbers), dim))
    found, counts = np.unique(numbers, return_counts=True)
    if twice := found[counts > 1][:_SHOWN].tolist():
        raise InvalidArrayError(f"{key!r} of the state has ids more than once, such as {twice}")
    return numbers.astype(np.int64), values


@dataclass(frozen=True)
class PlacedModule:
    """The part of a distributed model that all processes and threads share. Immutable.

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
        for name in self.values.state.places:
            if name in given:
                like = tensor_at(self.template, name)
                shape, takes_complex = tuple(like.shape), like.is_complex()
                value = _checked(*given[name], shape, takes_complex=takes_complex).to(like.dtype)
                arrays[name] = array_of(as_kept(value))
        rows = {}
        for name, table in self.values.tables.items():
            if table.rows is None:
                ids, own = (given.get(f"{name}.{part}") for part in (IDS, ROWS))
                if ids or own:
                    rows[name] = checked_rows(ids, own, table.dim)
            elif name in given:
                values = checked_array(*given[name], (table.rows, table.dim))
                rows[name] = np.arange(table.rows), values
        return arrays, rows


def _read_table(name: str, table: Embedding) -> dict[str, Tensor]:
    """Return a table's rows: all, or the rows of known ids, in their order."""
    if table.rows is not None:
        return {name: torch.from_numpy(read_rows(table))}
    states = shards_of(table).shard_states()
    ids = np.concatenate([state["ids"] for state in states]).view(np.int64)
    order = np.argsort(ids)
    rows = np.concatenate([widened(state["values"]) for state in states])
    return {f"{name}.{IDS}": tensor_of(ids[order]), f"{name}.{ROWS}": tensor_of(rows[order])}


def tensor_at(module: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer of a module."""
    path, _, attribute = name.rpartition(".")
    found: Tensor = getattr(module.get_submodule(path), attribute)
    return found
