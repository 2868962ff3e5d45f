"""Wide and deep model of `psnb.demo.flights`; import it only where gradients are computed.

After Cheng et al., *Wide & Deep Learning for Recommender Systems*, 2016. Pure functions of the
network's layers, the rows of a batch, and the batch: `psnb.jax` makes training steps of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DIMENSION = 8
"""Length of a deep embedding row."""

HIDDEN = (32, 16)
"""Widths of the hidden layers."""

Batch = Mapping[str, Any]
"""Fields of `Flights`: ``ids``, ``dense`` and ``labels``."""


def initial_layers(
    fields: int, dense_columns: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the first weights of the network: a matrix and a bias for each layer.

    Parameters
    ----------
    fields, dense_columns : int
        Columns of `Flights.ids` and of `Flights.dense`.
    seed : int
        Equal seeds give equal weights.

    Returns
    -------
    list of tuple
        float32. Normal with He's scale; biases are zero.
    """
    rng = np.random.default_rng(seed)
    shapes = pairwise((fields * DIMENSION + dense_columns, *HIDDEN, 1))
    return [
        (
            rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs)).astype(np.float32),
            np.zeros(outputs, np.float32),
        )
        for inputs, outputs in shapes
    ]


def ids(batch: Batch) -> dict[str, Any]:
    """Return the ids of each table: both have a row for each value of each field."""
    return {"wide": batch["ids"], "deep": batch["ids"]}


def logits(layers: Any, rows: Mapping[str, Any], batch: Batch) -> jax.Array:
    """Return the logit of each flight's label.

    Parameters
    ----------
    layers : list of tuple
        As from `initial_layers`.
    rows : mapping
        ``wide``, float32 (batch, fields, 1), and ``deep``, (batch, fields, DIMENSION).
    batch : mapping
        ``dense``, float32 (batch, dense columns).
    """
    count, fields, _ = rows["deep"].shape
    hidden = jnp.concatenate([rows["deep"].reshape(count, fields * DIMENSION), batch["dense"]], 1)
    for matrix, bias in layers[:-1]:
        hidden = jax.nn.relu(hidden @ matrix + bias)
    matrix, bias = layers[-1]
    found: jax.Array = (hidden @ matrix + bias)[:, 0] + rows["wide"].sum((1, 2))
    return found


def loss(layers: Any, rows: Mapping[str, Any], batch: Batch) -> tuple[jax.Array, dict[str, Any]]:
    """Return the loss of a batch, and what to report: its mean, and the area under the ROC curve.

    The loss is the *sum* of the sigmoid cross-entropy, in nats. Few flights of a batch share a row,
    so by the mean a row's gradient would shrink with the batch size, and be lost next to Adagrad's
    initial accumulator.
    """
    found = logits(layers, rows, batch)
    # softplus(x) - x y is the cross-entropy without the overflow of log(sigmoid(x)).
    losses = jax.nn.softplus(found) - found * batch["labels"]
    return losses.sum(), {"loss": losses.mean(), "auc": auc(batch["labels"], found)}


def predict(layers: Any, rows: Mapping[str, Any], batch: Batch) -> jax.Array:
    """Return the probability of label 1 of each flight."""
    return jax.nn.sigmoid(logits(layers, rows, batch))


def auc(labels: Any, scores: Any) -> Any:
    """Return the area under the ROC curve, of arrays of numpy or JAX.

    It is the chance that a random positive scores above a random negative, where a tie counts
    half. It is nan when `labels` are all of one class.
    """
    module: Any = jnp if isinstance(scores, jax.Array) else np
    positive = module.asarray(labels) > 0.5
    ordered = module.sort(scores)
    below, upto = (module.searchsorted(ordered, scores, side) for side in ("left", "right"))
    ranks = (below + upto + 1) / 2  # from 1; of equal scores, the mean
    count = positive.sum() * 1.0  # a product of JAX's integers would not fit 32 bits
    wins = count * (~positive).sum()
    above = (ranks * positive).sum() - count * (count + 1) / 2
    return module.where(wins > 0, above / module.maximum(wins, 1), module.nan)[()]
