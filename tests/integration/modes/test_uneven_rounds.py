"""Rounds of batches that are not equally large, on a real cluster: the joined batch's numbers.

Doors: psnb.torch, psnb.jax, psnb.keras, and plain closures that say what their batch counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import torch
from distributed import Client
from torch import nn

import psnb
import psnb.jax
import psnb.keras
import psnb.torch
from psnb.errors import ConfigurationError

RATE = 0.1
SIZES = 8, 2, 5
"""Examples of the batches of the round."""


def in_a_round(client: Client, steps: Callable[[psnb.ParameterServerStrategy], Any]) -> Any:
    """Run the closures that ``steps`` returns in one round; return what it returns beside them."""
    with psnb.ParameterServerStrategy(client, mode=psnb.Sync(len(SIZES))) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        closure, batches, result = steps(strategy)
        coordinator.pause()
        for each in batches:
            coordinator.schedule(closure, (each,))
        coordinator.resume()
        coordinator.join()
        return result()


def examples() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, 3)).astype(np.float32) + i for i, n in enumerate(SIZES)]


def expected(arrays: list[np.ndarray], module: nn.Linear) -> np.ndarray:
    """Return the weight after a step of torch alone on the joined batch."""
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    module(torch.from_numpy(np.concatenate(arrays))).square().mean().backward()
    optimizer.step()
    return module.weight.detach().numpy()


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1, bias=False)


def test_torch_weighs_by_the_examples_of_the_call(cluster: Client) -> None:
    def steps(strategy: psnb.ParameterServerStrategy) -> Any:
        module = linear()
        optimizer = torch.optim.SGD(module.parameters(), RATE)
        model = psnb.torch.distribute(module, strategy, optimizer=optimizer)

        def step(x: np.ndarray) -> None:
            with model.step():
                model(torch.from_numpy(x)).square().mean().backward()

        return step, examples(), lambda: model.state_dict()["weight"].numpy()

    found = in_a_round(cluster, steps)
    np.testing.assert_allclose(found, expected(examples(), linear()), rtol=1e-5)


def test_torch_weighs_by_what_a_step_says(cluster: Client) -> None:
    def steps(strategy: psnb.ParameterServerStrategy) -> Any:
        module = linear()
        model = psnb.torch.distribute(module, strategy, dense=psnb.SGD(RATE))

        def step(x: np.ndarray) -> None:
            kept = torch.from_numpy(x)[::2]  # as a mask does
            with model.step(weight=len(kept)):
                model.module(kept).square().mean().backward()

        return step, examples(), lambda: model.state_dict()["weight"].numpy()

    found = in_a_round(cluster, steps)
    kept = [each[::2] for each in examples()]
    np.testing.assert_allclose(found, expected(kept, linear()), rtol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_jax_weighs_by_examples_or_as_it_is_told(cluster: Client, masked: bool) -> None:
    def steps(strategy: psnb.ParameterServerStrategy) -> Any:
        start = {"w": linear().weight.detach().numpy()}
        params = psnb.jax.variables(strategy, start, psnb.SGD(RATE))

        def loss(params: Any, rows: Any, batch: Any) -> Any:
            squares = jnp.square(batch["x"] @ params["w"].T)
            return (squares * batch["mask"]).sum() / batch["mask"].sum()

        step = psnb.jax.step(
            loss, params=params, weight=(lambda batch: batch["mask"].sum()) if masked else None
        )
        return step.train_on, masks(masked), lambda: params.read()["w"]

    def masks(masked: bool) -> list[dict[str, np.ndarray]]:
        found = [{"x": each, "mask": np.ones((len(each), 1), np.float32)} for each in examples()]
        for each in found if masked else ():
            each["mask"][1::2] = 0
        return found

    found = in_a_round(cluster, steps)
    kept = [each["x"][each["mask"][:, 0] > 0] for each in masks(masked)]
    np.testing.assert_allclose(found, expected(kept, linear()), rtol=1e-5)


def test_closures_say_what_their_batch_counts_also_without_any_id(cluster: Client) -> None:
    """Their rows: a batch in which no id is gets none, and is of the round's examples all same."""
    ids = [np.array([1, 1, 2]), np.array([2, 2]), np.empty(0, np.int64)]
    sizes = 4, 3, 5

    def steps(strategy: psnb.ParameterServerStrategy) -> Any:
        table = strategy.embedding("t", 1, 4, initializer=0.0, optimizer=psnb.SGD(1.0))
        v = strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))

        def step(batch: tuple[np.ndarray, int]) -> None:
            given, size = batch
            gradients = np.full((len(given), 1), 1 / size, np.float32)
            if size == 3:
                psnb.push({table: (given, gradients), v: np.array([float(size)])}, weight=size)
            else:
                table.push(given, gradients, weight=size)
                v.push(np.array([float(size)]), weight=size)

        def read() -> tuple[np.ndarray, np.ndarray]:
            return table.lookup(np.arange(4))[:, 0], v.read()

        return step, list(zip(ids, sizes, strict=True)), read

    rows, value = in_a_round(cluster, steps)
    np.testing.assert_allclose(rows, [0, -2 / 12, -3 / 12, 0], rtol=1e-6)
    np.testing.assert_allclose(value, -sum(n * n for n in sizes) / 12, rtol=1e-6)


def test_what_a_batch_counts_is_a_number(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        v = strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))
        for bad in (-1, float("nan"), "many"):
            with pytest.raises(ConfigurationError, match="weight="):
                v.push(np.ones(1), weight=bad)  # type: ignore[arg-type]
        assert v.read() == 0


def sequence_model() -> keras.Model:
    keras.utils.set_random_seed(2)
    ids = keras.Input((4,), dtype="int32")
    rows = keras.layers.Embedding(10, 3, mask_zero=True)(ids)
    return keras.Model(ids, keras.layers.TimeDistributed(keras.layers.Dense(1))(rows))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning")
@pytest.mark.parametrize(
    "reduction",
    [
        "sum_over_batch_size",
        pytest.param(
            "mean_with_sample_weight", marks=pytest.mark.second_tier("another way to weigh")
        ),
    ],
)
def test_keras_weighs_by_what_its_loss_counts(cluster: Client, reduction: str) -> None:
    """Batches of 8, 8 and 3 with other numbers of masked steps: rounds of 16 and of 3."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, 10, (19, 4)).astype(np.int32)
    x[:8, 1:] = 0
    y = rng.normal(size=(19, 4, 1)).astype(np.float32) + 3
    given = (rng.random((19, 4)).astype(np.float32),) if "weight" in reduction else ()

    def compiled(model: Any) -> Any:
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        model.compile(keras.optimizers.SGD(RATE), loss)
        return model

    weights = {"sample_weight": given[0] * (x > 0)} if given else {}
    plain = compiled(sequence_model())
    plain.fit(x, y, batch_size=16, shuffle=False, verbose=0, **weights)
    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(2)) as strategy:
        model = compiled(psnb.keras.distribute(sequence_model(), strategy))
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0, **weights)
        found = model.get_weights()
    for one, other in zip(found, plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
