"""Metrics by slice: each slice is exact, and which have a row is the same in any order."""

from __future__ import annotations

import math
import pickle
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb import metrics
from psnb._src.metrics.keys import mixed
from psnb._src.metrics.slices import TableForm
from psnb.errors import ConfigurationError
from tests.metrics.batches import BINARY, binary, classes

AUC, ACCURACY = metrics.AUC(), metrics.Accuracy()


@pytest.mark.parametrize("metric", BINARY, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_value_of_a_slice_is_that_of_its_examples_to_the_bit(
    metric: Any, weighted: bool
) -> None:
    labels, scores, weights = binary(np.random.default_rng(0), 300, weighted)
    by = np.random.default_rng(1).integers(-3, 4, 300)
    state = metric(labels, scores, weights, by=by)
    for key in range(-3, 4):
        own = by == key
        alone = metric(labels[own], scores[own], None if weights is None else weights[own])
        assert state.slices[key] == (key, float(alone), own.sum())
    assert float(state) == float(metric(labels, scores, weights))
    assert state.slices.others is None


def test_metrics_of_classes_and_queries_are_taken_by_slice() -> None:
    labels, scores, _ = classes(np.random.default_rng(0), 60)
    by = np.arange(60) % 3 == 0
    for metric in (metrics.TopK(2), ACCURACY):
        found = metric(labels, scores, by=by).slices[True]
        assert found.value == float(metric(labels[by], scores[by]))
    ndcg = metrics.NDCG()
    relevance = np.random.default_rng(1).integers(0, 2, scores.shape)
    found = ndcg(relevance, scores, by=by).slices[False]
    assert found.value == float(ndcg(relevance[~by], scores[~by]))


@given(
    seed=st.integers(0, 2**32),
    slices=st.sampled_from([1, 2, 5, 30]),
    parts=st.integers(2, 6),
    metric=st.sampled_from([AUC, metrics.AUC(None), metrics.LogLoss(), metrics.GroupAUC(40)]),
)
@settings(deadline=None, max_examples=80)
def test_which_slices_have_a_row_does_not_depend_on_the_order(
    seed: int, slices: int, parts: int, metric: Any
) -> None:
    random = np.random.default_rng(seed)
    labels, scores, _ = binary(random, 120)
    by = random.integers(0, random.integers(1, 40), 120)
    grouped = isinstance(metric, metrics.GroupAUC)

    def state(chosen: np.ndarray) -> metrics.MetricState:
        more = {"groups": by[chosen] * 3 % 7} if grouped else {}
        return metric(labels[chosen], scores[chosen], by=by[chosen], slices=slices, **more)

    whole = state(np.arange(120))
    pieces = [state(each) for each in np.array_split(random.permutation(120), parts)]
    assert reduce(add, pieces) == whole
    random.shuffle(pieces)  # type: ignore[arg-type]
    first, rest = pieces[0], reduce(add, pieces[1:])
    assert rest + first == whole
    # What is left after a subtraction may have fewer slices, and is added again as exactly.
    assert (whole - first) + first == whole
    news = whole - first
    for row in news.slices.rows:
        assert row.examples == rest.slices[row.slice].examples
        if not grouped:
            assert same(row.value, rest.slices[row.slice].value)
    assert whole - whole == whole.metric.empty()
    assert len(whole.slices) == min(slices, len(np.unique(by)))


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def test_a_slice_that_has_left_never_comes_back_with_a_part_of_its_examples() -> None:
    def state(keys: Any) -> metrics.MetricState:
        return ACCURACY([1] * len(keys), [0.9] * len(keys), by=keys, slices=2)

    whole = state(np.arange(50))
    held = {*whole.slices}
    gone = next(key for key in range(50) if key not in held)
    news = whole - state([*held])  # nothing but others are left
    assert not len(news.slices)
    assert news.slices.others == (None, 1.0, 48)
    again = news + state([gone])  # alone, it would have a row
    assert not len(again.slices)
    assert again.slices.others == (None, 1.0, 49)


def test_the_worst_slice_is_first_and_those_without_a_value_last() -> None:
    by = ["good", "good", "bad", "bad", "one class"]
    labels, scores = [0, 1, 0, 1, 1], [0.2, 0.9, 0.9, 0.2, 0.5]
    assert [*AUC(labels, scores, by=by).slices] == ["bad", "good", "one class"]
    assert [*metrics.LogLoss()(labels, scores, by=by).slices] == ["bad", "one class", "good"]
    copc = metrics.Calibration()([1, 1, 1], [1.0, 0.25, 0.5], by=["a", "b", "c"])
    assert [*copc.slices] == ["b", "c", "a"]
    equal = ACCURACY([1, 1, 1], [0.9] * 3, by=["few", "many", "many"])
    assert [*equal.slices] == ["many", "few"]


COLUMNS: dict[str, Any] = {
    "list": ["DE", "FR", "DE"],
    "bytes": [b"DE", b"FR", b"DE"],
    "numpy": np.array(["DE", "FR", "DE"]),
    "objects": np.array(["DE", "FR", "DE"], object),
    "pandas": pd.Series(["DE", "FR", "DE"], index=[3, 1, 2]),
    "string": pd.Series(["DE", "FR", "DE"], dtype="string"),
    "arrow strings": pd.Series(["DE", "FR", "DE"], dtype=pd.ArrowDtype(pa.string())),
    "categories": pd.Series(["DE", "FR", "DE"], dtype="category"),
    "categorical": pd.Categorical(["DE", "FR", "DE"], categories=["XX", "FR", "DE"]),
    "arrow": pa.array(["DE", "FR", "DE"]),
    "chunks": pa.chunked_array([["DE"], ["FR", "DE"]]),
    "dictionary": pa.array(["DE", "FR", "DE"]).dictionary_encode(),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_a_column_of_texts_gives_the_same_slices_whatever_it_is(column: Any) -> None:
    state = ACCURACY([1, 1, 1], [0.9, 0.9, 0.1], by=column)
    assert state == ACCURACY([1, 1, 1], [0.9, 0.9, 0.1], by=COLUMNS["list"])


@pytest.mark.parametrize(
    "column",
    [
        *([-1, 7, -1], np.array([-1, 7, -1], np.int8), torch.tensor([-1, 7, -1])),
        *(pd.Series([-1, 7, -1], dtype="Int64"), pa.array([-1, 7, -1])),
        pd.Categorical([-1, 7, -1]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_column_of_integers_gives_the_same_slices_whatever_it_is(column: Any) -> None:
    state = ACCURACY([1, 1, 1], [0.9, 0.9, 0.1], by=column)
    assert state == ACCURACY([1, 1, 1], [0.9, 0.9, 0.1], by=[-1, 7, -1])
    assert {*state.slices} == {-1, 7}


def test_keys_of_different_types_are_different_slices() -> None:
    keys: list[Any] = [True, 1, "1", "True", "1\0", ""]
    state = reduce(add, [ACCURACY([1], [0.9], by=[key]) for key in keys])
    assert len(state.slices) == 6
    assert all(type(state.slices[key].slice) is type(key) for key in keys)
    assert 2**64 - 1 in ACCURACY([1], [0.9], by=[2**64 - 1]).slices
    assert True not in ACCURACY([1], [0.9], by=[1]).slices


@pytest.mark.parametrize(
    ("by", "says"),
    [
        (["DE", None], "^by: the key at position 1 is missing"),
        (["DE", math.nan], "position 1 is missing"),
        ([1.0, math.nan], "position 1 is missing"),
        (np.array([1.0, math.nan]), "position 1 is missing"),
        (pd.Series(["DE", None], dtype="category"), "position 1 is missing"),
        (pd.Series([1, None], dtype="Int64"), "position 1 is missing"),
        (pa.array(["DE", None]), "position 1 is missing"),
        (np.ma.array([1, 2], mask=[False, True]), "position 1 is missing"),
        (np.array([0.5, 1.5]), "np.digitize"),
        ([0.5, 1.5], "^by must be .* all of one type; found float: .*np.digitize"),
        (["DE", 1], "all of one type"),
        ([True, 1], "all of one type"),
        (["DE"], r"shape \(2,\)"),
        ("DE", r"shape \(2,\)"),
        ([["DE"], ["FR"]], r"shape \(2,\)"),
        ([["DE"], ["FR", "IT"]], "found"),
        ([2**64, 1], "64 bits"),
        (["x" * 201, "y"], "200 at most"),
        (["\ud800", "y"], "surrogate"),
        ([b"\xff", b"y"], "UTF-8"),
        (np.array(["2020-01-01", "2020-01-02"], "M8[D]"), "integers, bools or texts"),
        (object(), r"shape \(2,\)|of one type"),
    ],
)
def test_keys_that_cannot_be_slices_are_refused(by: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        ACCURACY([1, 0], [0.9, 0.1], by=by)


@pytest.mark.parametrize("slices", [0, 1001, 2.5, None])
def test_a_bound_that_makes_no_sense_is_refused(slices: Any) -> None:
    with pytest.raises(ConfigurationError, match="slices"):
        ACCURACY([1], [0.9], by=["DE"], slices=slices)


def test_states_of_other_bounds_or_without_slices_are_not_merged() -> None:
    state = ACCURACY([1], [0.9], by=["DE"])
    with pytest.raises(ConfigurationError, match="cannot be added"):
        state + ACCURACY([1], [0.9])
    with pytest.raises(ConfigurationError, match="cannot be added"):
        state + ACCURACY([1], [0.9], by=["DE"], slices=7)


def test_more_cannot_be_subtracted_than_there_is() -> None:
    one, two = (ACCURACY([1] * n, [0.9] * n, by=["DE"] * n) for n in (1, 2))
    with pytest.raises(ConfigurationError, match="some of the same examples"):
        one - two
    other = ACCURACY([1] * 9, [0.9] * 9, by=range(9), slices=1)
    with pytest.raises(ConfigurationError, match="some of the same examples"):
        ACCURACY([1], [0.9], by=[3], slices=1) - other


def test_a_part_whose_others_have_a_slice_of_the_whole_is_not_subtracted() -> None:
    def state(*keys: int) -> metrics.MetricState:
        return ACCURACY([1] * len(keys), [0.9] * len(keys), by=keys, slices=2)

    numbers = np.arange(5, dtype=np.uint64)
    lowest, a, b, c, d = np.argsort(mixed(numbers)).tolist()
    part = state(lowest, a, b) - state(lowest)  # b is among its others
    with pytest.raises(ConfigurationError, match="no part"):
        state(a, b, *[c, d] * 5) - part


def test_an_example_of_weight_0_is_of_no_slice() -> None:
    state = AUC([0, 1, 1], [0.2, 0.7, 0.1], [1, 1, 0], by=["a", "a", "b"])
    assert state == AUC([0, 1], [0.2, 0.7], [1, 1], by=["a", "a"])


def test_equal_hashes_of_two_texts_are_refused_and_not_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("psnb._src.metrics.keys.xxh64_intdigest", len)
    with pytest.raises(ConfigurationError, match="same hash"):
        ACCURACY([1, 1], [0.9, 0.1], by=["DE", "FR"])
    with pytest.raises(ConfigurationError, match="same hash"):
        ACCURACY([1], [0.9], by=["DE"]) + ACCURACY([1], [0.9], by=["FR"])


def test_a_table_shows_names_as_text_and_counts_what_it_does_not_show() -> None:
    state = ACCURACY([1] * 60, [0.9] * 60, by=[f"<b>\n{n:02}" for n in range(60)])
    html = state.slices._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;" in html
    assert "and 10 slices" in html
    assert len(repr(state.slices).splitlines()) == 52
    assert repr(ACCURACY.empty().slices) == "no slices"


def test_a_slice_that_is_not_there_is_a_key_error_that_names_others() -> None:
    slices = ACCURACY([1], [0.9], by=["Germany"]).slices
    assert slices.get("FR") is None
    with pytest.raises(KeyError) as caught:
        slices["Germani"]
    assert "'Germany'" in caught.value.__notes__[0]


def test_the_error_bound_of_a_state_by_slice_is_that_of_all_examples() -> None:
    auc = metrics.AUC(16)
    labels, scores, _ = binary(np.random.default_rng(0), 100)
    bound = auc.error_bound(auc(labels, scores))
    assert auc.error_bound(auc(labels, scores, by=labels)) == bound


def test_a_damaged_table_is_no_state() -> None:
    state = ACCURACY([1, 0], [0.9, 0.1], by=["a", "b"])
    form = state.metric.form
    assert isinstance(form, TableForm)
    for name, value in (("bound", 0), ("ranks", 5), ("examples", -1)):
        array = state.array.copy()
        array[name] = value
        assert not form.fits(array)
    array = state.array.copy()
    array["rows"]["slice"] = 9
    assert not form.fits(array)
    counted = AUC([1, 0], [0.9, 0.1], by=["a", "b"])
    array = counted.array.copy()
    array["rows"]["score"] = 5000
    assert not counted.metric.form.fits(array)
    array = counted.array.copy()
    array["keys"] = b"?"
    with pytest.raises(ValueError, match="no key"):
        counted.metric.form.of_bytes(counted.metric.form.to_bytes(array))


def test_a_metric_of_the_users_own_passes_the_slices_on() -> None:
    class Mine(metrics.Mean):
        def __call__(self, values: Any, by: Any) -> metrics.MetricState:  # type: ignore[override]
            return super().__call__(values, by=by)

    assert Mine()([1.0, 3.0], ["a", "b"]).slices["b"].value == 3.0


def test_a_state_by_slice_is_small_on_the_wire() -> None:
    labels, scores, _ = binary(np.random.default_rng(6), 512)
    state = AUC(labels, scores, by=np.arange(512) % 50)
    assert len(pickle.dumps(state)) < 16 * 512
