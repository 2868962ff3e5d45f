"""DistributedKeras: a Keras model on parameter servers, with Keras's own methods.

Belongs to one thread, as a model of Keras does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np

from psnb._src.coordinator.coordinator import ClusterCoordinator
from psnb._src.data.dataset import Dataset
from psnb._src.models.adopting import scratch
from psnb._src.models.export.manifest import Exported
from psnb._src.models.keras.fit import (
    ClassWeights,
    CountedMetrics,
    FitLoop,
    Pass,
    Passes,
    as_batches,
    callback_list,
    parted,
    split_off,
    steps_of,
    validated_after,
)
from psnb._src.models.keras.network import KerasNetwork, PlacedValues, name_there, place
from psnb._src.models.keras.program import KerasProgram
from psnb._src.models.keras.split import (
    SplitKeras,
    SteeredOptimizer,
    as_array,
    as_optimizer,
    custom_objects,
    plain_copy,
    split,
)
from psnb._src.models.shared import OptimizerChoice, StepDescription, Strategy, check_strategy
from psnb._src.server.optimizer import Optimizer
from psnb._src.strategy.strategy import ParameterServerStrategy
from psnb._src.utils.checks import integer
from psnb.errors import ConfigurationError, InvalidArrayError


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
        InvalidArrayError
            If they are not those of the model, or frozen ones are others; nothing was changed.
        """
        if len(weights) != len(self._weights):
            raise InvalidArrayError(
                f"the model has {len(self._weights)} weights, found {len(weights)}"
            )
        given = {}
        for each, value in zip(self._weights, weights, strict=True):
            if isinstance(each, str):
                given[each] = np.asarray(value)
            elif not np.array_equal(as_array(each), value):
                raise InvalidArrayError(
                    f"weight {each.path!r} is frozen, and went to the workers as it was when the "
                    "model was distributed: distribute the model with the other value"
                )
        self._values.write(given)


def check_execution(
    model: Any,
    run_eagerly: Any,
    steps_per_execution: Any,
    jit_compile: Any,
    auto_scale_loss: Any,
) -> None:
    """Raise ConfigurationError if workers do not run a model as ``compile`` is to have it."""
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


# LayerView: a layer of a distributed model, to be read.
#
# The user's own layers have the values that the model began with, and setting something in them, or
# in a copy, would change nothing: so neither is given.

Read = Callable[[Sequence[Any]], list[np.ndarray]]
"""Returns the values that the servers have of variables of the undistributed model."""

_DESCRIBING = ("compute_output_shape", "count_params", "get_config", "get_layer")
"""The methods that only describe a layer."""


class LayerView:
    """What a layer is, and the values that its weights have on the servers.

    It has the attributes of the layer: weights are arrays of the values of now, layers in it are
    views too. What computes or changes something raises `ConfigurationError`. To `isinstance` it is
    what the layer is.

    Parameters
    ----------
    layer : keras.layers.Layer
        Of the undistributed model.
    read : callable
        See `Read`.
    """

    _layer: Any
    _read: Read

    def __init__(self, layer: Any, read: Read) -> None:
        vars(self).update(_layer=layer, _read=read)

    @property  # type: ignore[misc]  # a class's own can be set
    def __class__(self) -> type:
        found: type = type(self._layer)
        return found

    def __repr__(self) -> str:
        return (
            f"<{self.__class__.__name__} {self._layer.name!r} of a distributed model, to be read>"
        )

    def get_weights(self) -> list[np.ndarray]:
        """Return the values of the weights."""
        return self._read(self._layer.weights)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what protocols look for, and how Keras keeps it
            raise AttributeError(name)
        return self._shown(name, getattr(self._layer, name))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        self._refuse(name)

    def __delattr__(self, name: str) -> NoReturn:
        self._refuse(name)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: it computes nothing."""
        self._refuse("__call__")

    def _shown(self, name: str, value: Any) -> Any:
        if isinstance(value, keras.Variable):
            return self._read([value])[0]
        if isinstance(value, keras.layers.Layer):
            return LayerView(value, self._read)
        if isinstance(value, Mapping):
            return {key: self._shown(name, each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            shown = [self._shown(name, each) for each in value]
            return tuple(shown) if isinstance(value, tuple) else shown
        if name in _DESCRIBING:
            return lambda *args, **kwargs: self._shown("", value(*args, **kwargs))
        # What is computed has the values that the model began with.
        if callable(getattr(type(self._layer), name, None)) or keras.ops.is_tensor(value):
            self._refuse(name)
        if isinstance(value, keras.KerasTensor):
            self._refuse(name)
        return value

    def _refuse(self, name: str) -> NoReturn:
        raise ConfigurationError(
            f"{self!r} has no {name!r}: its values are on the servers. undistributed() returns a "
            "plain copy of the model with them, whose layers compute; to change layers, distribute "
            "the changed model; model.set_weights replaces values"
        )


def compile_plain(
    model: Any, optimizer: Any, compiled: Mapping[str, Any], steered: SteeredOptimizer
) -> None:
    """Compile a model with copies of what ``compile`` was given.

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


