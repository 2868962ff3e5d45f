"""The manifest of an exported model: what is in its folder, how it is written and read. Pure.

::

    model/
      manifest.json              what is here, with the size and checksum of every file
      dense.safetensors          the dense parameters, by name
      0000-rows.safetensors      of each table: its rows,
      0000-scales.safetensors    their scales, if they are int8,
      0000-ids.safetensors       and, if it takes any id, the ids in ascending order,
      0000-places.safetensors    and where the row of each is
      program.…                  the computation, as the framework writes it

A manifest may come from anywhere: what `read_model_manifest` returns has the right kinds of values
everywhere, and names files of its folder alone.
"""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from psnb._src.data.ragged import Ragged
from psnb._src.models.export.tables import STORED, ExportedTable, StoredTable
from psnb._src.server.states import ADMISSIONS, INITIALIZERS
from psnb._src.utils.checks import array_of, is_integer, made
from psnb._src.utils.files import checksum, keys, read_sealed, require
from psnb.errors import ConfigurationError

# ModelFeed: one of the arrays that a model needs of a batch.

_WIDE = ("int64", "uint64")


class ModelFeed(NamedTuple):
    """One of the arrays that a model needs of a batch.

    Attributes
    ----------
    name : str
        By which a batch has it.
    dtype : str
        Of its numbers.
    shape : tuple of int or None
        None stands for a number that depends on the batch. Of `Ragged`, that of its values.
    holds : {"examples", "ragged", "any"}
        What its first axis is: the examples; those of `Ragged`; or something else, of any length.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    holds: str = "examples"

    @property
    def ragged(self) -> bool:
        """Whether it is `Ragged`."""
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
        array = self.cast(array_of(given))
        if array.ndim != len(self.shape) or any(
            expected is not None and size != expected
            for size, expected in zip(array.shape, self.shape, strict=True)
        ):
            raise self._wrong(f"shape {self._shown()}", str(array.shape))
        return array

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
            if array.dtype.name in _WIDE and wanted.name in _WIDE:
                return array.view(wanted)  # as ids, these are the same bits
            limits = np.iinfo(wanted)
            if array.size and not np.can_cast(array.dtype, wanted, "safe"):
                low, high = int(array.min()), int(array.max())
                if low < limits.min or high > limits.max:
                    raise self._wrong(f"numbers that fit {wanted}", f"{low} to {high}")
        elif kinds[1] != "f" or kinds[0] not in "iufb":
            raise self._wrong(f"numbers of {wanted}", str(array.dtype))
        return array.astype(wanted)

    def _shown(self) -> str:
        sizes = ", ".join("batch" if size is None else str(size) for size in self.shape)
        return f"({sizes}{',' if len(self.shape) == 1 else ''})"

    def _wrong(self, expected: str, found: str) -> ConfigurationError:
        return ConfigurationError(f"feed {self.name!r}: expected {expected}, found {found}")


# DenseSources: in which variables of a strategy a model's dense parameters are. Pure.


@dataclass(frozen=True)
class DenseSources:
    """Where dense parameters are on servers: many may lie one after another in a variable.

    Attributes
    ----------
    variables : mapping of str to (int, str)
        How many numbers each variable has, and its dtype.
    parts : mapping of str to (str, int)
        Of each dense parameter, by its name in the model, the variable, and where it begins there.
        What is not there, such as a constant, never changes.
    """

    variables: Mapping[str, tuple[int, str]]
    parts: Mapping[str, tuple[str, int]]

    def of(self, dense: Collection[str]) -> DenseSources:
        """Return those of some dense parameters."""
        parts = {name: each for name, each in self.parts.items() if name in dense}
        used = {variable for variable, _ in parts.values()}
        return DenseSources({n: e for n, e in self.variables.items() if n in used}, parts)

    def described(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    def check(self, dense: Mapping[str, np.ndarray]) -> None:
        """Raise ValueError unless dense parameters may lie so."""
        for name, (variable, start) in self.parts.items():
            require(name in dense, f"there is no dense parameter {name!r:.80}")
            fits = start + dense[name].size <= self.variables[variable][0]
            require(fits, f"{name!r:.80} is beyond the end of {variable!r:.80}")

    def taken(
        self, values: Mapping[str, np.ndarray], dense: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return dense parameters of the shapes and dtypes that they have, from new values."""
        found = dict(dense)
        for name, (variable, start) in self.parts.items():
            old = dense[name]
            part = values[variable][start : start + old.size]
            found[name] = part.reshape(old.shape).astype(old.dtype)
        return found


