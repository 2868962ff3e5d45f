"""Splits a module: tables, parameters and buffers go to servers, the rest travels with closures."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.models.adopting import LEARNING, MOVED, WantedModel, WantedTable, place_model
from psnb._src.models.export.manifest import DenseSources
from psnb._src.models.shared import (
    FlatVariables,
    OptimizerChoice,
    Strategy,
    local_value,
    read_rows,
    write_rows,
)
from psnb._src.models.torch.buffers import as_kept, check_buffer, from_kept, is_integer
from psnb._src.models.torch.model_pass import tensor_of
from psnb._src.models.torch.module_graph import (
    CheckedState,
    IncompatibleKeys,
    ModuleGraph,
    check_keys,
    check_module,
    check_part,
    check_references,
    checked_array,
    checked_buffer,
    checked_rows,
    computed_before_calls,
    hooks_of,
    placeholder,
)
from psnb._src.models.torch.tables import HashedEmbedding, TableWeight
from psnb._src.protocol.modes import Sync
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, InvalidArrayError, SerializationError

_LOOKUPS = (nn.Embedding, nn.EmbeddingBag)
_LEARNING_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class TableForm:
    """A table that a module needs.

    Attributes
    ----------
    name : str
        The parameter's, in the module.
    dim : int
        Floats a row.
    weight : torch.Tensor or None
        The initial rows; None for any id.
    hashed : HashedEmbedding or None
        The module of a table of any id.
    """

    name: str
    dim: int
    weight: Tensor | None
    hashed: HashedEmbedding | None = None


@dataclass(frozen=True)
class SplitModule:
    """The parts of a module.

    Attributes
    ----------
    graph : ModuleGraph
        The module without values that are on servers; the weights of tables only stand for them.
    tables : list of TableForm
        What becomes tables.
    parameters, buffers : dict
        The initial values of what becomes parts of variables, by name, those of buffers as
        `as_kept`. Frozen parameters are among the buffers: forward may move them (momentum
        encoders, target networks).
    frozen : tuple of str
        Which of the buffers are parameters that could learn.
    fixed : tuple of str
        The weights of frozen embeddings, and of integers: too large to come with each step, they
        stay in the module.
    names : dict
        For each key of the module's state the name of what it is a value of; several keys may be of
        one parameter.
    """

    graph: ModuleGraph
    tables: list[TableForm]
    parameters: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]
    frozen: tuple[str, ...]
    fixed: tuple[str, ...]
    names: dict[str, str]

    def with_optimizers(self, names: Collection[str]) -> SplitModule:
        """Return the parts where these frozen parameters may learn later."""
        learning = {**self.parameters, **{name: self.buffers[name] for name in names}}
        buffers = {name: value for name, value in self.buffers.items() if name not in names}
        return replace(self, parameters=learning, buffers=buffers)


def split(module: nn.Module, trained: Collection[int] = ()) -> SplitModule:
    """Split a module, which stays as it is.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    trained : collection of int
        The ids of parameters that an optimizer has: those that are frozen may learn later.

    Raises
    ------
    ConfigurationError
        If servers cannot do what the module does.
    SerializationError
        If it cannot travel to workers.
    """
    for key, value in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(value):
            raise ConfigurationError(
                f"{key!r} has no shape before the module has seen a batch: call the module once, "
                "on a batch like those of training, before it is put on servers"
            )
    looked_up = {id(each.weight) for each in module.modules() if _is_lookup(each)}
    later = {
        id(value)
        for value in module.parameters()
        if id(value) in trained and id(value) not in looked_up and value.dtype in _LEARNING_DTYPES
    }
    check_module(module, later)
    tables = list(_tables(module))
    weights = {id(form.weight): form.name for form in tables if form.weight is not None}
    # Of one tensor with several names, the first one counts.
    names: dict[str, str] = {}
    first: dict[int, str] = dict(weights)
    for form in tables:
        if form.hashed is not None:
            first |= {id(b): f"{form.name}.{n}" for n, b in form.hashed.named_buffers()}
    for key, value in module.state_dict(keep_vars=True).items():
        names[key] = first.setdefault(id(value), key) if isinstance(value, Tensor) else key
    parameters = {
        first.setdefault(id(value), key): value
        for key, value in module.named_parameters()
        if value.requires_grad and id(value) not in weights
    }
    hashed = [form.hashed for form in tables if form.hashed is not None]
    own = {id(buffer) for each in hashed for buffer in each.buffers()}
    buffers = {
        key: value for key, value in module.named_buffers() if key in names and id(value) not in own
    }
    frozen = {
        first.setdefault(id(value), key): value
        for key, value in module.named_parameters()
        if not value.requires_grad
    }
    fixed = tuple(
        name for name, value in frozen.items() if id(value) in looked_up or is_integer(value.dtype)
    )
    buffers |= {name: value for name, value in frozen.items() if name not in fixed}
    for name, value in buffers.items():
        check_buffer(name, value)
    instead: dict[int, Any] = {
        id(form.weight): TableWeight(form.name, form.weight)
        for form in tables
        if form.weight is not None
    }
    for form in tables:
        if form.hashed is not None:
            instead |= {id(buffer): buffer[:0].clone() for buffer in form.hashed.buffers()}
    instead |= {id(weight): placeholder(weight) for weight in computed_before_calls(module)}
    graph = _copied(module, instead, later)
    _serve_hashed(module, graph.module, tables)
    for name in parameters:
        value = graph.module.get_parameter(name)
        value.data = placeholder(value)
    try:
        check_references(module, graph)
    except ConfigurationError:
        raise
    except Exception as error:  # of what is pickled, which has errors of its own
        raise _cannot_travel(graph.module, error) from error
    return SplitModule(
        graph,
        tables,
        {name: _array(value) for name, value in parameters.items()},
        {name: _as_array(as_kept(value.detach())) for name, value in buffers.items()},
        tuple(n for n, v in frozen.items() if n in buffers and v.dtype in _LEARNING_DTYPES),
        fixed,
        names,
    )


def _tables(module: nn.Module) -> Iterator[TableForm]:
    """Yield the tables that a module needs, each once."""
    users: dict[int, list[tuple[nn.Module, str]]] = {}
    for path, each in module.named_modules():
        for name, parameter in each.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            users.setdefault(id(parameter), []).append((each, full))
    for path, each in module.named_modules():
        if isinstance(each, HashedEmbedding):
            yield TableForm(path or "embedding", each.dim, None, each)
        elif _is_lookup(each):
            _check_embedding(path, each)
            weight = each.weight
            assert isinstance(weight, Tensor)
            using = users[id(weight)]
            # What a layer uses as a whole (a tied output layer, say) is a parameter like others,
            # and so is what has hooks: they get the gradient of the whole.
            if (
                weight.requires_grad
                and not any(hooks_of(weight))
                and using[0][0] is each
                and all(_is_lookup(m) for m, _ in using)
            ):
                yield TableForm(using[0][1], weight.shape[1], weight)


def _is_lookup(module: nn.Module) -> bool:
    return "weight" in module._parameters and any(
        isinstance(module, kind) and type(module).forward is kind.forward for kind in _LOOKUPS
    )


def _serve_hashed(module: nn.Module, copied: nn.Module, tables: list[TableForm]) -> None:
    """Let the embeddings of any id in the copy of a module look up in their tables."""
    names = {id(form.hashed): form.name for form in tables if form.hashed is not None}
    for path, each in module.named_modules():
        if (name := names.get(id(each))) is not None:
            copied.get_submodule(path).table = name  # type: ignore[assignment]


def _copied(module: nn.Module, instead: Mapping[int, Any], later: Container[int]) -> ModuleGraph:
    """Copy a module, with other things in place of some tensors."""
    try:
        return ModuleGraph.of(module, instead, later)
    except ConfigurationError as error:
        raise _not_followed(module, instead, error) from error
    except Exception as error:  # reduction of the user's objects may raise anything
        raise _cannot_travel(module, error) from error


def _not_followed(
    module: nn.Module, instead: Mapping[int, Any], error: ConfigurationError
) -> ConfigurationError:
    """Return the error for what refers to parameters in vain, with what it is."""
    for where, value in _attributes(module):
        try:
            check_part(module, instead, value)
        except ConfigurationError as reason:
            return ConfigurationError(f"{where} holds {reason}")
        except Exception:  # another one's turn
            continue
    return error


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield what modules hold beside their parts, and the hooks of parameters, inner ones first."""
    for path, each in reversed(list(module.named_modules())):
        for name, value in vars(each).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield f"{f'{path}.{name}' if path else name!r} of {type(module).__name__}", value
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            yield f"a hook of parameter {name!r}", hooks_of(parameter)


