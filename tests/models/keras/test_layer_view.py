"""Layers of distributed models, to be read, with the backend that Keras has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest

from psnb._src.models.keras.layer_view import LayerView
from psnb.errors import ConfigurationError
from tests.models.keras import nets


def read(variables: Sequence[Any]) -> list[np.ndarray]:
    return [np.full(each.shape, 7.0) for each in variables]


def views(model: Any) -> dict[str, Any]:
    return {each.name: LayerView(each, read) for each in model.layers}


def test_it_has_what_the_layer_has_and_the_values_of_the_servers() -> None:
    dense = LayerView(nets.regularized().layers[-1], read)
    assert isinstance(dense, keras.layers.Dense)
    assert not isinstance(dense, keras.layers.Embedding)
    assert (dense.units, dense.activation) == (1, keras.activations.sigmoid)
    assert dense.get_config()["units"] == 1
    assert dense.count_params() == 6
    assert dense.kernel.tolist() == [[7.0]] * 5
    assert [each.shape for each in dense.weights] == [(5, 1), (1,)]
    assert [each.shape for each in dense.get_weights()] == [(5, 1), (1,)]
    assert "Dense" in repr(dense)


def test_layers_in_it_are_views_too() -> None:
    tower = views(nets.nested())["tower"]
    words = tower.get_layer("words")
    assert [type(each) for each in (*tower.layers, words)] == [LayerView] * 3
    assert np.unique(words.embeddings).tolist() == [7.0]


@pytest.mark.parametrize(
    "use",
    [
        lambda layer: layer(np.zeros((1, 5), np.float32)),
        lambda layer: layer.call(np.zeros((1, 5), np.float32)),
        lambda layer: layer.output,
        lambda layer: layer.losses,
        lambda layer: layer.set_weights([]),
        lambda layer: layer.build((None, 5)),
        lambda layer: setattr(layer, "trainable", False),
        lambda layer: delattr(layer, "units"),
    ],
)
def test_what_computes_or_changes_something_is_refused(use: Callable[[Any], Any]) -> None:
    layer = nets.regularized().layers[-2]
    with pytest.raises(ConfigurationError, match=r"undistributed\(\) returns a plain copy"):
        use(LayerView(layer, read))
    assert layer.trainable
