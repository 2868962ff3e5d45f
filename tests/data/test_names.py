"""The names of `psnb.data`."""

from __future__ import annotations

from psnb import data

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

METHODS = [
    *("as_numpy_iterator", "bucket_by_sequence_length", "load", "reduce", "save", "take_while"),
    "unique",
    *("batch", "cache", "cardinality", "concatenate", "element_spec", "enumerate", "filter"),
    *("flat_map", "from_files", "from_generator", "from_table", "from_tensor_slices"),
    *("from_dask", "from_tensors"),
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
