"""ModelPass: the tensors of one thread's model, from the pull to the push.

The rows that are pulled become leaves of autograd, one for each table, however often the table is
used; their gradients are pushed together with all other parameters'.

A model is given a batch, and its layers take ids from it: a whole tensor, a column, a few columns.
How is learned from a first batch, as `PlannedIds`, so the ids of the next batch are known before
the model runs, and the rows of all tables come in one round trip. Ids that a layer computes (``ids
+ offset``) are not part of an input, and their rows are pulled when they are there.
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
from psnb._src.models.torch.tensors import TensorBags, parts_of, to_device
from psnb._src.utils.arrays import integers_of
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError

Path = tuple[Any, ...]

Index = tuple[int | tuple[int, int | None], ...] | None
"""For each axis an index, or where a slice starts and stops."""


class PlannedIds(NamedTuple):
    """The ids of a table: which input, and which part of it; None for all of it."""

    table: str
    path: Path
    part: Index


def inputs_of(given: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Yield the tensors in a nested structure, and where they are."""
    if isinstance(given, Tensor):
        yield path, given
    for name, each in _batch_parts(given).items():
        yield from inputs_of(each, (*path, name))


def located(table: str, ids: Tensor, inputs: Mapping[Path, Tensor]) -> PlannedIds | None:
    """Return where ids are in the inputs; None if they are not part of one."""
    for path, given in inputs.items():
        if ids.dtype != given.dtype or ids.device != given.device or not given.is_contiguous():
            continue
        if ids.untyped_storage().data_ptr() != given.untyped_storage().data_ptr():
            continue
        if ids.is_contiguous() and ids.numel() == given.numel():
            if ids.data_ptr() == given.data_ptr():
                return PlannedIds(table, path, None)
            continue
        index = _index(ids, given)
        if index is not None and same_memory(_taken(given, index), ids):
            return PlannedIds(table, path, index)
    return None


def examples_of(given: Any) -> int | None:
    """Return how many examples inputs have: as many as the first tensor in them, or its bags."""
    if isinstance(given, Tensor):
        return len(given) if given.ndim else None
    if isinstance(given, TensorBags):
        return len(given.offsets)
    counts = map(examples_of, _batch_parts(given).values())
    return next((count for count in counts if count is not None), None)


def _batch_parts(given: Any) -> Mapping[Any, Any]:
    """Return what is in a part of a batch; data classes are settings of a model, perhaps."""
    return (parts_of(given) or {}) if isinstance(given, Mapping | tuple | list) else {}


