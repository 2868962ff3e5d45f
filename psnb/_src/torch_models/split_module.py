"""Splits a module: tables, parameters and buffers go to servers, the rest travels with closures."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from psnb._src.torch_models.hashed_embedding import HashedEmbedding
from psnb._src.torch_models.served_modules import (
    ServedEmbedding,
    ServedEmbeddingBag,
    check_embedding,
)
from psnb.errors import ConfigurationError, SerializationError

_LOOKUPS = (nn.Embedding, nn.EmbeddingBag)


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
    template : torch.nn.Module
        The module with lookups in place of embeddings, and without values that are on servers.
    tables : list of TableForm
        What becomes tables.
    parameters, buffers : dict
        The initial values of what becomes parts of variables, by name. Frozen parameters are among
        the buffers: forward may move them (momentum encoders, target networks).
    fixed : tuple of str
        The weights of frozen embeddings: too large to come with each step, they stay in the module.
    names : dict
        For each key of the module's state the name of what it is a value of; several keys may be of
        one parameter.
    """

    template: nn.Module
    tables: list[TableForm]
    parameters: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]
    fixed: tuple[str, ...]
    names: dict[str, str]


def split(module: nn.Module) -> SplitModule:
    """Split a module, which stays as it is.

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
        key: value
        for key, value in module.named_buffers()
        if key in names and id(value) not in own and value.dtype != torch.bool
        if not value.is_complex()
    }
    looked_up = {id(each.weight) for each in module.modules() if _is_lookup(each)}
    frozen = {
        first.setdefault(id(value), key): value
        for key, value in module.named_parameters()
        if not value.requires_grad and value.is_floating_point()
    }
    fixed = tuple(name for name, value in frozen.items() if id(value) in looked_up)
    buffers |= {name: value for name, value in frozen.items() if name not in fixed}
    # Large tables are not copied: the copy gets a stand-in. Tables of any id have none: what stood
    # for None in `memo` would stand for each None in the module.
    memo: dict[int, Any] = {number: nn.Parameter(torch.empty(0)) for number in weights}
    try:
        template = copy.deepcopy(module, memo)
    except Exception as error:
        raise _cannot_travel(module, error) from error
    template = _with_lookups(module, template, tables, weights)
    for name in parameters:
        value = template.get_parameter(name)
        value.data = value.data.new_zeros(()).expand(value.shape)
    try:
        cloudpickle.dumps(template)
    except Exception as error:
        raise _cannot_travel(template, error) from error
    return SplitModule(
        template,
        tables,
        {name: _array(value) for name, value in parameters.items()},
        {name: _buffer_array(value) for name, value in buffers.items()},
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
            check_embedding(path, each)
            weight = each.weight
            assert isinstance(weight, Tensor)
            using = users[id(weight)]
            # What a layer uses as a whole (a tied output layer, say) is a parameter like others.
            if (
                weight.requires_grad
                and using[0][0] is each
                and all(_is_lookup(m) for m, _ in using)
            ):
                yield TableForm(using[0][1], weight.shape[1], weight)


def _is_lookup(module: nn.Module) -> bool:
    return any(
        isinstance(module, kind) and type(module).forward is kind.forward for kind in _LOOKUPS
    )


def _with_lookups(
    module: nn.Module, template: nn.Module, tables: list[TableForm], weights: dict[int, str]
) -> nn.Module:
    """Return the copy of a module with lookups in place of embeddings."""
    hashed = {id(form.hashed): form.name for form in tables if form.hashed is not None}
    made: dict[int, nn.Module] = {}
    for path, each in module.named_modules(remove_duplicate=False):
        if id(each) in hashed:
            new: nn.Module = ServedEmbedding(hashed[id(each)])
        elif _is_lookup(each) and id(each.weight) in weights:
            name = weights[id(each.weight)]
            if isinstance(each, nn.EmbeddingBag):
                new = ServedEmbeddingBag(name, each)
            else:
                assert isinstance(each, nn.Embedding)
                new = ServedEmbedding(name, each.padding_idx, each.scale_grad_by_freq)
        else:
            continue
        new = made.setdefault(id(each), new).train(each.training)
        if not path:
            return new
        parent, _, attribute = path.rpartition(".")
        setattr(template.get_submodule(parent), attribute, new)
    return template


def _array(value: Tensor) -> np.ndarray:
    if value.dtype not in (torch.float32, torch.float64):
        raise ConfigurationError(
            f"a parameter is of {value.dtype}; servers keep float32 and float64. Make the module "
            "float32, and compute in half precision where it pays: with torch.autocast"
        )
    return value.detach().cpu().numpy()


def _buffer_array(value: Tensor) -> np.ndarray:
    """Return a buffer's value as servers can keep it: integers are exact in float64 up to 2**53."""
    wide = value.dtype == torch.float64 or not value.is_floating_point()
    return value.detach().to("cpu", torch.float64 if wide else torch.float32).numpy()


def _cannot_travel(module: nn.Module, error: Exception) -> SerializationError:
    """Return the error for a module that cannot be copied or pickled, with the part that cannot."""
    for path, each in reversed(list(module.named_modules())):
        for name, value in vars(each).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            try:
                cloudpickle.dumps(value)
            except Exception as reason:
                where = f"{path}.{name}" if path else name
                return SerializationError(
                    f"{where!r} of {type(module).__name__}, {type(value).__name__}, cannot be "
                    f"pickled: {reason}. The module travels to workers: make there what cannot "
                    "travel (locks, files, connections), in forward when it is first needed"
                )
    return SerializationError(
        f"{type(module).__name__} cannot be copied to workers: {error}. The module travels to them"
    )
