"""Keras alone on JAX: two processes of one core. Its gradients of tables are as large as tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # as psnb.keras does

import keras

from tests.benchmarks.beside import criteo
from tests.benchmarks.beside.two import Step, Two


def model() -> keras.Model:
    """Return the model: one table for all features, as `criteo.in_one_table` has it."""
    keras.utils.set_random_seed(0)
    rows = criteo.ROWS_IN_ONE_TABLE
    ids = keras.Input((criteo.FIELDS,), dtype="int32", name="ids")
    numbers = keras.Input((criteo.NUMBERS,), name="numbers")
    deep = keras.layers.Embedding(rows, criteo.DIM, "zeros", name="deep")(ids)
    wide = keras.layers.Embedding(rows, 1, "zeros", name="wide")(ids)
    hidden = keras.layers.Concatenate()([keras.layers.Flatten()(deep), numbers])
    for units in criteo.UNITS:
        hidden = keras.layers.Dense(units, "relu", kernel_initializer="he_normal")(hidden)
    sums = keras.ops.sum(keras.layers.Flatten()(wide), 1, keepdims=True)
    return keras.Model([ids, numbers], keras.layers.Dense(1)(hidden) + sums)


def options() -> dict[str, Any]:
    """Return what it is compiled with."""
    return {
        "optimizer": keras.optimizers.Adagrad(criteo.RATE, criteo.ACCUMULATOR),
        "loss": keras.losses.BinaryCrossentropy(from_logits=True),
    }


def batches(size: int, seed: int) -> Iterator[Any]:
    """Yield batches as Keras takes them."""
    for ids, numbers, labels in criteo.batches(size, seed):
        yield {"ids": criteo.in_one_table(ids), "numbers": numbers}, labels[:, None]


def make(rank: int) -> Step:
    """Return the step of a process."""
    own = model()
    own.compile(**options())
    data = {size: batches(size, rank) for size in criteo.SIZES}

    def step(size: int) -> float:
        return float(own.train_on_batch(*next(data[size])))

    return step


if __name__ == "__main__":
    from tests.benchmarks.beside.peers import keras as own

    Two(own.make).serve("keras")
