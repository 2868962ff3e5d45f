"""Tests of exported Keras models, with the backend that Keras has."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import psnb
from psnb._src.models.keras.compiled import CompiledModel
from psnb._src.models.keras.split import split
from psnb.errors import ConfigurationError
from tests.models.export.followed import manager_of
from tests.models.keras.nets import ALL, NAMES, compiled, data, trained
from tests.models.placing import InProcessStrategy

pytestmark = [
    # Of Keras itself, with numpy 2 and without 64-bit integers.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]


# What Keras computes of them in torch takes the number of examples as a constant.
OF_ONE_SIZE = (
    {"masked", "regularized", "everything"} if keras.backend.backend() == "torch" else set()
)


@pytest.mark.parametrize("name", NAMES)
def test_an_exported_model_predicts_what_it_does_in_keras_or_is_refused(
    name: str, tmp_path: Path
) -> None:
    model = ALL[name]()
    if name in OF_ONE_SIZE:
        with pytest.raises(ConfigurationError, match="cannot be exported for batches of any size"):
            psnb.export(tmp_path / "model", compiled(model).program)
        assert list(tmp_path.iterdir()) == []
        return
    loaded = psnb.load_model(psnb.export(tmp_path / "model", compiled(model).program))
    batch = data()[0][0]
    for given in (batch, {key: each[:1] for key, each in batch.items()}):
        found, expected = loaded.predict(given), model.predict(given, verbose=0)
        keras.tree.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), found, expected
        )


def test_an_exported_model_follows_checkpoints(tmp_path: Path) -> None:
    strategy, given = InProcessStrategy(), {"loss": "binary_crossentropy"}
    net = ALL["normalized"]()
    model = CompiledModel(strategy, "model", split(net), None, None, "sgd", given)
    manager, batches = manager_of(strategy, tmp_path / "run"), data()
    loaded = psnb.load_model(psnb.export(tmp_path / "model", model.program, follow=manager))
    before = loaded.predict(batches[0][0])
    trained(model, batches)
    manager.save()
    assert loaded.refresh()
    found, expected = loaded.predict(batches[0][0]), model.program.predict(batches[0][0])
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), found, expected
    )
    assert not np.allclose(keras.tree.flatten(found)[0], keras.tree.flatten(before)[0])


def test_inputs_without_a_fixed_shape_need_an_example(tmp_path: Path) -> None:
    ids = keras.Input((None,), dtype="int32", name="ids")
    rows = keras.layers.Embedding(9, 2, name="words")(ids)
    model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(rows))
    program = compiled(model).program
    with pytest.raises(ConfigurationError, match="input 'ids' has no fixed shape"):
        psnb.export(tmp_path / "model", program)
    example = np.array([[1, 2, 3], [4, 5, 8]], np.int32)
    loaded = psnb.load_model(psnb.export(tmp_path / "model", program, example=example))
    np.testing.assert_allclose(
        loaded.predict(example), model.predict(example, verbose=0), rtol=0, atol=1e-6
    )
