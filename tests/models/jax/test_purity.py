"""Tests of what a compiled function may not do; servers in this process."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import psnb.jax
from psnb._src.models.jax.purity import pure
from psnb._src.server.optimizers import SGD
from psnb.errors import ConfigurationError
from tests.models.placing import InProcessStrategy

CALLS = 0
SEEN: list[Any] = []


def counts(params: Any, rows: Any, batch: Any) -> Any:
    global CALLS
    CALLS += 1
    return params["w"] * batch["x"].sum()


def keeps(params: Any, rows: Any, batch: Any) -> Any:
    SEEN.append(batch["x"])
    return params["w"] * batch["x"].sum()


def sets(params: Any, rows: Any, batch: Any) -> Any:
    global LATEST
    LATEST = batch["x"]
    return params["w"] * batch["x"].sum()


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (counts, "CALLS"),
        (keeps, "SEEN"),
        (sets, "LATEST"),
        (functools.partial(counts), "CALLS"),
        (jax.jit(counts), "CALLS"),
    ],
)
def test_a_loss_that_keeps_state_in_its_worker_is_refused_by_the_name(loss: Any, name: str) -> None:
    params = psnb.jax.variables(InProcessStrategy(), {"w": jnp.ones(())}, SGD(0.1))
    before = params.read()["w"].copy()
    with pytest.raises(ConfigurationError, match=f"changes '{name}'.*state of one worker"):
        psnb.jax.step(loss, params=params)(iter([{"x": jnp.ones(2)}]))
    assert params.read()["w"] == before


def test_what_is_not_changed_is_no_state() -> None:
    table, later = {"a": 1}, []

    def reads() -> Any:
        return table["a"], later, recursive

    with pure(reads):
        reads_of_nothing = len(later)
    assert reads_of_nothing == 0
    with pure(print), pure("no function".upper):
        pass
    recursive = reads
