"""The kinds of nodes in a chain."""

from psnb._src.data.nodes.batch import Batch, RaggedBatch
from psnb._src.data.nodes.buckets import Buckets
from psnb._src.data.nodes.cache import Cache
from psnb._src.data.nodes.concatenate import Concatenate
from psnb._src.data.nodes.enumerate import Enumerate
from psnb._src.data.nodes.files import FileRange, Files, Format, file_ranges
from psnb._src.data.nodes.filter import Filter
from psnb._src.data.nodes.flat import FlatMap, Interleave
from psnb._src.data.nodes.generator import Generator
from psnb._src.data.nodes.ignore_errors import IgnoreErrors
from psnb._src.data.nodes.map import Map
from psnb._src.data.nodes.merge_by import MergeBy
from psnb._src.data.nodes.npy import Npy
from psnb._src.data.nodes.padded_batch import PaddedBatch
from psnb._src.data.nodes.prefetch import Prefetch
from psnb._src.data.nodes.range import Range
from psnb._src.data.nodes.repeat import Repeat
from psnb._src.data.nodes.sample import Sample
from psnb._src.data.nodes.scan import Scan
from psnb._src.data.nodes.shuffle import Shuffle
from psnb._src.data.nodes.slices import FileNames, Slices, Tensors
from psnb._src.data.nodes.take_skip_shard import EveryNth, Skip, Take
from psnb._src.data.nodes.take_while import TakeWhile
from psnb._src.data.nodes.unbatch import Unbatch
from psnb._src.data.nodes.unique import Unique
from psnb._src.data.nodes.window import Window
from psnb._src.data.nodes.with_options import WithOptions
from psnb._src.data.nodes.zip import Zip

__all__ = [
    "Batch",
    "Buckets",
    "Cache",
    "Concatenate",
    "Enumerate",
    "EveryNth",
    "FileNames",
    "FileRange",
    "Files",
    "Filter",
    "FlatMap",
    "Format",
    "Generator",
    "IgnoreErrors",
    "Interleave",
    "Map",
    "MergeBy",
    "Npy",
    "PaddedBatch",
    "Prefetch",
    "RaggedBatch",
    "Range",
    "Repeat",
    "Sample",
    "Scan",
    "Shuffle",
    "Skip",
    "Slices",
    "Take",
    "TakeWhile",
    "Tensors",
    "Unbatch",
    "Unique",
    "Window",
    "WithOptions",
    "Zip",
    "file_ranges",
]