_BACKENDS = ("jax", "torch")


class DistributedKeras:
    """A Keras model whose values are on parameter servers; made by `psnb.keras.distribute`.

    `compile`, `fit`, `evaluate`, `predict` and `save` are those of Keras, and so are callbacks,
    which run in the notebook, as batches end. Workers lease parts of the data and read them, and
    every example is used exactly once an epoch. In mode `psnb.Sync` the notebook reads the batches
    and hands them out in order, so that a round has the same batches whichever is faster or dies;
    so it does with datasets that cannot be cut into parts, such as generators.
    Metrics are added up over all workers, exactly: each batch counts once.

    What a step changes beside weights is on the servers, too, and written by a rule that is right
    however late it comes: servers move the averages that ``BatchNormalization`` has by then towards
    those of the batch, by its momentum; other state of layers (and averages with ``renorm``) is set
    to what the step has computed, and the last one counts. In mode `psnb.Sync` the results of a
    round are averaged. Random seeds are drawn afresh for each step, and are the same when it runs
    again. What is frozen stays as it is.

    In mode `psnb.Sync`, if a callback has a hook for batches of training, a round is scheduled when
    the hooks of the one before have run. So ``on_train_batch_begin`` steers its batch, and
    ``on_train_batch_end`` sees the weights after it, or after its round. The cost: each round waits
    for the hooks, and for its batches to reach the workers. Keras's own callbacks do not count, but
    for those that save at batches. In other modes batches overlap: a hook sees the weights of its
    moment.

    Attributes
    ----------
    stop_training : bool
        Callbacks set it to end `fit`: no further batch begins.
    stop_evaluating : bool
        The same for `evaluate`, and validation.
    history : keras.callbacks.History
        Of the latest `fit`.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: ParameterServerStrategy,
        sparse: OptimizerChoice | None,
        dense: OptimizerChoice | None,
        name: str,
        adopt: bool | None,
    ) -> None:
        self._model, self._strategy, self._name, self._adopt = model, strategy, name, adopt
        self._parts = split(model)
        self._optimizers = sparse, dense
        # The strategy's only one: asking again returns it.
        self._coordinator = ClusterCoordinator(strategy)
        self._made: CompiledModel | None = None
        self.stop_training = self.stop_evaluating = False
        self.history: Any = None
        self._trainable = _trainable(model)

    def __repr__(self) -> str:
        return f"<psnb.keras.DistributedKeras {self._name!r}: {len(self._parts.tables)} tables>"

    @property
    def optimizer(self) -> SteeredOptimizer:
        """The optimizer of `compile`, whose ``learning_rate`` can be set.

        Raises
        ------
        ConfigurationError
            If it was not compiled.
        """
        return self._compiled().optimizer

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool | str = "auto",
        auto_scale_loss: bool = True,
    ) -> None:
        """Choose the optimizer, loss and metrics, and put the model on the servers; once.

        Where the strategy has the model from before, it is adopted, as `distribute` says; with the
        optimizer that the servers have. It must be of the kind that is given here, and a warning
        says which hyperparameters are others.

        Parameters
        ----------
        optimizer : str, keras.optimizers.Optimizer or Optimizer
            One that psnb has, too, with its hyperparameters: SGD, Adagrad, Adam, AdamW, RMSprop.
            For what `distribute` was given no other one for.
        loss, loss_weights, metrics, weighted_metrics
            As in Keras. Metrics must add up: those of Keras that count or average do.
        run_eagerly, steps_per_execution, jit_compile, auto_scale_loss
            As in Keras. Workers run each batch by itself; JAX compiles it, and torch does not. What
            is something else is refused.

        Raises
        ------
        ConfigurationError
            If psnb has no such optimizer, the name is taken, what is to be adopted does not fit, it
            was compiled before, or workers do not run a model so.
        """
        if self._made is not None:
            raise ConfigurationError(
                f"{self!r} is compiled: its optimizers have their state on the servers. Set "
                "hyperparameters there (model.optimizer.learning_rate), or distribute another"
            )
        check_execution(self._model, run_eagerly, steps_per_execution, jit_compile, auto_scale_loss)
        given = {
            "loss": loss,
            "loss_weights": loss_weights,
            "metrics": metrics,
            "weighted_metrics": weighted_metrics,
        }
        self._check_trainable()
        self._made = CompiledModel(
            self._strategy,
            self._name,
            self._parts,
            *self._optimizers,
            optimizer,
            given,
            self._adopt,
        )
        self._given = optimizer, given

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Sequence[Any] | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> keras.callbacks.History:
        """Train, with Keras's parameters.

        Parameters
        ----------
        x : Dataset, array or nested structure of arrays
            A `psnb.data.Dataset` of batches ``(inputs, targets)`` or ``(inputs, targets,
            weights)``, or all inputs.
        y, batch_size, shuffle, sample_weight
            For arrays.
        epochs, verbose, callbacks, class_weight, initial_epoch, steps_per_epoch
            As in Keras.
        validation_split, validation_data, validation_steps, validation_batch_size, validation_freq
            As in Keras; ``validation_data`` is what `evaluate` takes.

        Returns
        -------
        keras.callbacks.History
            As in Keras.

        Raises
        ------
        ConfigurationError
            If the data are not what the model takes, or a callback cannot work.
        InvalidArrayError
            If a loss is not finite, unless there is a ``TerminateOnNaN``.
        """
        self._check_trainable()
        epochs = integer("fit: epochs", epochs, 0)
        initial_epoch = integer("fit: initial_epoch", initial_epoch, 0)
        _check_counts(
            "fit",
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
        )
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = split_off(
                x, y, sample_weight, validation_split
            )
        data = as_batches(x, y, sample_weight, batch_size, shuffle=shuffle)
        if class_weight is not None:
            data = data.map(ClassWeights(class_weight))
        training = self._pass("metrics", data, steps_per_epoch)
        validation = None
        if validation_data is not None:
            held_out = as_batches(*parted(validation_data, validation_batch_size or batch_size))
            validation = self._pass("test_metrics", held_out, validation_steps, evaluates=True)
        callbacks_ = callback_list(callbacks, self, verbose, epochs=epochs, steps=training.length)
        self._loop().fit(
            range(initial_epoch, epochs),
            training,
            validation,
            validated_after(validation_freq),
            callbacks_,
        )
        history: keras.callbacks.History = self.history
        return history

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Return loss and metrics, as Keras does; ``x`` is what `fit` takes."""
        _check_counts("evaluate", batch_size=batch_size, steps=steps)
        data = as_batches(x, y, sample_weight, batch_size)
        given = self._pass("test_metrics", data, steps, evaluates=True)
        callbacks_ = callback_list(callbacks, self, verbose, epochs=1, steps=given.length)
        found = self._loop().evaluate(given, callbacks_)
        if return_dict:
            return found
        values = list(found.values())
        return values[0] if len(values) == 1 else values

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> Any:
        """Return the outputs for inputs, computed on the workers.

        Parameters
        ----------
        x : Dataset, array or nested structure of arrays
            All inputs; or a dataset of batches of them, or of tuples whose first item they are,
            which the notebook reads.
        batch_size : int, optional
            For arrays.
        verbose, steps, callbacks
            As in Keras.

        Returns
        -------
        array or nested structure of arrays
            In the order of the inputs.
        """
        _check_counts("predict", batch_size=batch_size, steps=steps)
        program = self._compiled().program

        def predict(iterator: Iterator[Any]) -> Any:
            batch = next(iterator)
            return program.predict(batch[0] if isinstance(batch, tuple) else batch)

        predict.__qualname__ = "step of predict"
        data = as_batches(x, batch_size=batch_size)
        target = steps_of(data, steps)
        callbacks_ = callback_list(callbacks, self, verbose, epochs=1, steps=target)
        callbacks_.on_predict_begin()
        found = []
        batches = Passes(self._coordinator, data, in_order=True)
        run = batches.run(predict, steps, callbacks_.on_predict_batch_begin)
        for number, outputs in enumerate(run):
            found.append(outputs)
            callbacks_.on_predict_batch_end(number, {"outputs": outputs})
        callbacks_.on_predict_end()
        if not found:
            raise ConfigurationError("predict: there is no batch")
        return keras.tree.map_structure(lambda *several: np.concatenate(several), *found)

    def describe(self, batch: Any) -> StepDescription:
        """Return the operations of a training step for a batch, in their order.

        First what is pulled from which servers; then the operations of the backend with their
        dtypes and shapes, those of layers (torch) and functions (JAX) indented; then what is
        pushed. Printed, it has a line for each. Nothing is written. With JAX nothing is carried
        out, and the operations that compute gradients are among the others; with torch the loss is
        computed once.

        Parameters
        ----------
        batch : tuple
            ``(inputs, targets)`` or ``(inputs, targets, weights)``.

        Raises
        ------
        ConfigurationError, InvalidArrayError, IdOutOfRangeError
            If the batch is not what the model takes.
        """
        return self._compiled().program.describe(batch)

    def summary(self, *args: Any, **options: Any) -> None:
        """Print the layers of the undistributed model, with Keras's parameters."""
        self._model.summary(*args, **options)

    @property
    def layers(self) -> list[LayerView]:
        """The layers, to be read: what they are, and the values that their weights have now."""
        return [LayerView(each, self._read) for each in self._model.layers]

    def get_layer(self, name: str | None = None, index: int | None = None) -> LayerView:
        """Return a layer, to be read, by its name or its number."""
        return LayerView(self._model.get_layer(name, index), self._read)

    def undistributed(self) -> Any:
        """Return a copy of the undistributed model with the values that the servers have.

        It has all that models of Keras have, such as calls with a batch. It is compiled as this
        one, with the learning rate of now, if ``compile`` was given an optimizer of Keras; the
        optimizer starts over, as its state is on the servers in psnb's own form.
        """
        found = self._plain()
        compile_plain(found, *self._given, self.optimizer)
        return found

    def _read(self, variables: Sequence[Any]) -> list[np.ndarray]:
        places = {id(each): at for at, each in enumerate(self._model.weights)}
        served = [places[id(each)] for each in variables if id(each) in places]
        values = iter(self._compiled().read(served))
        # Seeds of random numbers are not weights: they are drawn for each step.
        return [next(values) if id(each) in places else as_array(each) for each in variables]

    def _plain(self) -> Any:
        return plain_copy(self._model, self.get_weights())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(keras.Model, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(
            f"a distributed model has no {name!r}: undistributed() returns a plain copy of it, "
            f"with the values that the servers have now, which has {name!r}"
        )

    def to_export(self, example: Any) -> Exported:
        """Return what `psnb.export` writes of it."""
        return self._compiled().program.to_export(example)

    def get_weights(self) -> list[np.ndarray]:
        """Return the weights, in the order of the undistributed model's."""
        return self._compiled().read()

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Replace the weights on the servers; the state of optimizers stays as it is.

        Raises
        ------
        InvalidArrayError
            If they are not those of the model; nothing was changed.
        """
        self._compiled().write(weights)

    def save(self, filepath: str | Path, overwrite: bool = True, **options: Any) -> None:
        """Save a plain Keras file, which loads without psnb, compiled as `undistributed` says.

        Where the optimizer keeps state, Keras warns when the file is loaded that it is not there.
        """
        self.undistributed().save(filepath, overwrite=overwrite, **options)

    def save_weights(self, filepath: str | Path, overwrite: bool = True) -> None:
        """Save the weights as Keras does."""
        self._plain().save_weights(filepath, overwrite=overwrite)

    def load_weights(self, filepath: str | Path, **options: Any) -> None:
        """Replace the weights by those of a file, of this model or of the undistributed one."""
        plain = self._plain()
        plain.load_weights(filepath, **options)
        self.set_weights(plain.get_weights())

    def _compiled(self) -> CompiledModel:
        if self._made is None:
            raise ConfigurationError(f"{self!r} must be compiled first: compile(loss=...)")
        return self._made

    def _loop(self) -> FitLoop:
        return FitLoop(self._coordinator, self._compiled().program, self)

    def _pass(
        self, what: str, data: Dataset, steps: int | None, *, evaluates: bool = False
    ) -> Pass:
        batch = next(iter(data), None)
        if batch is None:
            raise ConfigurationError("there is no batch in the data")
        metrics = self._compiled().metrics(what, batch)
        # The first batches, if not all: workers that lease parts would take others.
        count = data.cardinality()
        first = evaluates and steps is not None and (count is None or not 0 <= count <= steps)
        passes = Passes(self._coordinator, data, in_order=first)
        return Pass(passes, metrics, steps, steps_of(data, steps))

    def _check_trainable(self) -> None:
        changed = [path for path, learns in _trainable(self._model) - self._trainable if learns]
        changed += [path for path, learns in self._trainable - _trainable(self._model) if learns]
        if changed:
            raise ConfigurationError(
                f"{changed[0]!r} ({len(changed)} in all) was frozen, or let learn, after "
                "psnb.keras.distribute, which makes no difference there. As in Keras, where "
                "compile must be called again, distribute the model once more: "
                "plain = model.undistributed(); set trainable in plain; "
                "psnb.keras.distribute(plain, strategy, name=...)"
            )


def _trainable(model: Any) -> frozenset[tuple[str, bool]]:
    """Return of each weight whether it learns."""
    learning = {id(each) for each in model.trainable_variables}
    return frozenset((each.path, id(each) in learning) for each in model.weights)


def _check_counts(method: str, **given: int | None) -> None:
    for name, count in given.items():
        if count is not None:
            integer(f"{method}: {name}", count, 1)


def distribute(
    model: keras.Model,
    strategy: ParameterServerStrategy,
    *,
    sparse: OptimizerChoice | None = None,
    dense: OptimizerChoice | None = None,
    name: str | None = None,
    adopt: bool | None = None,
) -> DistributedKeras:
    """Put a Keras model on parameter servers, or take up what the strategy has of it.

    Its ``keras.layers.Embedding`` become tables, those of models in it too, however often each is
    called; all other weights become parts of few variables. BatchNormalization's averages are
    averaged there by its momentum, and other state of layers is set to what the last step has
    computed, however late a step comes. Keras's backend is JAX or torch, the same in the notebook
    and on the workers: models bring it along to workers that have not imported Keras. The model
    itself stays as it is.

    On a strategy of `psnb.attach` or `psnb.resume`, `compile` *adopts* the parameters of the model
    that had its name, if names, shapes and dtypes of weights are those of the model: they stay as
    they are, with the state of their optimizers, and training goes on; a warning says so. The
    model's own values are not used, but for those that are frozen, which must be equal. Models and
    layers that Keras has given names with a number (``dense_1``) are found by their order.

    Parameters
    ----------
    model : keras.Model
        Functional or sequential, and built. Layers, losses and metrics of your own may be in it.
    strategy : ParameterServerStrategy
        Whose servers. Its coordinator (`psnb.ClusterCoordinator`, one for each strategy) runs what
        the model does.
    sparse, dense : Optimizer or callable, optional
        For tables and for all other weights, or a function from the name of an embedding, or from
        the path of a weight, to one; by default that of ``compile``.
    name : str, optional
        Before the names of tables and variables; by default the model's.
    adopt : bool, optional
        True: there must be a model to adopt, also one that this process has compiled already; both
        then train the same parameters. False: there must be none. By default one from before is
        adopted, one of this process is refused, and where there is none, the model is placed with
        its own values.

    Returns
    -------
    DistributedKeras
        With Keras's methods.

    Raises
    ------
    ConfigurationError
        If the backend is another one, or servers cannot do what the model does.

    Notes
    -----
    psnb's own optimizers, for ``sparse`` and ``dense``, have defaults of their own; what
    ``compile`` is given keeps Keras's:

    ========  =======================================  =======================================
    ..        psnb                                     Keras
    ========  =======================================  =======================================
    SGD       rate 0.01                                the same
    Adagrad   rate 0.01, accumulator from 0,           rate 0.001, accumulator from 0.1,
              ``sqrt(a) + 1e-7``                       ``sqrt(a + 1e-7)``
    Adam      rate 0.001, ``sqrt(v̂) + 1e-8``           rate 0.001, ``sqrt(v) + 1e-7``
    RMSprop   rate 0.001, ``rho=0.9``,                 the same
              ``sqrt(s + 1e-7)``
    ========  =======================================  =======================================
    """
    if (backend := keras.backend.backend()) not in _BACKENDS:
        raise ConfigurationError(
            f"psnb.keras computes with JAX or torch, and Keras's backend is {backend!r}: set "
            'KERAS_BACKEND="jax" or "torch" before Keras is imported'
        )
    if not isinstance(model, keras.Model):
        raise ConfigurationError(
            f"psnb.keras.distribute: model must be a keras.Model, found {type(model).__name__}"
        )
    check_strategy("psnb.keras.distribute", strategy)
    if name is None:
        models = strategy.__psnb_models__
        name = model.name if adopt is False else name_there(model, models)
    return DistributedKeras(model, strategy, sparse, dense, name, adopt)


def program(network: KerasNetwork, values: PlacedValues) -> KerasProgram:
    """Return the program of Keras's backend."""
    if keras.backend.backend() == "torch":
        from psnb._src.models.keras.torch_program import TorchProgram

        return TorchProgram(network, values)
    from psnb._src.models.keras.jax_program import JaxProgram

    return JaxProgram(network, values)
