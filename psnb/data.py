"""Datasets that feed workers: chained, lazy, vectorised; they resume at the very next element."""

from psnb._src import foreign_names as _foreign_names
from psnb._src.data import (
    AUTOTUNE,
    ArraySpec,
    Dataset,
    DatasetIterator,
    DatasetSpec,
    FileRange,
    FixedLen,
    Format,
    InMemoryDataset,
    MemoryStatistics,
    MultiSlotDataGenerator,
    Options,
    QueueDataset,
    Ragged,
    Slot,
    StageStatistics,
    TFRecordWriter,
    VarLen,
    encode_example,
    sharded,
    splits,
)

__all__ = [
    "AUTOTUNE",
    "ArraySpec",
    "Dataset",
    "DatasetIterator",
    "DatasetSpec",
    "FileRange",
    "FixedLen",
    "Format",
    "InMemoryDataset",
    "MemoryStatistics",
    "MultiSlotDataGenerator",
    "Options",
    "QueueDataset",
    "Ragged",
    "Slot",
    "StageStatistics",
    "TFRecordWriter",
    "VarLen",
    "encode_example",
    "sharded",
    "splits",
]

# Not by `def`: type checkers would take any name for one of this module.
globals()["__getattr__"] = _foreign_names.answer_of(__name__)
