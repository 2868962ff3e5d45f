"""JAX models on a real cluster: the numbers of JAX and optax alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from distributed import Client

import psnb
import psnb.jax
from psnb.errors import InvalidArrayError
from tests.integration.models import wide_and_deep as wd


def loss(params: Any, rows: Any, batch: Any) -> Any:
    columns = [rows[name] for name in wd.COLUMNS]
    hidden = jnp.concatenate([*columns, rows["words"], batch["x"]], 1)
    hidden = jax.nn.relu(hidden @ params["first"] + params["bias"])
    logits = (hidden @ params["last"])[:, 0] + rows["wide"].sum((1, 2))
    return optax.sigmoid_binary_cross_entropy(logits, batch["y"]).mean()


@cache
def alone() -> tuple[list[float], wd.Parameters]:
    """Train with JAX and optax in this process; return losses and parameters."""
    values = {**wd.initial_network(), **wd.initial_tables()}
    labels = {name: "rows" if name in wd.TABLES else "network" for name in values}
    both = {
        "rows": optax.adagrad(wd.SPARSE_RATE, 0.1, eps=1e-7),
        "network": optax.adam(wd.RATE),
    }
    optimizer = optax.multi_transform(both, labels)

    def of_all(values: Any, batch: Any) -> Any:
        ids = wd.ids_of(batch)
        rows = {name: values[name][each] for name, each in ids.items()}
        there = jnp.arange(ids["words"].shape[1]) < batch["lengths"][:, None]
        sums = (rows["words"] * there[:, :, None]).sum(1)
        rows["words"] = sums / jnp.maximum(1, batch["lengths"])[:, None]
        return loss(values, rows, batch)

    @jax.jit
    def step(values: Any, state: Any, batch: Any) -> Any:
        found, by = jax.value_and_grad(of_all)(values, batch)
        changes, state = optimizer.update(by, state, values)
        return found, optax.apply_updates(values, changes), state

    state, losses, data = optimizer.init(values), [], wd.batches()
    for first, second in zip(data[::2], data[1::2], strict=True):
        batch = wd.joined(first, second)
        words = batch["words"]
        batch |= {"words": words.pad(3), "lengths": words.lengths}
        found, values, state = step(values, state, batch)
        losses.append(float(found))
    return losses, jax.tree.map(np.asarray, values)


def placed(strategy: psnb.ParameterServerStrategy) -> psnb.jax.TreeVariables:
    for name, rows in wd.initial_tables().items():
        table = strategy.embedding(
            name, wd.dim(name), wd.ROWS, optimizer=psnb.Adagrad(wd.SPARSE_RATE, 0.1)
        )
        table.assign(np.arange(wd.ROWS), rows)
    return psnb.jax.variables(strategy, wd.initial_network(), psnb.Adam(wd.RATE))


def step_of(
    strategy: psnb.ParameterServerStrategy, params: psnb.jax.TreeVariables
) -> psnb.jax.TrainStep:
    tables = {name: strategy.parameters[name] for name in wd.TABLES}
    return psnb.jax.step(loss, params=params, tables=tables, ids=wd.ids_of)  # type: ignore[arg-type]


def values_of(
    strategy: psnb.ParameterServerStrategy, params: psnb.jax.TreeVariables
) -> wd.Parameters:
    return {**params.read(), **wd.tables_of(strategy)}


@pytest.mark.second_tier("without processes: tests/models; in them: torch's")
def test_fifty_rounds_are_fifty_steps_of_optax_alone(cluster: Client) -> None:
    with wd.synchronous(cluster) as strategy:
        params = placed(strategy)
        losses = wd.trained(strategy, step_of(strategy, params), wd.STEPS)
        found = values_of(strategy, params)
    expected_losses, expected = alone()
    wd.assert_close(found, expected)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("sharding", ["dynamic", "none"])
def test_a_loss_that_is_nan_says_which_element_of_which_file_it_is(
    cluster: Client, tmp_path: Path, sharding: str
) -> None:
    for name in "ab":
        values = ["nan" if (name, row) == ("b", 11) else "0.5" for row in range(16)]
        (tmp_path / name).write_text("\n".join(values))
    lines = psnb.data.Dataset.text_lines([tmp_path / "a", tmp_path / "b"])
    batches = lines.map(np.float32).batch(4)
    with psnb.ParameterServerStrategy(cluster) as strategy:
        params = psnb.jax.variables(strategy, {"w": jnp.ones(())}, psnb.SGD(0.01))
        step = psnb.jax.step(lambda params, rows, x: (params["w"] * x).sum(), params=params)
        coordinator = psnb.ClusterCoordinator(strategy)
        splits = 2 if sharding == "dynamic" else None
        dataset = coordinator.create_per_worker_dataset(batches, sharding=sharding, splits=splits)

        def train(iterator: Iterator[Any]) -> list[float]:
            return [step(iterator) for _ in range(8)]

        coordinator.schedule(train, (iter(dataset),))
        with pytest.raises(InvalidArrayError) as raised:
            coordinator.join()
    element, of = (2, "split 1 of 2") if sharding == "dynamic" else (6, "this worker's dataset")
    where = f"element {element} (its first example is of {tmp_path / 'b'}, record 9) of {of}"
    assert where in str(raised.value)
    assert "[4] 0.5 to 0.5, 1 not finite" in str(raised.value)


@pytest.mark.second_tier("tests/models/jax/test_worker_programs has it within one process")
def test_a_step_that_is_an_argument_is_compiled_once_a_worker(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        step = step_of(strategy, placed(strategy))

        def train(step: psnb.jax.TrainStep, batch: wd.Batch) -> tuple[int, int]:
            step.train_on(batch)
            return psnb.worker_index(), step.programs

        coordinator = psnb.ClusterCoordinator(strategy)
        batch = wd.batches(1)[0]
        remotes = [coordinator.schedule(train, (step, batch), worker=n % 2) for n in range(20)]
        coordinator.join()
        found = coordinator.fetch(remotes)
        assert {programs for _, programs in found} == {1}
        assert {worker for worker, _ in found} == {0, 1}
        assert coordinator.statistics().metrics["programs"].last == 1
        told = coordinator.history()["programs"]["value"]
        assert list(told) == [1, 1]  # once by each worker


@pytest.mark.second_tier("tests/worker/test_pytree_classes has it within one process")
def test_modules_of_the_notebook_are_trees_on_workers(whole: Client) -> None:
    equinox = pytest.importorskip("equinox")

    class Net(equinox.Module):  # type: ignore[misc,name-defined]
        weights: Any
        power: int = equinox.field(static=True)

        def __call__(self, x: Any) -> Any:
            return x**self.power @ self.weights

    def loss(net: Any, rows: Any, batch: Any) -> Any:
        # What is a leaf would be added to as a whole, and a module cannot be.
        net = jax.tree.map(lambda leaf: leaf + 1, net)
        return jnp.mean((net(batch) - 1) ** 2)

    net, batch = Net(jnp.ones((3, 1)), 2), np.full((8, 3), 2, np.float32)
    gradient = jax.grad(loss)(net, None, batch)
    expected = jax.tree.map(lambda leaf, by: leaf - 0.01 * by, net, gradient)
    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        params = psnb.jax.variables(strategy, net, psnb.SGD(0.01))
        step = psnb.jax.step(loss, params=params)
        coordinator.fetch(coordinator.schedule(step.train_on, (batch,)))
        found = coordinator.fetch(coordinator.schedule(params.read))
    assert type(found) is Net
    assert jax.tree.structure(found) == jax.tree.structure(net)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-6)


def underived(x: Any) -> Any:
    """Return what it gets, of which no gradient can be computed."""

    def derived(x: Any) -> Any:
        raise AssertionError("a gradient is computed")

    found = jax.custom_vjp(lambda x: x)
    found.defvjp(derived, derived)
    return found(x)


def test_a_trainer_evaluates_with_a_step_and_computes_no_gradient(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        params = psnb.jax.variables(strategy, {"w": jnp.full(2, 3.0)}, psnb.SGD(0.1))
        rows = strategy.embedding("rows", 2, optimizer=psnb.SGD(0.1))

        def of_loss(params: Any, rows: Any, ids: Any) -> Any:
            return (underived(params["w"]) * rows["ids"]).sum() + ids.mean()

        tables = {"ids": rows}
        step = psnb.jax.step(of_loss, params=params, tables=tables, ids=lambda ids: {"ids": ids})
        trainer = psnb.Trainer(psnb.ClusterCoordinator(strategy), step, progress=False)
        data = psnb.data.Dataset.range(60).batch(10)
        expected = 29.5 + 3 * rows.lookup(np.arange(60), training=False).sum() / 6
        assert trainer.evaluate(data) == {"loss": pytest.approx(expected, rel=1e-5), "examples": 60}
        assert rows.statistics().rows == 0
        with pytest.raises(AssertionError, match="a gradient is computed"):
            trainer.train_from_dataset(data)


@pytest.mark.second_tier("a process that has not used JAX yet must start it")
def test_jax_has_one_thread_on_a_worker_like_other_libraries() -> None:
    def threads() -> list[str]:
        os.environ.pop("XLA_FLAGS", None)  # which tests have, and users have not
        jax.jit(lambda x: x @ x)(np.ones((600, 600), np.float32)).block_until_ready()
        return [each.read_text() for each in Path("/proc/self/task").glob("*/comm")]

    with (
        psnb.local_cluster(workers=1, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        found = psnb.ClusterCoordinator(strategy).schedule(threads).fetch()
    assert sum("XLAEigen" in name for name in found) <= 1
