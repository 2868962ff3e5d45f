"""Tests of computing on a device that was chosen; servers in this process."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import psnb.jax
from psnb._src.models.jax.program import together
from psnb.errors import ConfigurationError
from tests.models.jax.test_train_step import BATCH, Model


@pytest.mark.parametrize("device", ["cpu", "cpu:0", jax.devices("cpu")[0]])
def test_a_step_on_a_device_gives_what_it_gives_elsewhere(device: Any) -> None:
    here, there = Model(), Model()
    there.params.assign(here.params.read())
    for table in ("ads", "words"):
        ids = [1, 2, 3, 5, 7, 2**40]
        getattr(there, table).assign(ids, getattr(here, table).lookup(ids))
    step = there.step(device=device)
    for _ in range(3):
        np.testing.assert_allclose(step(iter([BATCH])), here.step()(iter([BATCH])), rtol=1e-6)
    for name, value in here.values().items():
        np.testing.assert_allclose(there.values()[name], value, rtol=1e-5, atol=1e-7)
    assert step.programs == 1


def test_what_a_batch_needs_is_one_copy_for_each_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Any] = []
    put = jax.device_put

    def counting(given: Any, *more: Any) -> Any:
        copied.append(jax.tree.leaves(given))
        return put(given, *more)

    step = Model().step(device="cpu")
    monkeypatch.setattr(jax, "device_put", counting)
    step(iter([BATCH]))
    (arrays,) = copied
    assert sorted(each.dtype.name for each in arrays) == ["float32", "int32", "uint32"]


def test_arrays_of_all_dtypes_and_shapes_are_taken_apart_as_they_were() -> None:
    tree = {"a": [np.arange(6.0).reshape(2, 3), np.array(7)], "b": np.array([True]), "c": None}
    tree["d"] = np.zeros((0, 4))
    form, flat = together(tree)
    assert sorted(each.dtype.name for each in flat) == ["bool", "float64", "int64"]
    found = form.apart(flat)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, found, tree)


@pytest.mark.parametrize("device", ["cuda", "cpu:77", "cpu:x"])
def test_a_missing_device_is_named_with_those_that_are_there(device: str) -> None:
    if device == "cuda" and any(each.platform == "gpu" for each in jax.devices()):
        device = "cuda:99"
    with pytest.raises(ConfigurationError, match=f"device='{device}' is not there.*JAX has .*:0"):
        Model().step(device=device)(iter([BATCH]))


def test_what_names_no_device_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"device must be a name.*found 3"):
        Model().step(device=3)
    with pytest.raises(ConfigurationError, match="device must be a name"):
        psnb.jax.forward(lambda p, r, b: 0, device="")