def read_sources(given: Any) -> DenseSources:
    """Return what `DenseSources.described` returned, or raise ValueError."""
    require(isinstance(given, dict), "its sources are no JSON object")
    keys("its sources", given, {"variables", "parts"})
    variables, parts = given["variables"], given["parts"]
    require(isinstance(variables, dict) and isinstance(parts, dict), "its sources are no objects")
    for name, each in variables.items():
        good = isinstance(each, list) and len(each) == 2
        good = good and is_integer(each[0]) and each[0] >= 0 and each[1] in ("float32", "float64")
        require(good, f"variable {name!r:.80} is {each!r:.80}")
    for name, each in parts.items():
        good = isinstance(each, list) and len(each) == 2 and isinstance(each[0], str)
        good = good and each[0] in variables and is_integer(each[1]) and each[1] >= 0
        require(good, f"the source of {name!r:.80} is {each!r:.80}")
    return DenseSources(
        {name: tuple(each) for name, each in variables.items()},
        {name: tuple(each) for name, each in parts.items()},
    )


# Exported: what a framework gives to be written, and what it makes of that when it is loaded.
#
# A framework has two small parts. One makes an `Exported` of a model (`Exportable.to_export`). The
# other is a room ``psnb._src.<framework>_programs``: without Dask, its ``load(manifest, programs,
# dense, tables)`` makes a `Computation` of what was written, or raises ValueError.


class RowPiece(NamedTuple):
    """Some rows of a table.

    Attributes
    ----------
    ids : numpy.ndarray
        uint64 ``(n,)``, distinct over all pieces; ascending from 0 if the table has fixed rows.
    rows : numpy.ndarray
        ``(n, dim)``.
    scores : numpy.ndarray or None
        How much each row is used, if that is recorded.
    """

    ids: np.ndarray
    rows: np.ndarray
    scores: np.ndarray | None = None


@dataclass(frozen=True)
class TableSource(ExportedTable):
    """A table whose rows are to be written.

    Attributes
    ----------
    scored : bool
        Whether pieces have scores.
    pieces : callable
        Fetches the rows, piece by piece.
    """

    scored: bool
    pieces: Callable[[], Iterator[RowPiece]]


class Fetch(NamedTuple):
    """One of the arrays that a model returns; None stands for a size that depends on the batch."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Exported:
    """What is written of a model.

    Attributes
    ----------
    framework : str
        Which room loads it.
    feeds : sequence of ModelFeed
        What it needs of a batch.
    fetches : sequence of Fetch
        What it returns.
    outputs : object
        The structure of what it returns, with numbers in place of ``fetches``; see `nested`.
    dense : mapping of str to numpy.ndarray
        Its dense parameters.
    tables : mapping of str to TableSource
        Its tables.
    programs : mapping of str to bytes
        Its computation, in files by name.
    detail : mapping
        What else the framework needs; as JSON can hold it.
    written_with : mapping of str to str
        The versions of libraries.
    sources : DenseSources
        Where dense parameters are on the servers.
    """

    framework: str
    feeds: Sequence[ModelFeed]
    fetches: Sequence[Fetch]
    outputs: Any
    dense: Mapping[str, np.ndarray]
    tables: Mapping[str, TableSource]
    programs: Mapping[str, bytes]
    detail: Mapping[str, Any]
    written_with: Mapping[str, str]
    sources: DenseSources


class Computation(Protocol):
    """A computation that was loaded."""

    def __call__(
        self, feeds: Mapping[str, np.ndarray | Ragged], tables: Mapping[str, StoredTable]
    ) -> Sequence[np.ndarray]:
        """Return the arrays of all fetches. Thread-safe."""

    def with_dense(self, dense: Mapping[str, np.ndarray]) -> Computation:
        """Return the same with other dense parameters, of the same shapes and dtypes."""


FORMAT = 2
MANIFEST = "manifest.json"
DENSE = "dense.safetensors"
FRAMEWORKS = ("jax", "torch")

_FILE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}", re.ASCII)
_MOST = 1 << 48
"""No size is larger."""


@dataclass(frozen=True)
class TableEntry(ExportedTable):
    """A table in a manifest.

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

    count: int
    stored: str
    left_out: int
    error: Mapping[str, float]

    def described(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        first = {"initializer": self.initializer.describe(), "admission": self.admission.describe()}
        return {**vars(self), "dtype": self.dtype.name, **first}


class Follows(NamedTuple):
    """Where checkpoints of the run appear, and the number of the newest before the export."""

    directory: str
    after: int


@dataclass(frozen=True)
class ModelManifest:
    """A manifest that was read; see `Exported` and `psnb.export` for what its parts mean."""

    framework: str
    feeds: tuple[ModelFeed, ...]
    fetches: tuple[Fetch, ...]
    outputs: Any
    tables: tuple[TableEntry, ...]
    programs: tuple[str, ...]
    detail: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]
    metadata: Mapping[str, Any]
    written_with: Mapping[str, str]
    sources: DenseSources
    follows: Follows | None


