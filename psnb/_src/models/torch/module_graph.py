"""ModuleGraph: a module, and what belongs to its parameters, as one graph of objects. Pure.

Modules, parameters and buffers are referred to from anywhere: from functions and hooks that an
attribute holds, lists next to the module, objects of the user. In a copy all of these references
lead into the copy. So a graph is copied by pickling it, where functions are followed;
``copy.deepcopy`` takes functions over as they are, with the module that they have captured.

``torch.nn.utils.parametrize`` gives each module a class of its own, whose property computes the
weight and whose objects refuse to be pickled. A copy gets another such class, made by the same
functions of torch: they are not public, but what they make is, and ``register_parametrization``
would compute the parameters again from a weight that is not there yet.
"""

from __future__ import annotations

import copy
import io
import pickle
from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from psnb._src.models.references import functions_of, leads_to, used_global
from psnb._src.models.torch.tables import TableWeight
from psnb._src.protocol.notebook_only import leave_behind
from psnb.errors import ConfigurationError


def reduced(module: nn.Module) -> tuple[Any, ...]:
    """Return how a module with parametrizations is pickled, as ``__reduce_ex__`` does."""
    kind = parametrize.type_before_parametrizations(module)
    names = tuple(module.parametrizations)  # type: ignore[arg-type]
    state = super(type(module), module).__getstate__()
    return _made, (kind, names), state


def computed_before_calls(module: nn.Module) -> Iterator[Tensor]:
    """Yield the weights in attributes that hooks compute before each call."""
    for each in module.modules():
        for hook in each._forward_pre_hooks.values():
            match hook:
                case WeightNorm() | SpectralNorm():
                    name = hook.name
                case prune.BasePruningMethod():
                    name = hook._tensor_name
                case _:
                    continue
            if isinstance(found := vars(each).get(name), Tensor):
                yield found


def placeholder(value: Tensor) -> Tensor:
    """Return a tensor of the same form that takes no memory."""
    with torch.no_grad():
        return value.new_zeros(()).expand(value.shape)


def _made(kind: type[nn.Module], names: Sequence[str]) -> nn.Module:
    """Return a module without state, whose weights of these names are computed."""
    made = kind.__new__(kind)
    parametrize._inject_new_class(made)
    for name in names:
        parametrize._inject_property(made, name)
    type(made).__reduce_ex__ = lambda self, protocol: reduced(self)  # type: ignore[method-assign, arg-type]
    return made


Span = tuple[int, int]
"""Where in memory something begins and ends."""

Hooks = tuple[Any, Any]
"""The hooks of a gradient, and the hooks after its accumulation, as torch keeps them."""


@dataclass(frozen=True)
class ModuleGraph:
    """A module, and what belongs to its parameters.

    Attributes
    ----------
    module : torch.nn.Module
        The module.
    hooks : dict
        By parameter's name its hooks. Handles that the module holds remove them from these.
    """

    module: nn.Module
    hooks: dict[str, Hooks]

    @classmethod
    def of(
        cls, module: nn.Module, instead: Mapping[int, object], later: Container[int] = ()
    ) -> ModuleGraph:
        """Copy the graph of a module.

        Parameters
        ----------
        module : torch.nn.Module
            The module.
        instead : mapping
            By id the copy's objects in place of tensors.
        later : container of int
            The ids of frozen parameters that may learn later: they are followed as learned ones
            are.

        Raises
        ------
        ConfigurationError
            If there is a reference to a parameter that cannot be followed.
        """
        hooks = {
            name: hooks_of(each)
            for name, each in module.named_parameters()
            if (each.requires_grad or id(each) in later) and any(hooks_of(each))
        }
        copied: ModuleGraph = _Copier(_Known(module, later), instead).copied(cls(module, hooks))
        return copied

    def copied(self, device: torch.device) -> ModuleGraph:
        """Return a copy on a device."""
        known = _Known(self.module)
        instead = {number: _on(each, device) for number, each in known.tensors.items()}
        copied: ModuleGraph = _Copier(known, instead).copied(self)
        with without_tables(copied.module):
            copied.module.to(device)  # which may have a `to` of its own
        return copied


def hooks_of(parameter: Tensor) -> Hooks:
    return parameter._backward_hooks, parameter._post_accumulate_grad_hooks


def check_part(module: nn.Module, instead: Mapping[int, object], value: object) -> None:
    """Raise what copying the graph of a module raises for what one of its modules holds.

    Raises
    ------
    Exception
        As `ModuleGraph.of`, or whatever is raised where something cannot be pickled.
    """
    others = {id(each): each for each in module.modules()}
    _Copier(_Known(module), {**instead, **others}).dump(value)


def check_references(module: nn.Module, graph: object) -> None:
    """Raise if a copied graph cannot be pickled, or leads to the module that it was copied of.

    Raises
    ------
    ConfigurationError
        If it leads there: through a class, which a copy shares.
    Exception
        Whatever is raised where something cannot be pickled.
    """
    _Checking(_Known(module)).dump(graph)


