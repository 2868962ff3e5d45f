"""Splits a Keras model: embeddings become tables, the rest is computed by workers."""

from __future__ import annotations

import base64
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import cloudpickle
import keras
import numpy as np

from psnb._src.client.embedding import Embedding
from psnb._src.client.variable import Variable
from psnb._src.data.ragged import Ragged
from psnb._src.models.shared import functions_of, leads_to, used_global
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adagrad, Adam, Momentum, RMSProp
from psnb.errors import ConfigurationError, InvalidArrayError, SerializationError

# Finds what leads to a model beside its layers: on workers that would be a copy.


class ModelParts:
    """A model, its layers and its weights.

    Parameters
    ----------
    model : keras.Model
        The model.
    layers : iterator of keras.layers.Layer
        Its layers, and those of the models in it.
    """

    def __init__(self, model: Any, layers: Iterator[Any]) -> None:
        self._alive = [model, *layers]  # so that no other thing has their ids
        self._names = {id(each): f"layer {each.name!r}" for each in self._alive}
        self._names |= {id(each): f"weight {each.path!r}" for each in model.weights}
        self._names[id(model)] = "the model itself"

    def check(self, what: str, thing: Any) -> None:
        """Raise ConfigurationError if a function or an object leads to a part of the model.

        Parameters
        ----------
        what : str
            What it is called.
        thing : object
            A function; an object whose attributes are looked at; or nested structures of them.
        """
        for each in _flat(thing):
            if (itself := self._name(each)) is not None:
                raise self._refused(what, itself)
            functions = [each] if isinstance(each, FunctionType) else functions_of(type(each))
            for function in functions:
                if (used := used_global(function, self._name)) is not None:
                    raise self._refused(what, used[1])
            values = [each] if isinstance(each, FunctionType) else vars(each).values()
            for value in values:
                if (found := self._led_to(value)) is not None:
                    raise self._refused(what, found)

    def check_layer(self, layer: Any) -> None:
        """Raise ConfigurationError if what a layer runs leads to another part of the model."""
        what = f"layer {layer.name!r}"
        if isinstance(layer, keras.layers.Lambda):
            self.check(what, [layer.function, layer.arguments])
        elif not type(layer).__module__.startswith("keras."):
            for function in functions_of(type(layer)):
                if (used := used_global(function, self._name)) is not None:
                    raise self._refused(what, used[1])

    def _name(self, value: Any) -> str | None:
        return self._names.get(id(value))

    def _led_to(self, value: Any) -> str | None:
        try:
            return leads_to(value, self._name)
        except Exception:  # what cannot be pickled is refused where it travels
            return None

    def _refused(self, what: str, part: str) -> ConfigurationError:
        return ConfigurationError(
            f"{what} uses {part} beside the model, and on workers that would be a copy that does "
            "not learn. Penalties belong to layers (kernel_regularizer=, add_loss in call), and "
            "what shares a weight into one layer that does both"
        )


def _flat(thing: Any) -> list[Any]:
    flat = keras.tree.flatten(thing)
    return [each for each in flat if isinstance(each, FunctionType) or hasattr(each, "__dict__")]


