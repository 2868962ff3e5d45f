"""TorchProgram: a Keras model's computations in PyTorch, with the passes of `psnb.torch`."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from psnb._src.client.handles import Handle
from psnb._src.models.batch_rows import Pushed
from psnb._src.models.export.exported import Exported
from psnb._src.models.export.manifest import DenseSources
from psnb._src.models.keras.data import whole
from psnb._src.models.keras.layers import looking_up
from psnb._src.models.keras.network import Computed, KerasNetwork
from psnb._src.models.keras.program import KerasProgram
from psnb._src.models.placing import ModelValues
from psnb._src.models.step_description import StepDescription
from psnb._src.models.torch.description import OperationRecorder, described_call
from psnb._src.models.torch.export import TracedEmbedding, exported
from psnb._src.models.torch.model_pass import ModelPass, PlannedIds
from psnb._src.models.torch.tensors import array_of, from_device, tensor_of
from psnb.errors import InvalidArrayError

_without_gradients: Any = torch.no_grad()(operator.call)


class TorchProgram(KerasProgram):
    """See `KerasProgram`."""

    _run = _shaped = staticmethod(_without_gradients)

    def __init__(self, network: KerasNetwork, values: ModelValues) -> None:
        super().__init__(network, values)
        self._device = torch.device(str(keras.ops.zeros(()).device))
        self._plan: tuple[PlannedIds, ...] = ()

    def _outputs(self, given: dict[str, Any]) -> Any:
        outputs = self._computed(given, training=False)[-1].outputs
        return keras.tree.map_structure(array_of, outputs)

    def _described(self, given: dict[str, Any]) -> StepDescription:
        recorder, values = OperationRecorder(0), self._values
        with recorder.following(self.network.layers()):
            self._computed(given, training=True, noted_by=recorder)
        return described_call(recorder, values.tables.values(), values.flat.variables)

    def _exported(self, x: dict[str, np.ndarray]) -> Exported:
        tables = self._values.tables
        module = _Prediction(self.network, self._values.flat.read(), tables)
        flat = self._values.flat.sources()
        # As `_Prediction` calls them.
        parts = {f"_values.{at}": flat.parts[name] for at, name in enumerate(flat.parts)}
        return exported(module, tables, x, DenseSources(flat.variables, parts))

    def _train(self, given: dict[str, Any]) -> tuple[float, list[np.ndarray]]:
        current, leaves, found = self._computed(given, training=True)
        found.loss.backward()
        there = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        by_name = dict(zip(there, from_device(list(there.values())), strict=True))
        shares, terms = (
            {name: array_of(e) if isinstance(e, Tensor) else e for name, e in part}
            for part in ([(n, each[i]) for n, each in found.moved.items()] for i in (0, 1))
        )
        # Keras leaves a weight without a gradient alone, and its optimizer counts on for all.
        weights = self._values.parameters.gradients(by_name, together=True)
        gradients: dict[Handle, Pushed] = dict(weights.items())
        gradients.update({table: array_of(each) for table, each in current.gradients().items()})
        gradients.update(self._values.state.blends(shares, terms).items())
        loss = found.loss.item()
        try:
            current.push(gradients, loss, found.weight.item())
        except InvalidArrayError as error:
            raise InvalidArrayError(f"the loss is {loss}; {current.summary()}. {error}") from error
        return loss, [array_of(each) for each in found.metrics]

    def _score(self, given: dict[str, Any]) -> list[np.ndarray]:
        return [array_of(each) for each in self._computed(given, training=False)[-1].metrics]

    def _computed(
        self,
        given: dict[str, Any],
        *,
        training: bool,
        noted_by: AbstractContextManager[Any] | None = None,
    ) -> tuple[ModelPass, dict[str, Tensor], Computed]:
        x = {name: tensor_of(each).to(self._device) for name, each in given["x"].items()}
        current = ModelPass(self._values.tables, self._device, training=training, learns=training)
        current.expect((x,), self._plan)
        flat = self._values.flat
        found = current.fetch(flat.variables)
        values = flat.split([found[each] for each in flat.variables])
        leaves = {n: values[n].requires_grad_(training) for n in self._values.parameters.places}

        def look_up(table: str, ids: Tensor) -> Tensor:
            if ids.is_floating_point():  # Keras takes floats for ids as well
                ids = torch.from_numpy(whole(f"embedding {table!r}", ids.detach().cpu().numpy()))
            weight, position = current.look_up(table, ids)
            return functional.embedding(position, weight)

        try:
            with (
                looking_up(look_up),
                torch.set_grad_enabled(training),
                _seeded(given),
                noted_by or nullcontext(),
            ):
                computed = self.network.computed(values, {**given, "x": x}, training=training)
        except RuntimeError as error:  # of torch, about what is in the batch
            error.add_note(current.summary())
            raise
        if (plan := current.learned()) is not None:
            self._plan = plan
        return current, leaves, computed


class _Prediction(nn.Module):
    """The outputs for inputs, as PyTorch traces them."""

    def __init__(
        self, network: KerasNetwork, values: Mapping[str, np.ndarray], tables: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._network, self._names, self._tables = network, list(values), list(tables)
        self._values = nn.ParameterList([tensor_of(each) for each in values.values()])
        self._lookups = nn.ModuleList([TracedEmbedding(each) for each in tables.values()])

    def forward(self, **x: Tensor) -> Any:
        values = dict(zip(self._names, self._values, strict=True))
        lookups = dict(zip(self._tables, self._lookups, strict=True))
        with looking_up(lambda table, ids: lookups[table](ids.long())):
            return self._network.computed(values, {"x": x}, training=False).outputs


@contextmanager
def _seeded(given: dict[str, Any]) -> Iterator[None]:
    """Let torch's own random numbers, which Keras uses for dropout, be the step's."""
    if "seeds" not in given:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(given["seeds"][0].sum()))
        yield
