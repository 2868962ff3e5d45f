"""RestoredFiles: the files of a checkpoint that is restored, where servers read them, or here.

First all that is to be restored is checked, each shard once: by the server that has the shard of
this number now, or another one, or by this process if none can. Before anything is changed, each
server checks, too, what it will read: another host may have other files by the same names. What it
cannot read, this process reads and sends.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from psnb._src.checkpoint.manifest import ManifestEntry
from psnb._src.checkpoint.shards import CheckpointReader
from psnb._src.client.requests import Request
from psnb._src.client.server_client import ServerClient
from psnb._src.client.snapshots import FileWorkers
from psnb._src.client.whole_tables import (
    SavedPart,
    SavedState,
    TableLoad,
    load_tables,
    loading,
)
from psnb._src.placement.layout import ServerAddress
from psnb._src.server.operations import AskFileWork, CheckedParts, CheckFiles, SavedParts
from psnb._src.server.tables.checks import Form
from psnb._src.server.tables.operations import SEGMENT
from psnb._src.server.tables.saved_files import FilePart, PartKey, SealedPart

if TYPE_CHECKING:
    from psnb._src.client.dense_shards import DenseShards
    from psnb._src.client.sparse_shards import SparseShards

_TOUCHED = 30.0
"""Seconds between two messages that show the servers that the notebook is there."""

_Shard = tuple[str, int]
_Server = tuple[ServerClient, ServerAddress]


class RestoredFiles:
    """The files of the parameters to restore.

    One thread's.

    Parameters
    ----------
    reader : CheckpointReader
        The checkpoint.
    parts : mapping of str to tuple
        By name, each parameter's entry in the checkpoint, and the parameter.
    """

    def __init__(
        self,
        reader: CheckpointReader,
        parts: Mapping[str, tuple[ManifestEntry, DenseShards | SparseShards]],
    ) -> None:
        self._reader, self._parts = reader, parts
        self._key = uuid.uuid4().hex
        self._touched = 0.0
        self._found: dict[_Shard, CheckedParts] = {}
        self._here: dict[PartKey, _PartHere] = {}
        self._there: dict[_Shard, list[FilePart]] = {}  # by their addresses
        for name, (entry, _) in parts.items():
            for number, shard in enumerate(entry.shards):
                self._there[name, number] = []
                for part in shard:
                    there = msgspec.structs.replace(part, file=str(reader.stored.place(part.file)))
                    self._there[name, number].append(there)
                    self._here[there.key] = _PartHere(reader, entry, part)
        stands = "could read nothing of a checkpoint"
        self._workers = {
            each: FileWorkers(each, self._key, stands)
            for each in {parameter.server_client for _, parameter in parts.values()}
        }

    def check(self) -> None:
        """Check all files.

        Raises
        ------
        CheckpointError
            If one is missing or damaged, or does not fit.
        """
        try:
            asked: dict[_Server, list[_Shard]] = {}
            for name, (entry, parameter) in self._parts.items():
                tables, client = parameter.tables, parameter.server_client
                for number, _ in enumerate(entry.shards):
                    server = client.server_of(tables[number % len(tables)][0])
                    if server is not None:
                        asked.setdefault((client, server), []).append((name, number))
            answered = self._ask(asked)
            # Shards of servers that are lost: by others.
            left = [each for server in asked.keys() - answered for each in asked[server]]
            self._ask({each: left[at :: len(answered)] for at, each in enumerate(answered) if left})
            for name, (entry, parameter) in self._parts.items():
                form, owners = parameter.saved_form, len(parameter.tables)
                for number, _ in enumerate(entry.shards):
                    if (name, number) not in self._found:
                        found = self._reader.checked(entry, number, form, owners)
                        self._found[name, number] = found
        except BaseException:  # an interrupt, too
            self._end()
            raise

    def loading(self, only: Collection[int] | None) -> Iterator[list[str]]:
        """Load all parameters; yield which of them come next, before they are changed.

        Whatever can be refused is, before the first are. Small variables come together.

        Parameters
        ----------
        only : collection of int or None
            The shards to load; None for all.
        """
        with ExitStack() as stack:
            stack.callback(self._end)
            loads = {
                name: parameter.loads(self._states(name), only)
                for name, (_, parameter) in self._parts.items()
            }
            self._open(loads)
            for client, names in self._by_client(loads).items():
                every = [load for name in names for load in loads[name]]
                stack.enter_context(loading(client, every))
            self._touched = time.monotonic()
            for group in _groups(loads):
                yield group
                for client, names in self._by_client(group).items():
                    together = [load for name in names for load in loads[name]]
                    load_tables(client, together, self._touch)

    def _by_client(self, names: Iterable[str]) -> dict[ServerClient, list[str]]:
        found: dict[ServerClient, list[str]] = {}
        for name in names:
            found.setdefault(self._parts[name][1].server_client, []).append(name)
        return found

    def _touch(self) -> None:
        """Tell servers, now and then, that the notebook is still there."""
        if time.monotonic() - self._touched > _TOUCHED:
            self._touched = time.monotonic()
            for client, workers in self._workers.items():
                asked = [Request(each, AskFileWork(self._key)) for each in workers.there]
                client.attempt(asked)

    def _ask(self, asked: Mapping[_Server, list[_Shard]]) -> set[_Server]:
        """Have servers check shards; return those that answered."""
        answers = self._run(
            {server: [self._saved(*each) for each in shards] for server, shards in asked.items()}
        )
        for server, found in answers.items():
            for shard, each in zip(asked[server], found, strict=True):
                if isinstance(each, CheckedParts):
                    self._found[shard] = each
        return {*answers}

    def _run(self, asked: Mapping[_Server, list[SavedParts]]) -> dict[_Server, Any]:
        answers: dict[_Server, Any] = {}
        for client, workers in self._workers.items():
            checks = {
                server: CheckFiles(self._key, parts)
                for (by, server), parts in asked.items()
                if by is client
            }
            found = workers.run(checks, spare=True)
            answers |= {(client, server): each for server, each in found.items()}
        return answers

    def _saved(self, name: str, number: int) -> SavedParts:
        entry, parameter = self._parts[name]
        form, owners = parameter.saved_form, len(parameter.tables)
        there = self._there[name, number]
        return SavedParts(form, number, len(entry.shards), there, owners)

    def _states(self, name: str) -> list[SavedState]:
        states = []
        for number, _ in enumerate(self._parts[name][0].shards):
            found = self._found[name, number]
            parts = [
                SavedPart(self._here[part.key], count, removed, self._key, part)
                for part, count, removed in zip(
                    self._there[name, number], found.counts, found.removed, strict=True
                )
            ]
            states.append(SavedState(parts, found.rows, found.step, found.minutes, found.updates))
        return states

    def _open(self, loads: Mapping[str, list[TableLoad]]) -> None:
        """Have each server check what it will read, and check here what must be read here."""
        servers: dict[TableLoad, _Server | None] = {}
        for name, (_, parameter) in self._parts.items():
            client = parameter.server_client
            for load in loads[name]:
                at = client.server_of(load.table[0])
                servers[load] = None if at is None else (client, at)
        wanted: dict[_Server, dict[PartKey, FilePart]] = {}
        for load, server in servers.items():
            if server is not None:
                wanted.setdefault(server, {}).update(load.saved())
        alone = {
            server: [SavedParts(None, 0, 0, [each], 0) for each in parts.values()]
            for server, parts in wanted.items()
        }
        read: dict[_Server | None, set[PartKey]] = {
            server: {key for key, each in zip(wanted[server], found, strict=True) if each is None}
            for server, found in self._run(alone).items()
        }
        for load, server in servers.items():
            if not load.saved().keys() <= read.get(server, set()):
                load.reads = False
                for key in load.saved():
                    self._here[key].open()

    def _end(self) -> None:
        for each in self._workers.values():
            each.end()


def _groups(loads: Mapping[str, Sequence[TableLoad]]) -> Iterator[list[str]]:
    """Yield the names of what is loaded together: a table, or variables of no more than a piece."""
    group: list[str] = []
    size = 0
    for name, each in loads.items():
        nbytes = SEGMENT if any(load.last for load in each) else sum(load.nbytes for load in each)
        if group and size + nbytes > SEGMENT:
            yield group
            group, size = [], 0
        group.append(name)
        size += max(1, nbytes)
    if group:
        yield group


class _PartHere:
    """A part that this process reads when it must."""

    def __init__(self, reader: CheckpointReader, entry: ManifestEntry, part: FilePart) -> None:
        self._reader, self._entry, self._part = reader, entry, part
        self._opened: SealedPart | None = None

    def open(self) -> SealedPart:
        """Return it, with a right checksum; CheckpointError if it is not there."""
        if self._opened is None:
            self._opened = self._reader.part(self._entry, self._part)
        return self._opened

    @property
    def forms(self) -> Mapping[str, Form]:
        """See `SavedArrays`."""
        return self.open().forms

    def read(
        self, name: str, start: int = 0, stop: int | None = None, *, flat: bool = False
    ) -> np.ndarray:
        """See `SavedArrays`."""
        with self._reader.refusing(self._part, self._entry):
            return self.open().read(name, start, stop, flat=flat)
