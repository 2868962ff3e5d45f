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
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from psnb._src.checks import is_integer
from psnb._src.descriptions import made
from psnb._src.export.dense_sources import DenseSources, read_sources
from psnb._src.export.exported import Fetch
from psnb._src.export.exported_table import ExportedTable
from psnb._src.export.model_feed import ModelFeed
from psnb._src.export.quantization import STORED
from psnb._src.first_rows import ADMISSIONS, INITIALIZERS
from psnb._src.sealed_json import keys, read_sealed, require
from psnb._src.whole_files import checksum

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
        raise OSError("its manifest is no plain file")
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
        raise OSError("it is no plain file, but a link or a device")
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
