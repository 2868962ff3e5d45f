"""Splits a module: tables, parameters and buffers go to servers, the rest travels with closures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from psnb._src.models.placing import WantedModel, WantedTable, local_value
from psnb._src.models.torch.buffers import as_kept, check_buffer, is_integer
from psnb._src.models.torch.module_graph import (
    ModuleGraph,
    check_module,
    check_part,
    check_references,
    computed_before_calls,
    hooks_of,
    placeholder,
)
from psnb._src.models.torch.tables import IDS, ROWS, HashedEmbedding, TableWeight
from psnb._src.models.torch.tensors import array_of
from psnb.errors import ConfigurationError, SerializationError

_LOOKUPS = (nn.Embedding, nn.EmbeddingBag)
_LEARNING_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class SplitModule:
    """The parts of a module.

    Attributes
    ----------
    graph : ModuleGraph
        The module without values that are on servers; the weights of tables only stand for them.
    wanted : WantedModel
        What it needs on the servers, buffers as `as_kept`. Frozen parameters are among these:
        forward may move them (momentum encoders, target networks).
    frozen : tuple of str
        Which of the buffers are parameters that could learn.
    fixed : tuple of str
        The weights of frozen embeddings, and of integers: too large to come with each step, they
        stay in the module.
    names : dict
        For each key of the module's state the name of its parameter; several keys may be of one.
    local : tuple of str
        The keys of the state whose values are not on servers.
    """

    graph: ModuleGraph
    wanted: WantedModel
    frozen: tuple[str, ...]
    fixed: tuple[str, ...]
    names: dict[str, str]
    local: tuple[str, ...]


def local_values(module: nn.Module, keys: Collection[str]) -> dict[str, str]:
    """Return what identifies the values that stay in a module, by their keys in its state."""
    state = module.state_dict(keep_vars=True)
    found = {}
    for key in keys:
        if isinstance(value := state[key], Tensor):
            whole = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            found[key] = local_value(value.dtype, value.shape, whole)
    return found


def split(module: nn.Module, trained: Collection[int] = ()) -> SplitModule:
    """Split a module, which stays as it is.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    trained : collection of int
        The ids of parameters that an optimizer has: frozen ones may learn later.

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
    tables = dict(_tables(module))
    hashed = {name: each for name, each in tables.items() if isinstance(each, HashedEmbedding)}
    of_rows = {name: each for name, each in tables.items() if isinstance(each, Tensor)}
    weights = {id(each): name for name, each in of_rows.items()}
    # If one tensor has several names, the first one counts.
    names: dict[str, str] = {}
    first: dict[int, str] = dict(weights)
    for table, each in hashed.items():
        first |= {id(b): f"{table}.{n}" for n, b in each.named_buffers()}
    for key, value in module.state_dict(keep_vars=True).items():
        names[key] = first.setdefault(id(value), key) if isinstance(value, Tensor) else key
    parameters = {
        first.setdefault(id(value), key): value
        for key, value in module.named_parameters()
        if value.requires_grad and id(value) not in weights
    }
    own = {id(buffer): buffer for each in hashed.values() for buffer in each.buffers()}
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
    instead: dict[int, Any] = {id(e): TableWeight(name, e) for name, e in of_rows.items()}
    instead |= {number: buffer[:0].clone() for number, buffer in own.items()}
    instead |= {id(weight): placeholder(weight) for weight in computed_before_calls(module)}
    try:
        graph = ModuleGraph.of(module, instead, later)
    except ConfigurationError as error:
        raise _not_followed(module, instead, error) from error
    except Exception as error:  # reduction of the user's objects may raise anything
        raise _cannot_travel(module, error) from error
    tables_of = {id(each): table for table, each in hashed.items()}
    for path, part in module.named_modules():
        if id(part) in tables_of:
            graph.module.get_submodule(path).table = tables_of[id(part)]  # type: ignore[assignment]
    for name in parameters:
        value = graph.module.get_parameter(name)
        value.data = placeholder(value)
    try:
        check_references(module, graph)
    except ConfigurationError:
        raise
    except Exception as error:  # of a pickled object, which raises errors of its own
        raise _cannot_travel(graph.module, error) from error
    for value in parameters.values():
        if value.dtype not in _LEARNING_DTYPES:
            raise ConfigurationError(
                f"a parameter is of {value.dtype}; servers keep float32 and float64. Make the "
                "module float32, and compute in half precision where it pays: with torch.autocast"
            )
    served = {*weights.values(), *parameters, *buffers}
    served |= {f"{table}.{part}" for table in hashed for part in (IDS, ROWS)}
    local = tuple(key for key, name in names.items() if name not in served)
    wanted = WantedModel(
        {name: array_of(value) for name, value in parameters.items()},
        {name: array_of(as_kept(value.detach())) for name, value in buffers.items()},
        {name: _wanted_table(each) for name, each in tables.items()},
        local_values(graph.module, local),
    )
    learning = (n for n, v in frozen.items() if n in buffers and v.dtype in _LEARNING_DTYPES)
    return SplitModule(graph, wanted, tuple(learning), fixed, names, local)


def _wanted_table(of: Tensor | HashedEmbedding) -> WantedTable:
    """Return what a table must be to be adopted, and what it begins with otherwise."""
    if isinstance(of, HashedEmbedding):
        form = of.dim, None, np.dtype(np.float32), of.initializer
        return WantedTable(*form, lambda: (array_of(of.ids), array_of(of.rows)))
    count, dim = of.shape
    dtype = array_of(of[:0]).dtype
    return WantedTable(dim, count, dtype, begins=lambda: (np.arange(count), array_of(of)))


def _tables(module: nn.Module) -> Iterator[tuple[str, Tensor | HashedEmbedding]]:
    """Yield the weights and modules that become tables, by the name of parameter or module."""
    users: dict[int, list[tuple[nn.Module, str]]] = {}
    for path, each in module.named_modules():
        for name, parameter in each.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            users.setdefault(id(parameter), []).append((each, full))
    for path, each in module.named_modules():
        if isinstance(each, HashedEmbedding):
            yield path or "embedding", each
        elif _is_lookup(each):
            _check_embedding(path, each)
            weight = each.weight
            assert isinstance(weight, Tensor)
            using = users[id(weight)]
            # A table that a layer uses as a whole (a tied output layer, say) is a parameter like
            # others, and so is one with hooks: they get the gradient of the whole.
            if (
                weight.requires_grad
                and not any(hooks_of(weight))
                and using[0][0] is each
                and all(_is_lookup(m) for m, _ in using)
            ):
                yield using[0][1], weight


def _is_lookup(module: nn.Module) -> bool:
    return "weight" in module._parameters and any(
        isinstance(module, kind) and type(module).forward is kind.forward for kind in _LOOKUPS
    )


def _not_followed(
    module: nn.Module, instead: Mapping[int, Any], error: ConfigurationError
) -> ConfigurationError:
    """Return the error for an object that refers to parameters in vain."""
    for where, value in _attributes(module):
        try:
            check_part(module, instead, value)
        except ConfigurationError as reason:
            return ConfigurationError(f"{where} holds {reason}")
        except Exception:  # another one's turn
            continue
    return error


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield modules' attributes other than parts, inner ones first, and hooks of parameters."""
    for path, each in reversed(list(module.named_modules())):
        for name, value in vars(each).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield f"{f'{path}.{name}' if path else name!r} of {type(module).__name__}", value
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            yield f"a hook of parameter {name!r}", hooks_of(parameter)


def _check_embedding(name: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
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
