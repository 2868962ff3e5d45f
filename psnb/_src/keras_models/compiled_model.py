"""CompiledModel: a Keras model that was put on the servers, with loss, metrics and optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from psnb._src.keras_models.counted_metrics import CountedMetrics
from psnb._src.keras_models.keras_network import KerasNetwork
from psnb._src.keras_models.keras_optimizers import as_optimizer
from psnb._src.keras_models.keras_program import program
from psnb._src.keras_models.placed_values import place
from psnb._src.keras_models.split_keras import SplitKeras, as_array
from psnb._src.keras_models.steered_optimizer import SteeredOptimizer
from psnb._src.models import OptimizerChoice, Strategy, scratch
from psnb.errors import GradientError


class CompiledModel:
    """What `compile` makes.

    Parameters
    ----------
    strategy : ParameterServerStrategy
        Whose servers.
    name : str
        Before the names of tables and variables.
    parts : SplitKeras
        The model.
    sparse, dense : Optimizer, callable or None
        What `distribute` was given.
    optimizer : object
        That of `compile`, for what `distribute` was given none for.
    compiled : mapping
        Loss and metrics.
    adopt : bool or None
        What `distribute` was given.

    Attributes
    ----------
    program : KerasProgram
        What workers compute.
    optimizer : SteeredOptimizer
        The optimizer of `compile`.
    """

    def __init__(
        self,
        strategy: Strategy,
        name: str,
        parts: SplitKeras,
        sparse: OptimizerChoice | None,
        dense: OptimizerChoice | None,
        optimizer: Any,
        compiled: Mapping[str, Any],
        adopt: bool | None = None,
    ) -> None:
        self._strategy, self._name = strategy, name
        own = as_optimizer(optimizer) if sparse is None or dense is None else None
        for what, each in compiled.items():
            parts.model.check(f"{what}=", each)
        network = KerasNetwork(parts.tail, compiled)
        values = place(strategy, parts, network, sparse or own, dense or own, name, adopt)  # type: ignore[arg-type]
        steered = [
            *(values.tables.values() if sparse is None else ()),
            *(values.weights.variables if dense is None else ()),
        ]
        self.program, self.optimizer = program(network, values), SteeredOptimizer(steered)
        self._values = values
        names = {id(each): n for n, each in {**network.weights, **network.state}.items()}
        # For each weight of the model its name on the servers, or the frozen variable that it is.
        self._weights = [
            each if isinstance(each, str) else names.get(id(each), each) for each in parts.weights
        ]
        self._counted: dict[str, CountedMetrics] = {}

    def metrics(self, what: str, batch: Any) -> CountedMetrics:
        """Return where metrics are added up, made with the first batch."""
        if not self._counted:
            self.program.build(batch)
        if what not in self._counted:
            size = sum(int(np.prod(shape)) for shape in self.program.network.metric_shapes())
            variable = scratch(self._strategy, self._name, what, size)
            self._counted[what] = CountedMetrics(self.program, variable)
        return self._counted[what]

    def read(self, numbers: Sequence[int] | None = None) -> list[np.ndarray]:
        """Read the weights, in the order of the model's; or those of some numbers in it."""
        asked = [self._weights[at] for at in numbers] if numbers is not None else self._weights
        values = self._values.read({each for each in asked if isinstance(each, str)})
        return [values[each] if isinstance(each, str) else as_array(each) for each in asked]

    def write(self, weights: Sequence[np.ndarray]) -> None:
        """Replace the weights on the servers.

        Raises
        ------
        GradientError
            If they are not those of the model, or frozen ones are others; nothing was changed.
        """
        if len(weights) != len(self._weights):
            raise GradientError(f"the model has {len(self._weights)} weights, found {len(weights)}")
        given = {}
        for each, value in zip(self._weights, weights, strict=True):
            if isinstance(each, str):
                given[each] = np.asarray(value)
            elif not np.array_equal(as_array(each), value):
                raise GradientError(
                    f"weight {each.path!r} is frozen, and went to the workers as it was when the "
                    "model was distributed: distribute the model with the other value"
                )
        self._values.write(given)
