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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct

from psnb._src.data.ragged import Ragged
from psnb._src.models.export.tables import STORED, ExportedTable
from psnb._src.server.tables.admission import ADMISSIONS
from psnb._src.server.tables.initializers import INITIALIZERS
from psnb._src.transport.half_width import BFLOAT16, HALF_WIDTH
from psnb._src.utils.arrays import array_of, found_in, integers_of
from psnb._src.utils.config import from_config
from psnb._src.utils.files import checksum
from psnb._src.utils.mapped_arrays import DTYPES
from psnb._src.utils.sealed_json import one_of, read_sealed, require, sealed, typed
from psnb.errors import ConfigurationError

WIDE = ("int64", "uint64")

FORMAT = 2
MANIFEST = "manifest.json"
DENSE = "dense.safetensors"

_Size = Annotated[int, Meta(ge=0, le=1 << 48)]
"""No size is larger."""

_Start = Annotated[int, Meta(ge=0)]
_Float = Annotated[str, one_of("float32", "float64")]
_Shape = Annotated[tuple[_Size | None, ...], Meta(max_length=32)]
_FEED_DTYPES = ("bool", *(each.name for each in DTYPES.values() if each != BFLOAT16))
_FeedDtype = Annotated[str, one_of(*_FEED_DTYPES)]


def fits(shape: Sequence[int | None], expected: Sequence[int | None]) -> bool:
    """Return whether a shape is the expected one, in which None is any size."""
    return len(shape) == len(expected) and all(
        wanted in (None, size) for size, wanted in zip(shape, expected, strict=True)
    )


