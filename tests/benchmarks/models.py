"""Examples a second of `psnb.torch` and `psnb.jax`, beside each framework alone, in one run.

The same wide & deep model on the same batches. With psnb: two workers and one server, one step a
closure, whose updates are made exactly once. Alone: each of the two workers trains a model of its
own in its memory, with sparse gradients: one process a core, and nothing is shared. A third of the
figures is what the machine does at that moment, so only the ratios count: each is the median of
pairs that were measured one after the other. If there is an interpreter that has TorchRec
(``TORCHREC_PYTHON=...``), it does the same work after that, see `torchrec_peer`.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import psnb
from tests.benchmarks import clicks, peers

SIZES = {512: 100, 4096: 24}
"""Steps by batch size."""

PAIRS = 5

Step = Callable[[Iterator[clicks.Batch]], float]


def torch_model() -> Any:
    """Return the module, the same for both."""
    import torch
    from torch import nn

    class WideDeep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep = nn.Embedding(clicks.ROWS, clicks.DIM, sparse=True)
            self.wide = nn.Embedding(clicks.ROWS, 1, sparse=True)
            nn.init.normal_(self.deep.weight, 0, 0.01)
            nn.init.zeros_(self.wide.weight)
            inputs = clicks.FIELDS * clicks.DIM + clicks.NUMBERS
            self.network = nn.Sequential(
                *(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()),
                nn.Linear(128, 1),
            )

        def forward(self, ids: Any, numbers: Any) -> Any:
            hidden = torch.cat([self.deep(ids).flatten(1), numbers], 1)
            return self.network(hidden)[:, 0] + self.wide(ids).sum((1, 2))

    return WideDeep()


def torch_loss(model: Any, batch: clicks.Batch) -> Any:
    """Return the loss of a batch."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    ids, numbers, labels = map(torch.from_numpy, batch)
    return functional.binary_cross_entropy_with_logits(model(ids, numbers), labels)


def torch_with_psnb(strategy: psnb.ParameterServerStrategy) -> Step:
    """Return a step of the distributed model."""
    import psnb.torch

    adagrad = psnb.Adagrad(clicks.RATE)
    model = psnb.torch.distribute(torch_model(), strategy, sparse=adagrad, dense=adagrad)

    def step(data: Iterator[clicks.Batch]) -> float:
        with model.step():
            loss = torch_loss(model, next(data))
            loss.backward()
        return float(loss.item())

    return step


def torch_alone() -> Step:
    """Return a step of the model in memory."""
    import torch

    model = torch_model()
    optimizer = torch.optim.Adagrad(
        model.parameters(), clicks.RATE, initial_accumulator_value=0.1, eps=1e-7
    )

    def step(data: Iterator[clicks.Batch]) -> float:
        optimizer.zero_grad()
        loss = torch_loss(model, next(data))
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def jax_loss(weights: Any, rows: Any, batch: Any) -> Any:
    """Return the loss of a batch."""
    import jax
    import jax.numpy as jnp

    _, numbers, labels = batch
    flat = rows["deep"].reshape(-1, clicks.FIELDS * clicks.DIM)
    hidden = jnp.concatenate([flat, numbers], 1)
    hidden = jax.nn.relu(hidden @ weights[0] + weights[1])
    hidden = jax.nn.relu(hidden @ weights[2] + weights[3])
    logit = (hidden @ weights[4] + weights[5])[:, 0] + rows["wide"].sum((1, 2))
    return jnp.mean(jax.nn.softplus(logit) - logit * labels)


def jax_with_psnb(strategy: psnb.ParameterServerStrategy) -> Step:
    """Return a step on parameter servers."""
    import psnb.jax

    adagrad = psnb.Adagrad(clicks.RATE)
    dims = {"deep": clicks.DIM, "wide": 1}
    tables = {
        name: strategy.embedding(name, dim, clicks.ROWS, psnb.Normal(0, 0.01), optimizer=adagrad)
        for name, dim in dims.items()
    }
    params = psnb.jax.variables(strategy, clicks.initial_weights(), adagrad)
    ids = _same_ids
    return psnb.jax.step(jax_loss, params=params, tables=tables, ids=ids)


def _same_ids(batch: clicks.Batch) -> dict[str, np.ndarray]:
    return {"deep": batch[0], "wide": batch[0]}


def jax_alone() -> Step:
    """Return a step on tables in memory, whose rows alone are changed."""
    import jax
    import jax.numpy as jnp

    dims = {"deep": clicks.DIM, "wide": 1}
    values = {
        "weights": [jnp.asarray(each) for each in clicks.initial_weights()],
        **{name: jnp.zeros((clicks.ROWS, dim)) for name, dim in dims.items()},
    }
    sums = jax.tree.map(lambda each: jnp.full_like(each, 0.1), values)

    def update(values: Any, sums: Any, batch: Any) -> Any:
        ids = batch[0]
        rows = {name: values[name][ids] for name in dims}
        loss, by = jax.value_and_grad(jax_loss, argnums=(0, 1))(values["weights"], rows, batch)
        of_weights = jax.tree.map(lambda s, g: s + g * g, sums["weights"], by[0])
        changed = jax.tree.map(
            lambda v, s, g: v - clicks.RATE * g / jnp.sqrt(s), values["weights"], of_weights, by[0]
        )
        new, new_sums = {"weights": changed}, {"weights": of_weights}
        for name, gradient in by[1].items():
            new_sums[name] = sums[name].at[ids].add(gradient**2)
            rate = clicks.RATE / jnp.sqrt(new_sums[name][ids])
            new[name] = values[name].at[ids].add(-rate * gradient)
        return loss, new, new_sums

    program = jax.jit(update, donate_argnums=(0, 1))
    held = [values, sums]

    def step(data: Iterator[clicks.Batch]) -> float:
        loss, *held[:] = program(*held, next(data))
        return float(loss)

    return step


