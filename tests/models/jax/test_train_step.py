"""Tests of training steps in JAX; servers in this process."""

from __future__ import annotations

from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest

import psnb.jax
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.coordinator.closures.functions import FunctionRegistry
from psnb._src.server.optimizers import SGD
from psnb._src.worker.context import WorkerContext, entered
from psnb.data import Ragged
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError
from tests.models.placing import InProcessStrategy

IDS = np.array([[3, 1], [3, 2**40], [7, 3]])
BAGS = Ragged.from_rows([[1, 5, 1], [], [2]], np.int64)
BATCH = {"ads": IDS, "words": BAGS, "y": np.array([1.0, -1.0, 0.5], np.float32)}


class Model:
    """A dense vector, a table of ids with a shape, and a table of bags."""

    def __init__(self, combiner: str = "mean", words_rows: int | None = None) -> None:
        self.strategy = InProcessStrategy()
        self.params = psnb.jax.variables(
            self.strategy, {"w": jnp.arange(3.0), "b": jnp.ones(())}, SGD(0.5)
        )
        self.ads = self.strategy.embedding("ads", 3, optimizer=SGD(0.5))
        self.words = self.strategy.embedding("words", 3, words_rows, optimizer=SGD(0.5))
        self.tables = {"ads": self.ads, "words": self.words}
        self.combiner = combiner

    def step(self, loss: Any = None, **options: Any) -> psnb.jax.TrainStep:
        options = {"tables": self.tables, "combiner": self.combiner, **options}
        return psnb.jax.step(loss or squares, params=self.params, **options)

    def values(self) -> dict[str, np.ndarray]:
        """Return copies of all values."""
        found = {name: np.array(value) for name, value in self.params.read().items()}
        found["ads"] = np.array(self.ads.lookup(IDS))
        return {**found, "words": np.array(self.words.lookup(BAGS.values))}


def squares(params: Any, rows: Any, batch: Any) -> Any:
    score = (rows["ads"].sum(1) + 2 * rows["words"]) @ params["w"] + params["b"]
    return jnp.mean((score - batch["y"]) ** 2)


def combined(rows: Any, combiner: str) -> Any:
    """Return the rows of the bags, written down once more."""
    sums = jnp.stack([rows[:3].sum(0), jnp.zeros(3), rows[3]])
    return (
        sums
        / {
            "sum": 1,
            "mean": jnp.array([[3], [1], [1]]),
            "sqrtn": jnp.sqrt(jnp.array([[3], [1], [1]])),
        }[combiner]
    )


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_a_step_is_one_of_gradient_descent_with_gradients_summed_by_id(combiner: str) -> None:
    model = Model(combiner)
    before = model.values()

    def alone(values: Any) -> Any:
        rows = {"ads": values["ads"], "words": combined(values["words"], combiner)}
        return squares(values, rows, BATCH)

    loss, by = jax.value_and_grad(alone)(before)
    for name, ids in (("ads", IDS), ("words", BAGS.values)):
        gradient = np.array(by[name])
        for each in np.unique(ids):
            gradient[ids == each] = gradient[ids == each].sum(0)
        by[name] = gradient
    found = model.step()(iter([BATCH]))
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    for name, value in model.values().items():
        np.testing.assert_allclose(value, before[name] - 0.5 * by[name], rtol=1e-5, atol=1e-6)


def test_a_step_asks_the_servers_once_and_tells_them_once() -> None:
    model = Model()
    step = model.step()
    model.strategy.calls()
    step(iter([{**BATCH, "ads": np.arange(99).reshape(3, 33)}]))
    assert model.strategy.calls() == 3  # one to read; prepared on both servers, then applied


def test_features_may_share_a_table() -> None:
    model = Model()

    def loss(params: Any, rows: Any, batch: Any) -> Any:
        return (rows["a"] * rows["b"]).sum()

    ids = {"a": [1, 2], "b": [2, 2]}
    before = np.array(model.ads.lookup([1, 2]))
    _, arguments = shards_of(model.ads).__reduce__()  # type: ignore[misc]
    travelled = Embedding(SparseShards(*arguments[:2], model.strategy.transport))
    step = psnb.jax.step(loss, tables={"a": model.ads, "b": travelled})
    step(iter([ids]))
    one, two = before
    expected = before - 0.5 * np.array([two, one + 2 * two])
    np.testing.assert_allclose(model.ads.lookup([1, 2]), expected, rtol=1e-5)


def test_padding_is_in_no_bag() -> None:
    strategy = InProcessStrategy()
    table = strategy.embedding("e", 2, 10, optimizer=SGD(1.0), padding_idx=0)
    ids = Ragged.from_rows([[4, 0, 5], [0]], np.int64)
    predict = psnb.jax.forward(lambda params, rows, batch: rows["e"], tables={"e": table})
    rows = table.lookup([4, 5])
    np.testing.assert_allclose(predict({"e": ids}), [rows.mean(0), [0, 0]], rtol=1e-6)


