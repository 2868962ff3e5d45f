"""Wide and deep model of `psnb._src.demo.flights`; import it only where gradients are computed.

The rows come from parameter servers and the gradients go back to them; nothing is kept here.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

DIMENSION = 8
"""Length of a deep embedding row."""

HIDDEN = (32, 16)
"""Widths of the hidden layers."""


def initial_weights(fields: int, dense_columns: int, seed: int) -> np.ndarray:
    """Return the first weights of the MLP as one vector, so that they are one dense variable.

    Parameters
    ----------
    fields, dense_columns : int
        Columns of `Flights.ids` and of `Flights.dense`.
    seed : int
        Equal seeds give equal weights.

    Returns
    -------
    np.ndarray
        float32 (number of weights,). Normal with He's scale; biases are zero.
    """
    rng = np.random.default_rng(seed)
    layers = [
        (rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs)), np.zeros(outputs))
        for inputs, outputs in _shapes(fields, dense_columns)
    ]
    return np.asarray(ravel_pytree(layers)[0], np.float32)


def gradients(
    weights: np.ndarray,
    wide_rows: np.ndarray,
    deep_rows: np.ndarray,
    dense: np.ndarray,
    labels: np.ndarray,
) -> tuple[float, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the loss of a batch, its predictions and its gradients.

    The loss is the mean over the batch, but the gradients are those of the *sum*. Few flights of
    a batch share a row, so by the mean a row's gradient would shrink with the batch size and be
    lost beside Adagrad's initial accumulator. Compiles once for each batch size.

    Parameters
    ----------
    weights : np.ndarray
        float32, as from `initial_weights`.
    wide_rows : np.ndarray
        float32 (batch, fields, 1).
    deep_rows : np.ndarray
        float32 (batch, fields, DIMENSION).
    dense : np.ndarray
        float32 (batch, dense columns).
    labels : np.ndarray
        float32 (batch,), 0 or 1.

    Returns
    -------
    loss : float
        Mean sigmoid cross-entropy, in nats.
    probabilities : np.ndarray
        float32 (batch,), of label 1, before any update.
    gradients : tuple of np.ndarray
        Of the summed cross-entropy by `weights`, `wide_rows` and `deep_rows`, of those shapes,
        float32. A row looked up twice has two gradients here, which its server must add.
    """
    (loss, probabilities), by = _gradients(weights, wide_rows, deep_rows, dense, labels)
    by_weights, by_wide, by_deep = (np.asarray(each) for each in by)
    return float(loss) / len(labels), np.asarray(probabilities), (by_weights, by_wide, by_deep)


def predict(
    weights: np.ndarray, wide_rows: np.ndarray, deep_rows: np.ndarray, dense: np.ndarray
) -> np.ndarray:
    """Return float32 (batch,) probabilities of label 1; shapes are those of `gradients`."""
    return np.asarray(_predict(weights, wide_rows, deep_rows, dense))


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the area under the ROC curve.

    It is the chance that a random positive scores above a random negative, where a tie counts
    half. It is nan when `labels` are all of one class.
    """
    positive = np.asarray(labels) > 0.5
    wins = int(positive.sum()) * int((~positive).sum())
    if wins == 0:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # the mean rank, from 1, of each distinct score
    below = ranks[inverse][positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return float(below / wins)


def _shapes(fields: int, dense_columns: int) -> list[tuple[int, int]]:
    widths = (fields * DIMENSION + dense_columns, *HIDDEN, 1)
    return list(pairwise(widths))


@cache
def _unravel(fields: int, dense_columns: int) -> Any:
    """Return the function from the flat weights to a list of (matrix, bias)."""
    layers = [
        (np.zeros(shape, np.float32), np.zeros(shape[1], np.float32))
        for shape in _shapes(fields, dense_columns)
    ]
    return ravel_pytree(layers)[1]


def _logits(weights: Any, wide_rows: Any, deep_rows: Any, dense: Any) -> jax.Array:
    batch, fields, _ = deep_rows.shape
    layers = _unravel(fields, dense.shape[1])(weights)
    hidden = jnp.concatenate([deep_rows.reshape(batch, -1), dense], 1)
    for matrix, bias in layers[:-1]:
        hidden = jax.nn.relu(hidden @ matrix + bias)
    matrix, bias = layers[-1]
    logits: jax.Array = (hidden @ matrix + bias)[:, 0] + wide_rows.sum((1, 2))
    return logits


@jax.jit
def _predict(weights: Any, wide_rows: Any, deep_rows: Any, dense: Any) -> jax.Array:
    return jax.nn.sigmoid(_logits(weights, wide_rows, deep_rows, dense))


def _summed_loss(
    weights: Any, wide_rows: Any, deep_rows: Any, dense: Any, labels: Any
) -> tuple[jax.Array, jax.Array]:
    logits = _logits(weights, wide_rows, deep_rows, dense)
    # softplus(x) - x y is the cross-entropy without the overflow of log(sigmoid(x)).
    losses = jax.nn.softplus(logits) - logits * labels
    return losses.sum(), jax.nn.sigmoid(logits)


_gradients = jax.jit(jax.value_and_grad(_summed_loss, argnums=(0, 1, 2), has_aux=True))