def keras_model() -> Any:
    """Return the model, the same for both."""
    import keras

    keras.utils.set_random_seed(0)
    ids = keras.Input((clicks.FIELDS,), dtype="int32", name="ids")
    numbers = keras.Input((clicks.NUMBERS,), name="numbers")
    normal = keras.initializers.RandomNormal(stddev=0.01)
    deep = keras.layers.Embedding(clicks.ROWS, clicks.DIM, normal, name="deep")(ids)
    wide = keras.layers.Embedding(clicks.ROWS, 1, "zeros", name="wide")(ids)
    hidden = keras.layers.Concatenate()([keras.layers.Flatten()(deep), numbers])
    for units in (256, 128):
        hidden = keras.layers.Dense(units, "relu", kernel_initializer="he_normal")(hidden)
    sums = keras.ops.sum(keras.layers.Flatten()(wide), 1, keepdims=True)
    return keras.Model([ids, numbers], keras.layers.Dense(1)(hidden) + sums)


def keras_options() -> dict[str, Any]:
    """Return what both are compiled with."""
    import keras

    return {
        "optimizer": keras.optimizers.Adagrad(clicks.RATE),
        "loss": keras.losses.BinaryCrossentropy(from_logits=True),
    }


def keras_with_psnb(strategy: psnb.ParameterServerStrategy) -> Step:
    """Return a step as `fit` makes them."""
    import psnb.keras

    model = psnb.keras.distribute(keras_model(), strategy)
    model.compile(**keras_options())
    made = model._made
    assert made is not None
    metrics = made.metrics("metrics", next(clicks_of_keras(clicks.batches(8, 0)))).variable
    program = made.program

    def step(data: Iterator[clicks.Batch]) -> float:
        return program.train(next(clicks_of_keras(data)), metrics, False)[0]

    return step


def keras_alone() -> Step:
    """Return a step of the model in memory."""
    os.environ.setdefault("KERAS_BACKEND", "jax")  # as psnb.keras does
    import keras

    model = keras_model()
    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)
    model.compile(**keras_options())

    def step(data: Iterator[clicks.Batch]) -> float:
        return float(model.train_on_batch(*next(clicks_of_keras(data))))

    return step


def clicks_of_keras(data: Iterator[clicks.Batch]) -> Iterator[Any]:
    """Yield batches as Keras takes them."""
    for ids, numbers, labels in data:
        yield {"ids": ids, "numbers": numbers}, labels[:, None]


FRAMEWORKS: dict[str, tuple[Callable[..., Step], Callable[[], Step]]] = {
    "torch": (torch_with_psnb, torch_alone),
    "jax": (jax_with_psnb, jax_alone),
    # With the backend that Keras has in this process: JAX, or KERAS_BACKEND=torch.
    "keras": (keras_with_psnb, keras_alone),
}


def measure(framework: str, size: int) -> tuple[float, float, float]:
    """Return examples/s with psnb and alone, and the median of their ratios."""
    with_psnb, alone = FRAMEWORKS[framework]
    with (
        psnb.local_cluster(workers=2, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        data = coordinator.create_per_worker_resource(
            lambda: clicks.batches(size, psnb.worker_index())
        )
        step, own = with_psnb(strategy), coordinator.create_per_worker_resource(alone)

        def rate(*call: Any) -> float:
            begin = time.perf_counter()
            for _ in range(SIZES[size]):
                coordinator.schedule(*call)
            coordinator.join()
            return SIZES[size] * size / (time.perf_counter() - begin)

        def train_alone(own: Step, data: Iterator[clicks.Batch]) -> float:
            return own(data)

        pairs = [(rate(step, (data,)), rate(train_alone, (own, data))) for _ in range(1 + PAIRS)][
            1:
        ]  # the first one compiles
    ours, theirs = zip(*pairs, strict=True)
    ratio = statistics.median(one / other for one, other in pairs)
    return statistics.median(ours), statistics.median(theirs), ratio


def main() -> None:
    """Run all, or the framework that is named, and print a table."""
    # A thread for each worker: two of them would take two cores from each other and the server.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    table = Table(
        *("", "batch", "psnb", "alone", "psnb / alone", "TorchRec"),
        title="wide & deep, examples/s: two workers and a server beside two processes alone",
    )
    before = os.getloadavg()[0]
    for framework in sys.argv[1:] or FRAMEWORKS:
        for size in SIZES:
            ours, theirs, ratio = measure(framework, size)
            other = peers.torchrec(str(size)) if framework == "torch" else None
            told = "-" if other is None else f"{other:,.0f}"
            table.add_row(
                framework, f"{size}", f"{ours:,.0f}", f"{theirs:,.0f}", f"{ratio:.2f}", told
            )
    table.caption = (
        f"load average over a minute: {before:.1f} before, {os.getloadavg()[0]:.1f} after"
    )
    Console().print(table)


if __name__ == "__main__":
    main()
