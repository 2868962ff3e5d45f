"""ModelPass: the tensors of one thread's model, from the pull to the push.

The rows that are pulled become leaves of autograd, one for each table, however often the table is
used; their gradients are pushed together with all other parameters'.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.utils._pytree import tree_leaves

from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import Handle
from psnb._src.client.variable import Variable
from psnb._src.models.batch_rows import BatchRows, Pushed, batch_summary
from psnb._src.models.torch.id_plan import (
    Path,
    PlannedIds,
    examples_of,
    inputs_of,
    located,
    planned,
    same_memory,
    shown,
)
from psnb._src.models.torch.tensors import to_device
from psnb._src.utils.arrays import integers_of
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError

_local = threading.local()

_WHOLE: Path = ("", "all rows")
"""Where in the inputs ids are that are all of their table."""


class _ExpectedIds(NamedTuple):
    """Ids that a table will be asked for, as they are in a version of a tensor."""

    table: str
    ids: Tensor
    version: int


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
    owner : object
        The owner of the tables: layers that look up with the pass have the same.

    Attributes
    ----------
    has_values : bool
        Whether variables were fetched.
    expects_gradients : bool
        Whether the model was called where gradients are computed.
    losses : list of torch.Tensor
        What `backward` began with, as numbers: NaN or infinite where it is that anywhere.
    examples : int or None
        How many the model was called with where gradients are computed, as far as that is known.
    """

    def __init__(
        self,
        tables: Mapping[str, Embedding],
        device: torch.device,
        *,
        training: bool,
        learns: bool,
        owner: object = None,
    ) -> None:
        self.owner = owner
        self._tables, self._device, self._learns = tables, device, learns
        self._names = {table: name for name, table in tables.items()}
        self._rows = BatchRows(training=training)
        self._leaves: dict[str, list[Tensor]] = {}
        self._no_rows: dict[str, Tensor] = {}
        self._wanted: list[tuple[_ExpectedIds, np.ndarray]] = []
        self._ahead: list[tuple[_ExpectedIds, Tensor]] = []
        self._looked_up: dict[str, set[int]] = {}
        self._inputs: dict[Path, Tensor] = {}
        self._versions: dict[Path, int] = {}
        self._used: list[PlannedIds] = []
        self._late = False
        self._all_ids: dict[str, Tensor] = {}
        self._given: list[tuple[str, Tensor, int]] = []
        self.has_values = False
        self.expects_gradients = False
        self.losses: list[Tensor] = []
        self.examples: int | None = None

    def fetch(self, variables: tuple[Variable, ...]) -> dict[Variable, Tensor]:
        """Fetch variables, and the rows of all ids that are known by now, in one round trip.

        All of it goes to the device in one copy, together with the positions of ids.
        """
        values, rows = self._rows.fetch(variables)
        self.has_values |= bool(variables)
        expected, self._wanted = self._wanted, []
        arrays = [*values.values(), *rows.values(), *(position for _, position in expected)]
        moved = iter(to_device(arrays, self._device) if arrays else ())
        found = {variable: next(moved) for variable in values}
        for table in rows:
            leaf = next(moved).requires_grad_(self._learns)
            self._leaves.setdefault(self._names[table], []).append(leaf)
        self._ahead += [(entry, next(moved)) for entry, _ in expected]
        return found

    def expect(self, given: object, plan: tuple[PlannedIds, ...]) -> None:
        """Note the inputs of the model, and the ids that they will be asked for."""
        self._inputs, self._used, self._late = dict(inputs_of(given)), [], False
        self._versions = {path: _version(each) for path, each in self._inputs.items()}
        if self._learns and torch.is_grad_enabled():
            self.expects_gradients = True
            if (examples := examples_of(given)) is not None:
                self.examples = examples + (self.examples or 0)
        ids: dict[str, list[Tensor]] = {}
        for entry in plan:
            whole = entry.path == _WHOLE
            found = self._all(entry.table) if whole else planned(entry, self._inputs)
            if found is not None:
                ids.setdefault(entry.table, []).append(found)
        for name, several in ids.items():
            self.expect_ids(name, several)

    def expect_ids(self, name: str, several: list[Tensor]) -> None:
        """Note ids of a table that will be asked for."""
        arrays, what = [], f"the ids for {name!r}"
        for each in several:
            arrays.append(integers_of(each, what))
            if not isinstance(each, Tensor):
                raise InvalidArrayError(f"{what} are no tensor: psnb.torch.as_torch makes some")
        try:
            positions = self._rows.locate(self._tables[name], *arrays)
        except IdOutOfRangeError as error:
            raise IdOutOfRangeError(f"{error}{self._origin(several)}") from error
        for ids, position in zip(several, positions, strict=True):
            self._wanted.append((_ExpectedIds(name, ids, _version(ids)), position))

    def learned(self) -> tuple[PlannedIds, ...] | None:
        """Return a better plan, if some rows had to be fetched on their own."""
        return tuple(dict.fromkeys(self._used)) if self._late else None

    def look_up(self, name: str, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of a table, and the positions of ids among them."""
        entry = self._entry(name, ids)
        if entry is not None:
            self._used.append(entry)
        number = self._number(name, ids)
        if number is None:
            known = sum(map(len, self._leaves.get(name, ())))
            self.expect_ids(name, [ids])
            self.fetch(())
            self._late |= sum(map(len, self._leaves.get(name, ()))) > known and entry is not None
            number = len(self._ahead) - 1
        if torch.is_grad_enabled() or ids is not self._all_ids.get(name):
            self._looked_up.setdefault(name, set()).add(number)
        return self._weight(name), self._ahead[number][1].reshape(ids.shape)

    def whole(self, name: str) -> Tensor:
        """Return all rows of a table, in the order of their ids."""
        weight, position = self.look_up(name, self._all(name))
        found = functional.embedding(position, weight)
        self._given.append((name, found, _version(found)))
        return found

    def check(self) -> None:
        """Raise ConfigurationError if all rows of a table were written to, which changes none."""
        for name, found, version in self._given:
            if _version(found) != version:
                raise ConfigurationError(
                    f"{name!r}, whose rows are on servers, was changed in its place: that would be "
                    "lost. Let it learn by its gradient, or write to it with model.load_state_dict"
                )

    def has_gradient(self, name: str) -> bool:
        """Return whether rows of a table have got a gradient."""
        return any(leaf.grad is not None for leaf in self._leaves.get(name, ()))

    def has_learned_of_no_ids(self) -> bool:
        """Return whether tables in which no id was looked up have got a gradient, of no row."""
        return any(row.grad is not None for row in self._no_rows.values())

    def find(self, name: str, number: int | None) -> int | None:
        """Return the position of an id; None if it is not used."""
        return None if number is None else self._rows.find(self._tables[name], number)

    def leaves(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the rows that take gradients, with the names of their tables."""
        for name, leaves in self._leaves.items():
            for leaf in leaves:
                yield name, leaf
        yield from self._no_rows.items()

    def gradients(self) -> dict[Embedding, Tensor]:
        """Return the gradients of all rows of the tables that have some."""
        found: dict[Embedding, Tensor] = {}
        for name, leaves in self._leaves.items():
            if any(leaf.grad is not None for leaf in leaves):
                parts = [
                    torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves
                ]
                found[self._tables[name]] = parts[0] if len(parts) == 1 else torch.cat(parts)
        return found

    def summary(self) -> str:
        """Return what the inputs are like, to find the batch that something was wrong with."""
        inputs = self._inputs.items()
        plain = [(_joined(path), each.detach().cpu()) for path, each in inputs]
        fields = [(n, (e.float() if e.dtype == torch.bfloat16 else e).numpy()) for n, e in plain]
        return f"the batch: {batch_summary(fields) or 'no tensors'}"

    def push(
        self, gradients: Mapping[Handle, Pushed], loss: float, weight: float | None = None
    ) -> None:
        """Push gradients; see `BatchRows.push`. The weight is by default the number of examples."""
        weight = self.examples if weight is None else weight
        self._rows.push(gradients, self._used_rows(), loss, weight)

    def _all(self, name: str) -> Tensor:
        """Return all ids of a table: the same tensor each time."""
        if name not in self._all_ids:
            self._all_ids[name] = torch.arange(self._tables[name].rows or 0)
        return self._all_ids[name]

    def _entry(self, name: str, ids: Tensor) -> PlannedIds | None:
        if ids is self._all_ids.get(name):
            return PlannedIds(name, _WHOLE, None)
        entry = located(name, ids, self._inputs)
        if entry is not None and self._versions[entry.path] != _version(ids):
            return None  # it was changed in its place, so it is not what a batch has there
        return entry

    def _number(self, name: str, ids: Tensor) -> int | None:
        """Return which of the expected ids these are."""
        for number, ((table, expected, version), _) in enumerate(self._ahead):
            if table == name and same_memory(expected, ids) and version == _version(ids):
                return number
        return None

    def _used_rows(self) -> dict[Embedding, np.ndarray]:
        """Return the positions that were looked up, of tables with ids that were not.

        Rows that were fetched in vain have no gradient: a gradient of zero would move them, too.
        """
        found = {}
        for name, numbers in self._looked_up.items():
            expected = {i for i, (entry, _) in enumerate(self._ahead) if entry.table == name}
            if numbers != expected:
                parts = [self._ahead[number][1].reshape(-1) for number in sorted(numbers)]
                found[self._tables[name]] = torch.cat(parts).unique().cpu().numpy()
        return found

    def _origin(self, several: list[Tensor]) -> str:
        """Return where in the inputs ids are, for messages."""
        places = (located("", each, self._inputs) for each in several)
        texts = [f"input {_joined(each.path)}{shown(each.part)}" for each in places if each]
        return f"; these ids are {' or '.join(texts)} of the model" if texts else ""

    def _weight(self, name: str) -> Tensor:
        if leaves := self._leaves.get(name):
            return leaves[0] if len(leaves) == 1 else torch.cat(leaves)
        # No id at all: a row that none has, through which autograd goes as through others.
        if name not in self._no_rows:
            table = self._tables[name]
            row = to_device([np.zeros((1, table.dim), table.dtype)], self._device)[0]
            self._no_rows[name] = row.requires_grad_(self._learns)
        return self._no_rows[name]


def _joined(path: Path) -> str:
    return "".join(f"[{part!r}]" for part in path[1:])


def _version(ids: Tensor) -> int:
    """Return how often a tensor was changed in place; tensors of inference do not count."""
    return -1 if ids.is_inference() else ids._version


@contextmanager
def computing(current: ModelPass) -> Iterator[None]:
    """Let the tables of its owner look up with a pass, in this thread."""
    before: tuple[ModelPass, ...] = getattr(_local, "passes", ())
    _local.passes = (*before, current)
    try:
        yield
    finally:
        _local.passes = before


def _noting_losses(backward: Callable[..., None]) -> Callable[..., None]:
    """Return ``backward`` that tells this thread's pass what it begins with.

    Nothing else in torch knows the loss of a step: gradients may be finite where it is not.
    """

    @functools.wraps(backward)
    def noting(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        passes: tuple[ModelPass, ...] = getattr(_local, "passes", ())
        if kwargs.get("inputs") is not None:
            kwargs["inputs"] = [e for i in tree_leaves(kwargs["inputs"]) for e in _leaves_of(i)]
        backward(tensors, grad_tensors, *args, **kwargs)
        if passes:
            for each, by in zip_longest(tree_leaves(tensors), tree_leaves(grad_tensors)):
                if isinstance(each, Tensor) and each.numel() and each.layout is torch.strided:
                    number = _as_number(each.detach(), by)
                    for current in passes:  # of all models whose steps this is in
                        current.losses.append(number)

    return noting


def _as_number(losses: Tensor, gradient: Tensor | None) -> Tensor:
    """Return a loss; of several the largest size, without those that a gradient of zero masks."""
    if gradient is not None:
        losses = torch.where(gradient.detach() != 0, losses, 0)
    return losses.abs().amax() if losses.numel() > 1 or losses.is_complex() else losses


def _leaves_of(value: Any) -> list[Any]:
    """Return the rows that take the gradient of a table's weight; another tensor as it is."""
    if getattr(value, "owner", None) is None:
        return [value]
    return [
        leaf
        for name, leaf in current_pass(value.owner, value.table).leaves()
        if name == value.table
    ]


# `Tensor.backward` calls it, too.
torch.autograd.backward = _noting_losses(torch.autograd.backward)


def current_pass(owner: object, table: str) -> ModelPass:
    """Return the innermost pass of an owner in this thread; ConfigurationError if there is none."""
    for found in reversed(getattr(_local, "passes", ())):
        if found.owner is owner:
            current: ModelPass = found
            return current
    raise ConfigurationError(
        f"a part of a distributed model, which uses table {table!r}, was called by itself: call it "
        "within `with model.step():`, or call the model"
    )
