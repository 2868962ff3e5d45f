"""psnb: two workers and a server of `psnb.local_cluster`; datasets in this process.

Every step counts exactly once: a step of a worker that dies is repeated or was whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import numpy as np
from distributed import Client

import psnb
from psnb.data import AUTOTUNE, Dataset
from tests.benchmarks.beside import cores, criteo, elements, parameters
from tests.benchmarks.beside.talking import Done, Some, serve


def nothing() -> None:
    """The closure that does nothing."""


Train = Callable[[Iterator[Any]], Any]


def jax_step(strategy: psnb.ParameterServerStrategy, device: str | None = None) -> Train:
    """Return a step of JAX's model, with bounded tables."""
    import psnb.jax
    from tests.benchmarks.beside.peers import jax as alone

    adagrad, shapes = _adagrad(), alone.tables()
    made = {
        name: strategy.embedding(f"jax-{name}", dim, rows, 0.0, adagrad)
        for name, (_, rows, dim) in shapes.items()
    }
    fields = {name: field for name, (field, _, _) in shapes.items()}

    def ids(batch: criteo.Batch) -> dict[str, np.ndarray]:
        return {name: batch[0][:, field] for name, field in fields.items()}

    weights = psnb.jax.variables(strategy, criteo.initial_weights(), adagrad)
    return psnb.jax.step(alone.loss_of, params=weights, tables=made, ids=ids, device=device)


def torch_step(strategy: psnb.ParameterServerStrategy, device: str = "cpu") -> Train:
    """Return a step of torch's model, with tables of any id."""
    import psnb.torch
    from tests.benchmarks.beside.peers import torch as alone

    module = alone.WideDeep(lambda rows, dim: psnb.torch.Embedding(dim, 0.0))
    adagrad, loss_of = _adagrad(), alone.loss_of
    model = psnb.torch.distribute(module, strategy, sparse=adagrad, dense=adagrad, device=device)

    def step(data: Iterator[criteo.Batch]) -> float:
        with model.step():
            loss = loss_of(model, next(data))
            loss.backward()
        return float(loss.item())

    return step


def keras_step(strategy: psnb.ParameterServerStrategy) -> Train:
    """Return a step of Keras's model as ``fit`` makes them."""
    import psnb.keras
    from tests.benchmarks.beside.peers import keras as alone

    model = psnb.keras.distribute(alone.model(), strategy)
    model.compile(**alone.options())
    made = model._made
    assert made is not None
    metrics = made.metrics("metrics", next(alone.batches(8, 0))).variable
    program = made.program

    def step(data: Iterator[Any]) -> float:
        return float(program.train(next(data), metrics, False)[0])

    return step


def _adagrad() -> psnb.Adagrad:
    return psnb.Adagrad(criteo.RATE, criteo.ACCUMULATOR, criteo.EPSILON)


def clicks(size: int) -> Iterator[criteo.Batch]:
    """Yield batches of a worker."""
    return criteo.batches(size, psnb.worker_index())


def keras_clicks(size: int) -> Iterator[Any]:
    """Yield batches of a worker as Keras takes them."""
    from tests.benchmarks.beside.peers import keras as alone

    return alone.batches(size, psnb.worker_index())


FRAMEWORKS: dict[str, tuple[Callable[..., Train], Callable[[int], Iterator[Any]]]] = {
    "jax": (jax_step, clicks),
    "torch": (torch_step, clicks),
    "keras": (keras_step, keras_clicks),
}


class Works:
    """What is measured, on a cluster."""

    def __init__(self, client: Client, strategy: psnb.ParameterServerStrategy) -> None:
        self._client, self._strategy = client, strategy
        self._coordinator = psnb.ClusterCoordinator(strategy)
        self._steps: dict[str, Train] = {}

    def roles(self) -> dict[int, str]:
        """Return what the processes are for; Dask's scheduler is in the notebook's."""
        servers = self._strategy.server_addresses
        return {
            pid: cores.SERVER if address in servers else cores.WORKER
            for address, pid in self._client.run(os.getpid).items()
        }

    def works(self) -> dict[str, Callable[[], Some]]:
        """Return them by name."""
        return {
            "closures": lambda: partial(self._some, nothing, (), parameters.AT_ONCE, 1),
            "dense": self._dense,
            "rows": self._rows,
            **{
                f"{framework} {size}": partial(self._wide, framework, size)
                for framework in FRAMEWORKS
                for size in criteo.SIZES
            },
        }

    def _some(
        self, closure: Callable[..., Any], args: tuple[Any, ...], count: int, amount: float
    ) -> Done:
        values = [self._coordinator.schedule(closure, args) for _ in range(count)]
        self._coordinator.join()
        losses = [] if values[0].fetch() is None else self._coordinator.fetch(values)
        return Done(count * amount, *([float(np.mean(losses))] if losses else []))

    def _dense(self) -> Some:
        variable = self._strategy.variable(np.zeros(parameters.FLOATS, np.float32))

        def step() -> None:
            variable.assign_add(variable.read() * np.float32(-parameters.RATE))

        return partial(self._some, step, (), parameters.DENSE_STEPS, parameters.DENSE_MB)

    def _rows(self) -> Some:
        table = self._strategy.embedding(
            "rows", parameters.DIM, parameters.ROWS, 0.0, psnb.SGD(parameters.RATE)
        )

        def step(rng: np.random.Generator) -> None:
            ids = parameters.random_ids(rng)
            table.push(ids, table.lookup(ids))

        rng = self._coordinator.create_per_worker_resource(np.random.default_rng)
        return partial(self._some, step, (rng,), parameters.ROW_STEPS, parameters.IDS)

    def _wide(self, framework: str, size: int) -> Some:
        make, data = FRAMEWORKS[framework]
        batches = self._coordinator.create_per_worker_resource(data, (size,))
        if new := framework not in self._steps:
            self._steps[framework] = make(self._strategy)
        count = criteo.STEPS[size]
        some = partial(self._some, self._steps[framework], (batches,), count, size)
        if new:
            # Rows are made as ids come, those of others are there: first once through the examples.
            for _ in range(criteo.EXAMPLES // (count * size)):
                some()
        return some


def shuffled() -> Iterator[Any]:
    """Yield batches of shuffled clicks."""
    dataset = Dataset.from_tensor_slices(criteo.clicks()).shuffle(elements.BUFFER)
    return iter(dataset.repeat().batch(elements.BATCH).prefetch(AUTOTUNE))


def mapped() -> Iterator[Any]:
    """Yield batches of clicks to which a function was applied one by one."""
    dataset = Dataset.from_tensor_slices(criteo.clicks())
    dataset = dataset.map(lambda ids, numbers, label: (ids + 1, numbers, label))
    return iter(dataset.repeat().batch(elements.BATCH).prefetch(AUTOTUNE))


def main() -> None:
    """Start the cluster and answer."""
    with (
        psnb.local_cluster(workers=2, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        works = Works(client, strategy)
        serve("psnb", works.works() | elements.works(shuffled, mapped), works.roles)


if __name__ == "__main__":
    main()