def read_model_manifest(path: Path) -> ModelManifest:
    """Read the manifest of a folder.

    Raises
    ------
    OSError, ValueError, RecursionError
        If it is not there, is damaged, or says what cannot be.
    """
    if not stat.S_ISREG((path / MANIFEST).lstat().st_mode):
        raise OSError("its manifest is not a regular file")
    content = read_sealed(path / MANIFEST, FORMAT)
    keys("its manifest", content, set(ModelManifest.__annotations__))
    require(content["framework"] in FRAMEWORKS, f"its framework is {content['framework']!r:.80}")
    for name, kind in (("feeds", list), ("fetches", list), ("tables", list), ("programs", list)):
        require(isinstance(content[name], kind), f"its {name} are no list")
    for name in ("detail", "files", "metadata", "written_with"):
        require(isinstance(content[name], dict), f"its {name} are no JSON object")
    files = {name: _size_and_sum(name, each) for name, each in content["files"].items()}
    programs = content["programs"]
    require(
        all(isinstance(each, str) and each in files for each in programs),
        "one of its programs is no file of it",
    )
    feeds, tables = [_feed(each) for each in content["feeds"]], list(map(_table, content["tables"]))
    for what, names in (
        ("feeds", [feed.name for feed in feeds]),
        ("tables", [table.name for table in tables]),
    ):
        require(len(set(names)) == len(names), f"two of its {what} have one name")
    return ModelManifest(
        content["framework"],
        tuple(feeds),
        tuple(_fetch(each) for each in content["fetches"]),
        content["outputs"],
        tuple(tables),
        tuple(programs),
        content["detail"],
        files,
        content["metadata"],
        content["written_with"],
        read_sources(content["sources"]),
        _follows(content["follows"]),
    )


def check_file(path: Path, name: str, expected: tuple[int, str]) -> None:
    """Check the size and checksum of a file.

    Raises
    ------
    OSError
        If it is not there, or is another one.
    """
    found = (path / name).lstat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is not a regular file, but a link or a device")
    size, sum_ = expected
    if found.st_size != size:
        raise OSError(f"it has {found.st_size} bytes, expected {size}")
    if (own := checksum(path / name)) != sum_:
        raise OSError(f"its checksum is {own}, expected {sum_:.16}")


def _size_and_sum(name: str, given: Any) -> tuple[int, str]:
    require(
        _FILE.fullmatch(name) is not None and name != MANIFEST,
        f"{name!r:.80} is no file of a model",
    )
    _object(f"file {name}", given, {"bytes", "xxh3"})
    require(_is_size(given["bytes"]), f"the size of {name} is {given['bytes']!r:.80}")
    require(isinstance(given["xxh3"], str), f"the checksum of {name} is {given['xxh3']!r:.80}")
    return given["bytes"], given["xxh3"]


