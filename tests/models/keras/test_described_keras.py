"""What a model of Keras says that a step does, with the backend that Keras has."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from psnb.errors import ConfigurationError
from tests.models.keras import nets

pytestmark = [
    # Of Keras itself, with numpy 2 and without 64-bit integers.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]


def with_dropout() -> keras.Model:
    ids, x = nets.inputs()
    rows = keras.layers.Flatten()(keras.layers.Embedding(nets.ROWS, 2, name="words")(ids))
    inner_x = keras.Input((3,))
    inner = keras.Model(inner_x, keras.layers.Dense(4, name="dense")(inner_x), name="inner")
    hidden = keras.layers.Concatenate()([rows, keras.layers.Dropout(0.5)(inner(x))])
    return keras.Model([ids, x], keras.layers.Dense(1, "sigmoid", name="last")(hidden))


def test_a_step_is_described_from_the_pull_to_the_push() -> None:
    told = nets.compiled(with_dropout()).program.describe(nets.data()[0])
    names = [each.name for each in told]
    assert [each.name for each in told if each.note.startswith("embedding 'model.words'")] == [
        "pull",
        "push",
    ]
    pulls = names.count("pull")
    assert names[:pulls] == ["pull"] * pulls
    assert names[-pulls:] == ["push"] * pulls
    assert {each.note for each in told[:pulls]} == {each.note for each in told[-pulls:]}
    if keras.backend.backend() == "torch":
        layers = [
            (each.note, each.depth) for each in told if each.note in {"inner", "dense", "last"}
        ]
        assert layers == [("inner", 0), ("dense", 1), ("last", 0)]
        assert names[-pulls - 1] == "backward"
        assert min(each.depth for each in told) == 0
        assert "binary_cross_entropy" in names  # which no layer computes
    else:
        assert any(each.note == "gradient" for each in told)
        assert "dot_general" in names


def test_a_description_writes_nothing_and_needs_a_batch_for_training() -> None:
    found = nets.compiled(nets.normalized())
    before = found.read()
    found.program.describe(nets.data()[0])
    for value, other in zip(found.read(), before, strict=True):
        np.testing.assert_array_equal(value, other)
    with pytest.raises(ConfigurationError, match=r"tuple \(inputs, targets\)"):
        found.program.describe(nets.data()[0][0])
