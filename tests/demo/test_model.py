"""Tests of the wide and deep model."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psnb._src.demo import model

FIELDS, DENSE_COLUMNS, BATCH = 3, 2, 4

Inputs = tuple[Any, dict[str, Any], dict[str, Any]]


@pytest.fixture
def inputs() -> Inputs:
    """Return layers, rows and a small batch."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    layers = model.initial_layers(FIELDS, DENSE_COLUMNS, seed=0)
    rows = {"wide": normal(BATCH, FIELDS, 1), "deep": normal(BATCH, FIELDS, model.DIMENSION)}
    labels = np.array([0, 1, 1, 0], np.float32)
    return layers, rows, {"dense": normal(BATCH, DENSE_COLUMNS), "labels": labels}


gradients = jax.jit(jax.value_and_grad(model.loss, argnums=(0, 1), has_aux=True))


def test_layers_have_the_shapes_of_the_network() -> None:
    widths = (FIELDS * model.DIMENSION + DENSE_COLUMNS, *model.HIDDEN, 1)
    layers = model.initial_layers(FIELDS, DENSE_COLUMNS, seed=0)
    assert [matrix.shape for matrix, _ in layers] == list(pairwise(widths))
    assert [bias.shape for _, bias in layers] == [(width,) for width in widths[1:]]
    assert {each.dtype for layer in layers for each in layer} == {np.dtype("float32")}


def test_weights_follow_from_the_seed() -> None:
    first, second, other = (
        model.initial_layers(FIELDS, DENSE_COLUMNS, seed)[0][0] for seed in (1, 1, 2)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_the_loss_is_the_summed_cross_entropy_of_the_probabilities(inputs: Inputs) -> None:
    p, labels = model.predict(*inputs), inputs[2]["labels"]
    expected = -np.log(np.where(labels == 1, p, 1 - p))
    found, told = model.loss(*inputs)
    assert found == pytest.approx(expected.sum(), rel=1e-5)
    assert told["loss"] == pytest.approx(expected.mean(), rel=1e-5)
    assert told["auc"] == pytest.approx(model.auc(labels, np.asarray(p)))


def test_row_gradients_do_not_shrink_with_the_batch(inputs: Inputs) -> None:
    layers, rows, batch = inputs
    doubled = jax.tree.map(lambda each: np.concatenate([each, each]), (rows, batch))
    once, twice = gradients(*inputs)[1][1], gradients(layers, *doubled)[1][1]
    np.testing.assert_allclose(twice["deep"][:BATCH], once["deep"], atol=1e-6)


def test_extreme_logits_give_a_finite_loss(inputs: Inputs) -> None:
    layers, rows, batch = inputs
    (loss, _), by = gradients(layers, {**rows, "wide": rows["wide"] - 1000}, batch)
    assert np.isfinite(loss)
    assert all(np.isfinite(each).all() for each in jax.tree.leaves(by))


def test_steps_against_the_gradient_learn_a_separable_batch(inputs: Inputs) -> None:
    layers, rows, batch = inputs
    first = model.loss(*inputs)[0]
    for _ in range(100):
        _, by = gradients(layers, rows, batch)
        layers, rows = jax.tree.map(lambda value, g: value - 0.05 * g, (layers, rows), by)
    last, told = model.loss(layers, rows, batch)
    assert last < first / 5
    assert told["auc"] == 1


def test_both_tables_have_a_row_for_each_id() -> None:
    ids = np.arange(3)
    assert all(each is ids for each in model.ids({"ids": ids}).values())


@pytest.mark.parametrize("module", [np, jnp])
@pytest.mark.parametrize("levels", [2, 5, 1000], ids=["many ties", "ties", "few ties"])
def test_auc_is_the_share_of_pairs_in_order(levels: int, module: Any) -> None:
    rng = np.random.default_rng(levels)
    labels, scores = rng.integers(0, 2, 60), rng.integers(0, levels, 60) / levels
    pairs = [(p > n) + (p == n) / 2 for p in scores[labels == 1] for n in scores[labels == 0]]
    found = model.auc(module.asarray(labels), module.asarray(scores))
    assert found == pytest.approx(np.mean(pairs), rel=1e-6)


def test_auc_of_equal_scores_is_a_half() -> None:
    assert model.auc(np.array([0, 1, 1]), np.zeros(3)) == 0.5


@pytest.mark.parametrize("label", [0, 1])
def test_auc_of_a_single_class_is_nan(label: int) -> None:
    assert np.isnan(model.auc(np.full(3, label), np.arange(3.0)))
