"""Models of Keras, small ones, with what there is in models; and their training in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from psnb._src.models.keras.compiled import CompiledModel
from psnb._src.models.keras.split import split
from tests.models.placing import InProcessStrategy

ROWS, STEPS, SIZE = 9, 8, 12

Batch = tuple[dict[str, np.ndarray], Any]


def data(outputs: tuple[str, ...] = (), steps: int = STEPS) -> list[Batch]:
    """Return batches of ids (0 is padding), numbers, and targets."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(steps):
        ids = rng.integers(ROWS, size=(SIZE, 4)).astype(np.int32)
        x = rng.normal(size=(SIZE, 3)).astype(np.float32)
        y = (ids[:, :1] + x[:, :1] > 4).astype(np.float32)
        found.append(({"ids": ids, "x": x}, dict.fromkeys(outputs, y) if outputs else y))
    return found


def inputs() -> tuple[Any, Any]:
    return keras.Input((4,), dtype="int32", name="ids"), keras.Input((3,), name="x")


def plain() -> Any:
    ids, x = inputs()
    rows = keras.layers.Embedding(ROWS, 2, name="words")(ids)
    hidden = keras.layers.Concatenate()([keras.layers.Flatten()(rows), x])
    hidden = keras.layers.Dense(5, "relu")(hidden)
    return keras.Model([ids, x], keras.layers.Dense(1, "sigmoid")(hidden))


def called_twice() -> Any:
    """One embedding for two columns and for all of them, of ids that the model computes."""
    ids, x = inputs()
    words = keras.layers.Embedding(ROWS, 2, name="words")
    parts = [words(ids[:, 0]), words((ids[:, 1] + 1) % ROWS), keras.layers.Flatten()(words(ids))]
    hidden = keras.layers.Concatenate()([*parts, x])
    return keras.Model([ids, x], keras.layers.Dense(1, "sigmoid")(hidden))


def masked() -> Any:
    ids, x = inputs()
    rows = keras.layers.Embedding(ROWS, 2, mask_zero=True, name="words")(ids)
    mean = keras.layers.GlobalAveragePooling1D()(rows)
    read = keras.layers.GRU(3)(rows)
    hidden = keras.layers.Concatenate()([mean, read, x])
    return keras.Model([ids, x], keras.layers.Dense(1, "sigmoid")(hidden))


def nested() -> Any:
    """A model in a model, with an embedding each, and a sequential one."""
    inner_ids = keras.Input((4,), dtype="int32")
    inner_rows = keras.layers.Embedding(ROWS, 2, name="words")(inner_ids)
    inner = keras.Model(inner_ids, keras.layers.Flatten()(inner_rows), name="inner")
    ids, x = inputs()
    tower = keras.Sequential(
        [keras.layers.Embedding(ROWS, 3, name="words"), keras.layers.Flatten()], name="tower"
    )
    hidden = keras.layers.Concatenate()([inner(ids), tower(ids), x])
    return keras.Model({"ids": ids, "x": x}, keras.layers.Dense(1, "sigmoid")(hidden))


def regularized() -> Any:
    ids, x = inputs()
    rows = keras.layers.Embedding(ROWS, 2, name="words", activity_regularizer="l2")(ids)
    hidden = keras.layers.Concatenate()([keras.layers.Flatten()(rows), x])
    hidden = keras.layers.Dense(5, "relu", kernel_regularizer="l2", bias_regularizer="l1")(hidden)
    return keras.Model([ids, x], keras.layers.Dense(1, "sigmoid")(hidden))


def normalized() -> Any:
    ids, x = inputs()
    rows = keras.layers.Embedding(ROWS, 2, name="words")(ids)
    hidden = keras.layers.Concatenate()([keras.layers.Flatten()(rows), x])
    hidden = keras.layers.BatchNormalization(momentum=0.9)(hidden)
    return keras.Model([ids, x], keras.layers.Dense(1, "sigmoid")(hidden))


def frozen() -> Any:
    """What does not learn: an embedding, and a layer."""
    ids, x = inputs()
    rows = keras.layers.Embedding(ROWS, 2, name="words", trainable=False)(ids)
    hidden = keras.layers.Concatenate()([keras.layers.Flatten()(rows), x])
    hidden = keras.layers.Dense(5, "relu", trainable=False)(hidden)
    return keras.Model([ids, x], keras.layers.Dense(1, "sigmoid")(hidden))


