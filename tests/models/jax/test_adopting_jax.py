"""Trees that take up the parameters that a strategy has of them; servers in this process."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psnb.jax
from psnb._src.server.optimizers import SGD, Adam
from psnb.errors import ConfigurationError
from tests.models.jax.test_tree_variables import TREE, Layer
from tests.models.placing import InProcessStrategy


def test_a_tree_has_the_values_that_are_there() -> None:
    strategy = InProcessStrategy()
    made = psnb.jax.variables(
        strategy, TREE, lambda name: Adam() if "kernel" in name else SGD(), "net"
    )
    made.assign({**TREE, "layers": [Layer(jnp.full((3, 2), 0.5), jnp.ones(2)), TREE["layers"][1]]})
    found = psnb.jax.variables(strategy.again(), TREE, name="net")
    assert [each.name for each in found.variables] == [each.name for each in made.variables]
    jax.tree.map(np.testing.assert_array_equal, found.read()["layers"], made.read()["layers"])


def test_a_tree_that_does_not_fit_is_refused_with_the_differences() -> None:
    strategy = InProcessStrategy()
    psnb.jax.variables(strategy, TREE, SGD())
    other = {**TREE, "layers": [Layer(jnp.ones((3, 4)), None)], "bias": 0.0}
    with pytest.raises(ConfigurationError, match="'params' does not fit") as refused:
        psnb.jax.variables(strategy.again(), other)
    for said in (
        r"missing there: \"\['bias'\]\", float32 of shape \(\)",
        r"only there: \"\['layers'\]\[1\].kernel\", float32 of shape \(2, 1\)",
        r"kernel\": there float32 of shape \(3, 2\), here float32 of shape \(3, 4\)",
    ):
        assert refused.match(rf"(?s).*{said}")


def test_a_cell_that_runs_again_must_say_what_is_meant() -> None:
    strategy = InProcessStrategy()
    made = psnb.jax.variables(strategy, TREE, SGD())
    with pytest.raises(ConfigurationError, match="adopt=True goes on"):
        psnb.jax.variables(strategy, TREE, SGD())
    assert psnb.jax.variables(strategy, TREE, adopt=True).variables == made.variables


def test_without_an_optimizer_nothing_is_placed() -> None:
    strategy = InProcessStrategy()
    with pytest.raises(ConfigurationError, match="expected an optimizer of psnb"):
        psnb.jax.variables(strategy, TREE)
    assert not strategy.parameters


def test_an_optimizer_that_needs_other_state_is_refused() -> None:
    tree = {"w": np.ones(2, np.float32)}
    psnb.jax.variables(strategy := InProcessStrategy(), tree, psnb.Adam(0.1))
    with pytest.raises(ConfigurationError, match=r"state that the optimizer of .*, here .*highest"):
        psnb.jax.variables(strategy.again(), tree, psnb.Adam(0.1, amsgrad=True))
