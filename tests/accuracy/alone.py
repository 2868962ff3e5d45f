"""The flights model trained by one process with JAX and optax, and nothing of psnb.

Its tables are whole arrays, and so are their gradients: a row that no flight of a batch has gets
zeros, by which Adagrad changes neither the row nor what it has accumulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from psnb._src.demo import run

Parameters = dict[str, Any]
"""The layers of the network, and the rows of tables in the order of the ids that are known."""


def trained_alone(
    loss: Callable[..., Any], start: Parameters, known: np.ndarray, batches: Iterator[Any]
) -> Iterator[tuple[float, Parameters]]:
    """Train on batch after batch; yield its mean loss, and the parameters until the next."""
    optimizer = optax.multi_transform(
        {
            "rows": optax.adagrad(run.EMBEDDING_RATE, run.START, eps=1e-7),
            "network": optax.adagrad(run.NETWORK_RATE, run.START, eps=1e-7),
        },
        {"network": "network", "wide": "rows", "deep": "rows"},
    )

    def of_all(parameters: Parameters, batch: Any) -> Any:
        rows = {name: parameters[name][batch["places"]] for name in ("wide", "deep")}
        return loss(parameters["network"], rows, batch)

    @partial(jax.jit, donate_argnums=(0, 1))  # in place: they are large
    def step(parameters: Parameters, state: Any, batch: Any) -> Any:
        (_, told), gradients = jax.value_and_grad(of_all, has_aux=True)(parameters, batch)
        changes, state = optimizer.update(gradients, state, parameters)
        return told["loss"], optax.apply_updates(parameters, changes), state

    parameters = jax.tree.map(jnp.array, start)
    state = optimizer.init(parameters)
    for each in batches:
        batch = {
            "places": np.searchsorted(known, each.ids),
            "dense": each.dense,
            "labels": each.labels,
        }
        told, parameters, state = step(parameters, state, batch)
        yield float(told), parameters
