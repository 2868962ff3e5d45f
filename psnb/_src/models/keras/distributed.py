"""DistributedKeras: a Keras model on parameter servers, with Keras's own methods.

Belongs to one thread, as a model of Keras does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from psnb._src.coordinator.coordinator import ClusterCoordinator
from psnb._src.data.dataset import Dataset
from psnb._src.models.export.exported import Exported
from psnb._src.models.flat_variables import OptimizerChoice, check_strategy
from psnb._src.models.keras.compiled import CompiledModel, check_execution, compile_plain
from psnb._src.models.keras.data import as_batches, parted, split_off, with_class_weights
from psnb._src.models.keras.fit import (
    Passes,
    callback_list,
    evaluate_model,
    fit_model,
    step_of,
)
from psnb._src.models.keras.layer_names import name_there
from psnb._src.models.keras.layer_view import LayerView
from psnb._src.models.keras.optimizers import SteeredOptimizer
from psnb._src.models.keras.split import as_array, plain_copy, split
from psnb._src.models.step_description import StepDescription
from psnb._src.models.table_options import TableOptions
from psnb._src.strategy.strategy import ParameterServerStrategy
from psnb._src.utils.checks import integer, path_text
from psnb.errors import ConfigurationError

_BACKENDS = ("jax", "torch")


class DistributedKeras:
    """A Keras model whose values are on parameter servers; made by `psnb.keras.distribute`.

    `compile`, `fit`, `evaluate`, `predict` and `save` are as in Keras, and so are callbacks, which
    run in the notebook, as batches end. Workers lease parts of the data and read them, and every
    example is used exactly once an epoch. In mode `psnb.Sync` the notebook reads the batches and
    hands them out in order, so that a round has the same batches whichever is faster or dies; so it
    does with datasets that cannot be cut into parts, such as generators. Metrics are added up over
    all workers, exactly: each batch counts once.

    What a step changes besides weights is on the servers, too, and written by a rule that is right
    however late it comes: servers move the averages that ``BatchNormalization`` has by then towards
    the batch's, by its momentum; other state of layers (and averages with ``renorm``) is set to the
    values that the step has computed, and the last one counts. In mode `psnb.Sync` the results of a
    round are averaged. Random seeds are drawn afresh for each step, and are the same when it runs
    again. Frozen weights stay as they are.

    In mode `psnb.Sync`, if a callback has a hook for batches of training, a round is scheduled when
    the hooks of the one before have run. So ``on_train_batch_begin`` steers its batch, and
    ``on_train_batch_end`` sees the weights after it, or after its round. The cost: each round waits
    for the hooks, and for its batches to reach the workers. Keras's own callbacks do not count,
    except those that save at batches. In other modes batches overlap: a hook sees the weights of
    its moment.

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
        tables: TableOptions | None,
    ) -> None:
        self._model, self._strategy, self._name, self._adopt = model, strategy, name, adopt
        self._parts = split(model)
        self._optimizers, self._tables = (sparse, dense), tables
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
            For parameters for which `distribute` was given no other.
        loss, loss_weights, metrics, weighted_metrics
            As in Keras. Metrics must add up: Keras's metrics that count or average do.
        run_eagerly, steps_per_execution, jit_compile, auto_scale_loss
            As in Keras. Workers run each batch by itself; JAX compiles it, and torch does not.
            Anything else is refused.

        Raises
        ------
        ConfigurationError
            If psnb has no such optimizer, the name is taken, what is to be adopted does not fit,
            servers cannot keep a table so, it was compiled before, or workers do not run a model
            so.
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
        placed = self._strategy, self._name, self._parts, *self._optimizers
        self._made = CompiledModel(*placed, optimizer, given, self._adopt, self._tables)
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
            data = data.map(partial(with_class_weights, dict(class_weight)))
        training = self._pass("metrics", data, steps_per_epoch)
        validation = None
        if validation_data is not None:
            held_out = as_batches(*parted(validation_data, validation_batch_size or batch_size))
            validation = self._pass("test_metrics", held_out, validation_steps, evaluates=True)
        callbacks_ = callback_list(callbacks, self, verbose, epochs=epochs, steps=training.length)
        every = range(initial_epoch, epochs)
        fit_model(self, every, training, validation, validation_freq, callbacks_)
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
        found = evaluate_model(self, given, callbacks_)
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
        program, data = self._compiled().program, as_batches(x, batch_size=batch_size)

        def predicted(batch: Any) -> Any:
            return program.predict(batch[0] if isinstance(batch, tuple) else batch)

        batches = Passes(self._coordinator, data, steps, in_order=True)
        callbacks_ = callback_list(callbacks, self, verbose, epochs=1, steps=batches.length)
        callbacks_.on_predict_begin()
        found = []
        run = batches.run(step_of("predict", predicted), callbacks_.on_predict_batch_begin)
        for number, outputs in enumerate(run):
            found.append(outputs)
            callbacks_.on_predict_batch_end(number, {"outputs": outputs})
        callbacks_.on_predict_end()
        if not found:
            raise ConfigurationError("predict: there is no batch")
        return keras.tree.map_structure(lambda *several: np.concatenate(several), *found)

    def describe(self, batch: Any) -> StepDescription:
        """Return the operations of a training step for a batch, in their order.

        First the pulls from each server; then the operations of the backend with their dtypes and
        shapes, operations of layers (torch) and functions (JAX) indented; then the pushes. Printed,
        it has a line for each. Nothing is written. With JAX nothing is computed, and the operations
        that compute gradients are among the others; with torch the loss is computed once.

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
        """The layers, to be read: their attributes, and the present values of their weights."""
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
        found = plain_copy(self._model, self.get_weights())
        compile_plain(found, *self._given, self.optimizer)
        return found

    def _read(self, variables: Sequence[Any]) -> list[np.ndarray]:
        places = {id(each): at for at, each in enumerate(self._model.weights)}
        served = [places[id(each)] for each in variables if id(each) in places]
        values = iter(self._compiled().read(served))
        # Seeds of random numbers are not weights: they are drawn for each step.
        return [next(values) if id(each) in places else as_array(each) for each in variables]

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
            If they are not the model's; nothing was changed.
        """
        self._compiled().write(weights)

    def save(self, filepath: str | Path, overwrite: bool = True, **options: Any) -> None:
        """Save a plain Keras file, which loads without psnb, compiled as `undistributed` says.

        Where the optimizer keeps state, Keras warns when the file is loaded that it is not there.
        """
        self.undistributed().save(_file(filepath), overwrite=overwrite, **options)

    def save_weights(self, filepath: str | Path, overwrite: bool = True) -> None:
        """Save the weights as Keras does."""
        plain = plain_copy(self._model, self.get_weights())
        plain.save_weights(_file(filepath), overwrite=overwrite)

    def load_weights(self, filepath: str | Path, **options: Any) -> None:
        """Replace the weights by a file's, of this model or of the undistributed one."""
        plain = plain_copy(self._model, self.get_weights())
        plain.load_weights(_file(filepath), **options)
        self.set_weights(plain.get_weights())

    def _compiled(self) -> CompiledModel:
        if self._made is None:
            raise ConfigurationError(f"{self!r} must be compiled first: compile(loss=...)")
        return self._made

    def _pass(
        self, what: str, data: Dataset, steps: int | None, *, evaluates: bool = False
    ) -> Passes:
        batch = next(iter(data), None)
        if batch is None:
            raise ConfigurationError("there is no batch in the data")
        metrics = self._compiled().metrics(what, batch)
        # The first batches, if not all: workers that lease parts would take others.
        count = data.cardinality()
        first = evaluates and steps is not None and (count is None or not 0 <= count <= steps)
        return Passes(self._coordinator, data, steps, metrics, in_order=first)

    def _check_trainable(self) -> None:
        if changed := sorted({path for path, _ in _trainable(self._model) ^ self._trainable}):
            raise ConfigurationError(
                f"{changed[0]!r} ({len(changed)} in all) was frozen, or let learn, after "
                "psnb.keras.distribute, which makes no difference there. As in Keras, where "
                "compile must be called again, distribute the model once more: "
                "plain = model.undistributed(); set trainable in plain; "
                "psnb.keras.distribute(plain, strategy, name=...)"
            )


