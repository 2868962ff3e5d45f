"""Ids in each form in which people have them, and what has no ids, for tests of all doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import torch

LOW, HIGH = 2**53 + 1, 2**63 + 5
"""Ids that float64 does not hold; the second one fits no int64."""

FORMS: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "list": (lambda: [5, LOW], [5, LOW]),
    "list of unsigned": (lambda: [5, HIGH], [5, HIGH]),
    "list with negative": (lambda: [-1, HIGH], [2**64 - 1, HIGH]),
    "tuple": (lambda: (LOW, HIGH), [LOW, HIGH]),
    "nested list": (lambda: [[5, LOW], [HIGH, 7]], [5, LOW, HIGH, 7]),
    "scalars of NumPy": (lambda: [np.int64(LOW), np.uint64(HIGH)], [LOW, HIGH]),
    "scalars of torch": (lambda: [torch.tensor(5), torch.tensor(LOW)], [5, LOW]),
    "unsigned scalars of torch": (
        lambda: [torch.tensor(HIGH, dtype=torch.uint64), torch.tensor(5)],
        [HIGH, 5],
    ),
    "list of arrays": (lambda: [np.array([LOW]), np.array([HIGH], "u8")], [LOW, HIGH]),
    "range": (lambda: range(3), [0, 1, 2]),
    "int": (lambda: HIGH, [HIGH]),
    "scalar": (lambda: np.uint64(HIGH), [HIGH]),
    "no axis": (lambda: np.array(LOW), [LOW]),
    "empty": (lambda: [], []),
    "no objects": (lambda: np.empty(0, object), []),
    "Series without objects": (lambda: pd.Series([], dtype=object), []),
    "Series without categories": (lambda: pd.Series([], dtype="category"), []),
    **{
        kind: (
            lambda kind=kind: np.array([1, np.iinfo(kind).max], kind),
            [1, np.iinfo(kind).max],
        )
        for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i8", ">u4", ">u8")
    },
    "strided": (lambda: np.array([5, 0, LOW, 0])[::2], [5, LOW]),
    "objects": (lambda: np.array([5, HIGH], object), [5, HIGH]),
    "jax.numpy": (lambda: jax.numpy.array([5, 7]), [5, 7]),
    "torch": (lambda: torch.tensor([5, -1]), [5, 2**64 - 1]),
    "torch.uint64": (lambda: torch.tensor([5, HIGH], dtype=torch.uint64), [5, HIGH]),
    "Arrow": (lambda: pa.array([5, HIGH], pa.uint64()), [5, HIGH]),
    "chunks of Arrow": (lambda: pa.chunked_array([[5], [LOW]]), [5, LOW]),
    "Series": (lambda: pd.Series([5, HIGH], dtype="uint64"), [5, HIGH]),
    "Series of objects": (lambda: pd.Series([5, HIGH], dtype=object), [5, HIGH]),
    "Series of Int64": (lambda: pd.Series([5, LOW], dtype="Int64"), [5, LOW]),
    "Series of Arrow": (lambda: pd.Series([5, HIGH], dtype="uint64[pyarrow]"), [5, HIGH]),
    "categories": (lambda: pd.Series([5, LOW]).astype("category"), [5, LOW]),
    "Index": (lambda: pd.Index([5, HIGH], dtype="uint64"), [5, HIGH]),
    "polars": (lambda: pl.Series([5, HIGH], dtype=pl.UInt64), [5, HIGH]),
}
"""What makes them, and their bits as Python's integers."""

NO_IDS: dict[str, tuple[Callable[[], Any], str]] = {
    "floats": (lambda: [1.5, 2.0], "float64, which holds integers up to 2\\*\\*53"),
    "float32": (lambda: np.ones(2, "f4"), "float32, which holds integers up to 2\\*\\*24"),
    "an integer beside floats": (lambda: [HIGH, 0.5], "float64"),
    "no float": (lambda: np.empty(0), "float64"),
    "floats of torch": (lambda: torch.tensor([1.0]), "float32"),
    "bools": (lambda: [True, False], "dtype bool"),
    "complex": (lambda: [1j], "complex128"),
    "times": (lambda: np.array(["2020"], "M8[D]"), "datetime64"),
    "words": (lambda: ["a", "b"], "found text: psnb.hash_ids"),
    "bytes": (lambda: np.array([b"a"]), "found text"),
    "Series of words": (lambda: pd.Series(["a", "b"]), "found text"),
    "categories of words": (lambda: pd.Series(["a"]).astype("category"), "found text"),
    "None": (lambda: [1, None], "missing values"),
    "NaN": (lambda: pd.Series([1, None]), "missing values"),
    "NA": (lambda: pd.Series([1, None], dtype="Int64"), "missing values"),
    "null": (lambda: pa.array([1, None]), "missing values"),
    "null of polars": (lambda: pl.Series([1, None]), "missing values"),
    "masked": (lambda: np.ma.masked_array([1, 2], [False, True]), "masked"),
    "too large": (lambda: [1, 2**64], "18446744073709551616 does not fit 64 bits"),
    "too small": (lambda: [-(2**63) - 1], "does not fit 64 bits"),
    "rows of two lengths": (lambda: [[1], [2, 3]], "not an array"),
    "a dict": (lambda: {"a": 1}, "dtype object"),
}