def check_module(module: nn.Module, later: Container[int] = ()) -> None:
    """Raise ConfigurationError if what a module does is not all in its graph.

    ``later`` is as for `ModuleGraph.of`.
    """
    known = _Known(module, later)
    known.check_apart()
    for path, each in module.named_modules():
        if isinstance(each, torch.jit.ScriptModule):
            raise ConfigurationError(
                f"{path or 'the module'!r} is of TorchScript, which keeps parameters where servers "
                "cannot give them values: distribute the module that it was made of"
            )
    if torch.nn.modules.module._has_any_global_hook():
        raise ConfigurationError(
            "there are hooks for all modules of this process (register_module_forward_hook, or "
            "another function of torch.nn.modules.module), which workers would not run: remove "
            "them, and register what the model needs at its own modules"
        )
    for kind in {type(each) for each in module.modules()}:
        for function in functions_of(kind):
            _check_globals(function, known)


def keep_here(module: nn.Module, served: str) -> None:
    """Let closures that have captured a module, or a part of it, say what to capture instead.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    served : str
        What it is.
    """
    known = _Known(module)
    why = (
        f"a closure uses {{}} of {served}: on a worker that would be a copy that does not learn. "
        "In closures use model.module, of the distributed model; copy.deepcopy, before the "
        "closure, keeps the values of then"
    )
    for each in (*module.modules(), *known.tensors.values()):
        leave_behind(each, why.format(known.of(each)))


class _Known:
    """The modules, parameters and buffers of a module, and where learned ones are in memory.

    Parameters with an id in ``later`` learn later.
    """

    def __init__(self, module: nn.Module, later: Container[int] = ()) -> None:
        self.modules = {id(each): path for path, each in module.named_modules()}
        named = [*module.named_parameters(), *module.named_buffers()]
        self.tensors = {id(each): each for _, each in named}
        self.names = {id(each): name for name, each in named}
        learns = [e for e in module.parameters() if e.requires_grad or id(e) in later]
        spans = [(span, each) for each in learns if (span := span_of(each)) is not None]
        self._spans = sorted(spans, key=lambda entry: entry[0])
        self._starts = [start for (start, _), _ in self._spans]

    def of(self, value: object) -> str | None:
        """Return which part of the module a value is; None if it is none."""
        if (path := self.modules.get(id(value))) is not None:
            return f"module {path!r}" if path else "the module itself"
        if (name := self.names.get(id(value))) is not None:
            return f"parameter {name!r}"
        return None

    def shown(self, value: object) -> Tensor | None:
        """Return the parameter whose memory something else shows."""
        if id(value) in self.names or (span := span_of(value)) is None:
            return None
        return self._at(span)

    def touched(self, value: object) -> str | None:
        """Return which part of the module a value is, or shows the memory of."""
        if (what := self.of(value)) is None and (shown := self.shown(value)) is not None:
            return f"the memory of {self.of(shown)}"
        return what

    def check_apart(self) -> None:
        """Raise ConfigurationError if a parameter shares memory with another one, or a buffer."""
        for (one, first), (other, second) in pairwise(self._spans):
            if other[0] < one[1]:
                raise self._same_memory(second, first)
        own = {id(each) for _, each in self._spans}
        for each in self.tensors.values():
            span = span_of(each) if id(each) not in own else None
            if span is not None and (shown := self._at(span)) is not None:
                raise self._same_memory(each, shown)

    def _at(self, span: Span) -> Tensor | None:
        # Learned ones do not share memory.
        at = bisect_left(self._starts, span[1]) - 1
        return self._spans[at][1] if at >= 0 and self._spans[at][0][1] > span[0] else None

    def _same_memory(self, one: Tensor, other: Tensor) -> ConfigurationError:
        return ConfigurationError(
            f"{self.names[id(one)]!r} shows the memory of {self.names[id(other)]!r}: servers would "
            "keep both, each with values of its own. Let both be one nn.Parameter, or take the one "
            "of the other in forward"
        )


def span_of(value: object) -> Span | None:
    """Return where the elements of a tensor or an array are; None if it has no memory to show."""
    if isinstance(value, np.ndarray):
        start = value.__array_interface__["data"][0]
        return (start, start + value.nbytes) if value.nbytes else None
    if not isinstance(value, Tensor) or isinstance(value, TableWeight) or is_lazy(value):
        return None
    if not value.numel() or value.layout is not torch.strided or value.is_meta:
        return None
    last = sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    start = value.data_ptr()
    return start, start + (last + 1) * value.element_size()


class _Pickler(cloudpickle.Pickler):
    def __init__(self, known: _Known) -> None:
        self.buffer = io.BytesIO()
        super().__init__(self.buffer, protocol=5)
        self.known = known

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.jit.ScriptFunction):
            raise ConfigurationError(
                f"{obj.name}, a function of TorchScript, which cannot travel to workers: use the "
                "function that it was made of"
            )
        if isinstance(obj, nn.Module) and parametrize.is_parametrized(obj):
            return reduced(obj)
        return super().reducer_override(obj)