def _file(given: Any) -> Any:
    """Return a path with the home folder in place of ``~``; Keras takes open files, too."""
    return path_text("filepath", given) if isinstance(given, str | Path) else given


def _trainable(model: Any) -> frozenset[tuple[str, bool]]:
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
    tables: TableOptions | None = None,
    name: str | None = None,
    adopt: bool | None = None,
) -> DistributedKeras:
    """Put a Keras model on parameter servers, or take up what the strategy has of it.

    Its ``keras.layers.Embedding`` become tables, also in models within it, however often each is
    called; all other weights become parts of few variables. BatchNormalization's averages are
    averaged there by its momentum, and other state of layers is set to the last step's values,
    however late a step comes. Keras's backend is JAX or torch, the same in the notebook and on the
    workers: models bring it along to workers that have not imported Keras. The model itself stays
    as it is.

    On a strategy of `psnb.attach` or `psnb.resume`, `compile` *adopts* the parameters of the model
    that had its name, if names, shapes and dtypes of weights are the model's: they stay as they
    are, with the state of their optimizers, and training continues; a warning says so. The model's
    own values are not used, except frozen ones, which must be equal. Models and layers that Keras
    has given names with a number (``dense_1``) are found by their order.

    Parameters
    ----------
    model : keras.Model
        Functional or sequential, and built. Layers, losses and metrics of your own may be in it.
    strategy : ParameterServerStrategy
        Whose servers. Its coordinator (`psnb.ClusterCoordinator`, one for each strategy) runs the
        model.
    sparse, dense : Optimizer or callable, optional
        For tables and for all other weights, or a function from the name of an embedding, or from
        the path of a weight, to one; by default that of ``compile``.
    tables : mapping, optional
        How servers keep rows, by the name of an embedding: arguments of
        `ParameterServerStrategy.embedding`, such as ``{"user": {"dtype": "bfloat16"}}``; ``dtype``
        (in half width), ``slot_dtype`` and ``storage``. Adopted tables stay as they are: what is
        given of one must be so there. ``compile`` checks them.
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
    psnb's own optimizers, for ``sparse`` and ``dense``, have defaults of their own; optimizers for
    ``compile`` keep Keras's:

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
    return DistributedKeras(model, strategy, sparse, dense, name, adopt, tables)
