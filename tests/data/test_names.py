"""The shape of the room: its names, and that it stands alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import psnb
from psnb import data

FILES = sorted((Path(psnb.__file__).parent / "_src" / "data").rglob("*.py"))

PUBLIC = [
    *("AUTOTUNE", "ArraySpec", "Dataset", "DatasetIterator", "DatasetSpec", "FileRange", "Format"),
    *("Options", "Ragged", "sharded", "splits"),
    *("InMemoryDataset", "MemoryStatistics", "QueueDataset"),
    *(
        "FixedLen",
        "MultiSlotDataGenerator",
        "Slot",
        "StageStatistics",
        "TFRecordWriter",
        "VarLen",
        "encode_example",
    ),
]

BELOW = {
    "psnb.errors",
    *(
        f"psnb._src.{name}"
        for name in (
            "addresses",
            "checks",
            "exact_integers",
            "excerpt",
            "foreign_names",
            "own_pages",
            "phases",
            "stages",
            "threads",
        )
    ),
}
"""What is pure and below every room."""

METHODS = [
    *("as_numpy_iterator", "bucket_by_sequence_length", "load", "reduce", "save", "take_while"),
    "unique",
    *("batch", "cache", "cardinality", "concatenate", "element_spec", "enumerate", "filter"),
    *("flat_map", "from_files", "from_generator", "from_tensor_slices", "from_tensors"),
    *("ignore_errors", "interleave", "iterator", "list_files", "map", "merge_by", "node"),
    *("npy", "padded_batch", "prefetch", "ragged_batch", "range", "repeat", "sample_from_datasets"),
    *("criteo", "csv", "fixed_length_records", "multi_slot", "parquet", "text_lines", "tfrecords"),
    *(
        "scan",
        "shard",
        "shuffle",
        "skip",
        "take",
        "unbatch",
        "window",
        "with_files",
        "with_options",
        "zip",
    ),
]


def test_the_public_names_are_these() -> None:
    assert sorted(data.__all__) == sorted(PUBLIC)
    made = data.Dataset.range(1)
    assert {name for name in dir(made) if not name.startswith("_")} == set(METHODS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_module_imports_dask_or_jupyter_or_the_rest_of_psnb(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert name.split(".")[0] not in {"dask", "distributed", "tornado", "ipywidgets"}
            assert name in BELOW or not name.startswith("psnb") or "psnb._src.data" in name
