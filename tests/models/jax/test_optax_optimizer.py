"""Tests of optax's transformations as optimizers of psnb: their numbers, and what is refused."""

from __future__ import annotations

import doctest
import sys
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import tree_util

import psnb.jax
from psnb._src.models.jax import optimizer
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.sparse import SparseTable
from psnb.errors import ConfigurationError
from tests.models.placing import InProcessStrategy
from tests.server.writes import push

ROWS, DIM, STEPS = 6, 3, 12

BY_ELEMENT: dict[str, Any] = {
    "adamw on a schedule": optax.adamw(optax.cosine_decay_schedule(0.1, 10), weight_decay=0.1),
    "adagrad": optax.adagrad(0.1),
    "centered rmsprop": optax.rmsprop(0.01, momentum=0.5, centered=True),
    "lion": optax.lion(0.01),
    "yogi": optax.yogi(0.1),
    "rprop": optax.rprop(0.1),
    "clipped sgd": optax.chain(optax.clip(0.5), optax.sgd(0.1, 0.9, nesterov=True)),
    "adabelief": optax.adabelief(0.1),
}
WHOLE: dict[str, Any] = {
    "global norm": optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1)),
    "norm": optax.chain(optax.normalize_by_update_norm(), optax.sgd(0.1)),
}


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return distinct ids and gradients of each step."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, ROWS + 1, STEPS)
    return [(rng.permutation(ROWS)[:n], rng.normal(size=(n, DIM))) for n in counts]


def by_optax(rule: Any, dtype: str, sparse: bool) -> np.ndarray:
    values: Any = jnp.full((ROWS, DIM), 0.25, dtype)
    state = rule.init(values)
    for ids, gradients in batches():
        whole = np.zeros((ROWS, DIM), dtype)
        whole[ids] = gradients
        updates, new = rule.update(jnp.asarray(whole), state, values)
        used = np.isin(np.arange(ROWS), ids)[:, None] | (not sparse)
        values = jnp.where(used, optax.apply_updates(values, updates), values)

        def kept(old: Any, new: Any, used: np.ndarray = used) -> Any:
            return jnp.where(used, new, old) if new.shape else new

        state = jax.tree.map(kept, state, new)
    return np.asarray(values)


FIRST = {False: ("adagrad", "clipped sgd"), True: ("centered rmsprop", "lion")}
OTHER_TABLE = pytest.mark.second_tier("another rule, or the same one in the other kind of table")


@pytest.mark.parametrize(
    ("name", "sparse", "dtype"),
    [
        pytest.param(each, sparse, "float32", marks=[] if each in FIRST[sparse] else OTHER_TABLE)
        for each in BY_ELEMENT
        for sparse in (False, True)
    ]
    + [(each, False, "float32") for each in WHOLE]
    + [
        pytest.param("yogi", True, "float64", marks=OTHER_TABLE),
        pytest.param("adagrad", False, "float64", marks=OTHER_TABLE),
    ],
)
def test_it_gives_the_numbers_of_optax(name: str, sparse: bool, dtype: str) -> None:
    rule = {**BY_ELEMENT, **WHOLE}[name]
    optimizer = cloudpickle.loads(cloudpickle.dumps(psnb.jax.optimizer(rule)))
    assert optimizer.by_element == (name in BY_ELEMENT)
    dense = DenseTable("v", np.full((ROWS, DIM), 0.25, dtype), optimizer)
    table = SparseTable("e", DIM, ROWS, 0, 1, dtype, Constant(0.25), 0, optimizer)
    for ids, gradients in batches():
        if sparse:
            push(table, ids.astype(np.uint64), gradients.astype(dtype))
        else:
            whole = np.zeros((ROWS, DIM), dtype)
            whole[ids] = gradients
            push(dense, whole)
    found = table.lookup(np.arange(ROWS, dtype=np.uint64)) if sparse else dense.read()
    with jax.enable_x64(dtype == "float64"):
        expected = by_optax(rule, dtype, sparse)
    tolerance = 2e-6 if dtype == "float32" else 1e-7  # corrections are float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_its_state_goes_on_where_it_was_saved() -> None:
    optimizer = psnb.jax.optimizer(optax.adam(0.1))
    one, other = (DenseTable("v", np.ones(4, np.float32), optimizer) for _ in range(2))
    gradient = np.array([1, -2, 3, 0.5], np.float32)
    push(one, gradient)
    other.load(one.state())
    for each in (one, other):
        push(each, gradient[::-1].copy())
    np.testing.assert_array_equal(one.read(), other.read())
    assert other.state()["slot.[0].mu"].any()


def test_a_tree_of_parameters_takes_it_as_it_is() -> None:
    rng = np.random.default_rng(0)
    tree = {n: rng.normal(size=s).astype(np.float32) for n, s in {"w": (3, 2), "b": (2,)}.items()}
    rule = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.1))
    params = psnb.jax.variables(InProcessStrategy(), tree, rule)
    (variable,) = params.variables
    state, alone = rule.init(tree), tree
    for _ in range(5):
        gradients = jax.tree.map(lambda a: rng.normal(size=a.shape).astype(np.float32), tree)
        variable.push(np.concatenate([gradients[n].reshape(-1) for n in sorted(tree)]))
        updates, state = rule.update(gradients, state, alone)
        alone = optax.apply_updates(alone, updates)
    jax.tree.map(lambda f, e: np.testing.assert_allclose(f, e, atol=2e-6), params.read(), alone)


