"""Models of Flax, Equinox and Haiku as parameters; servers in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psnb.jax
from psnb._src.server import SGD
from tests.models.placing import InProcessStrategy

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
RATE = 0.5

Predict = Callable[[Any, Any], Any]


def of_flax() -> tuple[Any, Predict]:
    from flax import nnx

    class Net(nnx.Module):  # type: ignore[misc,name-defined]
        def __init__(self, rngs: Any) -> None:
            self.first, self.last = nnx.Linear(3, 5, rngs=rngs), nnx.Linear(5, 1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(jax.nn.relu(self.first(x)))

    graph, state = nnx.split(Net(nnx.Rngs(0)))
    return state, lambda params, x: nnx.merge(graph, params)(x)


def of_equinox() -> tuple[Any, Predict]:
    import equinox

    net = equinox.nn.MLP(3, 1, 5, 1, key=jax.random.key(0))
    return net, lambda params, x: jax.vmap(params)(x)


def of_haiku() -> tuple[Any, Predict]:
    import haiku

    net = haiku.without_apply_rng(haiku.transform(lambda x: haiku.nets.MLP([5, 1])(x)))
    return net.init(jax.random.key(0), X), net.apply


OTHER = pytest.mark.second_tier("another library, whose import takes a second")


@pytest.mark.parametrize(
    "made", [of_equinox, pytest.param(of_flax, marks=OTHER), pytest.param(of_haiku, marks=OTHER)]
)
def test_a_librarys_model_is_a_tree_of_parameters(made: Callable[[], tuple[Any, Predict]]) -> None:
    tree, predict = made()

    def loss(params: Any, rows: Any, batch: Any) -> Any:
        return jnp.mean((predict(params, batch["x"])[:, 0] + rows["ids"][:, 0]) ** 2)

    strategy = InProcessStrategy()
    params = psnb.jax.variables(strategy, tree, SGD(RATE))
    table = strategy.embedding("ids", 1, optimizer=SGD(RATE))
    batch = {"x": X, "ids": np.arange(4)}
    rows = {"ids": jnp.array(table.lookup(batch["ids"]))}

    def of_floats(values: Any) -> Any:
        return loss(params.tree(values), rows, batch)

    values = [jnp.array(each.read()) for each in params.variables]
    expected, by = jax.value_and_grad(of_floats)(values)
    found = psnb.jax.step(loss, params=params, tables={"ids": table})(iter([batch]))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for variable, value, gradient in zip(params.variables, values, by, strict=True):
        np.testing.assert_allclose(variable.read(), value - RATE * gradient, rtol=1e-5, atol=1e-7)
    scores = psnb.jax.forward(lambda p, r, b: predict(p, b["x"]), params=params)({"x": X})
    np.testing.assert_allclose(scores, predict(params.read(), X), rtol=1e-5)
