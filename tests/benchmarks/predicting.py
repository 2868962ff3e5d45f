"""Milliseconds to predict one example with an exported model, beside plain numpy, in one run.

The demo's wide & deep model with 100,000 rows in each table. Plain numpy has the same rows and
layers in memory, finds the rows by a binary search among sorted ids, and computes the same: it is
about the least that Python needs. Only the ratio counts.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import psnb
import psnb.jax
from psnb.demo import flights, model
from tests.models.placing import InProcessStrategy

ROWS = 100_000
BATCHES = (1, 64, 512)
PAIRS = 400

Batch = Mapping[str, np.ndarray]
Predict = Callable[[Batch], Any]


def pair(folder: Path) -> tuple[Predict, Predict, np.ndarray]:
    """Return an exported model's predict, that of numpy, and the ids that have rows."""
    strategy, random = InProcessStrategy(), np.random.default_rng(0)
    ids = np.unique(random.integers(0, 2**50, ROWS))
    rows = {
        name: random.normal(0, 0.1, (len(ids), dim)).astype(np.float32)
        for name, dim in (("wide", 1), ("deep", model.DIMENSION))
    }
    tables = {}
    for name, values in rows.items():
        tables[name] = strategy.embedding(name, values.shape[1], None, psnb.Constant(0.0))
        tables[name].assign(ids, values)
    layers = model.initial_layers(len(flights.FIELDS), len(flights.DENSE_COLUMNS), 0)
    params = psnb.jax.variables(strategy, layers, psnb.SGD(0.1))  # type: ignore[arg-type]
    forward = psnb.jax.forward(model.predict, params=params, tables=tables, ids=model.ids)
    path = psnb.export(folder / "model", forward, example=examples(ids, 8))

    def plain(batch: Batch) -> np.ndarray:
        places = np.searchsorted(ids, batch["ids"])
        deep = rows["deep"][places].reshape(len(places), -1)
        hidden = np.concatenate([deep, batch["dense"]], 1)
        for matrix, bias in layers[:-1]:
            hidden = np.maximum(hidden @ matrix + bias, 0)
        matrix, bias = layers[-1]
        found = (hidden @ matrix + bias)[:, 0] + rows["wide"][places].sum((1, 2))
        sigmoid: np.ndarray = 1 / (1 + np.exp(-found))
        return sigmoid

    return psnb.load_model(path).predict, plain, ids


def examples(ids: np.ndarray, count: int) -> Batch:
    """Return some examples."""
    random = np.random.default_rng(count)
    return {
        "ids": random.choice(ids, (count, len(flights.FIELDS))),
        "dense": random.normal(size=(count, len(flights.DENSE_COLUMNS))).astype(np.float32),
    }


def milliseconds(predict: Predict, batch: Batch) -> float:
    """Return how long a prediction takes."""
    begin = time.perf_counter()
    predict(batch)
    return 1e3 * (time.perf_counter() - begin)


def main() -> None:
    """Run all and print a table."""
    table = Table("batch", "psnb, ms", "slowest of 100", "numpy, ms", "ratio")
    with tempfile.TemporaryDirectory() as folder:
        ours, plain, ids = pair(Path(folder))
        for size in BATCHES:
            batch = examples(ids, size)
            np.testing.assert_allclose(ours(batch), plain(batch), atol=1e-5)
            pairs = [(milliseconds(ours, batch), milliseconds(plain, batch)) for _ in range(PAIRS)]
            mine, theirs = map(sorted, zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            table.add_row(
                f"{size:,}",
                f"{statistics.median(mine):.3f}",
                f"{mine[-PAIRS // 100]:.3f}",
                f"{statistics.median(theirs):.3f}",
                f"{ratio:.1f}x",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
