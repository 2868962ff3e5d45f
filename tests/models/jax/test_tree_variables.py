"""Tests of trees of parameters; servers in this process."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psnb.jax
from psnb._src.server.optimizers import SGD, Adam
from psnb.errors import ConfigurationError, InvalidArrayError
from tests.models.placing import InProcessStrategy


class Layer(NamedTuple):
    kernel: Any
    bias: Any


TREE = {
    "layers": [Layer(jnp.ones((3, 2)), jnp.zeros(2)), Layer(jnp.full((2, 1), 5.0), None)],
    "scale": 0.5,
    "name": "net",
    "mask": np.array([True, False]),
}


def doubled(x: Any) -> Any:
    return 2 * x


@jax.tree_util.register_pytree_with_keys_class
class Module:
    """As a module of Equinox: a class that registers itself, and a function among its leaves."""

    def __init__(self, weight: Any, activation: Any) -> None:
        self.weight, self.activation = weight, activation

    def tree_flatten_with_keys(self) -> Any:
        keys = [jax.tree_util.GetAttrKey(name) for name in ("weight", "activation")]
        return tuple(zip(keys, (self.weight, self.activation), strict=True)), None

    @classmethod
    def tree_unflatten(cls, _: Any, leaves: Any) -> Module:
        return cls(*leaves)


def test_what_is_read_is_the_tree_that_was_placed() -> None:
    found = psnb.jax.variables(InProcessStrategy(), TREE, SGD()).read()
    assert jax.tree.structure(found) == jax.tree.structure(TREE)
    jax.tree.map(np.testing.assert_array_equal, found, TREE)


def test_floats_of_one_optimizer_are_one_variable_and_the_rest_stays() -> None:
    strategy = InProcessStrategy()
    made = psnb.jax.variables(strategy, TREE, SGD(), name="net")
    assert [each.shape for each in made.variables] == [(11,)]
    assert list(strategy.parameters) == ["net"]
    assert "4 arrays with 11 numbers in 1 variables" in repr(made)


def test_a_function_of_the_name_chooses_the_optimizer() -> None:
    names = []

    def choose(name: str) -> Any:
        names.append(name)
        return Adam() if "bias" in name else SGD()

    made = psnb.jax.variables(InProcessStrategy(), TREE, choose)
    assert [each.shape for each in made.variables] == [(9,), (2,)]
    assert names[:2] == ["['layers'][0].kernel", "['layers'][0].bias"]


def test_each_leaf_learns_with_its_own_optimizer_wherever_it_lies() -> None:
    tree = {"a": jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones(2), "c": jnp.ones(()), "d": True}
    made = psnb.jax.variables(
        InProcessStrategy(), tree, lambda name: SGD(0.5 if "bias" in name else 0.25)
    )
    assert len(made.variables) == 2

    def loss(params: Any, rows: Any, batch: Any) -> Any:
        return (params["a"] ** 2).sum() + (params["bias"] * batch).sum() + 3 * params["c"]

    psnb.jax.step(loss, params=made)(iter([jnp.array([1.0, 2.0])]))
    found = made.read()
    np.testing.assert_allclose(found["a"], 0.5 * np.arange(6.0).reshape(2, 3))
    assert found["bias"].tolist() == [0.5, 0.0]
    assert found["c"] == 0.25
    assert found["d"] is True


def test_a_python_float_learns_what_jax_gives() -> None:
    tree = {"w": [0.5, jnp.ones(2)], "b": 0.0}

    def loss(params: Any, rows: Any, batch: Any) -> Any:
        score = batch * params["w"][0] * params["w"][1].sum() + params["b"]
        return jnp.mean((score - 1) ** 2)

    x = jnp.array([1.0, 2.0])
    by = jax.grad(loss)(tree, None, x)
    made = psnb.jax.variables(InProcessStrategy(), tree, SGD(0.5))
    psnb.jax.step(loss, params=made)(iter([x]))
    expected = jax.tree.map(lambda value, gradient: value - 0.5 * gradient, tree, by)
    jax.tree.map(np.testing.assert_allclose, made.read(), expected)
    made.assign({"w": [2.0, np.ones(2, np.float32)], "b": 3.0})
    assert [made.read()["w"][0], made.read()["b"]] == [2, 3]


def test_a_module_that_registered_itself_travels() -> None:
    made = psnb.jax.variables(InProcessStrategy(), Module(jnp.ones(2), doubled), SGD())
    travelled = pickle.loads(pickle.dumps(made))
    module = travelled.tree([jnp.full(2, 7.0)])
    assert module.weight.tolist() == [7, 7]
    assert module.activation is doubled


def test_all_leaves_can_be_replaced() -> None:
    made = psnb.jax.variables(InProcessStrategy(), TREE, SGD())
    made.assign(jax.tree.map(lambda leaf: leaf + 1 if isinstance(leaf, jax.Array) else leaf, TREE))
    assert np.array(made.read()["layers"][1].kernel).tolist() == [[6], [6]]


def test_a_leaf_of_another_shape_is_refused_by_its_name() -> None:
    made = psnb.jax.variables(InProcessStrategy(), TREE, SGD())
    other = {**TREE, "layers": [TREE["layers"][0], Layer(jnp.ones((4, 1)), None)]}
    with pytest.raises(InvalidArrayError, match=r"\['layers'\]\[1\].kernel.* \(2, 1\).* \(4, 1\)"):
        made.assign(other)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": True}, "no floats in dict"),
        ({"a": [1.0, 3]}, r"\['a'\]\[1\].* is a Python int"),
        ({"a": 1j}, r"\['a'\].* is a Python complex"),
        ({"a": 1.0, "b": np.arange(2)}, r"\['b'\].* is of int64"),
        ({"a": 1.0, "b": jax.random.key(0)}, r"\['b'\].* is of key<fry>.*seed="),
        ({"a": 1.0, "b": jax.random.PRNGKey(0)}, r"\['b'\].* is of uint32.*seed="),
        ({"a": jnp.ones(2, jnp.bfloat16)}, "bfloat16; servers keep float32"),
        ({"a": jnp.ones(2, jnp.complex64)}, "complex"),
    ],
)
def test_what_servers_cannot_keep_is_refused(tree: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        psnb.jax.variables(InProcessStrategy(), tree, SGD())


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"psnb\.jax\.variables: strategy must be a psnb\.ParameterServerStrategy, found dict",
    ):
        psnb.jax.variables(TREE, InProcessStrategy(), SGD())  # type: ignore[arg-type]
