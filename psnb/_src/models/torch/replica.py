"""Replica: one thread's copy of a module, whose parameters are parts of few flat tensors.

Threads: each touches its own replica, in the modes that its closure began with; the modes that new
ones begin with are replaced as a whole.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from psnb._src.client.handles import Handle
from psnb._src.client.variable import Variable
from psnb._src.models.batch_rows import Pushed
from psnb._src.models.torch.buffers import MovingAverages, from_kept, moved
from psnb._src.models.torch.model_pass import ModelPass
from psnb._src.models.torch.module_graph import keep_here
from psnb._src.models.torch.placed import PlacedModule, tensor_at
from psnb._src.models.torch.tables import HashedEmbedding, TableWeight
from psnb._src.models.torch.tensors import from_device
from psnb._src.models.torch.worker_state import WorkerState
from psnb._src.worker.context import current_context
from psnb.errors import ConfigurationError, InvalidArrayError


class Flags(NamedTuple):
    """Settings of a module: its modes, and what is frozen.

    Attributes
    ----------
    modes : dict
        Whether each module within it is in training mode, by path.
    frozen : frozenset of str
        The names of the parameters that do not learn: that have no ``requires_grad``.
    """

    modes: dict[str, bool]
    frozen: frozenset[str]


def frozen_in(module: nn.Module) -> frozenset[str]:
    """Return the names of the parameters of a module that do not learn."""
    return frozenset(name for name, each in module.named_parameters() if not each.requires_grad)


def _modes_of(module: nn.Module) -> dict[str, bool]:
    return {path: each.training for path, each in module.named_modules()}


class Replica:
    """A module that computes with values from the servers.

    Parameters
    ----------
    placed : PlacedModule
        The module without values, and where they are.

    Attributes
    ----------
    module : torch.nn.Module
        The module.
    device : torch.device
        Where it computes.
    current : ModelPass or None
        The step that the thread is in.
    state : WorkerState
        What calls of the module leave behind.
    closure : object
        The closure that it was used in the last time; None outside of closures.
    owner : types.SimpleNamespace
        Of the passes that its tables look up with. ``frozen`` are the tables of any id that do not
        learn: no parameter of the module can say so.

    Raises
    ------
    ConfigurationError
        If this process does not have the device.
    """

    # Made where it is first needed, which may be under torch.inference_mode().
    @torch.inference_mode(mode=False)
    def __init__(self, placed: PlacedModule) -> None:
        self.device = torch.device(placed.device)
        try:
            graph = placed.graph.copied(self.device)
        except (AssertionError, RuntimeError) as error:
            raise ConfigurationError(
                f"this process cannot compute on device {placed.device!r}: {error}. Each worker "
                "that trains needs the device and a PyTorch made for it; without, leave device= "
                "out"
            ) from error
        self.module = graph.module
        self.current: ModelPass | None = None
        self.state = WorkerState(placed.fixed, placed.values.state.places)
        self.closure: object = None
        self._values, self._fixed = placed.values, placed.fixed
        values = placed.values
        self._flat = [
            torch.from_numpy(np.zeros(variable.shape, variable.dtype)).to(self.device)
            for variable in values.parameters.variables
        ]
        parts = values.parameters.split(self._flat)
        self._kept = {n: _KeptParameter(self.module, n, part) for n, part in parts.items()}
        for name, hooks in graph.hooks.items():
            kept = self._kept[name].parameter
            # The dicts that handles remove hooks from.
            kept._backward_hooks, kept._post_accumulate_grad_hooks = hooks
        self._named = dict(self.module.named_parameters())
        weights = {n: each for n, each in self._named.items() if isinstance(each, TableWeight)}
        self._kept_weights = {name: _KeptParameter(self.module, name) for name in weights}
        self.owner = SimpleNamespace(frozen=frozenset())
        hashed = [e for e in self.module.modules() if isinstance(e, HashedEmbedding)]
        self._hashed = frozenset(each.table for each in hashed)
        looking_up: list[Any] = [*weights.values(), *hashed]
        for each in looking_up:
            each.owner = self.owner
        _look_up_uncompiled(self.module)
        served = {*self._kept, *weights}
        self._strays = {name: each for name, each in self._named.items() if name not in served}
        self._loaded = self._flat  # what the servers have, of which these are copies
        self._before: dict[str, Tensor] = {}
        self._averages = MovingAverages(self.module, values.state.places)
        self._buffers = {name: _KeptBuffer(self.module, name) for name in values.state.places}

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables that it needs of the servers."""
        return (*self._values.parameters.variables, *self._values.state.variables)

    @torch.no_grad()
    def load(self, found: Mapping[Variable, Tensor]) -> None:
        """Take values from the servers."""
        parameters, buffers = self._values.parameters, self._values.state
        self._loaded = [found[variable] for variable in parameters.variables]
        for flat, value in zip(self._flat, self._loaded, strict=True):
            flat.copy_(value)
        for name, value in buffers.split([found[each] for each in buffers.variables]).items():
            buffer = self._buffers[name].put(value)
            self._before[name] = buffer.clone()
        self._averages.begin(self._before)

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that learn, with their names."""
        for name, kept in self._kept.items():
            yield name, kept.parameter

    def check(self) -> None:
        """Raise InvalidArrayError if a parameter or buffer is none like that which was placed."""
        for name, buffer in self._buffers.items():
            if (what := buffer.change()) is not None:
                raise InvalidArrayError(
                    f"buffer {name!r} {what} while the module ran: servers keep it as it was "
                    "placed. Give it its largest size from the beginning, and count in a buffer of "
                    "integers how much of it is in use; or keep what a step needs alone in a "
                    "local variable"
                )
        for name, each in {**self._kept, **self._kept_weights}.items():
            if (what := each.change()) is not None:
                raise InvalidArrayError(
                    f"parameter {name!r} {what} while the module ran: servers keep it as it was "
                    "placed. A model whose layers change is another model: place it again, under "
                    "another name="
                )

    @torch.no_grad()
    def written(self) -> dict[int, Tensor]:
        """Return for each variable whether it has other values than the servers gave.

        As tensors: to read them from a device now would wait for it, so they go back with the
        gradients.
        """
        pairs = enumerate(zip(*self._bits(), strict=True))
        if self.device.type == "cpu":  # in half the time
            return {n: torch.tensor(not torch.equal(now, loaded)) for n, (now, loaded) in pairs}
        return {n: (now != loaded).any() for n, (now, loaded) in pairs}

    @torch.no_grad()
    def rewritten(self, written: Mapping[int, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what frozen parameters were set to; see `written`.

        Raises
        ------
        InvalidArrayError
            If one that learns was written to.
        """
        if not any(written.values()):
            return {}
        now, loaded = map(self._values.parameters.split, self._bits())
        changed = [name for name, value in now.items() if not torch.equal(value, loaded[name])]
        kept = {name: self._kept[name].parameter for name in changed}
        names = [name for name, each in kept.items() if each.requires_grad or each.grad is not None]
        if not names:
            return dict(zip(kept, from_device(list(kept.values())), strict=True))
        raise InvalidArrayError(
            f"parameters {', '.join(map(repr, names[:5]))} ({len(names)} in all) were written to "
            "in the step, which the servers would not have: they change parameters by gradients "
            "alone. Give the optimizer or the loss what keeps weights in bounds (weight_decay=, a "
            "penalty), clamp what is computed from them, or make them buffers"
        )

    def _bits(self) -> tuple[list[Tensor], list[Tensor]]:
        # As numbers, NaN would differ from itself.
        kinds = {4: torch.int32, 8: torch.int64}
        now, loaded = (
            [each.view(kinds[each.element_size()]) for each in several]
            for several in (self._flat, self._loaded)
        )
        return now, loaded

    def learns(self) -> bool:
        """Return whether anything of it does: parameters, or tables."""
        if self._hashed - self.owner.frozen:
            return True
        return any(e.requires_grad for n, e in self._named.items() if n not in self._strays)

    def flags(self) -> Flags:
        """Return what is set at the moment."""
        frozen = [name for name, each in self._named.items() if not each.requires_grad]
        return Flags(_modes_of(self.module), self.owner.frozen.union(frozen))

    def set(self, flags: Flags) -> None:
        """Set modes, and what does not learn."""
        for path, each in self.module.named_modules():
            each.training = flags.modes.get(path, each.training)
        self.freeze(flags.frozen)

    def freeze(self, names: frozenset[str]) -> None:
        """Let these parameters not learn, and all others."""
        self.owner.frozen = self._hashed & names
        for name, each in self._named.items():
            if each.requires_grad is (name in names):
                each.requires_grad_(name not in names)

    def set_learning(self, learns: bool) -> None:
        """Freeze all of it, or let all learn that can."""
        everything = self._hashed.union(self._named)
        self.freeze(everything & self._strays.keys() if learns else everything)

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of parameters, by name.

        Raises
        ------
        ConfigurationError
            If there is one of a parameter for which servers have no optimizer.
        """
        if strays := [name for name, each in self._strays.items() if each.grad is not None]:
            of_torch = (
                ""
                if set(strays) & set(self._fixed)  # an embedding, which is on no server
                else "Give psnb.torch.distribute an optimizer of torch that has them, or "
            )
            way = (
                f"{of_torch}distribute the module when they learn, and freeze them afterwards: "
                "model.requires_grad_(False), or parameter by parameter"
            )
            raise ConfigurationError(
                f"parameters {', '.join(map(repr, strays[:5]))} ({len(strays)} in all) have "
                "gradients, and were frozen when the module was distributed: servers have no "
                f"optimizer for them. {way[0].upper()}{way[1:]}"
            )
        return {
            name: parameter.grad
            for name, parameter in self.parameters()
            if parameter.grad is not None
        }

    @torch.no_grad()
    def moved(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the shares and terms of buffers that calls have moved, by name; see `Blend`.

        Averages are blended; of all else see `psnb._src.models.torch.buffers.moved`.
        """
        shares: dict[str, Tensor] = {}
        terms: dict[str, Tensor] = {}
        averages = self._averages.blends()
        for name, before in self._before.items():
            now = tensor_at(self.module, name).detach()
            shares[name], terms[name] = averages.get(name) or moved(before, now)
        # Servers have float32 and float64, and numpy no bfloat16.
        return shares, {n: t.float() if t.element_size() < 4 else t for n, t in terms.items()}

    def joined(
        self,
        gradients: Mapping[str, np.ndarray],
        shares: Mapping[str, np.ndarray],
        terms: Mapping[str, np.ndarray],
        rewritten: Mapping[str, np.ndarray],
    ) -> dict[Handle, Pushed]:
        """Return what to push to variables; nothing for those without any."""
        parameters, buffers = self._values.parameters, self._values.state
        found: dict[Handle, Pushed] = dict(parameters.gradients(gradients).items())
        for variable, blend in parameters.blends(dict.fromkeys(rewritten, 1.0), rewritten).items():
            found[variable] = [found[variable], blend] if variable in found else blend
        found.update(buffers.blends(shares, terms).items())
        return found

    def clear(self) -> None:
        """Forget gradients."""
        for _, parameter in (*self.parameters(), *self._strays.items()):
            parameter.grad = None


