"""What tf.data does on the work of `tests.benchmarks.data`, in a process of its own.

``python -m tests.benchmarks.tensorflow_data_peer shuffle`` prints elements a second, the best of
some repetitions; so do ``map`` and ``map batches``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

from tests.benchmarks.rows import BATCH, BUFFER, REPETITIONS, rows


def shuffled() -> Any:
    """Return batches of shuffled rows."""
    dataset = tf.data.Dataset.from_tensor_slices(rows())
    return dataset.shuffle(BUFFER).batch(BATCH).prefetch(tf.data.AUTOTUNE)


def mapped() -> Any:
    """Return batches of rows that a function was applied to one by one."""
    dataset = tf.data.Dataset.from_tensor_slices(rows())
    return dataset.map(lambda ids, numbers, label: (ids + 1, numbers, label)).batch(BATCH)


def mapped_batches() -> Any:
    """Return batches that a function was applied to."""
    dataset = tf.data.Dataset.from_tensor_slices(rows()).batch(BATCH)
    return dataset.map(lambda ids, numbers, label: (ids + 1, numbers, label))


def main() -> None:
    """Print the rate."""
    dataset = {"shuffle": shuffled, "map": mapped, "map batches": mapped_batches}[sys.argv[1]]()
    rates = []
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        count = sum(int(batch[2].shape[0]) for batch in dataset)
        rates.append(count / (time.perf_counter() - begin))
    print(json.dumps(max(rates)))


if __name__ == "__main__":
    main()
