"""The work that wide & deep is measured on: made-up clicks, and the model's gradients in JAX.

26 categorical features, each with a range of ids of its own out of a million, a few of which are
seen again and again; 13 numbers; a label from a known logistic model. The model is a linear part
over the ids (wide) and a perceptron of 256 and 128 units over embeddings and numbers (deep).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

ROWS, FIELDS, NUMBERS, DIM = 1_000_000, 26, 13, 16
EXAMPLES = 100_000
SHAPES = [(FIELDS * DIM + NUMBERS, 256), (256,), (256, 128), (128,), (128, 1), (1,)]
RATE = 0.05

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
"""ids (int32, ``(n, FIELDS)``), numbers (float32, ``(n, NUMBERS)``), labels (float32, ``(n,)``)"""


def clicks(examples: int, seed: int) -> Batch:
    """Return examples; a seed gives the same each time."""
    rng = np.random.default_rng(seed)
    own = ROWS // FIELDS
    rank = (rng.pareto(1.05, (examples, FIELDS)) * 3).astype(np.int64) % own
    ids = (rank + np.arange(FIELDS) * own).astype(np.int32)
    numbers = rng.standard_normal((examples, NUMBERS)).astype(np.float32)
    of_ids = np.random.default_rng(7).standard_normal(ROWS).astype(np.float32) * 0.5
    of_numbers = np.random.default_rng(8).standard_normal(NUMBERS).astype(np.float32) * 0.3
    logit = of_ids[ids].sum(1) * 0.6 + numbers @ of_numbers - 1.0
    labels = (rng.random(examples) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return ids, numbers, labels


def batches(size: int, seed: int) -> Iterator[Batch]:
    """Yield batches for ever, the examples in another order each time."""
    everything = clicks(EXAMPLES, 3)
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(EXAMPLES)
        for start in range(0, EXAMPLES - size + 1, size):
            at = order[start : start + size]
            ids, numbers, labels = (array[at] for array in everything)
            yield ids, numbers, labels


def initial_weights() -> list[np.ndarray]:
    """Return the first weights of the perceptron."""
    rng = np.random.default_rng(1)
    return [
        (rng.standard_normal(shape) * np.sqrt(2 / shape[0])).astype(np.float32)
        if len(shape) == 2
        else np.zeros(shape, np.float32)
        for shape in SHAPES
    ]


def compiled() -> Callable[..., Any]:
    """Return the function of embedding rows, wide rows, weights, numbers, labels for JAX.

    It gives the loss and the gradients of the first three.
    """
    import jax
    import jax.numpy as jnp

    def loss(deep: Any, wide: Any, weights: Any, numbers: Any, labels: Any) -> Any:
        hidden = jnp.concatenate([deep.reshape(-1, FIELDS * DIM), numbers], 1)
        hidden = jax.nn.relu(hidden @ weights[0] + weights[1])
        hidden = jax.nn.relu(hidden @ weights[2] + weights[3])
        logit = (hidden @ weights[4] + weights[5])[:, 0] + wide.reshape(-1, FIELDS).sum(1)
        return jnp.mean(jnp.maximum(logit, 0) - logit * labels + jnp.log1p(jnp.exp(-abs(logit))))

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))


def batch_with_parameters(size: int) -> tuple[Any, ...]:
    """Return what the function of `compiled` takes, for a batch."""
    _, numbers, labels = next(batches(size, 0))
    rows = np.zeros((size, FIELDS, DIM), np.float32), np.zeros((size, FIELDS, 1), np.float32)
    return *rows, initial_weights(), numbers, labels
