"""What servers write and read by themselves: `TableSnapshots` of one moment, and `FileWorkers`.

Only where to write, how far they are and the outcome go between notebook and servers. Servers are
polled, rather than answering once all is done: views show their progress, an answer shows that a
server lives and makes progress, and a question that the notebook is still there. An answer that is
held back would need a timer in the server for each of these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.requests import Request
from psnb._src.client.server_client import ServerClient
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.placement.layout import ServerAddress
from psnb._src.server import operations as ops
from psnb._src.server.tables.saved_files import FilePart
from psnb.errors import CheckpointError, PsnbError, ServerLostError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.2
"""Seconds between two questions how far servers are."""


def pauses() -> Callable[[], None]:
    """Return a function that sleeps, each time a little longer."""
    pause = _FIRST_PAUSE

    def sleep() -> None:
        nonlocal pause
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_PAUSE)

    return sleep


class FileWorkers:
    """Servers that work on files, under one key.

    One thread's.

    Parameters
    ----------
    server_client : ServerClient
        The client of the servers.
    key : str
        The folder that they write, or the key of a restore.
    what : str
        What they do, for messages.
    longest_stop : float
        Seconds in which some server must have made progress.

    Attributes
    ----------
    there : dict of ServerAddress
        Those that have begun, and are not gone.
    """

    def __init__(
        self, server_client: ServerClient, key: str, what: str, longest_stop: float = 600.0
    ) -> None:
        self._client, self._key, self._what = server_client, key, what
        self._longest_stop = longest_stop
        self.there: dict[ServerAddress, None] = {}

    def run(
        self,
        operations: Mapping[ServerAddress, ops.HostOperation],
        on_progress: Callable[[int], object] = bool,
        *,
        spare: bool = False,
    ) -> dict[ServerAddress, Any]:
        """Have servers do something, wait for that, and return the result of each.

        Parameters
        ----------
        operations : mapping
            What each is to do.
        on_progress : callable
            Called with the bytes that all have done.
        spare : bool
            Whether it can be done without a server: then one that fails has no result. Else its
            error is raised at once.

        Raises
        ------
        CheckpointError
            If all that are still at work stand still; or what a server raises.
        ServerLostError
            If a server is gone.
        """
        done: dict[ServerAddress, Any] = {}
        begun = self._ask(operations, spare=spare)
        nbytes = dict.fromkeys(begun, 0)
        asked, sleep, changed = list(begun), pauses(), time.monotonic()
        while asked:
            sleep()
            before = sum(nbytes.values())
            found = self._ask(dict.fromkeys(asked, ops.AskFileWork(self._key)), spare=spare)
            asked = []
            for server, progress in found.items():
                nbytes[server] = progress.nbytes
                if progress.result is None:
                    asked.append(server)
                else:
                    done[server] = progress.result
            on_progress(sum(nbytes.values()))
            if sum(nbytes.values()) > before:
                changed = time.monotonic()
            elif time.monotonic() - changed > self._longest_stop:
                if spare:
                    break
                raise CheckpointError(
                    f"{', '.join(each.name for each in asked)} {self._what} for "
                    f"{self._longest_stop:g} s. Is its disk or network at rest, or that of an "
                    "earlier checkpoint? A process writes one after the other"
                )
        return done

    def end(self) -> None:
        """Have servers forget it; idempotent."""
        there, self.there = self.there, {}
        self._client.attempt([Request(each, ops.EndFileWork(self._key)) for each in there])

    def _ask(
        self, operations: Mapping[ServerAddress, ops.HostOperation], *, spare: bool
    ) -> dict[ServerAddress, Any]:
        """Return the answers of servers, or raise an error of one; forget those that are gone."""
        requests = [Request(server, operation) for server, operation in operations.items()]
        answers = dict(zip(operations, self._client.attempt(requests), strict=True))
        # Only those that have answered: an interrupt while others are unresponsive would wait for
        # these in `end`. They forget it by themselves: a save in minutes, a restore in an hour.
        for server, answer in answers.items():
            if isinstance(answer, ServerLostError):
                self.there.pop(server, None)
            else:
                self.there[server] = None
        errors = {server: each for server, each in answers.items() if isinstance(each, PsnbError)}
        if errors and not spare:
            raise next(iter(errors.values()))
        return {server: each for server, each in answers.items() if server not in errors}


_LONGEST_PREPARATION = 2.0
"""Seconds to wait for memory, of which servers make a gigabyte ready in about half a second: a
server that was asked to end has little time to save. They continue with it meanwhile."""


def prepare_snapshots(server_client: ServerClient, servers: Iterable[ServerAddress]) -> None:
    """Wait until servers have memory ready for snapshots, so that nothing else waits for it later.

    A server that is lost or unresponsive is not waited for: the snapshot will show it.
    """
    asked, sleep, until = list(servers), pauses(), time.monotonic() + _LONGEST_PREPARATION
    while asked and time.monotonic() < until:
        answers = server_client.attempt([Request(each, ops.PrepareSnapshots()) for each in asked])
        asked = [each for each, ready in zip(asked, answers, strict=True) if ready is False]
        if asked:
            sleep()


class TableSnapshots:
    """Snapshots of all shards of some parameters; taken when it is made, all at one moment.

    One thread's.

    Parameters
    ----------
    server_client : ServerClient
        The client of the servers.
    parameters : mapping of str to DenseShards or SparseShards
        The parameters, by name.
    servers : callable
        Returns all servers.
    since : mapping of tuple to str, optional
        By name and number of a shard, the mark of an earlier snapshot: only changes since then are
        wanted, if they are known. Servers track changes from the first time on.
    longest_stop : float
        Seconds in which some server must have written something.

    Attributes
    ----------
    parameters : mapping of str to DenseShards or SparseShards
        As given.
    taken : mapping of tuple to SnapshotHeader
        What there is of each shard, by name and number.
    """

    def __init__(
        self,
        server_client: ServerClient,
        parameters: Mapping[str, DenseShards | SparseShards],
        servers: Callable[[], Iterable[ServerAddress]],
        since: Mapping[tuple[str, int], str] | None = None,
        longest_stop: float = 600.0,
    ) -> None:
        self._client, self._servers = server_client, servers
        self._longest_stop = longest_stop
        self.parameters = parameters
        self._tables = {
            (each, number): table
            for each, parameter in parameters.items()
            for number, table in enumerate(parameter.tables)
        }
        marks = {each: None if since is None else since.get(each, "") for each in self._tables}
        headers = server_client.call(
            [
                Request(shard, ops.TakeSnapshot(name, marks[each]))
                for each, (shard, name) in self._tables.items()
            ]
        )
        self.taken: dict[tuple[str, int], ops.SnapshotHeader] = dict(
            zip(self._tables, headers, strict=True)
        )
        self._open = {each: taken for each, taken in self.taken.items() if not taken.nothing}

    def write(
        self,
        folder: str,
        file_name: Callable[[int, str], str],
        on_progress: Callable[[float], object],
    ) -> dict[str, dict[tuple[str, int], FilePart]]:
        """Let the servers write all of them, each its own, and wait for that.

        Parameters
        ----------
        folder : str
            Where to; nothing else writes there.
        file_name : callable
            Returns the name of a server's file, by a number of the server and what is in it:
            ``"variables"`` or ``"tables"``.
        on_progress : callable
            Called with the share that is written, 0 to 1.

        Returns
        -------
        dict of str to dict of tuple to FilePart
            By what people call a server, what it has written of each shard, in the order of a file.

        Raises
        ------
        CheckpointError
            If a server cannot write.
        ServerLostError
            If a server is gone.
        """
        servers = {each.key: each for each in self._servers()}
        files: dict[ServerAddress, dict[str, list[str]]] = {}
        shards: dict[str, tuple[str, int]] = {}
        for each, header in self._open.items():
            key = header.snapshot.rpartition("/")[0]  # its server; the shard may have moved since
            if key not in servers:
                raise ServerLostError(f"a server has ended while it was to be saved: {key}")
            own = files.setdefault(servers[key], {})
            kind = "tables" if "ids" in header.form else "variables"
            name = file_name([*files].index(servers[key]), kind)
            own.setdefault(name, []).append(header.snapshot)
            shards[header.snapshot] = each
        # The servers release written snapshots, and soon also unused ones.
        headers, self._open = self._open, {}
        most = max(1, sum(each.rows * each.row_nbytes for each in headers.values()))
        stands = f"could write nothing into {folder!r}"
        workers = FileWorkers(self._client, folder, stands, self._longest_stop)
        try:
            found = workers.run(
                {each: ops.WriteTables(folder, own) for each, own in files.items()},
                lambda nbytes: on_progress(min(1.0, nbytes / most)),
            )
        finally:
            workers.end()
        return {
            server.name: {shards[taken]: part for taken, part in written.items()}
            for server, written in found.items()
        }

    def close(self) -> None:
        """Release them, if they were not written; idempotent."""
        taken = [(self._tables[each][0], header) for each, header in self._open.items()]
        self._open = {}
        self._client.attempt([Request(to, ops.ReleaseSnapshot(h.snapshot)) for to, h in taken])