def with_lambda() -> Any:
    """A function that refers to something, and one with arguments."""
    ids, x = inputs()
    factor = 0.5
    rows = keras.layers.Embedding(ROWS, 2, name="words")(ids)
    scaled = keras.layers.Lambda(lambda rows: keras.ops.tanh(rows) * factor)(rows)
    given = {"by": {"factors": [2.0, (0.5,)]}}
    scaled = keras.layers.Lambda(
        lambda rows, by: rows * by["factors"][0] * by["factors"][1][0], arguments=given
    )(scaled)
    hidden = keras.layers.Concatenate()([keras.layers.Flatten()(scaled), x])
    return keras.Model([ids, x], keras.layers.Dense(1, "sigmoid")(hidden))


def several_outputs() -> Any:
    ids, x = inputs()
    rows = keras.layers.Flatten()(keras.layers.Embedding(ROWS, 2, name="words")(ids))
    first = keras.layers.Dense(1, "sigmoid")(rows)
    second = keras.layers.Dense(1)(keras.layers.Concatenate()([rows, x]))
    return keras.Model([ids, x], {"first": first, "second": second})


def floats_for_ids() -> Any:
    """Ids in an input of floats, which Keras takes."""
    ids, x = keras.Input((4,), name="ids"), keras.Input((3,), name="x")
    rows = keras.layers.Flatten()(keras.layers.Embedding(ROWS, 2, name="words")(ids))
    hidden = keras.layers.Concatenate()([rows, x])
    return keras.Model([ids, x], keras.layers.Dense(1, "sigmoid")(hidden))


def everything() -> Any:
    """What the others have, at once; but what is masked is read by no recurrent layer."""
    ids, x = keras.Input((4,), name="ids"), keras.Input((3,), name="x")
    factor = 0.5
    words = keras.layers.Embedding(ROWS, 2, name="words")
    last = keras.layers.Lambda(lambda rows: keras.ops.tanh(rows) * factor)(words(ids[:, 3]))
    masked = keras.layers.Embedding(ROWS, 2, mask_zero=True, name="masked")(ids)
    mean = keras.layers.GlobalAveragePooling1D()(masked)
    inner_ids = keras.Input((4,))
    # Called once, and not of a name that there is: these, Keras itself gets wrong with torch.
    others = keras.layers.Embedding(ROWS, 2, name="others", activity_regularizer="l2")
    inner = keras.Model(inner_ids, keras.layers.Flatten()(others(inner_ids)), name="inner")
    fixed = keras.layers.Embedding(ROWS, 3, name="words", trainable=False)
    tower = keras.Sequential([fixed, keras.layers.Flatten()], name="tower")
    parts = [words((ids[:, 1] + 1) % ROWS), last, mean, inner(ids), tower(ids)]
    hidden = keras.layers.Concatenate()([*parts, x])
    hidden = keras.layers.BatchNormalization(momentum=0.9)(hidden)
    hidden = keras.layers.Dense(5, "relu", kernel_regularizer="l2", bias_regularizer="l1")(hidden)
    still = keras.layers.Dense(5, "relu", trainable=False)(hidden)
    first = keras.layers.Dense(1, "sigmoid")(still)
    second = keras.layers.Dense(1)(keras.layers.Concatenate()([still, x]))
    return keras.Model({"ids": ids, "x": x}, {"first": first, "second": second})


ONE_EACH = (
    *(called_twice, masked, nested, regularized, normalized, frozen, with_lambda),
    *(several_outputs, floats_for_ids),
)
ALL: dict[str, Callable[[], Any]] = {each.__name__: each for each in (plain, everything, *ONE_EACH)}

TWO_OUTPUTS = (everything.__name__, several_outputs.__name__)

NAMES = [
    *(plain.__name__, everything.__name__),
    *(
        pytest.param(
            each.__name__, marks=pytest.mark.second_tier("one thing of those that `everything` has")
        )
        for each in ONE_EACH
    ),
]
"""Of all models, to be tested in turn."""


def compiled(model: Any, optimizer: Any = "sgd", **options: Any) -> CompiledModel:
    """Put a model on servers in this process."""
    given = {"loss": "binary_crossentropy", **options}
    return CompiledModel(InProcessStrategy(), "model", split(model), None, None, optimizer, given)


def trained(model: CompiledModel, batches: list[Batch]) -> dict[str, Any]:
    """Train in this process; return the metrics."""
    metrics = model.metrics("metrics", batches[0])
    metrics.begin()
    for batch in batches:
        model.program.train(batch, metrics.variable, False)
    return metrics.results()


def joined(batches: list[Batch]) -> Batch:
    """Return all batches as one."""
    found: Batch = keras.tree.map_structure(lambda *several: np.concatenate(several), *batches)
    return found