class ModelInputs:
    """What a model takes.

    Parameters
    ----------
    model : keras.Model
        Functional or sequential.

    Attributes
    ----------
    names : tuple of str
        What the inputs are called, in the order of Keras's trees.
    batch_size : int or None
        How many examples each batch has, if an input says so.
    """

    def __init__(self, model: Any) -> None:
        # A sequential model that was not called has no `input`.
        given = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        self._form = given
        tensors = keras.tree.flatten(given)
        keys = sorted(given) if isinstance(given, dict) else [each.name for each in tensors]
        self.names = tuple(keys)
        self._specs = [(tuple(each.shape), str(each.dtype)) for each in tensors]
        sizes = (shape[0] for shape, _ in self._specs if shape)
        self.batch_size: int | None = next((size for size in sizes if size is not None), None)

    def arrays(self, x: Any) -> dict[str, np.ndarray]:
        """Return the arrays of a batch by name, with the shapes and dtypes of the inputs.

        Raises
        ------
        ConfigurationError
            If one is missing, or has another shape.
        InvalidArrayError
            If an input of integers gets what is none.
        """
        flat = self.flat(x)
        return {
            name: _as(name, each, *spec)
            for name, each, spec in zip(self.names, flat, self._specs, strict=True)
        }

    def example(self) -> dict[str, np.ndarray]:
        """Return zeros by name, for two examples or a batch of the model's size.

        Raises
        ------
        ConfigurationError
            If an input has no fixed shape.
        """
        for name, (shape, _) in zip(self.names, self._specs, strict=True):
            if None in shape[1:]:
                raise ConfigurationError(
                    f"psnb.export: input {name!r} has no fixed shape, {shape}: give example=, a "
                    "batch of the shape that is to be predicted"
                )
        size = self.batch_size or 2
        return self.arrays([np.zeros((size, *shape[1:])) for shape, _ in self._specs])

    def flat(self, x: Any) -> list[Any]:
        """Return what is given for each input."""
        if isinstance(x, Mapping):
            if missing := [name for name in self.names if name not in x]:
                raise ConfigurationError(
                    f"a batch lacks the inputs {missing} of the model; it has {sorted(x)}"
                )
            return [x[name] for name in self.names]
        flat = list(x) if isinstance(x, tuple | list) else [x]
        if len(flat) != len(self.names):
            raise ConfigurationError(
                f"the model has {len(self.names)} inputs, {list(self.names)}; a batch has "
                f"{len(flat)}"
            )
        return flat

    def pack(self, arrays: Mapping[str, Any]) -> Any:
        """Return what the model is called with."""
        return keras.tree.pack_sequence_as(self._form, [arrays[name] for name in self.names])


def _as(name: str, given: Any, shape: tuple[int | None, ...], dtype: str) -> np.ndarray:
    if isinstance(given, Ragged):
        raise ConfigurationError(
            f"input {name!r} is Ragged, and models of Keras take arrays: pad() it, with an "
            "Embedding(mask_zero=True) for the zeros"
        )
    array = np.asarray(given)
    if array.dtype.kind not in "biuf":
        raise ConfigurationError(f"input {name!r} is of {array.dtype}, not of numbers")
    if array.ndim == len(shape) - 1 and shape[-1] == 1:
        array = array[..., None]
    elif array.ndim == len(shape) + 1 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != len(shape) or any(
        size not in (None, found) for size, found in zip(shape[1:], array.shape[1:], strict=True)
    ):
        raise ConfigurationError(
            f"input {name!r} of the model has shape {shape}, and a batch has {np.shape(given)}"
        )
    if array.dtype == dtype:
        return array
    if dtype.startswith(("int", "uint")):
        return whole(f"input {name!r}", array, dtype)
    return array.astype(dtype) if dtype != "bfloat16" else array.astype(np.float32)


def whole(what: str, array: np.ndarray, dtype: str = "int64") -> np.ndarray:
    """Return integers of a dtype, or raise InvalidArrayError if an array is none of them."""
    if not array.size:
        return array.astype(dtype)
    if array.dtype.kind == "f" and not (np.floor(array) == array).all():
        missing = " and missing values" if np.isnan(array).any() else ""
        raise InvalidArrayError(
            f"{what} takes integers, and found {array.dtype} with fractions{missing}: convert the "
            "column where it is read"
        )
    limits = np.iinfo(dtype)
    if array.min() < limits.min or array.max() > limits.max:
        raise InvalidArrayError(f"{what} is of {dtype}, and has {array.min()} to {array.max()}")
    return array.astype(dtype)


# Layers that take the place of others in the model that workers compute with.
#
# Threads: each has its own lookup.

Lookup = Callable[[str, Any], Any]
"""Takes the name of a table and ids, returns their rows: tensors of the backend."""

_local = threading.local()


@contextmanager
def looking_up(lookup: Lookup) -> Iterator[None]:
    """Let this thread's embeddings look up with a function."""
    before = getattr(_local, "lookup", None)
    _local.lookup = lookup
    try:
        yield
    finally:
        _local.lookup = before


