"""Readers of file formats: pure, picklable descriptions that turn a path into chunks of columns."""

from psnb._src.data.formats.arrow import with_columns
from psnb._src.data.formats.criteo import Criteo
from psnb._src.data.formats.csv import Csv
from psnb._src.data.formats.example import encode_example
from psnb._src.data.formats.features import FixedLen, VarLen
from psnb._src.data.formats.fixed_length_records import FixedLengthRecords
from psnb._src.data.formats.limit import MAX_COLUMNS, MAX_RECORD_BYTES
from psnb._src.data.formats.multi_slot import MultiSlot, Slot
from psnb._src.data.formats.multi_slot_generator import MultiSlotDataGenerator
from psnb._src.data.formats.open_files import INFER, list_files, missing, size_of
from psnb._src.data.formats.parquet import Parquet
from psnb._src.data.formats.saved_part import SavedPart, part_arrays
from psnb._src.data.formats.text_lines import TextLines
from psnb._src.data.formats.tfrecord_writer import TFRecordWriter
from psnb._src.data.formats.tfrecords import TFRecords

__all__ = [
    "INFER",
    "MAX_COLUMNS",
    "MAX_RECORD_BYTES",
    "Criteo",
    "Csv",
    "FixedLen",
    "FixedLengthRecords",
    "MultiSlot",
    "MultiSlotDataGenerator",
    "Parquet",
    "SavedPart",
    "Slot",
    "TFRecordWriter",
    "TFRecords",
    "TextLines",
    "VarLen",
    "encode_example",
    "list_files",
    "missing",
    "part_arrays",
    "size_of",
    "with_columns",
]
