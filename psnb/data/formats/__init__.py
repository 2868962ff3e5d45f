"""Readers of file formats: pure, picklable descriptions, from a path to chunks of columns."""

from psnb.data.formats.chunk import Chunk
from psnb.data.formats.criteo import MISSING_CATEGORY, Criteo
from psnb.data.formats.csv import Csv
from psnb.data.formats.example import encode_example, parse_examples
from psnb.data.formats.features import FixedLen, VarLen
from psnb.data.formats.files import list_files
from psnb.data.formats.fixed_length_records import FixedLengthRecords
from psnb.data.formats.generator import MultiSlotDataGenerator
from psnb.data.formats.limit import MAX_COLUMNS, MAX_RECORD_BYTES
from psnb.data.formats.multi_slot import MultiSlot, Slot
from psnb.data.formats.parquet import Parquet
from psnb.data.formats.text_lines import TextLines
from psnb.data.formats.tfrecord_writer import TFRecordWriter
from psnb.data.formats.tfrecords import TFRecords

__all__ = [
    "MAX_COLUMNS",
    "MAX_RECORD_BYTES",
    "MISSING_CATEGORY",
    "Chunk",
    "Criteo",
    "Csv",
    "FixedLen",
    "FixedLengthRecords",
    "MultiSlot",
    "MultiSlotDataGenerator",
    "Parquet",
    "Slot",
    "TFRecordWriter",
    "TFRecords",
    "TextLines",
    "VarLen",
    "encode_example",
    "list_files",
    "parse_examples",
]
