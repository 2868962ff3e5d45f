"""Tests of the wide and deep model."""

from itertools import pairwise

import numpy as np
import pytest

from psnb._src.demo import model

FIELDS, DENSE_COLUMNS, BATCH = 3, 2, 4


@pytest.fixture
def inputs() -> tuple[np.ndarray, ...]:
    """Return weights, wide rows, deep rows, dense columns and labels of a small batch."""
    rng = np.random.default_rng(0)
    shapes = [(BATCH, FIELDS, 1), (BATCH, FIELDS, model.DIMENSION), (BATCH, DENSE_COLUMNS)]
    rows = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    labels = np.array([0, 1, 1, 0], np.float32)
    return model.initial_weights(FIELDS, DENSE_COLUMNS, seed=0), *rows, labels


def test_weights_are_one_float32_vector_of_every_layer() -> None:
    widths = (FIELDS * model.DIMENSION + DENSE_COLUMNS, *model.HIDDEN, 1)
    size = sum((a + 1) * b for a, b in pairwise(widths))
    weights = model.initial_weights(FIELDS, DENSE_COLUMNS, seed=0)
    assert weights.shape == (size,)
    assert weights.dtype == np.float32


def test_weights_follow_from_the_seed() -> None:
    first, second, other = (model.initial_weights(FIELDS, DENSE_COLUMNS, s) for s in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_results_are_numpy_arrays_of_the_shapes_given(inputs: tuple[np.ndarray, ...]) -> None:
    loss, probabilities, by = model.gradients(*inputs)
    assert isinstance(loss, float)
    assert isinstance(probabilities, np.ndarray)
    assert probabilities.shape == (BATCH,)
    for gradient, value in zip(by, inputs[:3], strict=True):
        assert isinstance(gradient, np.ndarray)
        assert gradient.shape == value.shape
        assert gradient.dtype == np.float32


def test_loss_is_the_mean_cross_entropy_of_the_probabilities(
    inputs: tuple[np.ndarray, ...],
) -> None:
    loss, p, _ = model.gradients(*inputs)
    assert loss == pytest.approx(-np.log(np.where(inputs[-1] == 1, p, 1 - p)).mean(), rel=1e-5)


@pytest.mark.parametrize("argument", [0, 1, 2], ids=["weights", "wide", "deep"])
def test_gradients_are_the_slopes_of_the_summed_loss(
    inputs: tuple[np.ndarray, ...], argument: int
) -> None:
    gradient = model.gradients(*inputs)[2][argument]
    direction = np.random.default_rng(1).normal(size=gradient.shape).astype(np.float32)
    direction /= np.linalg.norm(direction)

    def summed_loss(step: float) -> float:
        moved = list(inputs)
        moved[argument] = inputs[argument] + np.float32(step) * direction
        return model.gradients(*moved)[0] * BATCH

    slope = (summed_loss(0.01) - summed_loss(-0.01)) / 0.02
    assert slope == pytest.approx(float((gradient * direction).sum()), rel=0.02, abs=1e-3)


def test_wide_gradient_is_the_error_of_the_prediction(inputs: tuple[np.ndarray, ...]) -> None:
    _, probabilities, (_, by_wide, _) = model.gradients(*inputs)
    for field in range(FIELDS):
        assert by_wide[:, field, 0] == pytest.approx(probabilities - inputs[-1], abs=1e-6)


def test_row_gradients_do_not_shrink_with_the_batch(inputs: tuple[np.ndarray, ...]) -> None:
    weights, *rest = inputs
    doubled = [np.concatenate([each, each]) for each in rest]
    once, twice = model.gradients(*inputs)[2][2], model.gradients(weights, *doubled)[2][2]
    assert twice[:BATCH] == pytest.approx(once, abs=1e-6)


def test_extreme_logits_give_a_finite_loss(inputs: tuple[np.ndarray, ...]) -> None:
    weights, wide, deep, dense, labels = inputs
    loss, _, by = model.gradients(weights, wide - 1000, deep, dense, labels)
    assert np.isfinite(loss)
    assert all(np.isfinite(gradient).all() for gradient in by)


def test_predict_agrees_with_the_probabilities_of_gradients(
    inputs: tuple[np.ndarray, ...],
) -> None:
    assert model.predict(*inputs[:-1]) == pytest.approx(model.gradients(*inputs)[1], abs=1e-6)


def test_steps_against_the_gradient_learn_a_separable_batch(
    inputs: tuple[np.ndarray, ...],
) -> None:
    weights, wide, deep, dense, labels = inputs
    first = model.gradients(*inputs)[0]
    for _ in range(100):
        _, _, (by_weights, by_wide, by_deep) = model.gradients(weights, wide, deep, dense, labels)
        weights, wide = weights - 0.05 * by_weights, wide - 0.05 * by_wide
        deep = deep - 0.05 * by_deep
    last, probabilities, _ = model.gradients(weights, wide, deep, dense, labels)
    assert last < first / 5
    assert model.auc(labels, probabilities) == 1


@pytest.mark.parametrize("levels", [2, 5, 1000], ids=["many ties", "ties", "few ties"])
def test_auc_is_the_share_of_pairs_in_order(levels: int) -> None:
    rng = np.random.default_rng(levels)
    labels, scores = rng.integers(0, 2, 60), rng.integers(0, levels, 60) / levels
    pairs = [(p > n) + (p == n) / 2 for p in scores[labels == 1] for n in scores[labels == 0]]
    assert model.auc(labels, scores) == pytest.approx(np.mean(pairs))


def test_auc_of_equal_scores_is_a_half() -> None:
    assert model.auc(np.array([0, 1, 1]), np.zeros(3)) == 0.5


@pytest.mark.parametrize("label", [0, 1])
def test_auc_of_a_single_class_is_nan(label: int) -> None:
    assert np.isnan(model.auc(np.full(3, label), np.arange(3.0)))
