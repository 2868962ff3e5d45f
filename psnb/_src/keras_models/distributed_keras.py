"""DistributedKeras: a Keras model on parameter servers, with Keras's own methods.

Belongs to one thread, as a model of Keras does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from psnb._src.coordinator import ClusterCoordinator
from psnb._src.data import Dataset
from psnb._src.jax_models import variables
from psnb._src.keras_models.keras_optimizers import as_optimizer
from psnb._src.keras_models.keras_program import KerasProgram
from psnb._src.keras_models.split_keras import split
from psnb._src.models import check_free
from psnb._src.server import SGD, Optimizer
from psnb._src.strategy import ParameterServerStrategy
from psnb.errors import ConfigurationError

_AHEAD = 4
"""Closures for each worker that are scheduled at a time."""

Logs = dict[str, float]


class DistributedKeras:
    """A Keras model whose values are on parameter servers; made by `distribute`.

    `compile`, `fit`, `evaluate`, `predict` and `save` are those of Keras, and so are callbacks,
    which run in the notebook. Batches go to whichever worker is free; with a `psnb.data.Dataset`
    workers read it themselves, and every example is used exactly once an epoch. Metrics are added
    up over all workers, exactly: each batch counts once, whatever dies.

    What a step changes beside weights (the moving averages of ``BatchNormalization``) is on the
    servers, too, and a step adds its changes; random seeds are made anew for each step.

    Attributes
    ----------
    stop_training : bool
        Callbacks set it to end `fit` after an epoch.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: ParameterServerStrategy,
        sparse: Optimizer | None,
        dense: Optimizer | None,
        name: str,
    ) -> None:
        self._model, self._strategy, self._name = model, strategy, name
        # Of a copy: a model of whose layers another one was made does not save any more.
        try:
            self._copy = keras.models.clone_model(model)
        except (ValueError, NotImplementedError) as error:
            raise ConfigurationError(
                f"psnb.keras.distribute takes functional and sequential models, found "
                f"{type(model).__name__}: {error}"
            ) from error
        self._copy.set_weights(model.get_weights())
        self._parts, self._layers = split(self._copy)
        self._optimizers = sparse, dense
        self._coordinator = ClusterCoordinator(strategy)
        self._program: KerasProgram | None = None
        self._metrics: dict[str, Any] = {}
        self.stop_training = False
        self.history: keras.callbacks.History | None = None

    def __repr__(self) -> str:
        return f"<psnb.keras.DistributedKeras {self._name!r}: {len(self._layers)} tables>"

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
    ) -> None:
        """Choose the optimizer, loss and metrics, and put the model on the servers; once.

        Parameters
        ----------
        optimizer : str, keras.optimizers.Optimizer or Optimizer
            One that psnb has, too, with its hyperparameters: SGD, Adagrad, Adam, AdamW, RMSprop.
            For what `distribute` was given no other one for.
        loss, metrics, weighted_metrics
            As in Keras. Metrics must add up: those of Keras that count or average do.

        Raises
        ------
        ConfigurationError
            If psnb has no such optimizer, the name is taken, or it was compiled before.
        """
        if self._program is not None:
            raise ConfigurationError(
                f"{self!r} is compiled: its optimizers have their state on the servers. Set "
                "hyperparameters there (coordinator.set_learning_rate), or distribute another"
            )
        sparse, dense = (each or as_optimizer(optimizer) for each in self._optimizers)
        tables = {name: f"{self._name}.{name}" for name in self._layers}
        check_free(self._strategy, [self._name, *tables.values()])
        tail = self._parts.tail
        weights = [np.asarray(each.value) for each in tail.trainable_variables]
        state = [
            np.asarray(each.value) for each in tail.non_trainable_variables if "float" in each.dtype
        ]
        params = variables(
            self._strategy,
            {"weights": weights, "state": state},
            lambda name: SGD(1.0) if name.startswith("['state']") else dense,
            name=self._name,
        )
        placed = {}
        for name, layer in self._layers.items():
            rows = np.asarray(layer.embeddings.value)
            placed[name] = self._strategy.embedding(
                tables[name], layer.output_dim, layer.input_dim, 0.0, sparse
            )
            placed[name].assign(np.arange(len(rows)), rows)
        given = {"loss": loss, "metrics": metrics, "weighted_metrics": weighted_metrics}
        self._program = KerasProgram(self._parts, params, placed, given)
        self._params, self._tables = params, placed

    def fit(
        self,
        x: Any,
        y: Any = None,
        batch_size: int = 32,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Sequence[Any] | None = None,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_freq: int = 1,
    ) -> keras.callbacks.History:
        """Train, with Keras's parameters.

        Parameters
        ----------
        x : Dataset, array or nested structure of arrays
            A `psnb.data.Dataset` of batches ``(inputs, targets)`` or ``(inputs, targets,
            weights)``, or all inputs.
        y, batch_size, shuffle, sample_weight
            For arrays.
        epochs, verbose, callbacks, validation_data, class_weight, initial_epoch, steps_per_epoch
            As in Keras; ``validation_data`` is what `evaluate` takes.
        validation_freq : int
            After how many epochs there is a validation.

        Returns
        -------
        keras.callbacks.History
            As in Keras.
        """
        program = self._compiled()
        data = _dataset(x, y, sample_weight, batch_size, len(_first(x)) if shuffle else 0)
        if class_weight is not None:
            data = data.map(_Weighted(class_weight))
        metrics = self._counted("metrics", data)

        def train(iterator: Iterator[Any]) -> float | None:
            batch = next(iterator, None)
            return None if batch is None else program.train(batch, metrics)

        told = keras.callbacks.CallbackList(
            callbacks,
            add_history=True,
            add_progbar=verbose != 0,
            model=self,
            verbose=1 if verbose == "auto" else verbose,
            epochs=epochs,
            steps=steps_per_epoch or data.cardinality(),
        )
        self.stop_training = False
        told.on_train_begin()
        logs: Logs = {}
        for epoch in range(initial_epoch, epochs):
            told.on_epoch_begin(epoch)
            metrics.assign(np.zeros(metrics.shape))
            steps = self._run(train, data, steps_per_epoch)
            for number, loss in enumerate(steps):
                told.on_train_batch_begin(number)
                told.on_train_batch_end(number, {"loss": loss})
            logs = program.results(metrics.read())
            if validation_data is not None and (epoch + 1) % validation_freq == 0:
                found = self._evaluated(validation_data, batch_size, None, told)
                logs |= {f"val_{name}": value for name, value in found.items()}
            told.on_epoch_end(epoch, logs)
            if self.stop_training:
                break
        told.on_train_end(logs)
        history: keras.callbacks.History = self.history
        return history

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        batch_size: int = 32,
        sample_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Return loss and metrics, as Keras does; ``x`` is what `fit` takes."""
        given = (x, y) if sample_weight is None else (x, y, sample_weight)
        found = self._evaluated(x if y is None else given, batch_size, None, None)
        if return_dict:
            return found
        values = list(found.values())
        return values[0] if len(values) == 1 else values

    def predict(self, x: Any, batch_size: int = 32) -> Any:
        """Return the outputs for inputs ``x`` (arrays), computed on the workers."""
        program, count = self._compiled(), len(_first(x))

        def predict(part: Any) -> Any:
            return program.predict(part)

        parts = [
            keras.tree.map_structure(lambda each, at=at: each[at : at + batch_size], x)
            for at in range(0, count, batch_size)
        ]
        found = self._coordinator.fetch(
            [self._coordinator.schedule(predict, (part,)) for part in parts]
        )
        return keras.tree.map_structure(lambda *several: np.concatenate(several), *found)

    def get_weights(self) -> list[np.ndarray]:
        """Return the weights, in the order of the undistributed model's."""
        return [np.array(each) for each in self._plain().get_weights()]

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Replace the weights on the servers; the state of optimizers stays as it is."""
        self._copy.set_weights(weights)
        tail = self._parts.tail
        self._params.assign(
            {
                "weights": [np.asarray(each.value) for each in tail.trainable_variables],
                "state": [
                    np.asarray(each.value)
                    for each in tail.non_trainable_variables
                    if "float" in each.dtype
                ],
            }
        )
        for name, table in self._tables.items():
            rows = np.asarray(self._layers[name].embeddings.value)
            table.assign(np.arange(len(rows)), rows)

    def save(self, filepath: str | Path, overwrite: bool = True, **options: Any) -> None:
        """Save a plain Keras file, which loads without psnb."""
        self._plain().save(filepath, overwrite=overwrite, **options)

    def save_weights(self, filepath: str | Path, overwrite: bool = True) -> None:
        """Save the weights as Keras does."""
        self._plain().save_weights(filepath, overwrite=overwrite)

    def _plain(self) -> keras.Model:
        """Return the undistributed model with the values of the servers."""
        self._compiled()
        tree, tail = self._params.read(), self._parts.tail
        for variable, value in zip(tail.trainable_variables, tree["weights"], strict=True):
            variable.assign(value)
        floats = [each for each in tail.non_trainable_variables if "float" in each.dtype]
        for variable, value in zip(floats, tree["state"], strict=True):
            variable.assign(value)
        for name, table in self._tables.items():
            rows = table.lookup(np.arange(self._layers[name].input_dim), training=False)
            self._layers[name].embeddings.assign(rows)
        self._model.set_weights(self._copy.get_weights())
        return self._model

    def _compiled(self) -> KerasProgram:
        if self._program is None:
            raise ConfigurationError(f"{self!r} must be compiled first: compile(loss=...)")
        return self._program

    def _counted(self, what: str, data: Dataset) -> Any:
        """Return the variable that metrics are added up in."""
        program = self._compiled()
        if what not in self._metrics:
            program.build(next(iter(data)))
            size = sum(int(np.prod(shape)) for shape in program.metric_shapes())
            self._metrics[what] = self._strategy.variable(np.zeros(size), f"{self._name}.{what}")
        return self._metrics[what]

    def _evaluated(self, given: Any, batch_size: int, steps: int | None, told: Any) -> Logs:
        program = self._compiled()
        x, y, *weights = (given, None) if isinstance(given, Dataset) else given
        data = _dataset(x, y, weights[0] if weights else None, batch_size)
        metrics = self._counted("test_metrics", data)
        metrics.assign(np.zeros(metrics.shape))

        def score(iterator: Iterator[Any]) -> bool | None:
            batch = next(iterator, None)
            return None if batch is None else program.score(batch, metrics)

        if told is not None:
            told.on_test_begin()
        for _ in self._run(score, data, steps):
            pass
        logs = program.results(metrics.read())
        if told is not None:
            told.on_test_end(logs)
        return logs

    def _run(self, closure: Callable[..., Any], data: Dataset, steps: int | None) -> Iterator[Any]:
        """Schedule closures for all batches, or some of them; yield what each returns."""
        leased = self._coordinator.create_per_worker_dataset(data, sharding="dynamic")
        iterator: Any = iter(leased)
        ahead = _AHEAD * max(1, self._strategy.num_workers)
        open_: deque[Any] = deque()
        left = steps
        while True:
            while len(open_) < ahead and left != 0 and not iterator.progress().over:
                open_.append(self._coordinator.schedule(closure, (iterator,)))
                left = None if left is None else left - 1
            if not open_:
                break
            found = open_.popleft().fetch()
            if found is not None:
                yield found
            elif left is None and not open_:
                time.sleep(0.01)  # what a lost worker had comes back
        self._coordinator.join()


class _Weighted:
    """Gives each example the weight of its class."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        self._weights = dict(weights)

    def __call__(self, x: Any, y: Any, given: Any = None) -> Any:
        classes = np.asarray(y).reshape(len(y), -1)
        kinds = classes.argmax(1) if classes.shape[1] > 1 else classes[:, 0].astype(int)
        weights = np.array([self._weights.get(int(kind), 1.0) for kind in kinds], np.float32)
        return x, y, weights if given is None else weights * given


