"""The kinds of nodes that chains are made of."""

from psnb.data.nodes.batch import Batch, RaggedBatch
from psnb.data.nodes.cache import Cache
from psnb.data.nodes.concatenate import Concatenate
from psnb.data.nodes.cut import Shard, Skip, Take
from psnb.data.nodes.enumerate import Enumerate
from psnb.data.nodes.files import FileRange, Files, Format, file_ranges
from psnb.data.nodes.filter import Filter
from psnb.data.nodes.flat import FlatMap, Interleave
from psnb.data.nodes.generator import Generator
from psnb.data.nodes.ignore_errors import IgnoreErrors
from psnb.data.nodes.map import Map
from psnb.data.nodes.npy import Npy
from psnb.data.nodes.options import WithOptions
from psnb.data.nodes.padded_batch import PaddedBatch
from psnb.data.nodes.prefetch import Prefetch
from psnb.data.nodes.range import Range
from psnb.data.nodes.repeat import Repeat
from psnb.data.nodes.sample import Sample
from psnb.data.nodes.scan import Scan
from psnb.data.nodes.shuffle import Shuffle
from psnb.data.nodes.slices import FileNames, Slices, Tensors
from psnb.data.nodes.unbatch import Unbatch
from psnb.data.nodes.window import Window
from psnb.data.nodes.zip import Zip

__all__ = [
    "Batch",
    "Cache",
    "Concatenate",
    "Enumerate",
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
    "Npy",
    "PaddedBatch",
    "Prefetch",
    "RaggedBatch",
    "Range",
    "Repeat",
    "Sample",
    "Scan",
    "Shard",
    "Shuffle",
    "Skip",
    "Slices",
    "Take",
    "Tensors",
    "Unbatch",
    "Window",
    "WithOptions",
    "Zip",
    "file_ranges",
]
