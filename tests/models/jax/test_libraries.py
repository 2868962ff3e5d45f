"""Models of Flax, Equinox and Haiku as parameters; servers in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psnb.jax
from psnb._src.server.optimizers import SGD
from psnb.errors import ConfigurationError
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


def test_numbers_that_are_how_a_module_of_equinox_computes_stay() -> None:
    import equinox

    net = [equinox.nn.Dropout(0.3), equinox.nn.MaxPool1d(2), equinox.nn.AvgPool1d(2)]
    tree = {"net": net, "table": equinox.nn.Lambda(jnp.arange(3)), "w": 1.0}
    made = psnb.jax.variables(InProcessStrategy(), tree, SGD())
    assert list(made._flat.places) == ["['w']"]
    found = made.read()
    assert (found["net"][0].p, found["net"][1].init, found["net"][2].init) == (0.3, -np.inf, 0)
    assert found["table"].fn.tolist() == [0, 1, 2]


@OTHER
def test_of_the_state_of_nnx_parameters_alone_are_taken_and_dropout_has_a_key_of_each_step() -> (
    None
):
    from flax import nnx

    class Net(nnx.Module):  # type: ignore[misc,name-defined]
        def __init__(self, drop: Any, norm: Any) -> None:
            self.inner, self.drop, self.norm = nnx.Linear(3, 8, rngs=nnx.Rngs(0)), drop, norm

        def __call__(self, x: Any, key: Any) -> Any:
            return self.drop(self.norm(self.inner(x)), rngs=nnx.Rngs(key)).mean()

    def refused(net: Any, name: str) -> None:
        strategy = InProcessStrategy()
        with pytest.raises(ConfigurationError, match=f"{name}.*nnx.split"):
            psnb.jax.variables(strategy, nnx.split(net)[1], SGD())
        assert not strategy.parameters

    plain = nnx.LayerNorm(8, rngs=nnx.Rngs(0))
    refused(Net(nnx.Dropout(0.5, rngs=nnx.Rngs(0)), plain), r"\['drop'\].*RngCount")
    refused(Net(nnx.Dropout(0.5), nnx.BatchNorm(8, rngs=nnx.Rngs(0))), r"\['norm'\].*BatchStat")

    net = Net(nnx.Dropout(0.5), plain)
    graph, state, rest = nnx.split(net, nnx.Param, ...)

    def loss(params: Any, rows: Any, batch: Any, key: Any) -> Any:
        return nnx.merge(graph, params, rest)(batch, key)

    params = psnb.jax.variables(InProcessStrategy(), state, SGD(0.0))
    step = psnb.jax.step(loss, params=params, seed=1)
    keys = [jax.random.fold_in(jax.random.key(1), number) for number in range(3)]
    expected = [net(X, key) for key in keys]
    np.testing.assert_allclose([step.train_on(X) for _ in keys], expected, rtol=1e-5)
    assert len(set(map(float, expected))) == 3


def test_state_of_linen_is_refused() -> None:
    tree = {"params": {"w": jnp.ones(2)}, "batch_stats": {"mean": jnp.zeros(2)}}
    with pytest.raises(ConfigurationError, match=r"'batch_stats' of a Flax module .*BatchNorm"):
        psnb.jax.variables(InProcessStrategy(), tree, SGD(RATE))
