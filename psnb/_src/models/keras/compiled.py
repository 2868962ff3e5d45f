"""CompiledModel: the result of `compile`: a model's program, and where its values are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np

from psnb._src.models.flat_variables import OptimizerChoice
from psnb._src.models.keras.fit import CountedMetrics
from psnb._src.models.keras.layer_names import named_alike, numbered_kinds
from psnb._src.models.keras.network import KerasNetwork
from psnb._src.models.keras.optimizers import SteeredOptimizer, as_optimizer
from psnb._src.models.keras.program import KerasProgram
from psnb._src.models.keras.references import custom_objects
from psnb._src.models.keras.split import SplitKeras, as_array
from psnb._src.models.placing import ModelValues, WantedModel, WantedTable, place_model, scratch
from psnb._src.models.table_options import TableOptions
from psnb._src.server.optimizer import Optimizer
from psnb._src.strategy.strategy import ParameterServerStrategy
from psnb.errors import ConfigurationError, InvalidArrayError


class CompiledModel:
    """A model with its optimizer, loss and metrics, on the servers.

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
    adopt, tables
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
        strategy: ParameterServerStrategy,
        name: str,
        parts: SplitKeras,
        sparse: OptimizerChoice | None,
        dense: OptimizerChoice | None,
        optimizer: Any,
        compiled: Mapping[str, Any],
        adopt: bool | None = None,
        tables: TableOptions | None = None,
    ) -> None:
        self._strategy, self._name = strategy, name
        own = as_optimizer(optimizer) if sparse is None or dense is None else None
        for what, each in compiled.items():
            parts.model.check(f"{what}=", each)
        network = KerasNetwork(parts.tail, compiled)

        def table(layer: Any) -> WantedTable:
            return WantedTable(
                layer.output_dim,
                layer.input_dim,
                np.dtype(np.float32),
                begins=lambda: (np.arange(layer.input_dim), as_array(layer.embeddings)),
            )

        wanted = WantedModel(
            {name: as_array(variable) for name, variable in network.weights.items()},
            {name: as_array(variable) for name, variable in network.state.items()},
            {name: table(layer) for name, layer in parts.tables.items()},
            network.local_values(),
        )
        values = place_model(
            strategy,
            name,
            wanted,
            sparse=sparse or own,
            dense=dense or own,
            adopt=adopt,
            tables=tables,
            named=partial(named_alike, numbered_kinds(parts.tail)),
            clips_each=True,  # as Keras does
        )
        steered = [
            *(values.tables.values() if sparse is None else ()),
            *(values.parameters.variables if dense is None else ()),
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
            size = self.program.network.metrics_size
            variable = scratch(self._strategy, self._name, what, size)
            self._counted[what] = CountedMetrics(self.program, variable)
        return self._counted[what]

    def read(self, numbers: Sequence[int] | None = None) -> list[np.ndarray]:
        """Read the weights, in the model's order; or some, by their numbers in it."""
        asked = [self._weights[at] for at in numbers] if numbers is not None else self._weights
        values = self._values.read({each for each in asked if isinstance(each, str)})
        return [values[each] if isinstance(each, str) else as_array(each) for each in asked]

    def write(self, weights: Sequence[np.ndarray]) -> None:
        """Replace the weights on the servers.

        Raises
        ------
        InvalidArrayError
            If they are not the model's, or frozen ones differ; nothing was changed.
        """
        if len(weights) != len(self._weights):
            raise InvalidArrayError(
                f"the model has {len(self._weights)} weights, found {len(weights)}"
            )
        given: dict[str, np.ndarray] = {}
        for each, value in zip(self._weights, weights, strict=True):
            if isinstance(each, str):
                given[each] = np.asarray(value)
            elif not np.array_equal(as_array(each), value):
                raise InvalidArrayError(
                    f"weight {each.path!r} is frozen, and went to the workers as it was when the "
                    "model was distributed: distribute the model with the other value"
                )
        rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for name, table in self._values.tables.items():
            if given[name].shape != (table.rows, table.dim):
                raise InvalidArrayError(
                    f"embedding {name!r} has shape {(table.rows, table.dim)}, found "
                    f"{given[name].shape}"
                )
            rows[name] = np.arange(len(given[name])), given[name]
        self._values.write(given, rows)


def check_execution(
    model: Any, run_eagerly: Any, steps_per_execution: Any, jit_compile: Any, auto_scale_loss: Any
) -> None:
    """Raise ConfigurationError if workers do not run a model as ``compile`` was told to."""
    if run_eagerly:
        raise ConfigurationError(
            "compile(run_eagerly=True): workers do not run models eagerly. To look into one, call "
            "it in the notebook: model.undistributed() is a plain copy"
        )
    if steps_per_execution != 1:
        raise ConfigurationError(
            f"compile(steps_per_execution={steps_per_execution!r:.50}): each batch is a closure of "
            "its own, and workers overlap them anyway; leave it out, and make batches larger if "
            "steps are short"
        )
    compiles = keras.backend.backend() == "jax"
    if jit_compile not in ("auto", compiles):
        why = (
            "with JAX, workers compile each step: leave it out"
            if compiles
            else "with torch, steps are not compiled: leave it out, or take KERAS_BACKEND=jax"
        )
        raise ConfigurationError(f"compile(jit_compile={jit_compile!r:.50}): {why}")
    if auto_scale_loss and model.dtype_policy.name == "mixed_float16":
        raise ConfigurationError(
            "compile(auto_scale_loss=True) of a model of mixed_float16: servers do not scale "
            "losses, and small gradients would be lost. Take the policy mixed_bfloat16, or say "
            "auto_scale_loss=False"
        )


def compile_plain(
    model: Any, optimizer: Any, compiled: Mapping[str, Any], steered: SteeredOptimizer
) -> None:
    """Compile a model with copies of the arguments of ``compile``.

    With an optimizer of psnb it stays as it is: there may be no such one in Keras.

    Parameters
    ----------
    model : keras.Model
        Undistributed.
    optimizer : str, keras.optimizers.Optimizer or Optimizer
        That of ``compile``.
    compiled : mapping
        Loss and metrics.
    steered : SteeredOptimizer
        Has the learning rate of now.
    """
    if isinstance(optimizer, Optimizer):
        return
    with keras.saving.custom_object_scope(custom_objects(compiled)):
        own = _copied(keras.optimizers.get(optimizer))
        given = keras.tree.map_structure(_copied, dict(compiled))
    if steered.steers:
        own.learning_rate = steered.learning_rate
    model.compile(own, **given)


def _copied(thing: Any) -> Any:
    """Return what has no state in common with a loss, metric or optimizer; all else as it is."""
    kinds = keras.losses.Loss, keras.metrics.Metric, keras.optimizers.Optimizer
    return type(thing).from_config(thing.get_config()) if isinstance(thing, kinds) else thing


def program(network: KerasNetwork, values: ModelValues) -> KerasProgram:
    """Return the program of Keras's backend."""
    if keras.backend.backend() == "torch":
        from psnb._src.models.keras.torch_program import TorchProgram

        return TorchProgram(network, values)
    from psnb._src.models.keras.jax_program import JaxProgram

    return JaxProgram(network, values)