def planned(entry: PlannedIds, inputs: Mapping[Path, Tensor]) -> Tensor | None:
    """Return the ids of another batch; None if it does not have them there."""
    given = inputs.get(entry.path)
    if given is None or entry.part is None:
        return given
    if len(entry.part) != given.ndim:
        return None
    for part, size in zip(entry.part, given.shape, strict=True):
        if (part >= size) if isinstance(part, int) else ((part[1] or 0) > size):
            return None
    return _taken(given, entry.part)


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same elements in the same order."""
    if one.data_ptr() != other.data_ptr() or one.numel() != other.numel():
        return False
    if one.is_contiguous() and other.is_contiguous():
        return True
    return one.shape == other.shape and one.stride() == other.stride()


def shown(part: Index) -> str:
    """Return which part it is, as Python writes it."""
    if part is None:
        return ""
    texts = (
        str(each)
        if isinstance(each, int)
        else f"{each[0] or ''}:{'' if each[1] is None else each[1]}"
        for each in part
    )
    return f"[{', '.join(texts)}]"


def _taken(given: Tensor, index: Index) -> Tensor:
    assert index is not None
    return given[tuple(each if isinstance(each, int) else slice(*each) for each in index)]


def _index(ids: Tensor, given: Tensor) -> Index:
    """Return how ids could have been taken out of a contiguous tensor."""
    left = int(ids.storage_offset()) - int(given.storage_offset())
    if left < 0:
        return None
    index: list[int | tuple[int, int | None]] = []
    kept = 0
    for size, stride in zip(given.shape, given.stride(), strict=True):
        start, left = divmod(left, stride)
        if kept < ids.ndim and ids.stride(kept) == stride:
            stop = start + ids.shape[kept]
            index.append((0, None) if stop - start == size else (start, stop))
            kept += 1
        else:
            index.append(start)
    return tuple(index) if kept == ids.ndim and not left else None


_local = threading.local()

_WHOLE: Path = ("", "all rows")
"""Where in the inputs ids are that are all of their table."""


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
        # By table the ids that it will be asked for, as they are in a version of a tensor.
        self._wanted: list[tuple[str, Tensor, int, np.ndarray]] = []
        self._ahead: dict[str, list[tuple[Tensor, int, Tensor]]] = {}
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
        arrays = [*values.values(), *rows.values(), *(position for *_, position in expected)]
        moved = iter(to_device(arrays, self._device) if arrays else ())
        found = {variable: next(moved) for variable in values}
        for table in rows:
            leaf = next(moved).requires_grad_(self._learns)
            self._leaves.setdefault(self._names[table], []).append(leaf)
        for name, ids, version, _ in expected:
            self._ahead.setdefault(name, []).append((ids, version, next(moved)))
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
        what = f"the ids for {name!r}"
        arrays = [integers_of(each, what) for each in several]
        if not all(isinstance(each, Tensor) for each in several):
            raise InvalidArrayError(
                f"{what} are no tensor: psnb.torch.as_torch makes some of arrays, and "
                "torch.as_tensor of lists"
            )
        try:
            (positions,) = self._rows.locate({self._tables[name]: arrays}).values()
        except IdOutOfRangeError as error:
            places = (located("", each, self._inputs) for each in several)
            texts = [f"input {_joined(each.path)}{shown(each.part)}" for each in places if each]
            where = f"; these ids are {' or '.join(texts)} of the model" if texts else ""
            raise IdOutOfRangeError(f"{error}{where}") from error
        for ids, position in zip(several, positions, strict=True):
            self._wanted.append((name, ids, _version(ids), position))

    def learned(self) -> tuple[PlannedIds, ...] | None:
        """Return a better plan, if some rows had to be fetched on their own."""
        return tuple(dict.fromkeys(self._used)) if self._late else None

    def look_up(self, name: str, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of a table, and the positions of ids among them."""
        if not isinstance(ids, Tensor):
            self.expect_ids(name, [ids])  # which says what they are
        if ids is self._all_ids.get(name):
            entry: PlannedIds | None = PlannedIds(name, _WHOLE, None)
        else:
            entry = located(name, ids, self._inputs)
            if entry is not None and self._versions[entry.path] != _version(ids):
                entry = None  # it was changed in its place, so it is not what a batch has there
        if entry is not None:
            self._used.append(entry)
        ahead = self._ahead.setdefault(name, [])
        same = (
            number
            for number, (expected, version, _) in enumerate(ahead)
            if same_memory(expected, ids) and version == _version(ids)
        )
        if (number := next(same, -1)) < 0:
            known = sum(map(len, self._leaves.get(name, ())))
            self.expect_ids(name, [ids])
            self.fetch(())
            self._late |= sum(map(len, self._leaves.get(name, ()))) > known and entry is not None
            number = len(ahead) - 1
        if torch.is_grad_enabled() or ids is not self._all_ids.get(name):
            self._looked_up.setdefault(name, set()).add(number)
        return self._weight(name), ahead[number][2].reshape(ids.shape)

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

    def _used_rows(self) -> dict[Embedding, np.ndarray]:
        """Return the positions that were looked up, of tables with ids that were not.

        Rows that were fetched in vain have no gradient: a gradient of zero would move them, too.
        """
        found = {}
        for name, numbers in self._looked_up.items():
            ahead = self._ahead[name]
            if len(numbers) < len(ahead):
                parts = [ahead[number][2].reshape(-1) for number in sorted(numbers)]
                found[self._tables[name]] = torch.cat(parts).unique().cpu().numpy()
        return found

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
                    number = each.detach()
                    if by is not None:  # without those that a gradient of zero masks
                        number = torch.where(by.detach() != 0, number, 0)
                    if number.numel() > 1 or number.is_complex():
                        number = number.abs().amax()
                    for current in passes:  # of all models whose steps this is in
                        current.losses.append(number)

    return noting


def _leaves_of(value: Any) -> list[Any]:
    """Return the rows that take the gradient of a table's weight; another tensor as it is."""
    if getattr(value, "owner", None) is None:
        return [value]
    leaves = current_pass(value.owner, value.table).leaves()
    return [leaf for name, leaf in leaves if name == value.table]


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
