"""Tests of steps in which some leaves learn: the others are as with an optimizer of their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import psnb
import psnb.jax
from psnb.errors import ConfigurationError
from tests.models.placing import InProcessStrategy

PARTS = "g", "d"


def start() -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return {p: {n: rng.normal(size=3).astype(np.float32) for n in "wv"} for p in PARTS}


def loss(params: Any, rows: Any, batch: Any) -> Any:
    made = jnp.tanh(batch * params["g"]["w"]) + params["g"]["v"]
    return jnp.mean(jnp.square(made * params["d"]["w"] - params["d"]["v"]))


def of(part: str) -> Any:
    return lambda name: name.startswith(f"['{part}']")


@pytest.mark.parametrize("optimizer", [psnb.Adam(0.1), optax.adamw(0.1)], ids=["psnb", "optax"])
def test_parts_that_learn_in_turn_are_as_with_two_optimizers_of_optax(optimizer: Any) -> None:
    strategy: Any = InProcessStrategy()
    params = psnb.jax.variables(strategy, start(), optimizer)
    steps = {p: psnb.jax.step(loss, params=params, learns=of(p)) for p in PARTS}
    plain: Any = start()
    rule = optax.adam(0.1) if isinstance(optimizer, psnb.Adam) else optimizer
    states = {part: rule.init(plain[part]) for part in PARTS}
    for number in range(7):
        part, batch = PARTS[number % 3 // 2], np.full(3, number, np.float32)
        steps[part].train_on(batch)
        others = dict(plain)
        gradient = jax.grad(lambda own, o=others, p=part, b=batch: loss({**o, p: own}, None, b))
        moved, states[part] = rule.update(gradient(plain[part]), states[part], plain[part])
        plain = {**plain, part: optax.apply_updates(plain[part], moved)}
    found = params.read()
    for part in PARTS:
        for name in "wv":
            np.testing.assert_allclose(found[part][name], plain[part][name], rtol=1e-4)


def test_a_leaf_that_learns_and_is_not_used_has_a_gradient_of_zeros_as_in_jax() -> None:
    strategy: Any = InProcessStrategy()
    tree = {"used": np.ones(1, np.float32), "not": np.ones(1, np.float32)}
    params = psnb.jax.variables(strategy, tree, optax.adamw(0.1, weight_decay=0.5))

    def only(params: Any, rows: Any, batch: Any) -> Any:
        return jnp.sum(params["used"])

    psnb.jax.step(only, params=params).train_on(np.ones(1))
    np.testing.assert_allclose(params.read()["not"], 0.95, rtol=1e-6)


def test_something_must_learn() -> None:
    strategy: Any = InProcessStrategy()
    params = psnb.jax.variables(strategy, start(), psnb.SGD(0.1))
    with pytest.raises(ConfigurationError, match="nothing learns"):
        psnb.jax.step(loss, params=params, learns=lambda name: False)


def test_an_optimizer_that_takes_a_norm_of_all_refuses_a_part() -> None:
    strategy: Any = InProcessStrategy()
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
    params = psnb.jax.variables(strategy, start(), rule)
    step = psnb.jax.step(loss, params=params, learns=of("g"))
    with pytest.raises(ConfigurationError, match="an optimizer of their own"):
        step.train_on(np.ones(3, np.float32))