class ModelFeed(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the arrays that a model needs of a batch.

    Attributes
    ----------
    name : str
        Its name in a batch.
    dtype : str
        Of its numbers.
    shape : tuple of int or None
        None stands for a number that depends on the batch. For `Ragged`, the shape of its values.
    holds : {"examples", "ragged", "any"}
        Its first axis: the examples; the examples of a `Ragged`; or something else, of any length.
    """

    name: str
    dtype: _FeedDtype
    shape: _Shape
    holds: Annotated[str, one_of("examples", "ragged", "any")] = "examples"

    def __post_init__(self) -> None:
        require(not self.ragged or bool(self.shape), f"feed {self.name!r:.80} has no axis")

    @property
    def ragged(self) -> bool:
        return self.holds == "ragged"

    def taken(self, given: Any) -> np.ndarray | Ragged:
        """Return what a batch gives, in this form.

        Raises
        ------
        ConfigurationError
            If it has another shape, or numbers that this dtype does not hold.
        """
        if self.ragged:
            if not isinstance(given, Ragged):
                raise self._wrong("psnb.data.Ragged", type(given).__name__)
            values = self.cast(given.values)
            if values.shape[1:] != self.shape[1:]:
                raise self._wrong(f"values of shape {self._shown()}", str(values.shape))
            return given if values is given.values else Ragged(values, given.offsets)
        array = self.cast(self.array(given))
        if not fits(array.shape, self.shape):
            raise self._wrong(f"shape {self._shown()}", str(array.shape))
        return array

    def array(self, given: Any) -> np.ndarray:
        """Return what a batch gives as an array, whose integers are not rounded.

        Raises
        ------
        InvalidArrayError
            If integers are needed, and it has none.
        """
        whole = np.dtype(self.dtype).kind in "iu"
        return integers_of(given, f"feed {self.name!r}") if whole else array_of(given)

    def cast(self, array: np.ndarray) -> np.ndarray:
        """Return numbers in the dtype of this feed.

        Raises
        ------
        ConfigurationError
            If it does not hold them.
        """
        wanted = np.dtype(self.dtype)
        if array.dtype == wanted:
            return array
        kinds = array.dtype.kind + wanted.kind
        if kinds in ("ii", "uu", "iu", "ui"):
            if array.dtype.name in WIDE and wanted.name in WIDE:
                return array.view(wanted)  # as ids, these are the same bits
            limits = np.iinfo(wanted)
            if array.size and not np.can_cast(array.dtype, wanted, "safe"):
                low, high = int(array.min()), int(array.max())
                if low < limits.min or high > limits.max:
                    raise self._wrong(f"numbers that fit {wanted}", f"{low} to {high}")
        elif kinds[1] != "f" or kinds[0] not in "iufb":
            raise self._wrong(f"numbers of {wanted}", found_in(array))
        return array.astype(wanted)

    def _shown(self) -> str:
        sizes = ", ".join("batch" if size is None else str(size) for size in self.shape)
        return f"({sizes}{',' if len(self.shape) == 1 else ''})"

    def _wrong(self, expected: str, found: str) -> ConfigurationError:
        return ConfigurationError(f"feed {self.name!r}: expected {expected}, found {found}")


class Fetch(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the arrays that a model returns; None stands for a size that depends on the batch."""

    name: str
    dtype: Annotated[str, one_of(*_FEED_DTYPES, "bfloat16")]
    shape: _Shape


class DenseSources(Struct, frozen=True, forbid_unknown_fields=True):
    """Where dense parameters are on servers: many may lie one after another in a variable.

    Attributes
    ----------
    variables : mapping of str to (int, str)
        How many numbers each variable has, and its dtype.
    parts : mapping of str to (str, int)
        Of each dense parameter, by its name in the model, the variable, and where it begins there.
        A parameter that is not there, such as a constant, never changes.
    """

    variables: Mapping[str, tuple[_Start, _Float]]
    parts: Mapping[str, tuple[str, _Start]]

    def __post_init__(self) -> None:
        for name, (variable, _) in self.parts.items():
            require(variable in self.variables, f"there is no variable of {name!r:.80}")

    def of(self, dense: Collection[str]) -> DenseSources:
        """Return the sources of some dense parameters."""
        parts = {name: each for name, each in self.parts.items() if name in dense}
        used = {variable for variable, _ in parts.values()}
        return DenseSources({n: e for n, e in self.variables.items() if n in used}, parts)

    def check(self, dense: Mapping[str, np.ndarray]) -> None:
        """Raise ValueError unless dense parameters may lie so."""
        for name, (variable, start) in self.parts.items():
            require(name in dense, f"there is no dense parameter {name!r:.80}")
            good = start + _kept_size(dense[name]) <= self.variables[variable][0]
            require(good, f"{name!r:.80} is beyond the end of {variable!r:.80}")

    def taken(
        self, values: Mapping[str, np.ndarray], dense: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return dense parameters of the shapes and dtypes that they have, from new values."""
        found = dict(dense)
        for name, (variable, start) in self.parts.items():
            old = dense[name]
            part = values[variable][start : start + _kept_size(old)]
            found[name] = _from_kept(part, old.dtype).reshape(old.shape)
        return found


def _kept_size(dense: np.ndarray) -> int:
    pairs = dense.dtype.kind == "c" or (dense.dtype.kind in "iu" and dense.dtype.itemsize == 8)
    return dense.size * (2 if pairs else 1)


def _from_kept(kept: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return kept > 0
    if dtype.kind == "c":
        return kept.view(f"c{2 * kept.itemsize}").astype(dtype)
    if dtype.kind in "iu":
        high, low = kept.reshape(-1, 2).T if dtype.itemsize == 8 else (np.zeros(()), kept)
        upper = np.floor(high)
        lower = np.rint((high - upper) * 2.0**32 + low).astype(np.int64)
        return (upper.astype(np.int64) * 2**32 + lower).astype(dtype)
    return kept.astype(dtype)


class FileEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """Size and checksum of a file."""

    bytes: _Size
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
    rows: _Size | None
    dtype: Annotated[str, one_of("float32", "float64", *(each.name for each in HALF_WIDTH))]
    padding_idx: _Start | None
    initializer: dict[str, Any]
    admission: dict[str, Any]
    seed: _Start
    count: _Size
    stored: Annotated[str, one_of(*STORED)]
    left_out: _Size
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
    after: _Size


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
