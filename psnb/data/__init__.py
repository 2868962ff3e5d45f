"""Datasets that feed workers: chained, lazy, vectorised, and resumed at the very next element."""

from psnb.data.arguments import as_seed
from psnb.data.context import AUTOTUNE, Options
from psnb.data.dataset import Dataset
from psnb.data.formats import (
    FixedLen,
    MultiSlotDataGenerator,
    Slot,
    TFRecordWriter,
    VarLen,
    encode_example,
)
from psnb.data.in_memory import InMemoryDataset
from psnb.data.iterator import DatasetIterator
from psnb.data.memory import Layout, Memory, MemoryStatistics
from psnb.data.nodes import FileRange, Format
from psnb.data.queue_dataset import QueueDataset
from psnb.data.ragged import Ragged
from psnb.data.spec import ArraySpec, DatasetSpec
from psnb.data.splits import sharded, splits

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
    "Layout",
    "Memory",
    "MemoryStatistics",
    "MultiSlotDataGenerator",
    "Options",
    "QueueDataset",
    "Ragged",
    "Slot",
    "TFRecordWriter",
    "VarLen",
    "as_seed",
    "encode_example",
    "sharded",
    "splits",
]
