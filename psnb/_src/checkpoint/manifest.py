"""Manifest: the list of a checkpoint's content, how it is written and read. Pure.

It is JSON, with a checksum of each shard's file and one of itself: XXH3 with 64 bits, which costs
little more than reading, and misses accidental damage once in 2**64 times. It does not protect
against attacks: an attacker can compute a new checksum. So a valid checksum alone is not trusted;
`psnb._src.checkpoint.check_files` and `psnb._src.shards` check everything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from psnb._src.checks import is_integer
from psnb._src.excerpt import shown
from psnb._src.remote_path import Place
from psnb._src.sealed_json import FormatError, keys, plain_json, read_sealed, require, sealed
from psnb.errors import CheckpointError

FORMAT = 7

MANIFEST = "manifest.json"
"""The file that makes a folder a checkpoint."""

KEPT = "kept"
"""The file that marks a checkpoint as one that stays. It is there from the beginning: otherwise
another manager's save might remove the checkpoint first."""

_FILES = r"(files-[0-9a-f]{32}/)?"
_PREFIX = re.compile(_FILES, re.ASCII)
_FILE = re.compile(_FILES + r"\d{4,9}-\d{5,9}(-(?P<depth>\d{2,9}))?\.safetensors", re.ASCII)
"""The names of shards' files, which are in the checkpoint's folder, or in one beside it that has
such a name, and nowhere else."""

_DEEPEST = 10**9


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One parameter in a checkpoint.

    Attributes
    ----------
    name : str
        The parameter's name.
    description : mapping
        What must be equal to load it: kind, dtype, shape or dim and rows, optimizer slots.
    optimizer : mapping or None
        Name and hyperparameters at the time of saving, for information.
    shards : sequence of mapping of str to str
        The files of each of its shards, with their checksums: all of it, then what changed, the
        oldest first.
    """

    name: str
    description: Mapping[str, Any]
    optimizer: Mapping[str, Any] | None
    shards: Sequence[Mapping[str, str]]

    @property
    def files(self) -> Mapping[str, str]:
        """All files, with their checksums."""
        return {file: sum_ for shard in self.shards for file, sum_ in shard.items()}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a checkpoint.

    Attributes
    ----------
    entries : mapping of str to ManifestEntry
        Its parameters, by name.
    metadata : mapping
        The caller's.
    consistent : bool
        Whether no closure ran while it was saved: then it is of one moment.
    run : mapping
        What psnb needs to go on with what was saved; see `psnb._src.coordinator.saved_run`.
    depth : int
        On how many earlier ones it builds, whose files it shares; 0 if all are its own.
    prefix : str
        What comes before the names of its own files.
    """

    entries: Mapping[str, ManifestEntry]
    metadata: Mapping[str, Any]
    consistent: bool
    run: Mapping[str, Any]
    depth: int
    prefix: str

    def own(self, file: str) -> bool:
        """Return whether a file was written for this checkpoint, not for one before."""
        match = _FILE.fullmatch(file)
        return match is not None and int(match["depth"] or 0) == self.depth

    def text(self) -> str:
        """Return the text that is written.

        Raises
        ------
        CheckpointError
            If JSON cannot hold it.
        """
        content = {
            "metadata": dict(self.metadata),
            "consistent": self.consistent,
            "run": dict(self.run),
            "depth": self.depth,
            "prefix": self.prefix,
            "parameters": [asdict(entry) for entry in self.entries.values()],
        }
        return sealed(content, FORMAT)


def file_name(parameter: int, shard: int, depth: int) -> str:
    """Return the name of a shard's file, which none of those has that it builds on."""
    return f"{parameter:04d}-{shard:05d}{f'-{depth:02d}' if depth else ''}.safetensors"


def checked_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a caller's metadata, if JSON can hold it.

    Raises
    ------
    CheckpointError
        If it is not a mapping, or JSON cannot hold it (for example NaN).
    """
    try:
        require(isinstance(metadata, Mapping), f"expected a mapping, found {shown(metadata)}")
        plain_json(dict(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the metadata of a checkpoint must be a mapping that JSON can hold: {error}"
        ) from error
    return metadata


def read_manifest(path: Place, file: Callable[[str], Path]) -> Manifest:
    """Read the manifest of a checkpoint, of which a function returns the files on this machine.

    Raises
    ------
    CheckpointError
        If it is not a checkpoint, is damaged, or has a version that cannot be read.
    """
    try:
        return _manifest(read_sealed(file(MANIFEST), FORMAT))
    except FormatError as error:
        raise CheckpointError(f"checkpoint {str(path)!r} {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{str(path)!r} is no checkpoint, or a damaged one: {str(error)[:500]}; restore "
            "another one, or copy it again from where it is whole"
        ) from error


def _manifest(content: dict[str, Any]) -> Manifest:
    names = {"metadata", "consistent", "run", "depth", "prefix", "parameters"}
    keys("its manifest", content, names)
    metadata, run, parameters = content["metadata"], content["run"], content["parameters"]
    consistent, depth, prefix = content["consistent"], content["depth"], content["prefix"]
    require(is_integer(depth) and 0 <= depth < _DEEPEST, f"its depth is {depth!r:.80}")
    require(isinstance(prefix, str), f"its prefix is {prefix!r:.80}")
    require(_PREFIX.fullmatch(prefix) is not None, f"its prefix is {prefix!r:.80}")
    require(isinstance(consistent, bool), f"consistent is {consistent!r:.80}")
    require(isinstance(metadata, dict), "its metadata are no JSON object")
    require(isinstance(run, dict), "what it says of the run is no JSON object")
    require(isinstance(parameters, list), "its parameters are no list")
    entries: dict[str, ManifestEntry] = {}
    files: set[str] = set()
    for each in parameters:
        require(isinstance(each, dict), "one of its parameters is no JSON object")
        keys("one of its parameters", each, {"name", "description", "optimizer", "shards"})
        entry = ManifestEntry(**each)
        name = entry.name
        require(isinstance(name, str), f"the name of a parameter is {name!r:.80}")
        require(name not in entries, f"parameter {name!r:.80} is there twice")
        require(isinstance(entry.description, dict), f"{name!r:.80} is not described")
        optimizer = entry.optimizer
        require(optimizer is None or isinstance(optimizer, dict), f"optimizer of {name!r:.80}")
        require(isinstance(entry.shards, list) and bool(entry.shards), f"{name!r:.80} has no files")
        for shard in entry.shards:
            require(isinstance(shard, dict) and bool(shard), f"a shard of {name!r:.80} has no file")
            for file, sum_ in shard.items():
                require(_FILE.fullmatch(file) is not None, f"{file!r:.80} is no name of a shard")
                require(file not in files, f"shard {file} is there twice")
                require(isinstance(sum_, str), f"the checksum of {file} is {sum_!r:.80}")
                files.add(file)
        entries[name] = entry
    return Manifest(entries, metadata, consistent, run, depth, prefix)
