"""Splits a Keras model: embeddings become tables, the rest is computed by workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from psnb._src.models.keras.layers import PickledLambda, TableLookup, lambda_shape
from psnb._src.models.keras.references import ModelReferences, custom_objects
from psnb.errors import ConfigurationError

_OWN_STEPS = ("call", "train_step", "test_step", "predict_step", "compute_metrics")


@dataclass(frozen=True)
class SplitKeras:
    """The parts of a model.

    Attributes
    ----------
    tail : keras.Model
        The model with lookups in place of embeddings; its other variables have its values.
    model : ModelReferences
        The model that it was made of.
    tables : dict
        The embeddings, by the name of their table.
    weights : list
        For each of the model's ``weights`` the name of a table, or the variable of the tail.
    """

    tail: keras.Model
    model: ModelReferences
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
    parts = ModelReferences(model, layers_of(model))
    for layer in layers_of(model):
        parts.check_layer(layer)
    tables: dict[str, keras.layers.Embedding] = {}
    cloned: list[tuple[Any, Any]] = []

    def clone(layer: Any) -> Any:
        if type(layer) is keras.layers.Embedding and layer.trainable:
            check_embedding(layer)
            name = layer.name
            while name in tables:
                name += "_"
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
            model, clone_function=lambda layer: copied(layer, keras.layers.Lambda), recursive=True
        )
    found.set_weights(weights)
    finish(found)
    return found


def adapted(model: Any) -> Iterator[Any]:
    """Yield the layers that compute with what they have made of their weights, wherever they are.

    So does ``Normalization``, which ``adapt`` has given a mean and a variance: for computations,
    its weights are constants.
    """
    return (each for each in every_layer(model) if hasattr(each, "finalize_state"))


def every_layer(model: Any) -> Iterator[Any]:
    """Yield a model and the layers in it, also within layers."""
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
    given = layer.function, lambda_shape(layer), layer.mask, layer.arguments
    return of_lambda(*given, name=layer.name, dtype=layer.dtype_policy)


def layers_of(model: Any) -> Iterator[Any]:
    """Yield the layers of a model, and of the models in it."""
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


def as_array(variable: Any) -> np.ndarray:
    """Return a variable's value."""
    return np.array(keras.ops.convert_to_numpy(variable))