class _Checking(_Pickler):
    """Raises ConfigurationError if what is pickled leads to the module, or a part of it."""

    def persistent_id(self, obj: Any) -> Any:
        if (what := self.known.touched(obj)) is not None:
            raise ConfigurationError(
                f"a class of the module, or one of its functions, refers to {what} as a global or "
                "an attribute of a class, which a copy for workers would share with it: refer to "
                "it by an attribute of a module"
            )
        return None


class _Copier(_Pickler):
    """Copies a graph: the parts of the module, and references to it."""

    def __init__(self, known: _Known, instead: Mapping[int, object]) -> None:
        super().__init__(known)
        self._instead = instead
        self._memo: dict[int, Any] = {}
        self._places: dict[int, int] = {}
        self._kept: list[tuple[Any, Any]] = []  # with what it is of, whose id so stays its own

    def copied(self, value: Any) -> Any:
        self.dump(value)
        self.buffer.seek(0)
        unpickler = pickle.Unpickler(self.buffer)
        unpickler.persistent_load = [each for _, each in self._kept].__getitem__  # type: ignore[method-assign]
        return unpickler.load()

    def persistent_id(self, obj: Any) -> Any:
        if (place := self._places.get(id(obj))) is not None:
            return place
        if id(obj) in self._instead:
            return self._keep(obj, self._instead[id(obj)])
        if isinstance(obj, Tensor):
            return self._keep(obj, self._tensor(obj))
        if isinstance(obj, type | ModuleType | CodeType):
            return self._keep(obj, obj)
        if isinstance(obj, FunctionType):
            try:
                if leads_to(obj, self.known.touched, (Tensor,)) is not None:
                    return None
            except Exception:  # what cannot be pickled may lead to one
                return None
            _check_globals(obj, self.known)
            return self._keep(obj, obj)
        if isinstance(obj, np.ndarray) and (shown := self.known.shown(obj)) is not None:
            raise self._hidden("an array", shown)
        if isinstance(obj, torch.optim.Optimizer):
            for each in (each for group in obj.param_groups for each in group["params"]):
                if (what := self.known.of(each)) is not None:
                    raise ConfigurationError(
                        f"a torch.optim.{type(obj).__name__} of {what}. What optimizers do is done "
                        "by servers: give psnb.torch.distribute sparse= and dense="
                    )
        return None

    def _keep(self, obj: Any, copied: Any) -> int:
        self._places[id(obj)] = len(self._kept)
        self._kept.append((obj, copied))
        return len(self._kept) - 1

    def _tensor(self, tensor: Tensor) -> Tensor:
        if (shown := self.known.shown(tensor)) is not None:
            raise self._hidden("a tensor", shown)
        if not tensor.is_leaf:
            raise ConfigurationError(
                "a tensor that was computed of parameters, and would stay as it is while they "
                "learn: compute it in forward; if a call has left it, set it to None before"
            )
        made: Tensor = copy.deepcopy(tensor, self._memo)
        vars(made).update(copy.deepcopy(vars(tensor), self._memo))  # torch leaves them out
        return made

    def _hidden(self, what: str, parameter: Tensor) -> ConfigurationError:
        return ConfigurationError(
            f"{what} that shows the memory of parameter {self.known.names[id(parameter)]!r}, whose "
            "values are on servers and are pulled for each step. Refer to the parameter itself, "
            "and take of it in forward what is needed"
        )


def _check_globals(function: FunctionType, known: _Known) -> None:
    if (used := used_global(function, known.of)) is not None:
        raise ConfigurationError(
            f"{function.__qualname__}, a function that uses global {used[0]!r}, which is "
            f"{used[1]}: it would stay as it is now. Refer to it by an attribute of a module"
        )


def _on(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a parameter or buffer on a device."""
    if isinstance(tensor, TableWeight):
        return TableWeight(tensor.table, tensor, device)
    made: Tensor = copy.deepcopy(tensor)
    if made.device != device and isinstance(made, nn.Parameter):
        made = type(made)(made.data.to(device), made.requires_grad)  # as torch copies them
    made = made.to(device)  # the same, if it is there
    vars(made).update(copy.deepcopy(vars(tensor)))
    return made


@contextmanager
def without_tables(module: nn.Module) -> Iterator[None]:
    """Take the weights of tables out of a module for what asks for values of all parameters."""
    held = [
        (each._parameters, name, parameter)
        for each in module.modules()
        for name, parameter in each._parameters.items()
        if isinstance(parameter, TableWeight)
    ]
    for parameters, name, _ in held:
        parameters[name] = None
    try:
        yield
    finally:
        for parameters, name, parameter in held:
            parameters[name] = parameter