def _feed(given: Any) -> ModelFeed:
    _object("a feed", given, set(ModelFeed._fields))
    feed = ModelFeed(given["name"], given["dtype"], _shape(given["shape"]), given["holds"])
    require(isinstance(feed.name, str), f"the name of a feed is {feed.name!r:.80}")
    _check_dtype(f"feed {feed.name!r:.80}", feed.dtype)
    good = feed.holds in ("examples", "ragged", "any")
    require(good, f"feed {feed.name!r:.80} holds {feed.holds!r:.80}")
    require(not feed.ragged or bool(feed.shape), f"feed {feed.name!r:.80} has no axis")
    return feed


def _fetch(given: Any) -> Fetch:
    _object("a fetch", given, set(Fetch._fields))
    require(isinstance(given["name"], str), f"the name of a fetch is {given['name']!r:.80}")
    if given["dtype"] != "bfloat16":
        _check_dtype(f"fetch {given['name']!r:.80}", given["dtype"])
    return Fetch(given["name"], given["dtype"], _shape(given["shape"]))


def _table(given: Any) -> TableEntry:
    _object("a table", given, {each.name for each in fields(TableEntry)})
    name = given["name"]
    require(isinstance(name, str), f"the name of a table is {name!r:.80}")
    for each, optional in (("dim", False), ("count", False), ("left_out", False), ("rows", True)):
        value = given[each]
        good = _is_size(value) or (optional and value is None)
        require(good, f"table {name!r:.80}: {each} is {value!r:.80}")
    require(given["dim"] > 0, f"table {name!r:.80} has no columns")
    for each in ("seed", "padding_idx"):
        value = given[each]
        good = is_integer(value) and 0 <= value < 1 << 64
        good = good or (each == "padding_idx" and value is None)
        require(good, f"table {name!r:.80}: {each} is {value!r:.80}")
    require(given["rows"] in (None, given["count"]), f"table {name!r:.80} lacks rows")
    require(given["dtype"] in ("float32", "float64"), f"table {name!r:.80}: {given['dtype']!r:.80}")
    require(given["stored"] in STORED, f"table {name!r:.80}: stored as {given['stored']!r:.80}")
    error = given["error"]
    _object(f"the error of table {name!r:.80}", error, {"max", "rms"})
    for value in error.values():
        good = isinstance(value, float | int) and math.isfinite(value)
        require(good, f"the error of table {name!r:.80} is {value!r:.80}")
    # These check their values: a ConfigurationError is a ValueError.
    first = made(f"table {name!r:.80}: initializer", given["initializer"], INITIALIZERS)
    admission = made(f"table {name!r:.80}: admission", given["admission"], ADMISSIONS)
    known = {"dtype": np.dtype(given["dtype"]), "initializer": first, "admission": admission}
    return TableEntry(**{**given, **known})


def _follows(given: Any) -> Follows | None:
    if given is None:
        return None
    _object("what it follows", given, set(Follows._fields))
    directory, after = given["directory"], given["after"]
    require(isinstance(directory, str) and bool(directory), f"it follows {directory!r:.80}")
    require(_is_size(after), f"it follows what comes after {after!r:.80}")
    return Follows(directory, after)


def _shape(given: Any) -> tuple[int | None, ...]:
    require(isinstance(given, list) and len(given) <= 32, f"a shape is {given!r:.80}")
    for size in given:
        require(size is None or _is_size(size), f"a shape is {given!r:.80}")
    return tuple(given)


def _check_dtype(what: str, given: Any) -> None:
    good = isinstance(given, str) and given in _DTYPES
    require(good, f"{what}: its dtype is {given!r:.80}")


_DTYPES = {np.dtype(kind).name for kind in "?bhilqBHILQefd"}


def _is_size(given: Any) -> bool:
    return is_integer(given) and 0 <= given <= _MOST


def _object(what: str, given: Any, expected: set[str]) -> None:
    require(isinstance(given, dict), f"{what} is no JSON object")
    keys(what, given, expected)
