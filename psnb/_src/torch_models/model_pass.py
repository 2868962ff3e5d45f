"""ModelPass: what one thread's model computes with, from the pull to the push.

The rows that are pulled become leaves of autograd, one for each table, however often the table is
used; their gradients are pushed together with those of all other parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from psnb._src.models import BatchRows, batch_summary
from psnb._src.parameters import Embedding, Handle, Variable
from psnb._src.torch_models.as_tensors import tensor_of
from psnb._src.torch_models.id_plan import (
    Path,
    PlannedIds,
    inputs_of,
    located,
    planned,
    same_memory,
)
from psnb.errors import ConfigurationError, GradientError

_local = threading.local()


class ModelPass:
    """The rows and positions of one step, or of one call of a model for evaluation.

    Belongs to one thread.

    Parameters
    ----------
    tables : mapping of str to Embedding
        By the name of the parameter that they replace.
    device : torch.device
        Where rows go.
    training : bool
        Whether ids that are not known get rows.
    learns : bool
        Whether rows take gradients.

    Attributes
    ----------
    has_values : bool
        Whether variables were fetched.
    expects_gradients : bool
        Whether the model was called where gradients are computed.
    """

    def __init__(
        self, tables: Mapping[str, Embedding], device: torch.device, *, training: bool, learns: bool
    ) -> None:
        self._tables, self._device, self._learns = tables, device, learns
        self._names = {table: name for name, table in tables.items()}
        self._rows = BatchRows(training=training)
        self._leaves: dict[str, list[Tensor]] = {}
        self._ahead: list[tuple[str, Tensor, Tensor]] = []
        self._inputs: dict[Path, Tensor] = {}
        self._used: list[PlannedIds] = []
        self._late = False
        self.has_values = False
        self.expects_gradients = False

    def fetch(self, variables: tuple[Variable, ...]) -> dict[Variable, np.ndarray]:
        """Fetch variables, and the rows of all ids that are known by now, in one round trip."""
        values, rows = self._rows.fetch(variables)
        self.has_values |= bool(variables)
        for table, leaf in _moved(rows, self._device).items():
            leaf.requires_grad_(self._learns)
            self._leaves.setdefault(self._names[table], []).append(leaf)
        return values

    def expect(self, given: object, plan: tuple[PlannedIds, ...]) -> None:
        """Note the inputs of the model, and the ids that they will be asked for."""
        self._inputs, self._used, self._late = dict(inputs_of(given)), [], False
        self.expects_gradients |= self._learns and torch.is_grad_enabled()
        ids: dict[str, list[Tensor]] = {}
        for entry in plan:
            if (found := planned(entry, self._inputs)) is not None:
                ids.setdefault(entry.table, []).append(found)
        for name, several in ids.items():
            self.expect_ids(name, several)

    def expect_ids(self, name: str, several: list[Tensor]) -> None:
        """Note ids of a table that will be asked for."""
        positions = self._rows.locate(self._tables[name], *map(_as_array, several))
        self._ahead += [
            (name, ids, torch.from_numpy(position).to(self._device))
            for ids, position in zip(several, positions, strict=True)
        ]

    def learned(self) -> tuple[PlannedIds, ...] | None:
        """Return a better plan, if some rows had to be fetched on their own."""
        return tuple(dict.fromkeys(self._used)) if self._late else None

    def look_up(self, name: str, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of a table, and the positions of ids among them."""
        entry = located(name, ids, self._inputs)
        if entry is not None:
            self._used.append(entry)
        position = self._position(name, ids)
        if position is None:
            what = self._rows.locate(self._tables[name], _as_array(ids))[0]
            position = torch.from_numpy(what).to(self._device)
            known = sum(len(leaf) for leaf in self._leaves.get(name, ()))
            self.fetch(())
            now = sum(len(leaf) for leaf in self._leaves.get(name, ()))
            self._late |= now > known and entry is not None
        return self._weight(name), position

    def find(self, name: str, number: int | None) -> int | None:
        """Return the position of an id; None if it is not used."""
        return None if number is None else self._rows.find(self._tables[name], number)

    def leaves(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the rows that take gradients, with the names of their tables."""
        for name, leaves in self._leaves.items():
            for leaf in leaves:
                yield name, leaf

    def gradients(self) -> dict[Handle, np.ndarray]:
        """Return the gradients of all rows of the tables that have some."""
        found: dict[Handle, np.ndarray] = {}
        for name, leaves in self._leaves.items():
            if any(leaf.grad is not None for leaf in leaves):
                parts = [
                    torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves
                ]
                whole = parts[0] if len(parts) == 1 else torch.cat(parts)
                found[self._tables[name]] = whole.cpu().numpy()
        return found

    def summary(self) -> str:
        """Return what the inputs are like, to find the batch that something was wrong with."""
        inputs = self._inputs.items()
        fields = [(_joined(path), _plain(each).numpy()) for path, each in inputs]
        return f"the batch: {batch_summary(fields) or 'no tensors'}"

    def push(self, gradients: Mapping[Variable | Embedding, np.ndarray]) -> None:
        """Push gradients; see `BatchRows.push`."""
        self._rows.push(gradients)

    def _position(self, name: str, ids: Tensor) -> Tensor | None:
        for other, expected, position in self._ahead:
            if other == name and same_memory(expected, ids):
                return position.reshape(ids.shape)
        return None

    def _weight(self, name: str) -> Tensor:
        leaves = self._leaves.get(name)
        if leaves is None:  # no id at all
            table = self._tables[name]
            return tensor_of(np.zeros((1, table.dim), table.dtype)).to(self._device)
        return leaves[0] if len(leaves) == 1 else torch.cat(leaves)


def _moved(rows: Mapping[Embedding, np.ndarray], device: torch.device) -> dict[Embedding, Tensor]:
    """Return rows as tensors on a device, to which those of one dtype go in one copy."""
    tensors = {table: tensor_of(found) for table, found in rows.items()}
    if device.type == "cpu":
        return tensors
    moved: dict[Embedding, Tensor] = {}
    for dtype in {each.dtype for each in tensors.values()}:
        several = {table: each for table, each in tensors.items() if each.dtype == dtype}
        whole = torch.cat([each.reshape(-1) for each in several.values()]).to(device)
        parts = whole.split([each.numel() for each in several.values()])
        moved |= {
            t: part.view(e.shape) for (t, e), part in zip(several.items(), parts, strict=True)
        }
    return moved


def _plain(each: Tensor) -> Tensor:
    found = each.detach().cpu()
    return found.float() if found.dtype == torch.bfloat16 else found


def _joined(path: Path) -> str:
    return "".join(f"[{part!r}]" for part in path[1:])


def _as_array(ids: Tensor) -> np.ndarray:
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise GradientError(
            f"ids are a tensor of {ids.dtype}: ids are integers. A column that lost its type on "
            "the way (missing values make floats) is converted where it is read"
        )
    return ids.detach().cpu().numpy()


@contextmanager
def computing(current: ModelPass | None) -> Iterator[None]:
    """Let the tables of this thread's modules look up with a pass."""
    before = getattr(_local, "current", None)
    _local.current = current
    try:
        yield
    finally:
        _local.current = before


def current_pass() -> ModelPass:
    """Return the pass of this thread, or raise ConfigurationError if there is none."""
    found: ModelPass | None = getattr(_local, "current", None)
    if found is None:
        raise ConfigurationError(
            "a part of a distributed model was called by itself: call it within `with "
            "model.step():`, or call the model"
        )
    return found
