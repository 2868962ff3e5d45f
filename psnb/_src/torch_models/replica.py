"""Replica: one thread's copy of a module, whose parameters are parts of few flat tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from psnb._src.parameters import Blend, Handle, Variable
from psnb._src.torch_models.hashed_embedding import HashedEmbedding
from psnb._src.torch_models.model_pass import ModelPass
from psnb._src.torch_models.model_values import tensor_at
from psnb._src.torch_models.module_graph import set_hooks
from psnb._src.torch_models.moving_averages import MovingAverages
from psnb._src.torch_models.placed_module import PlacedModule
from psnb._src.torch_models.table_weight import TableWeight
from psnb._src.torch_models.worker_state import WorkerState
from psnb.errors import GradientError


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
    owner : object
        Of the passes that its tables look up with.

    Raises
    ------
    ConfigurationError
        If this process does not have the device.
    """

    # Made where it is first needed, which may be under torch.inference_mode().
    @torch.inference_mode(mode=False)
    def __init__(self, placed: PlacedModule) -> None:
        graph, self.device = placed.copied()
        self.module = graph.module
        self.current: ModelPass | None = None
        self.state = WorkerState(placed.values.fixed)
        self.closure: object = None
        self._values = values = placed.values
        self._flat = [
            torch.from_numpy(np.zeros(variable.shape, variable.dtype)).to(self.device)
            for variable in values.parameters.variables
        ]
        parts = values.parameters.split(self._flat)
        self._kept = {name: _Kept(self.module, name, part) for name, part in parts.items()}
        for name, hooks in graph.hooks.items():
            set_hooks(self._kept[name].parameter, hooks)
        for view in graph.views:
            start = parts[view.of].storage_offset() + view.offset
            view.tensor.data = parts[view.of].as_strided(view.size, view.stride, start)
        weights = dict(graph.weights())
        self._kept_weights = {name: _KeptWeight(self.module, name) for name in weights}
        self.owner = object()
        for each in (*weights.values(), *self.module.modules()):
            if isinstance(each, TableWeight | HashedEmbedding):
                each.owner = self.owner
        self._loaded = self._flat  # what the servers have, of which these are copies
        self._before: dict[str, Tensor] = {}
        self._averages = MovingAverages(self.module, values.buffers.places)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """What it needs of the servers beside rows."""
        return (*self._values.parameters.variables, *self._values.buffers.variables)

    @torch.no_grad()
    def load(self, found: Mapping[Variable, Tensor]) -> None:
        """Take values from the servers."""
        parameters, buffers = self._values.parameters, self._values.buffers
        self._loaded = [found[variable] for variable in parameters.variables]
        for flat, value in zip(self._flat, self._loaded, strict=True):
            flat.copy_(value)
        for name, value in buffers.split([found[each] for each in buffers.variables]).items():
            buffer = tensor_at(self.module, name)
            buffer.copy_(value)
            self._before[name] = buffer.clone()
        self._averages.begin(self._before)

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that learn, with their names."""
        for name, kept in self._kept.items():
            yield name, kept.parameter

    def check(self) -> None:
        """Raise GradientError if a parameter is another one than that which was placed."""
        kept: dict[str, _Kept | _KeptWeight] = {**self._kept, **self._kept_weights}
        for name, each in kept.items():
            if (what := each.change()) is not None:
                raise GradientError(
                    f"parameter {name!r} {what} while the module ran: servers keep it as it was "
                    "placed. A model whose layers change is another model: place it anew, under "
                    "another name="
                )

    @torch.no_grad()
    def written(self) -> dict[int, Tensor]:
        """Return for each variable whether it has other values than the servers gave.

        As tensors: to ask a device now would wait for it, so they go back with the gradients.
        """
        pairs = enumerate(zip(*self._bits(), strict=True))
        if self.device.type == "cpu":  # in half the time
            return {n: torch.tensor(not torch.equal(now, loaded)) for n, (now, loaded) in pairs}
        return {n: (now != loaded).any() for n, (now, loaded) in pairs}

    @torch.no_grad()
    def check_unwritten(self, written: Mapping[int, np.ndarray]) -> None:
        """Raise GradientError if a parameter was written to; see `written`."""
        if not any(written.values()):
            return
        now, loaded = map(self._values.parameters.split, self._bits())
        names = [name for name, value in now.items() if not torch.equal(value, loaded[name])]
        raise GradientError(
            f"parameters {', '.join(map(repr, names[:5]))} ({len(names)} in all) were written to "
            "in the step, which the servers would not have: they change parameters by gradients "
            "alone. Give the optimizer or the loss what keeps weights in bounds (weight_decay=, a "
            "penalty), clamp what is computed from them, or make them buffers"
        )

    def _bits(self) -> tuple[list[Tensor], list[Tensor]]:
        # Of numbers, NaN would differ from itself.
        kinds = {4: torch.int32, 8: torch.int64}
        now, loaded = (
            [each.view(kinds[each.element_size()]) for each in several]
            for several in (self._flat, self._loaded)
        )
        return now, loaded

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of parameters, by name."""
        return {
            name: parameter.grad
            for name, parameter in self.parameters()
            if parameter.grad is not None
        }

    @torch.no_grad()
    def moved(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the shares and terms of what calls have moved in buffers, by name; see `Blend`.

        Averages are blended, and what integers have counted is added. Of other buffers nobody knows
        what a late change would make of them, so they are set to what this step has computed.
        """
        shares: dict[str, Tensor] = {}
        terms: dict[str, Tensor] = {}
        averages = self._averages.blends()
        for name, before in self._before.items():
            now = tensor_at(self.module, name).detach()
            if name in averages:
                shares[name], terms[name] = averages[name]
            elif not now.is_floating_point():
                shares[name] = torch.zeros((), device=now.device)
                terms[name] = now.double() - before.double()
            else:
                changed = now != before
                # All of it, or elements would be of several steps; but what stays infinite, in
                # masks, could not be pushed.
                moved = changed.any() & (changed | ~now.isinf())
                shares[name], terms[name] = moved.float(), torch.where(moved, now, 0.0)
        # Servers have float32 and float64, and numpy no bfloat16.
        return shares, {n: t.float() if t.element_size() < 4 else t for n, t in terms.items()}

    def joined(
        self,
        gradients: Mapping[str, np.ndarray],
        shares: Mapping[str, np.ndarray],
        terms: Mapping[str, np.ndarray],
    ) -> dict[Handle, np.ndarray | Blend]:
        """Return what to push to variables; nothing for those without any."""
        parameters, buffers = self._values.parameters, self._values.buffers
        pairs = zip(parameters.variables, parameters.join(gradients), strict=True)
        found: dict[Handle, np.ndarray | Blend] = {v: each for v, each in pairs if each is not None}
        found.update(buffers.blends(shares, terms).items())
        return found

    def clear(self) -> None:
        """Forget gradients."""
        for _, parameter in self.parameters():
            parameter.grad = None


class _KeptWeight:
    """A parameter that is to stay the one that it is."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self._path, _, self._attribute = name.rpartition(".")
        self._parts = self._path.split(".") if self._path else []
        self._module = module
        self.parameter = module.get_parameter(name)
        self._shape = self.parameter.shape

    def change(self) -> str | None:
        """Return what has become of it, if it is not what it was."""
        if self._is_there():
            return None
        try:
            now = getattr(self._module.get_submodule(self._path), self._attribute)
            shape = now.shape
        except AttributeError:
            return "was taken away"
        if shape != self._shape:
            return f"changed its shape from {tuple(self._shape)} to {tuple(shape)}"
        return None if self._is_same(now) else "was replaced by another tensor"

    def _is_there(self) -> bool:
        """Return whether it is where it was; seldom False, and quickly found."""
        holder: nn.Module | None = self._module
        for part in self._parts:
            holder = holder._modules.get(part) if holder is not None else None
        now = holder._parameters.get(self._attribute) if holder is not None else None
        return now is not None and self._is_same(now)

    def _is_same(self, now: Tensor) -> bool:
        return now is self.parameter


class _Kept(_KeptWeight):
    """A parameter that shows its part of a flat tensor."""

    def __init__(self, module: nn.Module, name: str, part: Tensor) -> None:
        super().__init__(module, name)
        self.parameter.data = part
        self._shape, self._address = part.shape, part.data_ptr()

    def _is_same(self, now: Tensor) -> bool:
        same = now is self.parameter and now.shape == self._shape
        return same and now.data_ptr() == self._address