def test_a_norm_of_leaves_of_two_dtypes_is_refused() -> None:
    tree = {"w": np.ones(3, np.float32), "b": np.ones(2, np.float64)}
    with pytest.raises(ConfigurationError, match="takes the norm of all of them"):
        psnb.jax.variables(InProcessStrategy(), tree, WHOLE["global norm"])
    assert len(psnb.jax.variables(InProcessStrategy(), tree, optax.adam(0.1)).variables) == 2


def test_a_function_of_the_name_may_choose_them() -> None:
    tree = {"w": np.ones(3, np.float32), "b": np.ones(2, np.float32), "c": np.ones(1, np.float32)}
    rule = optax.lion(0.1)
    params = psnb.jax.variables(
        InProcessStrategy(), tree, lambda name: psnb.SGD(0.5) if "c" in name else rule
    )
    assert sorted(each.shape for each in params.variables) == [(1,), (5,)]


def masked(params: Any) -> Any:
    return jax.tree.map(lambda each: each.ndim > 1, params)


REFUSED: dict[str, Any] = {
    r"expected a transformation of optax, such as optax\.adam": "adam",
    r"tells parameters of a tree or their shapes apart": optax.adamw(0.1, mask=masked),
    r"apart \(by a mask, or norms of each\)": optax.lars(0.1),
    r"its state \[0\]\.v_row \(float32, shape \(1,\)\) is neither": optax.adafactor(0.1),
    r"mini_step|is neither": optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(),
    r"use a schedule instead of inject_hyperparams": optax.inject_hyperparams(optax.adam)(0.1),
    r"bfloat16": optax.adam(0.1, mu_dtype=jnp.bfloat16),
    r"does not run on gradients, its state and parameters alone": (
        optax.contrib.reduce_on_plateau()
    ),
    r"its schedule chooses by Python's if": optax.sgd(lambda count: 0.1 if count < 5 else 0.01),
    r"is neither an array like the parameter.*": optax.add_noise(0.1, 0.5, 0),
    r"begins with a copy or function of parameters": optax.GradientTransformation(
        lambda params: params, lambda updates, state, params=None: (updates, state)
    ),
}


def is_bias(params: Any) -> Any:
    return tree_util.tree_map_with_path(lambda path, _: "bias" in tree_util.keystr(path), params)


@pytest.mark.parametrize(
    "rule",
    [
        optax.adamw(0.1, mask=is_bias),
        optax.adamw(0.1, mask=lambda params: jax.tree.map(lambda each: each.ndim > 2, params)),
        optax.partition(
            {"b": optax.sgd(0.1), "w": optax.set_to_zero()},
            lambda params: jax.tree.map(lambda bias: "b" if bias else "w", is_bias(params)),
        ),
    ],
    ids=["by name", "by many axes", "groups"],
)
def test_masks_that_no_sample_shows_are_refused(rule: Any) -> None:
    with pytest.raises(ConfigurationError, match="tells parameters of a tree"):
        psnb.jax.optimizer(rule)


def test_a_count_that_starts_over_late_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"state .*count is not a count of updates: after"):
        psnb.jax.optimizer(optax.apply_every(100))


def test_state_begins_with_the_number_in_double_precision() -> None:
    assert psnb.jax.optimizer(optax.adagrad(0.5, 0.1)).initial_slot("[0].sum_of_squares") == 0.1


@pytest.mark.parametrize("message", REFUSED)
def test_what_servers_cannot_keep_is_refused_by_name(message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        psnb.jax.optimizer(REFUSED[message])


def test_what_mixes_the_numbers_of_an_array_does_not_work_by_element() -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(
            lambda each: each - 1e-30 * jnp.cumsum(each).reshape(each.shape), updates
        ), state

    rule = optax.GradientTransformation(lambda params: optax.EmptyState(), update)
    flat = optax.chain(optax.clip_by_global_norm(1e30), optax.sgd(0.1))
    for each in (rule, flat):  # on a sample of usual numbers neither shows it
        assert not psnb.jax.optimizer(each).by_element


def test_its_rate_is_in_the_transformation() -> None:
    table = DenseTable("v", np.ones(2, np.float32), psnb.jax.optimizer(optax.sgd(0.5)))
    with pytest.raises(ConfigurationError, match="Make it with a schedule"):
        table.updater.tune({"learning_rate": 0.1})
    table.updater.tune({"clipvalue": 0.5})
    push(table, np.array([2, 0.25], np.float32))
    assert table.read().tolist() == [0.75, 0.875]


def test_what_needs_whole_gradients_cannot_be_clipped_beside() -> None:
    rule = psnb.jax.optimizer(WHOLE["global norm"])
    table = DenseTable("v", np.ones(2, np.float32), rule)
    with pytest.raises(ConfigurationError, match="belong into the transformation"):
        table.updater.tune({"clipnorm": 0.1})


def test_the_example_runs() -> None:
    module = sys.modules[optimizer.__name__]
    function = psnb.jax.optimizer.__wrapped__  # type: ignore[attr-defined]
    (found,) = doctest.DocTestFinder(recurse=False).find(function, "optimizer", module)
    assert not doctest.DocTestRunner(verbose=False).run(found).failed