@keras.saving.register_keras_serializable("psnb")
class TableLookup(keras.layers.Layer):
    """In place of ``keras.layers.Embedding``; outside of `looking_up` all rows are zeros.

    Parameters
    ----------
    table : str
        The name of the table.
    dim : int
        Floats a row.
    mask_zero : bool
        As of ``keras.layers.Embedding``.
    options
        Of every layer of Keras.
    """

    def __init__(self, table: str, dim: int, mask_zero: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.table, self.dim, self.mask_zero = table, dim, mask_zero
        self.supports_masking, self.autocast = mask_zero, False

    def call(self, ids: Any) -> Any:
        """Return the rows of ids of any shape."""
        lookup = getattr(_local, "lookup", None)
        if lookup is None:
            return keras.ops.zeros((*ids.shape, self.dim), self.compute_dtype)
        return keras.ops.cast(lookup(self.table, ids), self.compute_dtype)

    def compute_mask(self, ids: Any, mask: Any = None) -> Any:
        """Return which ids are not 0, with ``mask_zero``."""
        return keras.ops.not_equal(ids, 0) if self.mask_zero else None

    def compute_output_spec(self, ids: Any) -> Any:
        """Return what comes out, without a lookup."""
        return keras.KerasTensor((*ids.shape, self.dim), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make the layer again."""
        own = {"table": self.table, "dim": self.dim, "mask_zero": self.mask_zero}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("psnb")
class PickledLambda(keras.layers.Lambda):
    """A ``keras.layers.Lambda`` whose function travels with all that it refers to.

    Keras keeps the bytecode alone: names that a lambda uses would not be known on workers.
    """

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make the layer again.

        Raises
        ------
        SerializationError
            If the function cannot be pickled.
        """
        shape = lambda_shape(self)
        try:
            arguments = _untracked(self.arguments)
            pickled = cloudpickle.dumps((self.function, shape, self.mask, arguments))
        except Exception as error:  # reduction of the user's objects may raise anything
            raise SerializationError(
                f"the function of Lambda layer {self.name!r} cannot be pickled: {error}. The model "
                "travels to workers: make there what cannot travel (locks, files, connections), in "
                "the function, when it is first needed"
            ) from error
        text = base64.b64encode(pickled).decode()
        return {"name": self.name, "dtype": self.dtype, "trainable": self.trainable, "of": text}

    @classmethod
    def from_config(cls, config: dict[str, Any], **_: Any) -> PickledLambda:
        """Make the layer again."""
        options = {**config}
        function, shape, mask, arguments = pickle.loads(base64.b64decode(options.pop("of")))
        return cls(function, shape, mask, arguments, **options)


def _untracked(value: Any) -> Any:
    """Return what a layer was given: Keras keeps its own dicts and lists, which do not travel."""
    match value:
        case dict():
            return {name: _untracked(each) for name, each in value.items()}
        case list() | set():
            kind = list if isinstance(value, list) else set
            return kind(map(_untracked, value))
        case tuple() if type(value) is tuple:
            return tuple(map(_untracked, value))
    return value


def lambda_shape(layer: keras.layers.Lambda) -> Any:
    """Return the output shape that a ``Lambda`` was made with; None for one that is computed."""
    config = keras.layers.Lambda.get_config(layer)
    shape = config.get("output_shape")
    return tuple(shape) if isinstance(shape, list | tuple) else None


# Optimizers of Keras as those of psnb, which the servers apply.

_REFUSED = ("loss_scale_factor", "gradient_accumulation_steps", "use_ema", "global_clipnorm")


def as_optimizer(given: Any) -> Optimizer:
    """Return psnb's optimizer for one of Keras, by name or as an object, with its hyperparameters.

    Raises
    ------
    ConfigurationError
        If psnb has not the same one.
    """
    if isinstance(given, Optimizer):
        return given
    found = keras.optimizers.get(given)
    config, kind = found.get_config(), type(found).__name__
    _check(found, kind)
    if used := [name for name in _REFUSED if config.get(name)]:
        raise ConfigurationError(f"optimizer {kind}: servers do not do {', '.join(used)}")
    rate = config["learning_rate"]
    if isinstance(rate, float):
        rate = float(str(np.float32(rate)))  # Keras keeps float32: 0.01 is 0.00999999977 there
    if not isinstance(rate, float | int):
        raise ConfigurationError(
            f"optimizer {kind}: a schedule of Keras does not travel to servers; take one of psnb: "
            "psnb.Adam(psnb.CosineDecay(...))"
        )
    own: dict[str, Any] = {"clipnorm": config["clipnorm"], "clipvalue": config["clipvalue"]}
    decay = config["weight_decay"] or 0.0
    match kind:
        case "SGD" if not decay and config["momentum"]:
            return Momentum(rate, config["momentum"], config["nesterov"], **own)
        case "SGD" if not decay and not config["momentum"]:
            return SGD(rate, **own)
        case "Adagrad" if not decay:
            start = config["initial_accumulator_value"]
            return Adagrad(rate, start, config["epsilon"], epsilon_in_root=True, **own)
        case "Adam" | "AdamW":
            names = ("beta_1", "beta_2", "epsilon", "amsgrad")
            options = {name: config[name] for name in names}
            return Adam(rate, epsilon_hat=True, weight_decay=decay, **options, **own)
        case "RMSprop" if not decay:
            options = {name: config[name] for name in ("rho", "momentum", "epsilon", "centered")}
            return RMSProp(rate, **options, **own)
    raise ConfigurationError(
        f"optimizer {kind} with {config}: psnb has no such one. Servers apply SGD, Momentum, "
        "Adagrad, Adam (AdamW) and RMSProp: give one of them, as psnb.Adam(1e-3) or of Keras"
    )


def _check(given: Any, kind: str) -> None:
    """Raise ConfigurationError if an optimizer is more than its kind and its config."""
    if hasattr(given, "inner_optimizer"):
        raise ConfigurationError(
            f"optimizer {kind} scales losses, which servers do not: give the optimizer in it. In "
            "half precision take the policy mixed_bfloat16, which needs no scaling"
        )
    # With torch, Keras makes them of classes of the backend, of the same names.
    own = getattr(keras.optimizers, kind, None)
    if own is None or not isinstance(given, own) or not type(given).__module__.startswith("keras."):
        raise ConfigurationError(
            f"optimizer {kind} is a class of {type(given).__module__}, which servers do not run: "
            "give one of Keras, or of psnb"
        )
    # No public method says it.
    excluded = "_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"
    if any(getattr(given, name, None) for name in excluded):
        raise ConfigurationError(
            f"optimizer {kind}: exclude_from_weight_decay() does not reach servers, and all would "
            "decay. Choose by name: psnb.keras.distribute(dense=lambda name: psnb.Adam(1e-3, "
            'weight_decay=0.0 if "bias" in name else 0.1))'
        )
    if int(given.iterations):
        raise ConfigurationError(
            f"optimizer {kind} has taken {int(given.iterations):,} steps; on servers its state "
            "starts over: make a new one, with the rate that it should have now. From then on "
            "psnb's checkpoints have its state"
        )


class SteeredOptimizer:
    """The optimizer that ``compile`` was given, as the servers have it.

    Setting ``learning_rate`` sets it on the servers, from the next update on, for all parameters
    that ``compile``'s optimizer is for: not for those that ``distribute`` was given one for.

    Parameters
    ----------
    parameters : sequence of Variable or Embedding
        What it is the optimizer of.
    """

    def __init__(self, parameters: Sequence[Variable | Embedding]) -> None:
        self._parameters = tuple(parameters)

    def __repr__(self) -> str:
        return f"<psnb.keras optimizer of {[each.name for each in self._parameters]}>"

    @property
    def steers(self) -> bool:
        """Whether there are parameters that it is the optimizer of."""
        return bool(self._parameters)

    @property
    def learning_rate(self) -> float:
        """The learning rate.

        Raises
        ------
        ConfigurationError
            If `distribute` was given all optimizers, or the rate follows a schedule of psnb.
        """
        rate: Any = self._live()[0].learning_rate
        if callable(rate):
            raise ConfigurationError(
                f"the learning rate follows {rate!r}: callbacks set one that is a number"
            )
        return float(rate)

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        for each in self._live():
            each.learning_rate = float(rate)

    def _live(self) -> list[Any]:
        if not self._parameters:
            raise ConfigurationError(
                "distribute was given the optimizers, sparse= and dense=, so there is none of "
                "compile's to steer: leave one of them out, or set rates with "
                "coordinator.set_learning_rate"
            )
        return [each.optimizer for each in self._parameters]


# Which backend Keras has in a process: that of the notebook whose models come here.
#
# Imports no Keras: it is called before that may be done. Threads: closures of several may arrive at
# a time; one at a time imports Keras.

_importing = threading.Lock()
"""Held while a model is unpickled, so that no thread sees a partly imported Keras."""

_known: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""What was unpickled here and lives; models are compiled once for all closures that have them."""


def unpickled(backend: str, name: str, payload: bytes) -> Any:
    """Return what was pickled in a process whose Keras has a backend: of a name, once.

    Raises
    ------
    ConfigurationError
        If Keras was imported here with another one, which it keeps.
    """
    with _importing:
        keras = sys.modules.get("keras")
        if keras is None:
            os.environ["KERAS_BACKEND"] = backend
        elif (other := keras.backend.backend()) != backend:
            raise ConfigurationError(
                f"the model was made in a process whose Keras has the backend {backend!r}, and "
                f"process {os.getpid()} has imported Keras with {other!r}, which it keeps. Start "
                f"workers and notebook with the same environment variable KERAS_BACKEND={backend}"
            )
        found = _known.get(name)
        if found is None:
            found = _known[name] = pickle.loads(payload)
        return found


# What a model has of the user's own, which Keras knows by its name only: classes and functions.


def custom_objects(*things: Any) -> dict[str, Any]:
    """Return the classes and functions that are not Keras's, by the names that configs have.

    Of layers, losses and metrics, and of all that they hold. They are found as objects: a name may
    mean another class by now, as of a cell that has run again.

    Raises
    ------
    ConfigurationError
        If a name means two of them.
    """
    found: dict[str, Any] = {}
    fallback: dict[str, Any] = {}
    for thing in _held(things):
        own = thing if isinstance(thing, FunctionType | type) else type(thing)
        if str(own.__module__).startswith(("keras.", "psnb.")) or own.__name__ == "<lambda>":
            continue  # a lambda's code is in the config
        name = keras.saving.get_registered_name(own)
        if found.setdefault(name, own) is not own:
            raise ConfigurationError(
                f"the model has two classes or functions that are called {name!r}, and Keras makes "
                "a model again by names: rename one, or distinguish them with "
                "@keras.saving.register_keras_serializable(package=...). If the cell that defines "
                "it has run again, run also the one that makes the model"
            )
        fallback[own.__name__] = own
    return {**fallback, **found}


def _held(things: Any) -> Iterator[Any]:
    """Yield what has a config, and functions: those given, and those in their attributes."""
    seen: set[int] = set()
    left = [*things]
    while left:
        thing = left.pop()
        if isinstance(thing, Mapping):
            left += thing.values()
        elif isinstance(thing, list | tuple | set):
            left += thing
        elif isinstance(thing, FunctionType | type) or hasattr(type(thing), "from_config"):
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            if isinstance(thing, type) and not hasattr(thing, "from_config"):
                continue
            yield thing
            left += _attributes(thing)


def _attributes(thing: Any) -> Iterator[Any]:
    """Yield the attributes of what has a config.

    But for methods that Keras has wrapped in functions that hold their object (`build`): these are
    in no config, and would have all of the object travel.
    """
    if isinstance(thing, FunctionType | type):
        return
    for name, value in getattr(thing, "__dict__", {}).items():
        if not (isinstance(value, FunctionType) and callable(getattr(type(thing), name, None))):
            yield value


_OWN_STEPS = ("call", "train_step", "test_step", "predict_step", "compute_metrics")


@dataclass(frozen=True)
class SplitKeras:
    """The parts of a model.

    Attributes
    ----------
    tail : keras.Model
        The model with lookups in place of embeddings; its other variables have its values.
    model : ModelParts
        The model that it was made of.
    tables : dict
        The embeddings, by the name of their table.
    weights : list
        For each of the model's ``weights`` the name of a table, or the variable of the tail.
    """

    tail: keras.Model
    model: ModelParts
    tables: dict[str, keras.layers.Embedding]
    weights: list[Any]


def split(model: Any) -> SplitKeras:
    """Split a model, which stays as it is.

    Raises
    ------
    ConfigurationError
        If it is not a functional or sequential model that is built, or has a part that servers
        cannot do.
    """
    _check_kind(model)
    _check_alone(model)
    parts = ModelParts(model, layers_of(model))
    for layer in layers_of(model):
        parts.check_layer(layer)
    tables: dict[str, keras.layers.Embedding] = {}
    cloned: list[tuple[Any, Any]] = []

    def clone(layer: Any) -> Any:
        if type(layer) is keras.layers.Embedding and layer.trainable:
            check_embedding(layer)
            name = _free(layer.name, tables)
            tables[name] = layer
            made: Any = TableLookup(
                name,
                layer.output_dim,
                layer.mask_zero,
                name=layer.name,
                dtype=layer.dtype_policy,
                activity_regularizer=layer.activity_regularizer,
            )
        else:
            made = copied(layer, PickledLambda)
            cloned.append((layer, made))
        return made

    with keras.saving.custom_object_scope(custom_objects(model)):
        tail = keras.models.clone_model(model, clone_function=clone, recursive=True)
    found: dict[int, Any] = {id(layer.weights[0]): name for name, layer in tables.items()}
    for layer, made in cloned:
        if not isinstance(layer, keras.layers.Layer):
            continue  # an operation, which has no variables
        shapes, others = ([tuple(v.shape) for v in each.weights] for each in (layer, made))
        if shapes != others:
            raise ConfigurationError(
                f"layer {layer.name!r} has weights of shapes {shapes}, and a copy that its config "
                f"makes has {others}: make them in __init__ or build(), with what get_config() "
                "returns, in the same way each time"
            )
        for theirs, ours in zip(layer.weights, made.weights, strict=True):
            ours.assign(as_array(theirs))  # a copy: JAX frees what Keras trains with
            found[id(theirs)] = ours
    finish(tail)
    for variable in tail.trainable_variables:
        if variable.constraint is not None:
            raise ConfigurationError(
                f"weight {variable.path!r} has a constraint, which servers do not apply after an "
                "update; weight_decay= or clipnorm= of the optimizer keep weights small"
            )
    return SplitKeras(tail, parts, tables, [found[id(each)] for each in model.weights])


def plain_copy(model: Any, weights: Sequence[np.ndarray]) -> Any:
    """Return a copy of a model, which has values of its own."""
    with keras.saving.custom_object_scope(custom_objects(model)):
        found = keras.models.clone_model(
            model,
            clone_function=lambda layer: copied(layer, keras.layers.Lambda),
            recursive=True,
        )
    found.set_weights(weights)
    finish(found)
    return found


def adapted(model: Any) -> Iterator[Any]:
    """Yield the layers that compute with what they have made of their weights, wherever they are.

    So does ``Normalization``, which `adapt` has given a mean and a variance: for what computes, its
    weights are constants.
    """
    return (each for each in every_layer(model) if hasattr(each, "finalize_state"))


def every_layer(model: Any) -> Iterator[Any]:
    """Yield a model and the layers in it, those that layers hold too."""
    seen, left = {id(model)}, [model]
    while left:
        layer = left.pop()
        yield layer
        for value in vars(layer).values():
            for each in value if isinstance(value, list | tuple) else [value]:
                if isinstance(each, keras.layers.Layer) and id(each) not in seen:
                    seen.add(id(each))
                    left.append(each)


def finish(model: Any) -> None:
    """Let layers make of their weights what they compute with: Keras does so after loading."""
    for layer in adapted(model):
        layer.finalize_state()


def copied(layer: Any, of_lambda: type[keras.layers.Lambda]) -> Any:
    """Return a copy of a layer without its values, a ``Lambda`` as one of a class."""
    if type(layer) is not keras.layers.Lambda:
        return type(layer).from_config(layer.get_config())
    return of_lambda(
        layer.function,
        lambda_shape(layer),
        layer.mask,
        layer.arguments,
        name=layer.name,
        dtype=layer.dtype_policy,
    )


def layers_of(model: Any) -> Iterator[Any]:
    """Yield the layers of a model, and those of the models in it."""
    for layer in model.layers:
        yield layer
        if isinstance(layer, keras.Model):
            yield from layers_of(layer)


def check_embedding(layer: keras.layers.Embedding) -> None:
    """Raise ConfigurationError if servers cannot do what an embedding does."""
    if layer.embeddings_regularizer or layer.embeddings_constraint:
        raise ConfigurationError(
            f"embedding {layer.name!r} has a regularizer or a constraint of all its rows, which "
            "servers do not apply: let weight_decay= of the optimizer keep rows small"
        )
    if getattr(layer, "lora_rank", None) or layer.dtype_policy.quantization_mode:
        raise ConfigurationError(f"embedding {layer.name!r} is quantized or has LoRA weights")


def _check_kind(model: Any) -> None:
    bases = type(keras.Model(*2 * [keras.Input((1,))])), keras.Sequential
    base = next((each for each in bases if isinstance(model, each)), None)
    if base is None:
        raise ConfigurationError(
            "psnb.keras.distribute takes functional and sequential models, whose layers are known; "
            f"found {type(model).__name__}, a {type(model).__mro__[1].__name__}. Write it as "
            "keras.Model(inputs, outputs); layers of your own may be in it"
        )
    own = [name for name in _OWN_STEPS if getattr(type(model), name) is not getattr(base, name)]
    if own:
        raise ConfigurationError(
            f"{type(model).__name__} has its own {', '.join(own)}, which workers would not run: "
            "give compile(loss=..., metrics=...) what a step computes, or make a layer of it"
        )
    if not model.built:
        raise ConfigurationError(
            f"model {model.name!r} is not built: begin with keras.Input(...), or build it"
        )
    for layer in every_layer(model):
        if getattr(layer, "stateful", False):
            raise ConfigurationError(
                f"layer {layer.name!r} is stateful: it begins a batch with what it has kept of "
                "each example of the batch before, and batches go to several workers, which would "
                "have to wait for each other. Have stateful=False, and longer sequences in a "
                "batch; or give the state to the model as an input, and return it as an output"
            )
    for layer in layers_of(model):
        if type(layer).__name__ == "TorchModuleWrapper":
            raise ConfigurationError(
                f"layer {layer.name!r} is a module of torch, whose parameters Keras does not see: "
                "psnb.torch.distribute takes modules"
            )


def _check_alone(model: Any) -> None:
    """Raise ConfigurationError if a layer holds another one of the model."""
    users: dict[int, Any] = {}
    for layer in layers_of(model):
        # A model holds its layers, and operations have no weights.
        for variable in () if isinstance(layer, keras.Model) else getattr(layer, "weights", ()):
            if (other := users.setdefault(id(variable), layer)) is not layer:
                raise ConfigurationError(
                    f"layers {other.name!r} and {layer.name!r} share weight {variable.path!r}, as "
                    "one was given to the other, and each would get a weight of its own. Make one "
                    "layer that does what both do, and call it twice"
                )


def _free(name: str, taken: dict[str, Any]) -> str:
    return name if name not in taken else _free(f"{name}_", taken)


def as_array(variable: Any) -> np.ndarray:
    """Return a variable's value."""
    return np.array(keras.ops.convert_to_numpy(variable))
