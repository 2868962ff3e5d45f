"""Tests of ids of texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import psnb
from psnb.errors import ConfigurationError, InvalidArrayError

TEXTS = ["DE", "", "Zürich\0", "DE"]
KNOWN = {"": 0xEF46DB3751D8E999, "abc": 0x44BC2CF5AD770999}
"""From the specification of XXH64."""

FORMS: dict[str, Callable[[list[str]], Any]] = {
    "list": list,
    "tuple": tuple,
    "bytes": lambda texts: [each.encode() for each in texts],
    "bytes beside str": lambda texts: [texts[0].encode(), *texts[1:]],
    "NumPy's str in a list": lambda texts: [*map(np.str_, texts)],
    "objects": lambda texts: np.array(texts, object),
    "StringDType": lambda texts: np.array(texts, np.dtypes.StringDType()),
    "Arrow": pa.array,
    "Arrow of views": lambda texts: pa.array(texts, pa.string_view()),
    "Arrow's dictionary": lambda texts: pa.array(texts).dictionary_encode(),
    "chunks of Arrow": lambda texts: pa.chunked_array([texts[:1], texts[1:]]),
    "Series": pd.Series,
    "Series of objects": lambda texts: pd.Series(texts, dtype=object),
    "Series of Arrow": lambda texts: pd.Series(texts, dtype="string[pyarrow]"),
    "Index": pd.Index,
    "categories": lambda texts: pd.Series(texts, dtype="category"),
    "Categorical": pd.Categorical,
    "index of categories": pd.CategoricalIndex,
    "polars": pl.Series,
    "categories of polars": lambda texts: pl.Series(texts, dtype=pl.Categorical),
    "Enum of polars": lambda texts: pl.Series(texts, dtype=pl.Enum(sorted(set(texts)))),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_equal_texts_have_equal_ids_in_all_forms(form: Callable[[list[str]], Any]) -> None:
    expected = [int(psnb.hash_ids(each)) for each in TEXTS]
    found = psnb.hash_ids(form(TEXTS))
    assert found.dtype == np.uint64
    assert found.tolist() == expected


@pytest.mark.parametrize("dtype", ["U", "S"])
def test_fixed_width_arrays_have_the_ids_of_lists(dtype: str) -> None:
    # They cannot hold a zero at the end.
    texts = ["DE", "", "FR"]
    assert (psnb.hash_ids(np.array(texts, dtype)) == psnb.hash_ids(texts)).all()


@pytest.mark.parametrize("text", KNOWN)
def test_ids_are_those_of_the_specification(text: str) -> None:
    assert psnb.hash_ids(text) == KNOWN[text]


def test_shapes_are_kept() -> None:
    found = psnb.hash_ids([["a", "b"], ["c", "a"], ["", "b"]])
    assert found.shape == (3, 2)
    assert found[0, 0] == found[1, 1]


def test_nothing_has_no_ids() -> None:
    assert psnb.hash_ids([]).shape == (0,)
    assert psnb.hash_ids(pd.Series([], dtype="category")).shape == (0,)


def test_another_seed_gives_other_ids() -> None:
    ids = {int(psnb.hash_ids("DE", seed)) for seed in (0, 1, 2**64 - 1)}
    assert len(ids) == 3


def test_texts_that_differ_by_a_final_zero_differ() -> None:
    assert len(set(psnb.hash_ids(["a", "a\0"]).tolist())) == 2


MISSING = {
    "None": lambda: ["a", None],
    "NaN": lambda: np.array(["a", np.nan], object),
    "NA": lambda: pd.Series(["a", pd.NA], dtype="string[python]"),
    "null": lambda: pa.array(["a", None]),
    "null in chunks": lambda: pa.chunked_array([["a"], [None]]),
    "null of polars": lambda: pl.Series(["a", None]),
    "category": lambda: pd.Series(["a", None], dtype="category"),
    "masked": lambda: np.ma.masked_array(["a", "b"], [False, True]),
}


@pytest.mark.parametrize("form", MISSING.values(), ids=MISSING)
def test_missing_texts_are_refused(form: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArrayError, match="the one at position 1 is missing: fill it"):
        psnb.hash_ids(form())


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["a", 7], "found 7 at position 1: integers are ids as they are"),
        (np.arange(3), "found 0 at position 0: integers are ids"),
        ([["a"], ["b", "c"]], r"found \['a'\] at position 0"),
        ({"a": 1}, "found {'a': 1}"),
        (np.array([np.arange(2), None], object), "at position 0"),
        (["\ud800"], "half of a surrogate pair"),
        (pd.Series([1.5], dtype="category"), "found 1.5"),
        (psnb.data.Ragged.from_rows([[1], [2, 3]], np.int64), "of bags hash the values"),
    ],
)
def test_what_is_no_text_is_refused(texts: Any, says: str) -> None:
    with pytest.raises(InvalidArrayError, match=says):
        psnb.hash_ids(texts)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5])
def test_wrong_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(ConfigurationError, match="seed must be"):
        psnb.hash_ids(["a"], seed)