def _check_embedding(name: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
    """Raise ConfigurationError if servers cannot do what an embedding does."""
    if module.max_norm is not None:
        raise ConfigurationError(
            f"{name!r} has max_norm={module.max_norm}, which shrinks rows whenever they are looked "
            "up: with several workers that would be lost or done twice. Leave it out; an optimizer "
            "with weight_decay= or clipnorm= keeps rows small"
        )
    if isinstance(module, nn.EmbeddingBag) and module.scale_grad_by_freq:
        # PyTorch 2.13 divides by counts of other ids: of [1, 3, 3, 5] it halves the gradient of 5.
        raise ConfigurationError(
            f"{name!r} is an EmbeddingBag with scale_grad_by_freq=True, of which PyTorch's own "
            "gradient is wrong on the CPU. Leave it out; an nn.Embedding may have it"
        )


def _array(value: Tensor) -> np.ndarray:
    if value.dtype not in _LEARNING_DTYPES:
        raise ConfigurationError(
            f"a parameter is of {value.dtype}; servers keep float32 and float64. Make the module "
            "float32, and compute in half precision where it pays: with torch.autocast"
        )
    return value.detach().cpu().numpy()


def _cannot_travel(module: nn.Module, error: Exception) -> SerializationError:
    """Return the error for a module that cannot be copied or pickled, with the part that cannot."""
    for where, value in _attributes(module):
        try:
            cloudpickle.dumps(value)
        except Exception as reason:  # whatever pickling a user's object raises
            return SerializationError(
                f"{where}, {type(value).__name__}, cannot be pickled: {reason}. The module travels "
                "to workers: make there what cannot travel (locks, files, connections), in forward "
                "when it is first needed"
            )
    return SerializationError(
        f"{type(module).__name__} cannot be copied to workers: {error}. The module travels to them"
    )


# All rows of a table at once: as tensors of a state, and back.

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


# MovingAverages: what calls of BatchNorm and its like blend into their running statistics. Pure.
#
# A call makes ``(1 - share) * average + share * statistic`` of an average, and its result depends
# on the batch alone. So it is called with zeros for averages, which gives ``share * statistic`` to
# the last digit: computed from the average before and after, a variance near zero would be lost in
# the rounding of one that is not. Belongs to one thread.

_AVERAGES = ("running_mean", "running_var")


class MovingAverages:
    """Notes what calls of a module blend into averages, from one `begin` to the next.

    What else changes an average is noticed by its value: code of the user's that writes to it, a
    call that is compiled, or one under ``torch.inference_mode``.

    Parameters
    ----------
    module : torch.nn.Module
        The module; its calls are followed from now on.
    names : container of str
        The buffers that are wanted.
    """

    def __init__(self, module: nn.Module, names: Container[str]) -> None:
        self._layers = [
            _Layer(each, averages)
            for path, each in averaging(module)
            if (averages := {n: a for n, a in _named(path) if n in names})
        ]

    def begin(self, values: Mapping[str, Tensor]) -> None:
        """Forget what was noted: averages are what the servers have, which ``values`` are."""
        for each in self._layers:
            each.begin(values)

    def blends(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the share and the term of averages that were moved as averages are, by name.

        Where something else has changed them, these are 1 and what they are now.
        """
        return {name: blend for each in self._layers for name, blend in each.blends()}


def averaging(module: nn.Module) -> Iterator[tuple[str, _NormBase]]:
    """Yield the layers of torch that move averages, with their paths."""
    for path, each in module.named_modules():
        own = type(each).forward.__module__.startswith("torch.nn.modules.")
        if isinstance(each, _NormBase) and own and each.running_mean is not None:
            yield path, each


def check_averages(module: nn.Module) -> None:
    """Raise ConfigurationError if a late step would not know its share in an average."""
    for path, each in averaging(module):
        if isinstance(each, _BatchNorm) and each.momentum is None:
            raise ConfigurationError(
                f"{path or type(each).__name__!r} has momentum=None, an average of all batches: "
                "the share of a batch depends on how many came before, and a step of several "
                "workers does not know how many there will be when it is applied. Give it a "
                "momentum, such as 0.1, or train in mode psnb.Sync"
            )


class _Average:
    """One average of a layer, and what calls blend into it."""

    def __init__(self, module: nn.Module, attribute: str) -> None:
        # Not by setattr, which takes longer than what is computed here.
        self._buffers, self._attribute = module._buffers, attribute
        self.begin(torch.zeros(()))

    def begin(self, value: Tensor) -> None:
        self._share, self._term = 0.0, value
        self._expected = value  # unless something else changes it

    def put_zeros(self) -> Tensor:
        """Let the layer be called with zeros; return what it was."""
        before = self._now()
        # Another tensor: autograd keeps what a call was given, and allows no change of it.
        self.put_back(torch.zeros_like(before))
        return before

    def put_back(self, before: Tensor) -> None:
        self._buffers[self._attribute] = before

    def blend(self, before: Tensor, share: float) -> None:
        """Put what a call has made of zeros into what it was before."""
        term, kept = self._now(), 1 - share
        self.put_back(torch.add(term, before, alpha=kept))
        self._expected = torch.add(term, self._expected, alpha=kept)
        self._term = torch.add(term, self._term, alpha=kept) if self._share else term
        self._share = share + kept * self._share

    def blended(self) -> tuple[Tensor, Tensor] | None:
        if not self._share:
            return None
        now = self._now()
        # Not asked for on the CPU: that would be a copy from the device.
        changed = (now != self._expected).any()
        share = torch.full_like(changed, self._share, dtype=now.dtype).masked_fill(changed, 1.0)
        return share, torch.where(changed, now, self._term)

    def _now(self) -> Tensor:
        found = self._buffers[self._attribute]
        assert found is not None
        return found


class _Layer:
    """One layer, whose calls are followed."""

    def __init__(self, module: _NormBase, averages: dict[str, str]) -> None:
        self._module = module
        self._averages = {name: _Average(module, each) for name, each in averages.items()}
        self._before: list[Tensor] = []  # during a call
        # Nearest to the call: hooks of the user's see the averages.
        module.register_forward_pre_hook(self._calling)
        module.register_forward_hook(self._called, prepend=True, always_call=True)

    def begin(self, values: Mapping[str, Tensor]) -> None:
        for name, each in self._averages.items():
            each.begin(values[name])

    def blends(self) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
        for name, each in self._averages.items():
            if (blend := each.blended()) is not None:
                yield name, blend

    def _calling(self, module: nn.Module, given: Any) -> None:
        # What is compiled, or computes for inference alone, moves averages by itself.
        if (
            not module.training
            or torch.compiler.is_compiling()
            or torch.is_inference_mode_enabled()
        ):
            return
        with torch.no_grad():
            self._before = [each.put_zeros() for each in self._averages.values()]

    def _called(self, module: nn.Module, given: Any, result: Any) -> None:
        share = self._share() if self._before and result is not None else None
        with torch.no_grad():
            for each, before in zip(self._averages.values(), self._before, strict=False):
                if share is None:  # it has raised
                    each.put_back(before)
                else:
                    each.blend(before, share)
        self._before = []

    def _share(self) -> float:
        if self._module.momentum is not None:
            return float(self._module.momentum)
        # InstanceNorm does not count, and moves nothing then.
        count = self._module.num_batches_tracked
        return 1 / float(count) if count is not None and count > 0 else 0.0


def _named(path: str) -> Iterator[tuple[str, str]]:
    for attribute in _AVERAGES:
        yield f"{path}.{attribute}" if path else attribute, attribute


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
            name: _as_array(as_kept(checked_buffer(*given[name], tensor_at(module, name))))
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
        of = form.dim, len(weight), _as_array(weight[:0]).dtype
        return WantedTable(*of, begins=lambda: (np.arange(len(weight)), _as_array(weight)))
    assert hashed is not None
    return WantedTable(
        form.dim,
        None,
        np.dtype(np.float32),
        hashed.initializer,
        lambda: (_as_array(hashed.ids), _as_array(hashed.rows)),
    )


def tensor_at(module: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer of a module."""
    path, _, attribute = name.rpartition(".")
    found: Tensor = getattr(module.get_submodule(path), attribute)
    return found


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _as_array(value: Tensor) -> np.ndarray:
    return value.detach().cpu().numpy()


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
