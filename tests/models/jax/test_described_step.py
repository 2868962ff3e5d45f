"""What a training step in JAX says that it does; servers in this process."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import psnb.jax
from psnb.errors import ConfigurationError
from tests.models.jax.test_train_step import BATCH, Model


def test_a_description_begins_with_the_pull_and_ends_with_the_push() -> None:
    to_config = Model().step().describe(BATCH)
    pulls = [each for each in to_config if each.name == "pull"]
    assert list(to_config[: len(pulls)]) == pulls
    assert [(each.outputs, each.note) for each in pulls] == [
        (("f32[4,3]",), "embedding 'ads' on server 0, server 1"),
        (("f32[3,3]",), "embedding 'words' on server 0, server 1"),
        (("f32[4]",), "variable 'params' on server 0"),
    ]
    pushes = to_config[-len(pulls) :]
    assert [(each.name, each.inputs) for each in pushes] == [
        ("push", each.outputs) for each in pulls
    ]


def test_the_operations_are_those_of_the_compiled_program_with_their_gradients() -> None:
    to_config = Model().step().describe(BATCH)
    product = [each for each in to_config if each.name == "dot_general"]
    assert product[0].inputs == ("f32[3,3]", "f32[3]")
    assert product[0].outputs == ("f32[3]",)
    assert [each.note for each in product][:2] == ["", "gradient"]
    gather = next(each for each in to_config if each.name == "gather")
    assert gather.outputs == ("f32[14,3]",)  # 3 by 2 ids, and 4 in bags, whose number is padded


def test_functions_within_it_are_indented() -> None:
    def loss(params: object, rows: dict[str, jax.Array], batch: object) -> jax.Array:
        return jnp.sum(jax.nn.relu(rows["ads"]))

    model = Model()
    step = psnb.jax.step(loss, tables={"ads": model.ads})
    to_config = step.describe(BATCH)
    inner = next(each for each in to_config if each.name == "jit(relu)")
    maximum = next(each for each in to_config if each.name == "max")
    assert (inner.depth, maximum.depth) == (1, 2)
    assert "\n    max" in repr(to_config)


def test_a_description_asks_no_server_makes_no_row_and_compiles_nothing() -> None:
    model = Model()
    step = model.step()
    model.strategy.calls()
    assert step.describe(BATCH)
    assert model.strategy.calls() == 0
    assert step.programs == 0


def test_a_description_of_a_batch_that_lacks_a_feature_is_refused_as_a_step_is() -> None:
    with pytest.raises(ConfigurationError, match="words"):
        Model().step().describe({"ads": BATCH["ads"]})