def _look_up_uncompiled(module: nn.Module) -> None:
    """Have compiled modules call embeddings as they are: a compiler cannot follow a lookup."""
    if "torch._dynamo" not in sys.modules:
        return  # nothing is compiled, and the import takes seconds
    for each in module.modules():
        own = each._parameters.values()
        if isinstance(each, HashedEmbedding) or any(isinstance(p, TableWeight) for p in own):
            each.forward = torch.compiler.disable(each.forward)


class _KeptParameter:
    """A parameter that is to stay the one that it is; it may show its part of a flat tensor."""

    def __init__(self, module: nn.Module, name: str, part: Tensor | None = None) -> None:
        *self._path, self._attribute = name.split(".")
        self._module = module
        self.parameter = module.get_parameter(name)
        self._shape, self._address = self.parameter.shape, None if part is None else part.data_ptr()
        if part is not None:
            self.parameter.data = part

    def change(self) -> str | None:
        """Return its present value, if it has changed."""
        holder: nn.Module | None = self._module
        for part in self._path:
            holder = holder._modules.get(part) if holder is not None else None
        now = holder._parameters.get(self._attribute) if holder is not None else None
        if now is not None and self._is_same(now):  # nearly always, and quickly found
            return None
        try:
            now = getattr(self._module.get_submodule(".".join(self._path)), self._attribute)
            shape = now.shape
        except AttributeError:
            return "was taken away"
        if shape != self._shape:
            return f"changed its shape from {tuple(self._shape)} to {tuple(shape)}"
        return None if self._is_same(now) else "was replaced by another tensor"

    def _is_same(self, now: Tensor) -> bool:
        if self._address is None:
            return now is self.parameter
        same = now is self.parameter and now.shape == self._shape
        return same and now.data_ptr() == self._address


