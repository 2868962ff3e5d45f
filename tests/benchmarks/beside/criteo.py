"""The data and the sizes of wide & deep: DeepRec's published configuration, with made-up clicks.

26 categorical features with the cardinalities of Criteo's Kaggle set, a table of 16 floats for each
(deep) and one of a single float (wide); 13 numbers; a perceptron of 1,024, 512 and 256 units over
rows and numbers; Adagrad. Ids are of a Pareto law, so that a few are seen again and again, and a
label is of a known logistic model. Peers have other environments: only NumPy is needed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

# fmt: off
CARDINALITIES = (
    1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194, 27,
    14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)
# fmt: on
FIELDS, NUMBERS, DIM = len(CARDINALITIES), 13, 16
UNITS = (1024, 512, 256)
INPUTS = FIELDS * DIM + NUMBERS
WIDTHS = (INPUTS, *UNITS, 1)
RATE, ACCUMULATOR, EPSILON = 0.01, 0.1, 1e-7
"""Adagrad's: its rate, what its sums start from, and what is added to their roots."""

EXAMPLES = 98_304
SIZES = (512, 4096)
STEPS = {512: 16, 4096: 4}
"""Steps that are asked for at once, by batch size: of both workers together."""

CUT = 100_000
"""Most rows of a table where gradients are as large as tables: Keras alone."""

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
"""ids (int32, ``(n, FIELDS)``), numbers (float32, ``(n, NUMBERS)``), labels (float32, ``(n,)``)"""


def clicks(examples: int = EXAMPLES, seed: int = 3) -> Batch:
    """Return examples; a seed gives the same each time. Each feature has ids from 0."""
    rng = np.random.default_rng(seed)
    rank = (rng.pareto(1.05, (examples, FIELDS)) * 3).astype(np.int64)
    ids = (rank % np.array(CARDINALITIES)).astype(np.int32)
    numbers = rng.standard_normal((examples, NUMBERS)).astype(np.float32)
    of_ids = np.random.default_rng(7).standard_normal((FIELDS, 1000)).astype(np.float32)
    of_numbers = np.random.default_rng(8).standard_normal(NUMBERS).astype(np.float32)
    logit = of_ids[np.arange(FIELDS), ids % 1000].sum(1) * 0.3 + numbers @ of_numbers * 0.3 - 1.0
    labels = (rng.random(examples) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return ids, numbers, labels


def batches(size: int, seed: int) -> Iterator[Batch]:
    """Yield batches for ever, the examples in another order each time."""
    everything = clicks()
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(EXAMPLES)
        for start in range(0, EXAMPLES - size + 1, size):
            at = order[start : start + size]
            ids, numbers, labels = (array[at] for array in everything)
            yield ids, numbers, labels


def in_one_table(ids: np.ndarray) -> np.ndarray:
    """Return ids of all features in one table, in which each has at most ``CUT`` rows."""
    rows = np.minimum(CARDINALITIES, CUT)
    return (ids % rows + np.cumsum(rows) - rows).astype(np.int32)


ROWS_IN_ONE_TABLE = int(np.minimum(CARDINALITIES, CUT).sum())


def initial_weights() -> list[np.ndarray]:
    """Return the first weights of the perceptron: a matrix and a bias for each layer."""
    rng = np.random.default_rng(1)
    weights = []
    for rows, columns in pairwise(WIDTHS):
        matrix = rng.standard_normal((rows, columns)) * np.sqrt(2 / rows)
        weights += [matrix.astype(np.float32), np.zeros(columns, np.float32)]
    return weights
