"""Datasets that feed workers: chained, lazy, vectorised; they resume at the very next element."""

from psnb._src.data.dataset import Dataset
from psnb._src.data.formats.multi_slot import Slot
from psnb._src.data.formats.multi_slot_generator import MultiSlotDataGenerator
from psnb._src.data.formats.tf_example import FixedLen, VarLen, encode_example
from psnb._src.data.formats.tfrecord import TFRecordWriter
from psnb._src.data.iterator import DatasetIterator
from psnb._src.data.memory.in_memory import InMemoryDataset
from psnb._src.data.memory.store import MemoryStatistics
from psnb._src.data.node import AUTOTUNE, Options
from psnb._src.data.nodes import partitions as _partitions
from psnb._src.data.nodes.files import FileRange, Format
from psnb._src.data.queue_dataset import QueueDataset
from psnb._src.data.ragged import Ragged
from psnb._src.data.spec import ArraySpec, DatasetSpec
from psnb._src.data.splits import sharded, splits
from psnb._src.utils import foreign_names as _foreign_names
from psnb._src.utils.stages import StageStatistics

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


def _reader_of_dask() -> _partitions.PartitionsOf:
    # With the first collection: it takes a second, and most scripts that read files, such as a
    # `pipe_command`, need none of it.
    from psnb._src.coordinator.datasets.dask_source import partitions_of

    return partitions_of


_partitions.read_dask_with(_reader_of_dask)

# Not by `def`: type checkers would take any name for one of this module.
globals()["__getattr__"] = _foreign_names.answer_of(__name__)