def test_batches_that_need_about_as_many_rows_need_one_program() -> None:
    model = Model()
    step = model.step()
    rng = np.random.default_rng(0)
    for _ in range(20):
        words = Ragged.from_rows([rng.integers(50, size=n) for n in rng.integers(5, size=64)])
        ads = rng.integers(500, size=(64, 2))
        step(iter([{"ads": ads, "words": words, "y": np.zeros(64, np.float32)}]))
    assert step.programs <= 3
    assert f"{step.programs} programs" in repr(step)


def test_metrics_and_the_number_of_programs_are_reported() -> None:
    told: list[dict[str, float]] = []

    def loss(params: Any, rows: Any, batch: Any) -> Any:
        found = squares(params, rows, batch)
        return found, {"double": 2 * found}

    step = Model().step(loss, has_aux=True)
    with entered(WorkerContext(0, 1, "w", 1, lambda when, values: told.append(values))):
        losses = [step(iter([BATCH])) for _ in range(2)]
    assert [set(each) for each in told] == [
        {"examples", "programs", "loss", "double"},
        {"examples", "loss", "double"},
    ]
    assert [each["loss"] for each in told] == losses
    assert told[0]["double"] == pytest.approx(2 * losses[0])
    assert (told[0]["examples"], told[0]["programs"]) == (3, 1)


def test_the_random_key_is_that_of_the_closure() -> None:
    def loss(params: Any, rows: Any, batch: Any, key: Any) -> Any:
        return jax.random.uniform(key) + 0 * params["w"].sum()

    def drawn(closure: int, attempt: int) -> float:
        step = Model().step(loss, seed=5, tables={})
        context = WorkerContext(0, 1, "w", attempt, lambda *_: None, closure=closure)
        with entered(context):
            return step(iter([{"y": BATCH["y"]}]))

    assert drawn(3, 1) == drawn(3, 2) != drawn(4, 1)


def test_a_step_travels_and_leaves_its_programs_behind() -> None:
    step = Model().step()
    step(iter([BATCH]))
    assert cloudpickle.loads(cloudpickle.dumps(step)).programs == 0


def test_a_change_of_what_a_loss_refers_to_is_noticed() -> None:
    factors = [2.0]

    def loss(params: Any, rows: Any, batch: Any) -> Any:
        return factors[0] * params["b"]

    step = Model().step(loss, tables={})
    registry = FunctionRegistry()
    first = registry.register(step)
    assert "step of" in first.name
    assert registry.register(step).id == first.id
    factors[0] = 3.0
    assert registry.register(step).id != first.id


