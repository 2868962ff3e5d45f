"""Wide & deep with gradients on a GPU: psnb beside frameworks alone, tables there and on the host.

``python -m tests.benchmarks.cuda``, with a GPU that torch and JAX see; ``--device cpu`` tries the
script where there is none. One worker and one server, one process alone. The model is that of
``make bench``: 26 tables, and a perceptron of 1,024, 512 and 256 units.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import torch
from rich.console import Console
from rich.table import Table

import psnb
from tests.benchmarks.beside import criteo
from tests.benchmarks.beside.peers import jax as jax_peer
from tests.benchmarks.beside.peers import psnb as psnb_peer
from tests.benchmarks.beside.peers import torch as torch_peer

SIZES = (4_096, 65_536)
SECONDS, WARM = 10.0, 3

Step = Callable[[Iterator[criteo.Batch]], float]


class HostTables(torch_peer.WideDeep):
    """The model with its rows looked up on the host, and its perceptron on a device."""

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logits, on the device."""
        device, columns = next(self.network.parameters()).device, ids.unbind(1)
        rows = [table(column) for table, column in zip(self.deep, columns, strict=True)]
        wide = [table(column) for table, column in zip(self.wide, columns, strict=True)]
        found: torch.Tensor = self.network(torch.cat([*rows, numbers], 1).to(device))[:, 0]
        return found + torch.cat(wide, 1).sum(1).to(device)


class DeviceTables(torch_peer.WideDeep):
    """The model as a whole on a device."""

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logits, on the device."""
        device = next(self.network.parameters()).device
        return super().forward(ids.to(device), numbers)


def torch_alone(device: str, on_device: bool) -> Step:
    """Return a step of torch alone."""
    model = (DeviceTables if on_device else HostTables)(torch_peer.zeros)
    (model if on_device else model.network).to(device)
    optimizer = torch.optim.Adagrad(
        model.parameters(),
        criteo.RATE,
        initial_accumulator_value=criteo.ACCUMULATOR,
        eps=criteo.EPSILON,
    )

    def step(data: Iterator[criteo.Batch]) -> float:
        optimizer.zero_grad()
        loss = torch_peer.loss_of(model, next(data))
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def jax_alone(device: str, on_device: bool) -> Step:
    """Return a step of JAX alone: rows are looked up and changed where tables are."""
    shapes, (there, *_), (host, *_) = jax_peer.tables(), jax.devices(device), jax.devices("cpu")
    home = there if on_device else host
    put = jax.device_put
    begin = {name: jax.numpy.zeros((rows, dim)) for name, (_, rows, dim) in shapes.items()}
    weights = [put(each, there) for each in criteo.initial_weights()]
    tables = {name: put(each, home) for name, each in begin.items()}
    full = jax.numpy.full_like
    sums = {name: full(each, criteo.ACCUMULATOR) for name, each in tables.items()}
    of_weights = [full(each, criteo.ACCUMULATOR) for each in weights]

    def change(sums: Any, gradient: Any) -> Any:
        return -criteo.RATE * gradient / (jax.numpy.sqrt(sums) + criteo.EPSILON)

    @jax.jit
    def look_up(tables: Any, ids: Any) -> Any:
        return {name: tables[name][ids[:, field]] for name, (field, _, _) in shapes.items()}

    def add(tables: Any, sums: Any, ids: Any, gradients: Any) -> Any:
        new, new_sums = {}, {}
        for name, gradient in gradients.items():
            at = ids[:, shapes[name][0]]
            new_sums[name] = sums[name].at[at].add(gradient**2)
            new[name] = tables[name].at[at].add(change(new_sums[name][at], gradient))
        return new, new_sums

    def learn(weights: Any, sums: Any, rows: Any, batch: Any) -> Any:
        loss, by = jax.value_and_grad(jax_peer.loss_of, argnums=(0, 1))(weights, rows, batch)
        sums = jax.tree.map(lambda s, g: s + g * g, sums, by[0])
        weights = jax.tree.map(lambda w, s, g: w + change(s, g), weights, sums, by[0])
        return loss, weights, sums, by[1]

    add, learn = jax.jit(add, donate_argnums=(0, 1)), jax.jit(learn, donate_argnums=(0, 1))
    held: list[Any] = [tables, sums, weights, of_weights]

    def step(data: Iterator[criteo.Batch]) -> float:
        batch = next(data)
        ids, on_there = put(batch[0], home), put(batch, there)
        rows = put(look_up(held[0], ids), there)
        loss, held[2], held[3], gradients = learn(held[2], held[3], rows, on_there)
        held[0], held[1] = add(held[0], held[1], ids, put(gradients, home))
        return float(loss)

    return step


def rate(some: Callable[[], object], examples: int) -> float:
    """Return how many examples a second some steps are, once they are warm."""
    for _ in range(WARM):
        some()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS:
        some()
        count += 1
    return count * examples / (time.perf_counter() - begin)


def of_psnb(make: Callable[..., Any], device: str, size: int) -> float:
    """Return the rate of psnb: four steps are scheduled at a time."""
    with (
        psnb.local_cluster(workers=1, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator, step = psnb.ClusterCoordinator(strategy), make(strategy, device)
        data = coordinator.create_per_worker_resource(psnb_peer.clicks, (size,))

        def some() -> None:
            for _ in range(4):
                coordinator.schedule(step, (data,))
            coordinator.join(progress=False)

        return rate(some, 4 * size)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cuda")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of batches")
    options = parser.parse_args()
    table = Table("batch", "", "psnb", "alone, tables there", "alone, on the host", "psnb / them")
    frameworks = {
        "torch": (torch_alone, psnb_peer.torch_step),
        "JAX": (jax_alone, psnb_peer.jax_step),
    }
    for size in options.sizes:
        for name, (alone, ours) in frameworks.items():
            data = criteo.batches(size, 0)
            steps = [alone(options.device, there) for there in (True, False)]
            theirs = [rate(partial(step, data), size) for step in steps]
            steps.clear()  # their memory, of a GPU perhaps
            mine = of_psnb(ours, options.device, size)
            shares = ", ".join(f"{mine / each:.2f}" for each in theirs)
            table.add_row(f"{size:,}", name, *(f"{each:,.0f}" for each in (mine, *theirs)), shares)
    console = Console()
    console.print("examples a second, gradients on", options.device)
    console.print(table)


if __name__ == "__main__":
    main()
