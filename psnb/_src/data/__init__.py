"""Datasets that feed workers: chained, lazy, vectorised; they resume at the very next element."""

from psnb._src.data.dataset import Dataset
from psnb._src.data.formats import (
    FixedLen,
    MultiSlotDataGenerator,
    Slot,
    TFRecordWriter,
    VarLen,
    encode_example,
)
from psnb._src.data.identity import identity
from psnb._src.data.in_memory import InMemoryDataset, slot_names
from psnb._src.data.iteration_context import AUTOTUNE, Options
from psnb._src.data.iterator import DatasetIterator
from psnb._src.data.memory import Memory, MemoryStatistics, ShufflePlan
from psnb._src.data.nesting import flatten
from psnb._src.data.nodes import FileRange, Format
from psnb._src.data.queue_dataset import QueueDataset
from psnb._src.data.ragged import Ragged
from psnb._src.data.seeds import as_seed
from psnb._src.data.spec import ArraySpec, DatasetSpec, Spec
from psnb._src.data.splits import check_order, sharded, splits
from psnb._src.data.stage_book import StageLog, log_stages
from psnb._src.stages import StageStatistics

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
    "Memory",
    "MemoryStatistics",
    "MultiSlotDataGenerator",
    "Options",
    "QueueDataset",
    "Ragged",
    "ShufflePlan",
    "Slot",
    "Spec",
    "StageLog",
    "StageStatistics",
    "TFRecordWriter",
    "VarLen",
    "as_seed",
    "check_order",
    "encode_example",
    "flatten",
    "identity",
    "log_stages",
    "sharded",
    "slot_names",
    "splits",
]