def _first(x: Any) -> Any:
    return x if isinstance(x, Dataset) else keras.tree.flatten(x)[0]


def _dataset(
    x: Any, y: Any = None, weights: Any = None, batch_size: int = 32, shuffled: int = 0
) -> Dataset:
    if isinstance(x, Dataset):
        return x
    whole = (x, y) if weights is None else (x, y, weights)
    data = Dataset.from_tensor_slices(whole)
    return (data.shuffle(shuffled) if shuffled else data).batch(batch_size)


def distribute(
    model: keras.Model,
    strategy: ParameterServerStrategy,
    *,
    sparse: Optimizer | None = None,
    dense: Optimizer | None = None,
    name: str | None = None,
) -> DistributedKeras:
    """Put a Keras model on parameter servers.

    Its ``keras.layers.Embedding`` become tables, all other weights parts of one variable. The
    backend is JAX.

    Parameters
    ----------
    model : keras.Model
        Functional or sequential, and built.
    strategy : ParameterServerStrategy
        Whose servers.
    sparse, dense : Optimizer, optional
        For tables and for all other weights; by default that of ``compile``.
    name : str, optional
        Before the names of tables and variables; by default the model's.

    Returns
    -------
    DistributedKeras
        With Keras's methods.

    Raises
    ------
    ConfigurationError
        If the backend is another one, or servers cannot do what the model does.
    """
    if keras.backend.backend() != "jax":
        raise ConfigurationError(
            f"psnb.keras computes with JAX, and Keras's backend is {keras.backend.backend()!r}: "
            'set KERAS_BACKEND="jax" before Keras is imported'
        )
    return DistributedKeras(model, strategy, sparse, dense, name or model.name)