def test_predictions_leave_no_trace_in_tables() -> None:
    model = Model()
    predict = psnb.jax.forward(
        lambda params, rows, batch: {"score": rows["ads"].sum(1) @ params["w"]},
        params=model.params,
        tables={"ads": model.ads},
    )
    found = predict({"ads": IDS})["score"]
    assert model.ads.statistics().rows == 0
    expected = np.array(model.ads.lookup(IDS)).sum(1) @ np.arange(3.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert isinstance(found, np.ndarray)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (
            {"ads": IDS, "y": BATCH["y"]},
            ConfigurationError,
            r"fields \['ads', 'y'\].*\['ads', 'wor",
        ),
        (
            {**BATCH, "ads": IDS * 1.0},
            InvalidArrayError,
            "feature 'ads': expected integers, found dtype float64",
        ),
        ({**BATCH, "words": Ragged.from_rows([[11]])}, IdOutOfRangeError, "'words' has 10 rows"),
        (
            {**BATCH, "words": Ragged(np.zeros((4, 2), int), BAGS.offsets)},
            InvalidArrayError,
            "bags of feature 'words' must have one id a place",
        ),
        ((IDS, BAGS), ConfigurationError, "it is a tuple"),
    ],
)
def test_ids_that_are_none_are_refused(batch: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Model(words_rows=10).step()(iter([batch]))


def test_an_error_names_the_feature_that_a_function_forgets() -> None:
    step = Model().step(ids=lambda batch: {"ads": batch["ads"]})
    with pytest.raises(ConfigurationError, match=r"missing are \['words'\]"):
        step(iter([BATCH]))


def test_an_error_lists_the_fields_when_a_loss_asks_for_a_missing_one() -> None:
    step = Model().step(lambda params, rows, batch: (batch["price"] * rows["ads"]).sum())
    with pytest.raises(
        ConfigurationError, match=r"'price': the batch has the fields \['ads', 'words', 'y'\]"
    ):
        step(iter([BATCH]))
    other = Model().step(lambda params, rows, batch: params["absent"])
    with pytest.raises(ConfigurationError, match=r"'absent'.*rows are there of \['ads', 'words'\]"):
        other(iter([BATCH]))
    with pytest.raises(KeyError, match=r"^'ads'"):  # it is there: the loss means something else
        Model().step(lambda params, rows, batch: {}["ads"])(iter([BATCH]))


def test_metrics_without_names_are_refused() -> None:
    step = Model().step(lambda params, rows, batch: (params["b"], params["b"]), has_aux=True)
    with pytest.raises(ConfigurationError, match=r"has_aux=True.*a dict of numbers by name"):
        step(iter([BATCH]))


def test_64_bit_ids_are_not_in_the_program_and_say_so_when_they_are_used() -> None:
    step = Model().step(lambda params, rows, batch: (batch["ads"] > 2).sum())
    with pytest.raises(ConfigurationError, match=r"batch\['ads'\] is not there.*32 bits"):
        step(iter([BATCH]))
    bags = Model().step(lambda params, rows, batch: batch["words"].sum())
    with pytest.raises(ConfigurationError, match=r"batch\['words'\] is not there.*Ragged"):
        bags(iter([BATCH]))


def test_a_loss_that_is_nan_says_of_which_batch() -> None:
    y = np.array([1, np.nan, 2], np.float32)
    with pytest.raises(
        InvalidArrayError, match=r"loss is nan in step 0.*\['y'\] \[3\] 1 to 2, 1 not"
    ):
        Model().step()(iter([{**BATCH, "y": y}]))


def test_a_gradient_that_is_nan_says_of_which_batch_also_where_the_loss_is_finite() -> None:
    step = Model().step(lambda params, rows, batch: jnp.sqrt(0 * params["b"]), tables={})
    with pytest.raises(InvalidArrayError, match=r"loss is 0\.0 in step 0.*\['y'\] \[3\] -1 to 1"):
        step(iter([BATCH]))


def test_a_loss_that_is_not_finite_is_refused_also_where_all_gradients_are() -> None:
    model = Model()
    step = model.step(lambda params, rows, batch: params["b"].sum() + jnp.log(0 * batch["y"][0]))
    before = model.params.read()["b"]
    with pytest.raises(InvalidArrayError, match=r"loss is -inf in step 0.*\['y'\] \[3\] -1 to 1"):
        step(iter([BATCH]))
    np.testing.assert_array_equal(model.params.read()["b"], before)


def test_a_step_is_refused_that_has_nothing_to_train() -> None:
    strategy = InProcessStrategy()
    with pytest.raises(ConfigurationError, match="params=, tables= or both"):
        psnb.jax.step(squares)
    with pytest.raises(ConfigurationError, match="without an optimizer"):
        psnb.jax.step(squares, tables={"a": strategy.embedding("a", 2)})
    with pytest.raises(ConfigurationError, match=r"must be a psnb\.Embedding"):
        psnb.jax.step(squares, tables={"a": np.zeros(3)})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match=r"psnb\.jax\.variables.*found dict"):
        psnb.jax.step(squares, params={})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="combiner must be one of sum, mean, sqrtn"):
        Model("max").step()
    with pytest.raises(ConfigurationError, match=r"none of the tables: \['other'\]"):
        Model().step(combiner={"other": "sum"})
    with pytest.raises(ConfigurationError, match="a function is expected, found 3"):
        psnb.jax.step(3, tables={})  # type: ignore[arg-type]


def test_a_batch_in_place_of_an_iterator_is_refused() -> None:
    params = psnb.jax.variables(InProcessStrategy(), {"w": jnp.ones(2)}, SGD())
    step = psnb.jax.step(
        lambda params, rows, batch: (params["w"] * batch["x"]).sum(), params=params
    )
    with pytest.raises(
        ConfigurationError,
        match=r"takes an iterator of batches, found dict: schedule\(step, \(iter\(\[batch\]\),\)\)",
    ):
        step({"x": np.ones(2)})  # type: ignore[arg-type]


Y = [1.0, -1.0, 0.5]
WRONG = {
    "a frame": (lambda: pd.DataFrame({"y": Y}), r"which dict\(frame\) makes of a frame"),
    "a frame of polars": (lambda: pl.DataFrame({"y": Y}), "Dataset.from_table"),
    "texts": (lambda: {"y": ["a", "b", "c"]}, r"batch\['y'\] .*psnb.hash_ids makes ids of it"),
    "missing": (lambda: {"y": [1.0, None, 2.0]}, r"batch\['y'\] .*missing values"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_batch_that_a_program_cannot_take_is_refused_with_what_to_do(kind: str) -> None:
    make, problem = WRONG[kind]
    step = psnb.jax.step(lambda p, rows, batch: (batch["y"] ** 2).mean(), params=Model().params)
    with pytest.raises(ConfigurationError, match=problem):
        step(iter([make()]))


def test_a_list_of_numbers_is_a_column() -> None:
    step = psnb.jax.step(lambda p, rows, batch: (batch["y"] ** 2).mean(), params=Model().params)
    assert step(iter([{"y": Y}])) == pytest.approx(0.75)


def test_a_list_of_arrays_stays_a_tree() -> None:
    step = psnb.jax.step(lambda p, rows, batch: sum(e.sum() for e in batch), params=Model().params)
    assert step(iter([[np.ones(2), np.ones(3)]])) == 5


def test_tables_that_are_no_dict_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="tables must be a dict, from features"):
        psnb.jax.step(squares, tables=[Model().ads])  # type: ignore[arg-type]