class _KeptBuffer:
    """A buffer, or a frozen parameter, that comes from the servers."""

    def __init__(self, module: nn.Module, name: str) -> None:
        path, _, self._attribute = name.rpartition(".")
        holder = module.get_submodule(path)
        frozen = self._attribute in holder._parameters
        self._held: dict[str, Any] = holder._parameters if frozen else holder._buffers
        placed: Any = self._held[self._attribute]
        self._shape, self._dtype, self._device = placed.shape, placed.dtype, placed.device

    def put(self, kept: Tensor) -> Tensor:
        """Take the value that servers keep; return the buffer."""
        value = from_kept(kept, self._dtype)
        if self.change() is not None:  # by a step that was refused
            self._held[self._attribute] = value.to(self._device, copy=True)
        found: Tensor = self._held[self._attribute]
        return found.copy_(value)

    def change(self) -> str | None:
        """Return its present value, if it is not the placed one."""
        now = self._held.get(self._attribute)
        if now is None:
            return "was taken away"
        if now.shape != self._shape:
            return f"changed its shape from {tuple(self._shape)} to {tuple(now.shape)}"
        return None if now.dtype == self._dtype else f"became {now.dtype} from {self._dtype}"


class Replicas:
    """The replicas of a module.

    Parameters
    ----------
    placed : PlacedModule
        The module.
    flags : Flags, optional
        The settings that closures begin with, as the notebook has set them; by default
        ``placed``'s.
    """

    def __init__(self, placed: PlacedModule, flags: Flags | None = None) -> None:
        self.placed = placed
        template = placed.template
        self._flags = flags or Flags(_modes_of(template), frozen_in(template))
        self._local = threading.local()

    def get(self) -> Replica:
        """Return the replica of this thread.

        Raises
        ------
        ConfigurationError
            If this process does not have the device.
        """
        if (found := self._found()) is None:
            self._local.replica = Replica(self.placed)
            self._local.replica.set(self._flags)
            if current_context() is None:
                keep_here(self._local.replica.module, "the notebook's model.module")
            found = self._found()
            assert found is not None
        return found

    def flags(self) -> Flags:
        """Return what is set in this thread."""
        replica = self._found()
        return self._flags if replica is None else replica.flags()

    def freeze(self, frozen: frozenset[str]) -> None:
        """Set which parameters do not learn: as `train`."""
        if (replica := self.get() if current_context() is not None else self._found()) is not None:
            replica.freeze(frozen)
        if current_context() is None:
            self._flags = self._flags._replace(frozen=frozen)

    def train(self, mode: bool) -> None:
        """Set the mode: in the notebook for closures too, in a closure for the rest of it."""
        if current_context() is not None:
            self.get().module.train(mode)
            return
        if (replica := self._found()) is not None:
            replica.module.train(mode)
        self.placed.template.train(mode)  # which may have a `train` of its own
        self._flags = self._flags._replace(modes=_modes_of(self.placed.template))

    def _found(self) -> Replica | None:
        found: Replica | None = getattr(self._local, "replica", None)
        context = current_context()
        if found is not None and context is not None:
            closure = context.closure, context.attempt
            if found.closure != closure:
                found.closure = closure
                found.set(self._flags)
        return found
