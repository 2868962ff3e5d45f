"""The smaller wide & deep that parts of psnb are measured on: made-up clicks, and the model in JAX.

26 categorical features, each with a range of ids of its own out of a million, a few of which are
seen again and again; 13 numbers; a label from a known logistic model. The model is a linear part
over the ids (wide) and a perceptron of 256 and 128 units over embeddings and numbers (deep).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import psnb  # an environment of a peer has none

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


def jax_step(strategy: psnb.ParameterServerStrategy) -> Callable[[Iterator[Batch]], float]:
    """Return a step of the model in JAX on parameter servers."""
    import jax
    import jax.numpy as jnp

    import psnb
    import psnb.jax

    def loss(weights: Any, rows: Any, batch: Any) -> Any:
        _, numbers, labels = batch
        hidden = jnp.concatenate([rows["deep"].reshape(-1, FIELDS * DIM), numbers], 1)
        hidden = jax.nn.relu(hidden @ weights[0] + weights[1])
        hidden = jax.nn.relu(hidden @ weights[2] + weights[3])
        logit = (hidden @ weights[4] + weights[5])[:, 0] + rows["wide"].sum((1, 2))
        return jnp.mean(jax.nn.softplus(logit) - logit * labels)

    adagrad = psnb.Adagrad(RATE)
    tables = {
        name: strategy.embedding(name, dim, ROWS, psnb.Normal(0, 0.01), optimizer=adagrad)
        for name, dim in {"deep": DIM, "wide": 1}.items()
    }
    params = psnb.jax.variables(strategy, initial_weights(), adagrad)
    return psnb.jax.step(loss, params=params, tables=tables, ids=_same_ids)


def _same_ids(batch: Batch) -> dict[str, np.ndarray]:
    return {"deep": batch[0], "wide": batch[0]}
