"""Manifest: the list of a checkpoint's content, how it is written and read. Pure.

It is JSON, with a checksum of each part of a file and one of itself: XXH3 with 64 bits, which costs
little more than reading, and misses accidental damage once in 2**64 times. It does not protect
against attacks: an attacker can compute a new checksum. So a valid checksum alone is not trusted;
`psnb._src.checkpoint.shards` and `psnb._src.server.tables.checks` check everything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from psnb._src.server.tables.saved_files import FilePart, PartKey
from psnb._src.utils import sealed_json
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.sealed_json import FormatError, plain_json, read_sealed, require, sealed, typed
from psnb._src.utils.text import shown
from psnb.errors import CheckpointError

FORMAT = 8

MANIFEST = "manifest.json"
"""The file that makes a folder a checkpoint."""

KEPT = "kept"
"""The file that marks a checkpoint as one that stays. It is there from the beginning: otherwise
another manager's save might remove the checkpoint first."""

_FILES = r"(files-[0-9a-f]{32}/)?"
_FILE = _FILES + r"[0-9]{5,9}-(variables|tables)(-(?P<depth>[0-9]{2,9}))?\.bin"
"""The names of servers' files: in the checkpoint's folder, or in one of such a name next to it."""

_DEEPEST = 10**9

ShardParts = Annotated[Sequence[FilePart], Meta(min_length=1)]
"""The parts of a shard: all of it, then what changed, the oldest first."""


class ManifestEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One parameter in a checkpoint.

    Attributes
    ----------
    name : str
        The parameter's name.
    description : mapping
        What must be equal to load it: kind, dtype, shape or dim and rows, optimizer slots.
    optimizer : mapping or None
        Name and hyperparameters at the time of saving, for information.
    shards : sequence of sequence of FilePart
        The parts of each of its shards.
    """

    name: str
    description: Mapping[str, Any]
    optimizer: Mapping[str, Any] | None
    shards: Annotated[Sequence[ShardParts], Meta(min_length=1)]

    @property
    def files(self) -> list[str]:
        """The names of all files that it needs."""
        return [*dict.fromkeys(part.file for shard in self.shards for part in shard)]


class Manifest(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The content of a checkpoint.

    Attributes
    ----------
    metadata : mapping
        The caller's.
    consistent : bool
        Whether no closure ran while it was saved: then it is of one moment in time.
    run : mapping
        psnb's state of the run, for resuming; see `psnb._src.coordinator.settings`.
    depth : int
        On how many earlier checkpoints it builds, whose files it shares; 0 if all are its own.
    prefix : str
        What comes before the names of its own files.
    parameters : sequence of ManifestEntry
        Its parameters.
    """

    metadata: Mapping[str, Any]
    consistent: bool
    run: Mapping[str, Any]
    depth: Annotated[int, Meta(ge=0, lt=_DEEPEST)]
    prefix: Annotated[str, Meta(pattern=rf"\A{_FILES}\Z")]
    parameters: Sequence[ManifestEntry]

    def __post_init__(self) -> None:
        names: set[str] = set()
        parts: set[PartKey] = set()
        for each in self.parameters:
            require(each.name not in names, f"parameter {each.name!r:.80} is there twice")
            names.add(each.name)
            for part in chain.from_iterable(each.shards):
                file, start = part.key
                require(re.fullmatch(_FILE, file) is not None, f"{file!r:.80} is no name of a file")
                require(part.key not in parts, f"what begins at {start} in {file} is there twice")
                parts.add(part.key)

    @property
    def files(self) -> list[str]:
        """The names of all files that it needs."""
        return [*dict.fromkeys(chain.from_iterable(each.files for each in self.parameters))]

    @cached_property
    def entries(self) -> Mapping[str, ManifestEntry]:
        """Its parameters by name."""
        return {each.name: each for each in self.parameters}

    def own(self, file: str) -> bool:
        """Return whether a file was written for this checkpoint, not for one before."""
        match = re.fullmatch(_FILE, file)
        return match is not None and int(match["depth"] or 0) == self.depth

    def text(self) -> str:
        """Return the text that is written.

        Raises
        ------
        ValueError, TypeError
            If JSON cannot hold it.
        CheckpointError
            If it is so large that it would not be read.
        """
        text = sealed(msgspec.to_builtins(self), FORMAT)
        if len(text) > sealed_json.MOST_BYTES:
            raise CheckpointError(
                f"a manifest would have {len(text):,} bytes, and is read with "
                f"{sealed_json.MOST_BYTES:,} at most: save less metadata, or have deltas build on "
                "fewer others: full_every="
            )
        return text


def file_name(depth: int, server: int, kind: str) -> str:
    """Return the name of a server's file; no checkpoint that this one builds on has the same."""
    return f"{server:05d}-{kind}{f'-{depth:02d}' if depth else ''}.bin"


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a parameter has otherwise than expected, for people to read."""
    for key, value in expected.items():
        if (other := found.get(key)) != value:
            yield f"expected {key} {value!r:.200}, found {shown(other)}"


def checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what JSON makes of a caller's metadata.

    Raises
    ------
    CheckpointError
        If it is not a mapping, or JSON cannot hold it (for example NaN).
    """
    try:
        require(isinstance(metadata, Mapping), f"expected a mapping, found {shown(metadata)}")
        return dict(plain_json(dict(metadata)))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the metadata of a checkpoint must be a mapping that JSON can hold: {error}"
        ) from error


def read_manifest(path: AnyPath, file: Callable[[str], Path]) -> Manifest:
    """Read the manifest of a checkpoint, of which a function returns the files on this machine.

    Raises
    ------
    CheckpointError
        If it is not a checkpoint, is damaged, or has a version that cannot be read.
    """
    try:
        return typed(read_sealed(file(MANIFEST), FORMAT), Manifest)
    except FormatError as error:
        raise CheckpointError(f"checkpoint {str(path)!r} {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{str(path)!r} is not a checkpoint, or is damaged: {str(error)[:500]}; restore "
            "another one, or copy it again from where it is whole"
        ) from error
