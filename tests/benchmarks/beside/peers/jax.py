"""JAX alone: two processes of one core, each with tables in memory that a compiled step changes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.benchmarks.beside import criteo
from tests.benchmarks.beside.two import Step, Two


def loss_of(weights: Any, rows: Any, batch: Any) -> Any:
    """Return the loss of a batch, from the perceptron's weights and the rows of each table."""
    _, numbers, labels = batch
    hidden = jnp.concatenate([rows[f"deep{field}"] for field in range(criteo.FIELDS)], 1)
    hidden = jnp.concatenate([hidden, numbers], 1)
    for layer in range(len(criteo.UNITS)):
        hidden = jax.nn.relu(hidden @ weights[2 * layer] + weights[2 * layer + 1])
    wide = sum(rows[f"wide{field}"][:, 0] for field in range(criteo.FIELDS))
    logit = (hidden @ weights[-2] + weights[-1])[:, 0] + wide
    return jnp.mean(jax.nn.softplus(logit) - logit * labels)


def tables() -> dict[str, tuple[int, int, int]]:
    """Return field, rows and dimension of each table."""
    return {
        f"{kind}{field}": (field, rows, dim)
        for kind, dim in {"deep": criteo.DIM, "wide": 1}.items()
        for field, rows in enumerate(criteo.CARDINALITIES)
    }


def make(rank: int) -> Step:
    """Return the step of a process."""
    shapes = tables()
    values: dict[str, Any] = {
        "weights": [jnp.asarray(each) for each in criteo.initial_weights()],
        **{name: jnp.zeros((rows, dim)) for name, (_, rows, dim) in shapes.items()},
    }
    sums = jax.tree.map(lambda each: jnp.full_like(each, criteo.ACCUMULATOR), values)

    def change(sums: Any, gradient: Any) -> Any:
        return -criteo.RATE * gradient / (jnp.sqrt(sums) + criteo.EPSILON)

    def update(values: Any, sums: Any, batch: Any) -> Any:
        rows = {name: values[name][batch[0][:, field]] for name, (field, _, _) in shapes.items()}
        loss, by = jax.value_and_grad(loss_of, argnums=(0, 1))(values["weights"], rows, batch)
        of_weights = jax.tree.map(lambda s, g: s + g * g, sums["weights"], by[0])
        changes = jax.tree.map(change, of_weights, by[0])
        new_sums = {"weights": of_weights}
        new = {"weights": jax.tree.map(jnp.add, values["weights"], changes)}
        for name, gradient in by[1].items():
            ids = batch[0][:, shapes[name][0]]
            new_sums[name] = sums[name].at[ids].add(gradient**2)
            new[name] = values[name].at[ids].add(change(new_sums[name][ids], gradient))
        return loss, new, new_sums

    program = jax.jit(update, donate_argnums=(0, 1))
    held = [values, sums]
    data = {size: criteo.batches(size, rank) for size in criteo.SIZES}

    def step(size: int) -> float:
        loss, *held[:] = program(*held, next(data[size]))
        return float(loss)

    return step


if __name__ == "__main__":
    from tests.benchmarks.beside.peers import jax as own

    Two(own.make).serve("jax")
