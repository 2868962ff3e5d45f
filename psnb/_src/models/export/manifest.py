"""The manifest of an exported model: its content, how it is written and read. Pure.

::

    model/
      manifest.json              what is here, with the size and checksum of every file
      dense.safetensors          the dense parameters, by name
      0000-rows.safetensors      of each table: its rows,
      0000-scales.safetensors    their scales, if they are int8,
      0000-ids.safetensors       and, if it takes any id, the ids in ascending order,
      0000-places.safetensors    and where the row of each is
      program.…                  the computation, as the framework writes it

A manifest may come from anywhere: the result of `read_model_manifest` has the right kinds of values
everywhere, and names only files of its folder.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct

from psnb._src.models.export.feeds import Fetch, ModelFeed, Size
from psnb._src.models.export.quantization import STORED
from psnb._src.models.export.sources import DenseSources, Float, Start
from psnb._src.models.export.tables import ExportedTable
from psnb._src.server.tables.admission import ADMISSIONS
from psnb._src.server.tables.initializers import INITIALIZERS
from psnb._src.utils.config import from_config
from psnb._src.utils.files import checksum
from psnb._src.utils.sealed_json import one_of, read_sealed, require, sealed, typed

FORMAT = 2
MANIFEST = "manifest.json"
DENSE = "dense.safetensors"


class FileEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """Size and checksum of a file."""

    bytes: Size
    xxh3: str


_File = Annotated[str, Meta(pattern=rf"\A(?!{re.escape(MANIFEST)}\Z)[a-z0-9][a-z0-9.-]{{0,60}}\Z")]


class TableEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A table in a manifest; see `ExportedTable`.

    Attributes
    ----------
    count : int
        How many rows are stored.
    stored : str
        In which dtype.
    left_out : int
        How many rows were not stored, as their score is too low.
    error : mapping
        The largest error of a number, and the root of the mean square.
    """

    name: str
    dim: Annotated[int, Meta(ge=1, le=1 << 48)]
    rows: Size | None
    dtype: Float
    padding_idx: Start | None
    initializer: dict[str, Any]
    admission: dict[str, Any]
    seed: Start
    count: Size
    stored: Annotated[str, one_of(*STORED)]
    left_out: Size
    error: Annotated[Mapping[Annotated[str, one_of("max", "rms")], float], Meta(min_length=2)]

    def __post_init__(self) -> None:
        self.table()
        require(self.rows in (None, self.count), f"table {self.name!r:.80} lacks rows")
        for each in (self.seed, self.padding_idx or 0):  # beyond the bounds that msgspec checks
            require(each < 1 << 64, f"table {self.name!r:.80}: seed or padding_idx is {each!r:.80}")

    def table(self) -> ExportedTable:
        """Return the table's description without its rows.

        Raises
        ------
        ValueError
            If its rows begin in a way that is none.
        """
        first = from_config(f"table {self.name!r:.80}: initializer", self.initializer, INITIALIZERS)
        admission = from_config(f"table {self.name!r:.80}: admission", self.admission, ADMISSIONS)
        dtype, padding = np.dtype(self.dtype), self.padding_idx
        return ExportedTable(
            self.name, self.dim, self.rows, dtype, padding, first, admission, self.seed
        )


class Follows(Struct, frozen=True, forbid_unknown_fields=True):
    """Where checkpoints of the run appear, and the number of the newest before the export."""

    directory: Annotated[str, Meta(min_length=1)]
    after: Size


class ModelManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """A manifest; see `Exported` and `psnb.export` for what its parts mean."""

    framework: Annotated[str, one_of("jax", "torch")]
    feeds: tuple[ModelFeed, ...]
    fetches: tuple[Fetch, ...]
    outputs: Any
    tables: tuple[TableEntry, ...]
    programs: tuple[str, ...]
    detail: Mapping[str, Any]
    files: Mapping[_File, FileEntry]
    metadata: Mapping[str, Any]
    written_with: Mapping[str, str]
    sources: DenseSources
    follows: Follows | None

    def __post_init__(self) -> None:
        for name in self.programs:
            require(name in self.files, f"{name!r:.80}, one of its programs, is not a file of it")
        for what, named in (("feeds", self.feeds), ("tables", self.tables)):
            names = {each.name for each in named}
            require(len(names) == len(named), f"two of its {what} have one name")

    def text(self) -> str:
        """Return the text that is written."""
        return sealed(msgspec.to_builtins(self), FORMAT)


def read_model_manifest(path: Path) -> ModelManifest:
    """Read the manifest of a folder.

    Raises
    ------
    OSError, ValueError, RecursionError
        If it is not there, is damaged, or says what cannot be.
    """
    if not stat.S_ISREG((path / MANIFEST).lstat().st_mode):
        raise OSError("its manifest is not a regular file")
    return typed(read_sealed(path / MANIFEST, FORMAT), ModelManifest)


def check_file(path: Path, name: str, expected: FileEntry) -> None:
    """Check the size and checksum of a file.

    Raises
    ------
    OSError
        If it is not there, or is another one.
    """
    found = (path / name).lstat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is not a regular file, but a link or a device")
    if found.st_size != expected.bytes:
        raise OSError(f"it has {found.st_size} bytes, expected {expected.bytes}")
    if (own := checksum(path / name)) != expected.xxh3:
        raise OSError(f"its checksum is {own}, expected {expected.xxh3:.16}")
