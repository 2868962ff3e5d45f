"""KerasNetwork: a model's computation, as a function of the values of its variables.

For both backends: arguments and results are Keras's tensors. Threads: several may call one;
variables keep their own values, as all values come from outside.
"""

from __future__ import annotations

import inspect
import math
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle
import keras
import numpy as np
from keras.src.backend import get_keras_mask

from psnb._src.models.keras.data import ModelInputs
from psnb._src.models.keras.references import custom_objects
from psnb._src.models.keras.split import adapted, as_array, every_layer, finish, layers_of
from psnb._src.models.placing import local_value
from psnb.errors import ConfigurationError, PsnbError, SerializationError

_local = threading.local()

Blended = tuple[Any, Any]
"""A share and a term; see `psnb._src.client.dense_shards.Blend`."""


class MovingAverages:
    """Notes what calls in one thread blend into averages, within `noted`.

    As `psnb._src.models.torch.buffers`: a call that begins with zeros for averages gives its share
    of them to the last digit.
    """

    def __init__(self) -> None:
        # By the variable's id: share and term, and the value that the last call has left.
        self._blends: dict[int, tuple[Blended, Any]] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what the layers that are followed do."""
        before, _local.averages = getattr(_local, "averages", None), self
        try:
            yield
        finally:
            _local.averages = before

    def blend(self, variable: Any, before: Any, now: Any) -> Blended:
        """Return what a step has blended into a variable that it has written to.

        State that cannot be blended is set to the step's value: a late change would give it a value
        that no step has computed.
        """
        blend, left = self._blends.get(id(variable), ((0.0, None), None))
        if left is not None and left is now:
            return blend
        ops = keras.ops
        changed = ops.not_equal(now, before)
        # All of it, or elements would be of several steps; but what stays infinite could not be
        # pushed.
        stays = ops.logical_and(ops.isinf(now), ops.logical_not(changed))
        moved = ops.logical_and(ops.any(changed), ops.logical_not(stays))
        return ops.cast(moved, now.dtype), ops.where(moved, now, ops.zeros_like(now))

    def call(self, layer: Any, function: Any) -> Any:
        """Call a layer that moves its averages."""
        averages = layer.moving_mean, layer.moving_variance
        before = [each.value for each in averages]
        for each, value in zip(averages, before, strict=True):
            each.assign(keras.ops.zeros_like(value))
        found = function()
        kept = layer.momentum
        for each, value in zip(averages, before, strict=True):
            term = each.value
            each.assign(kept * value + term)
            (share, total), left = self._blends.get(id(each), ((0.0, 0.0), value))
            if left is value:
                blend = 1 - kept + kept * share, kept * total + term
                self._blends[id(each)] = blend, each.value
        return found


def follow(layer: Any) -> None:
    """Have `MovingAverages` note what a layer does from now on, if it is known to move averages."""
    if type(layer) is not keras.layers.BatchNormalization or layer.renorm:
        return  # with renorm, what a call computes depends on the averages
    plain, signature = layer.call, inspect.signature(layer.call)

    def call(*args: Any, **kwargs: Any) -> Any:
        averages: MovingAverages | None = getattr(_local, "averages", None)
        training = signature.bind(*args, **kwargs).arguments.get("training")
        if averages is None or not training or not layer.trainable:
            return plain(*args, **kwargs)
        return averages.call(layer, lambda: plain(*args, **kwargs))

    layer.call = call


class _Scope(keras.StatelessScope):
    """Holds what a step assigns; with torch without gradients, as Keras then writes in place."""

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        if keras.backend.backend() == "torch":
            value = keras.ops.stop_gradient(value)
        super().add_update((variable, value))


Named = Mapping[str, tuple[int, ...]]
"""The shapes of variables by name, in their order."""


@dataclass(frozen=True)
class Computed:
    """The results of a network for a batch.

    Attributes
    ----------
    outputs : object
        The model's.
    loss : tensor or None
        With the losses of layers and regularizers; None without targets.
    metrics : list of tensor
        The terms to add to the metrics' variables.
    moved : dict
        The share and the term of moved state, by name; see `Blend`.
    weight : tensor or None
        The number of values of which the loss is the mean; None without targets.
    """

    outputs: Any
    loss: Any
    metrics: list[Any]
    moved: dict[str, Blended]
    weight: Any = None


class KerasNetwork:
    """A model without embeddings, whose values come with each call.

    Parameters
    ----------
    tail : keras.Model
        The model, with lookups in place of embeddings.
    compiled : mapping
        What ``compile`` was given: loss and metrics.
    named : tuple of mappings, optional
        What weights and state are called, in their order, and their shapes; by default by their
        paths. A model that was made again may have other paths.

    Attributes
    ----------
    inputs : ModelInputs
        What it takes.
    weights, state : dict
        The variables that learn, and those that a step changes besides them, by name.
    seeds : list
        The variables that random numbers are made of.
    """

    def __init__(
        self, tail: Any, compiled: Mapping[str, Any], named: tuple[Named, Named] | None = None
    ) -> None:
        self._tail, self._compiled = tail, dict(compiled)
        self.inputs = ModelInputs(tail)
        # Frozen weights stay where they are, and travel with the model.
        still = [*adapted(tail), *(each for each in layers_of(tail) if not each.trainable)]
        frozen = {id(v) for each in still for v in each.weights}
        learning = tail.trainable_variables
        moving = [
            each
            for each in tail.weights
            if not each.trainable and id(each) not in frozen and "float" in each.dtype
        ]
        names = named or (_named(learning), _named(moving))
        self.weights, self.state = _by_name(names[0], learning), _by_name(names[1], moving)
        known = {id(each) for each in tail.weights}
        self.seeds = [each for each in tail.variables if id(each) not in known]
        theirs = {id(each) for each in (*learning, *moving)}
        self._local = [each for each in tail.weights if id(each) not in theirs]
        for each in every_layer(tail):
            follow(each)
        tail.compile(optimizer="sgd", **compiled)
        self._built = False

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            config = keras.saving.serialize_keras_object(self._tail)
            custom = custom_objects(self._tail, self._compiled)
            local = [as_array(each) for each in self._local]
            named = _shapes(self.weights), _shapes(self.state)
            given = pickle.dumps((config, local, named)), cloudpickle.dumps(custom)
            return _rebuilt, (*given, cloudpickle.dumps(self._compiled))
        except PsnbError:
            raise
        except Exception as error:  # get_config of users raises anything
            raise SerializationError(
                f"model {self._tail.name!r} cannot travel to workers: {type(error).__name__}: "
                f"{error}. Layers, losses and metrics of your own need a get_config() that returns "
                "the arguments of their __init__, and nothing that cannot be pickled"
            ) from error

    def computed(
        self,
        values: Mapping[str, Any],
        batch: Mapping[str, Any],
        *,
        training: bool,
        begun: Sequence[Any] | None = None,
    ) -> Computed:
        """Compute outputs; and loss and metrics, if the batch has targets.

        Parameters
        ----------
        values : mapping
            Of `weights` and `state`, by name.
        batch : mapping
            ``x``, the inputs by name; perhaps ``y``, ``weights`` and ``seeds``.
        training : bool
            As layers of Keras take it.
        begun : sequence, optional
            What metrics begin with; by default zeros.
        """
        tail = self._tail
        mapping = [(each, values[name]) for name, each in {**self.weights, **self.state}.items()]
        if "seeds" in batch:
            mapping += zip(self.seeds, batch["seeds"], strict=True)
        variables = tail.metrics_variables if "y" in batch else []
        starts = begun or [keras.ops.zeros(each.shape, each.dtype) for each in variables]
        mapping += zip(variables, starts, strict=True)
        x, y, weights = _tensors([batch.get(name) for name in ("x", "y", "weights")])
        averages = MovingAverages()
        with _Scope(mapping, collect_losses=True) as scope, averages.noted():
            before = {name: scope.get_current_value(each) for name, each in self.state.items()}
            outputs = tail.call(self.inputs.pack(x), training=training)
            loss = weight = None
            if "y" in batch:
                weight = self._weight(outputs, weights)
                loss = tail.compute_loss(None, y, outputs, weights)
                examples = keras.tree.flatten(x)[0].shape[0]
                tail.metrics[0].update_state(loss, sample_weight=examples)
                tail.compute_metrics(None, y, outputs, weights)
            moved = {
                name: averages.blend(each, before[name], now)
                for name, each in self.state.items()
                if (now := scope.get_current_value(each)) is not before[name]
            }
            metrics_ = [scope.get_current_value(each) for each in variables]
            # Written state that is not on servers would be one worker's.
            written = [e.path for e in self._local if scope.get_current_value(e) is not None]
            learned = [
                each.path
                for name, each in self.weights.items()
                if scope.get_current_value(each) is not values[name]
            ]
        if written:
            raise ConfigurationError(
                f"a step changes {written}, which are not floats: servers keep float32 and "
                "float64, and on a worker they would be its own"
            )
        if learned:
            raise ConfigurationError(
                f"a step assigns to {learned}, which learn: servers change them by gradients "
                "alone. Make them add_weight(trainable=False), or let the loss keep them in "
                "bounds (kernel_regularizer=, add_loss)"
            )
        return Computed(outputs, loss, metrics_, moved, weight)

    def _weight(self, outputs: Any, weights: Any) -> Any:
        """Return the number of values of which the loss is the mean, without masked ones.

        For a sum it is 1, as no mean. Where losses reduce in several ways, the first one counts.
        """
        losses_ = self._tail._compile_loss
        each = getattr(losses_, "_flat_losses", None) or ()
        reduction = getattr(each[0][1], "reduction", None) if each else "sum_over_batch_size"
        if reduction in ("sum", "none", None):
            return keras.ops.ones(())
        given = [e for e in keras.tree.flatten(weights) if e is not None]
        if reduction == "mean_with_sample_weight" and given:
            return sum(keras.ops.sum(keras.ops.cast(e, "float32")) for e in given)
        return sum(map(_counted, keras.tree.flatten(outputs)))

    def build(self, batch: Mapping[str, Any], shaped: Callable[..., Any]) -> None:
        """Make the variables of loss and metrics, whose shapes depend on a batch.

        Parameters
        ----------
        batch : mapping
            As for `computed`, with targets.
        shaped : callable
            Calls a function with arrays for the shapes of its results, as far as it can.
        """
        if not self._built:
            with keras.StatelessScope(collect_losses=True):
                shaped(
                    lambda *given: self.computed(*given, training=False).metrics,
                    self.own_values(),
                    batch,
                )
            self._built = True

    def check_metrics(self, batch: Mapping[str, Any], run: Callable[..., Any]) -> None:
        """Raise ConfigurationError if what a metric keeps does not add up over batches.

        Parameters
        ----------
        batch : mapping
            As for `computed`, with targets.
        run : callable
            Calls a function with arrays.
        """

        def twice(values: Any, batch: Any) -> Any:
            once = self.computed(values, batch, training=False).metrics
            return once, self.computed(values, batch, training=False, begun=once).metrics

        found = run(twice, self.own_values(), batch)
        for variable, *both in zip(self._tail.metrics_variables, *found, strict=True):
            one, two = (np.asarray(keras.ops.convert_to_numpy(each)) for each in both)
            if not np.allclose(2 * one, two, rtol=1e-3, atol=1e-6, equal_nan=True):
                raise ConfigurationError(
                    f"metric variable {variable.path!r} does not add up over batches, so it cannot "
                    "be merged over workers: metrics that count, sum or average can"
                )

    def layers(self) -> Iterator[tuple[str, Any]]:
        """Yield the layers with their names, also of models in the model."""
        for each in layers_of(self._tail):
            yield each.name, each

    def own_values(self) -> dict[str, Any]:
        """Return the values that the variables have in this process, by name."""
        return {name: each.value for name, each in {**self.weights, **self.state}.items()}

    def local_values(self) -> dict[str, str]:
        """Return what identifies the values that are not on servers, such as frozen weights."""
        values = map(as_array, self._local)
        metrics_ = (local_value(each.dtype, each.shape, each) for each in values)
        return dict(zip(_named(self._local), metrics_, strict=True))

    @property
    def metrics_size(self) -> int:
        """How many numbers the metrics keep."""
        return sum(math.prod(each.shape) for each in self._tail.metrics_variables)

    def results(self, value: np.ndarray) -> dict[str, Any]:
        """Return the metrics from the sums, one after another."""
        variables = self._tail.metrics_variables
        stops = np.cumsum([math.prod(each.shape) for each in variables])
        for variable, part in zip(variables, np.split(value, stops[:-1]), strict=True):
            variable.assign(part.reshape(variable.shape))
        found = {}
        for name, each in self._tail.get_metrics_result().items():
            array = np.asarray(keras.ops.convert_to_numpy(each))
            found[name] = float(array) if array.ndim == 0 else array
        self._tail.reset_metrics()
        return found


def _named(variables: Sequence[Any]) -> Named:
    """Return a name for each variable, its path, of equal ones with something more; and shapes."""
    found: dict[str, tuple[int, ...]] = {}
    for each in variables:
        name = each.path
        while name in found:
            name += "_"
        found[name] = tuple(each.shape)
    return found


def _by_name(named: Named, variables: Sequence[Any]) -> dict[str, Any]:
    """Return variables by name, or raise ConfigurationError if these are others."""
    shapes = [tuple(each.shape) for each in variables]
    if shapes != [*named.values()]:
        raise ConfigurationError(
            f"the model that its config makes has weights of shapes {shapes}, where {dict(named)} "
            "are expected: layers make theirs in __init__ or build(), with what get_config() "
            "returns, in the same way each time"
        )
    return dict(zip(named, variables, strict=True))


def _tensors(given: Any) -> Any:
    return keras.tree.map_structure(
        lambda each: None if each is None else keras.ops.convert_to_tensor(each), given
    )


def _counted(output: Any) -> Any:
    """Return how many numbers of an output a mean counts, but for its last axis."""
    mask = get_keras_mask(output)  # which a trace of JAX does not give otherwise
    if mask is None:
        shape = output.shape[:1] if len(output.shape) < 2 else output.shape[:-1]
        return keras.ops.cast(math.prod(shape), "float32")
    return keras.ops.sum(keras.ops.cast(mask, "float32"))


def _shapes(variables: Mapping[str, Any]) -> Named:
    return {name: tuple(each.shape) for name, each in variables.items()}


def _rebuilt(model: bytes, custom: bytes, compiled: bytes) -> KerasNetwork:
    # The custom objects first: they need nothing, all else needs them.
    with keras.saving.custom_object_scope(pickle.loads(custom)):
        config, local, named = pickle.loads(model)
        tail = keras.saving.deserialize_keras_object(config, safe_mode=False)
        network = KerasNetwork(tail, pickle.loads(compiled), named)
    for variable, value in zip(network._local, local, strict=True):
        variable.assign(value)
    finish(tail)
    return network
