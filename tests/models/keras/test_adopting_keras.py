"""Keras models that take up the parameters that a strategy has of them; in this process."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest

from psnb._src.models.keras.compiled import CompiledModel
from psnb._src.models.keras.layer_names import name_there
from psnb._src.models.keras.split import split
from psnb.errors import ConfigurationError
from tests.models.keras import nets
from tests.models.placing import InProcessStrategy

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer 'flatten:UserWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]


def placed(
    strategy: InProcessStrategy,
    model: Any,
    optimizer: Any = "adam",
    name: str = "model",
    adopt: bool | None = None,
    **options: Any,
) -> CompiledModel:
    given = {"loss": "binary_crossentropy", "metrics": ["mae"], **options}
    return CompiledModel(strategy, name, split(model), None, None, optimizer, given, adopt)


def same(one: CompiledModel, other: CompiledModel) -> bool:
    return all(map(np.array_equal, one.read(), other.read()))


def whole(seed: int = 0) -> Any:
    """A model with tables, BatchNormalization, and what is frozen."""
    keras.utils.set_random_seed(seed)
    ids, x = nets.inputs()
    words = keras.layers.Embedding(nets.ROWS, 2)(ids)
    fixed = keras.layers.Embedding(nets.ROWS, 2, trainable=False)(ids)
    parts = [keras.layers.Flatten()(each) for each in (words, fixed)]
    hidden = keras.layers.Concatenate()([*parts, x])
    hidden = keras.layers.BatchNormalization()(hidden)
    for _ in range(2):
        hidden = keras.layers.Dense(3, "relu")(hidden)
    return keras.Model([ids, x], keras.layers.Dense(1, "sigmoid")(hidden))


def test_a_model_goes_on_with_the_values_and_the_optimizer_state_that_are_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = (nets.data()[half] for half in (slice(0, 4), slice(4, 8)))
    undisturbed = placed(InProcessStrategy(), whole())
    before = placed(strategy := InProcessStrategy(), whole())
    nets.trained(undisturbed, first)
    nets.trained(before, first)
    keras.utils.clear_session()
    with caplog.at_level(logging.WARNING, "psnb"):
        model = placed(strategy.again(), whole())
    assert same(model, before)
    assert "'model' goes on with what the strategy has of it: 2 variables, 1 table" in caplog.text
    assert "keeps what the servers have" not in caplog.text
    assert nets.trained(model, second) == nets.trained(undisturbed, second)
    assert same(model, undisturbed)


def test_layers_that_keras_has_numbered_are_found_by_their_order() -> None:
    before = placed(strategy := InProcessStrategy(), whole())
    whole()  # numbers go on
    assert same(placed(strategy.again(), whole()), before)


def pair(one: str, other: str) -> Any:
    x = keras.Input((3,), name="x")
    hidden = keras.layers.Dense(3, name=one)(x)
    return keras.Model(x, keras.layers.Dense(3, name=other)(hidden))


@pytest.mark.parametrize("names", [("b", "c"), ("a_2", "a_3"), ("dense_3", "a_2")])
def test_layers_that_have_names_are_found_by_these_alone(names: tuple[str, str]) -> None:
    placed(strategy := InProcessStrategy(), pair("a_1", "a_2"))
    with pytest.raises(ConfigurationError, match="only there: 'a_1/kernel', float32 of shape"):
        placed(strategy.again(), pair(*names))


def test_a_model_that_keras_has_numbered_is_found_unless_several_may_be_meant() -> None:
    strategy, model = InProcessStrategy(), pair("a", "b")
    placed(strategy, model, name="functional_3")
    again = strategy.again().__psnb_models__
    assert name_there(model, again) == "functional_3"
    named = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)], name="mine_1")
    assert name_there(named, again) == "mine_1"
    assert name_there(model, strategy.__psnb_models__) == model.name  # that one is in use
    placed(strategy, model, name="functional_4")
    assert name_there(model, strategy.again().__psnb_models__) == model.name


def test_numbered_layers_in_another_order_are_refused() -> None:
    placed(strategy := InProcessStrategy(), pair("dense_4", "dense_5"))
    with pytest.raises(ConfigurationError, match="'model' does not fit"):
        placed(strategy.again(), pair("dense_8", "dense_7"))


def test_numbered_layers_that_have_changed_places_are_refused() -> None:
    placed(strategy := InProcessStrategy(), pair("dense_4", "dense_5"))
    with pytest.raises(ConfigurationError, match=r"'dense_5/.* have changed places"):
        placed(strategy.again(), pair("dense_5", "dense_4"))
    placed(strategy := InProcessStrategy(), pair("left", "right"))
    placed(strategy.again(), pair("right", "left"))  # names that have a meaning


@pytest.mark.parametrize("names", [("dense_5", "dense_4"), ("dense_8", "dense_7")])
def test_numbered_layers_in_variables_of_their_own_are_not_mistaken(names: tuple[str, str]) -> None:
    def clipped() -> Any:
        return keras.optimizers.Adam(0.01, clipnorm=0.5)

    before = placed(strategy := InProcessStrategy(), pair("dense_4", "dense_5"), clipped())
    with pytest.raises(ConfigurationError, match=r"changed places|does not fit"):
        placed(strategy.again(), pair(*names), clipped())
    assert same(placed(strategy.again(), pair("dense_7", "dense_8"), clipped()), before)


@pytest.mark.parametrize("names", [("embedding_5", "embedding_4"), ("embedding_8", "embedding_7")])
def test_numbered_tables_in_another_order_are_refused(names: tuple[str, str]) -> None:
    def two(*names: str) -> Any:
        ids = keras.Input((1,), dtype="int32")
        found = [keras.layers.Embedding(nets.ROWS, 2, name=name)(ids) for name in names]
        return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()(found)))

    placed(strategy := InProcessStrategy(), two("embedding_4", "embedding_5"))
    with pytest.raises(ConfigurationError, match=r"changed places|does not fit"):
        placed(strategy.again(), two(*names))


def test_what_is_frozen_must_be_equal() -> None:
    placed(strategy := InProcessStrategy(), whole(1))
    with pytest.raises(ConfigurationError, match=r"embeddings': there float32 .* checksum"):
        placed(strategy.again(), whole(2))


@pytest.mark.parametrize("clipped", [None, 0.02])
def test_the_rate_that_servers_have_stays_and_a_warning_says_so(
    caplog: pytest.LogCaptureFixture, clipped: float | None
) -> None:
    def adam() -> Any:
        return keras.optimizers.Adam(0.01, clipnorm=clipped)

    before = placed(strategy := InProcessStrategy(), nets.plain(), adam())
    before.optimizer.learning_rate = 0.005
    with caplog.at_level(logging.WARNING, "psnb"):
        model = placed(strategy.again(), nets.plain(), adam())
    assert model.optimizer.learning_rate == 0.005
    assert "learning_rate=0.005 (not 0.01)" in caplog.text
    assert same(model, before)


def test_an_optimizer_of_another_kind_is_refused() -> None:
    placed(strategy := InProcessStrategy(), nets.plain())
    with pytest.raises(ConfigurationError, match=r"there Adam\(.*, here RMSProp\("):
        placed(strategy.again(), nets.plain(), "rmsprop")


def test_metrics_go_on_in_the_variable_from_before_or_another_one_if_they_differ() -> None:
    batch = nets.data()[0]
    placed(strategy := InProcessStrategy(), nets.plain()).metrics("metrics", batch)
    again = strategy.again()
    model = placed(again, nets.plain())
    assert model.metrics("metrics", batch).variable.name == "model.metrics"
    # Another handle may count at the same time.
    other = placed(again, nets.plain(), adopt=True)
    assert other.metrics("metrics", batch).variable.name == "model.metrics.1"
    more = placed(again.again(), nets.plain(), metrics=["mae", "mse"])
    assert more.metrics("metrics", batch).variable.name == "model.metrics.2"


def test_a_variable_of_the_user_is_not_taken_for_metrics() -> None:
    strategy = InProcessStrategy()
    model = placed(strategy, nets.plain())
    own = strategy.variable(np.ones(4), "model.metrics")
    assert model.metrics("metrics", nets.data()[0]).variable.name == "model.metrics.1"
    assert own.read().tolist() == [1.0] * 4
