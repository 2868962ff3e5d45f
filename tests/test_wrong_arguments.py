"""An argument of the wrong kind is refused in one short line, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import psnb
from psnb.data import Dataset, FixedLen, InMemoryDataset, QueueDataset, Slot
from psnb.errors import ConfigurationError

ARRAY: Any = np.zeros(1000)
SLOTS = [Slot("x")]

CALLS: dict[str, Callable[[], object]] = {
    "export": lambda: psnb.export(ARRAY, "path", example={}),
    "load_model": lambda: psnb.load_model(ARRAY),
    "csv": lambda: Dataset.csv(ARRAY),
    "npy": lambda: Dataset.npy(ARRAY),
    "list_files": lambda: Dataset.list_files(5),  # type: ignore[arg-type]
    "tfrecords": lambda: Dataset.tfrecords(ARRAY, {"x": FixedLen((), "int64")}),
    "with_files": lambda: Dataset.text_lines("f").with_files(ARRAY),
    "cache": lambda: Dataset.range(3).cache(ARRAY),
    "range": lambda: Dataset.range(ARRAY),
    "batch": lambda: Dataset.range(3).batch(ARRAY),
    "bucket_boundaries": lambda: Dataset.range(3).bucket_by_sequence_length(len, 5, [2, 2]),  # type: ignore[arg-type]
    "bucket_batch_sizes": lambda: Dataset.range(3).bucket_by_sequence_length(len, [5], 2),  # type: ignore[arg-type]
    "InMemoryDataset": lambda: InMemoryDataset(ARRAY, SLOTS, 2),
    "InMemoryDataset.of": lambda: InMemoryDataset.of(ARRAY, 2),
    "slots": lambda: QueueDataset("f", ARRAY, 2),
    "Slot: name": lambda: Slot(ARRAY),
    "Slot: dtype": lambda: Slot("x", ARRAY),
    "FixedLen": lambda: FixedLen((), ARRAY),
    "Uniform": lambda: psnb.Uniform(ARRAY),
    "Adam": lambda: psnb.Adam(ARRAY),
    "Warmup": lambda: psnb.Warmup(ARRAY, ARRAY),
    "CountFilter": lambda: psnb.CountFilter(ARRAY),
    "FixedShards": lambda: psnb.FixedShards(ARRAY),
    "Sync": lambda: psnb.Sync(ARRAY),
    "strategy": lambda: psnb.ParameterServerStrategy(ARRAY),
    "coordinator": lambda: psnb.ClusterCoordinator(ARRAY),
    "Trainer": lambda: psnb.Trainer(ARRAY, ARRAY),
    "checkpoint.load": lambda: psnb.checkpoint.load(ARRAY),
    "pull": lambda: psnb.pull({"a": ARRAY}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_array_in_the_wrong_place_is_refused_in_one_line(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError) as found:
        call()
    said = str(found.value)
    assert "\n" not in said
    assert len(said) < 300
    assert "0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0." not in said[120:]


def test_the_words_of_paddle_for_dtypes_mean_what_they_do_there() -> None:
    assert Slot("a", "int64") == Slot("a", "uint64")
    assert Slot("a", "float", (1,)) == Slot("a", "float32", (1,))


def test_a_frame_in_place_of_files_is_sent_to_from_table() -> None:
    with pytest.raises(ConfigurationError, match=r"<DataFrame \(2, 1\)>: .*Dataset.from_table"):
        Dataset.csv(pd.DataFrame({"a": [1, 2]}))  # type: ignore[arg-type]
