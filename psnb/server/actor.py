"""The Dask actor that is a parameter server, and the handler through which everybody reaches it.

Dask places the actor, keeps it alive and drops it with its client; that is all it does. Calls do
not go through Dask's actor methods, which can hang when a worker dies and take three times as long,
but through one handler on the worker's Dask server, ``psnb_server``, which finds the actor by key.

Threads: one. Operations run where they arrive, on the worker's event loop, one after the other, so
no table needs a lock and every operation is atomic. (A thread of its own for them costs 0.3 ms a
call, as much as the way there and back.) But what a new table needs compiled is compiled in another
thread before it is made.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from distributed import Worker
from distributed.comm import Comm
from distributed.core import Status
from distributed.protocol.pickle import loads

from psnb.arena import Probe, can_see
from psnb.arena import probe as own_probe
from psnb.errors import ConfigurationError, InternalError, PsnbError
from psnb.server import answers
from psnb.server.commits import CommitLog
from psnb.server.tables import DenseTable, SparseTable, Table, warm_up
from psnb.stream import MessageStream, message_stream

_TABLES: Mapping[str, type[Table]] = {"create_dense": DenseTable, "create_sparse": SparseTable}
"""The operations that make a table, and of what kind."""

HANDLER = "psnb_server"
"""The name of the handler on each Dask worker."""


class ParameterServer:
    """Holds tables and runs operations on them, one at a time.

    Parameters
    ----------
    name : str
        For messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tables: dict[str, Table] = {}
        self._log = CommitLog()

    def call(self, table: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Run one operation; on the event loop only.

        Parameters
        ----------
        table : str
            A table's name; empty for operations of the server itself.
        operation : str
            One of the table's, or ``create_dense``, ``create_sparse``, ``drop``, ``commit``,
            ``read_many``, ``write_many``, ``statistics``.
        arguments : mapping of str to Any
            Its keyword arguments.
        """
        if not table:
            match operation:
                case "create_dense" | "create_sparse":
                    return self._create(_TABLES[operation](**arguments), arguments["name"])
                case "drop":
                    return self._tables.pop(arguments["name"], None) and None
                case "commit":
                    return self._commit(**arguments)
                case "read_many" | "write_many":
                    return self._run_many(**arguments)
                case "statistics":
                    return {name: held.nbytes() for name, held in self._tables.items()}
            raise InternalError(f"server {self.name} has no operation {operation!r}")
        held = self._held(table)
        return held.call(operation, arguments)

    def _commit(
        self,
        coordinator: str,
        closure: int,
        settled_below: int,
        writes: Sequence[tuple[str, str, Mapping[str, Any]]],
    ) -> None:
        tables = [self._held(name) for name, _, _ in writes]
        if self._log.enter(coordinator, closure, settled_below):
            for table, (_, operation, arguments) in zip(tables, writes, strict=True):
                table.write(operation, arguments)

    def _run_many(self, operations: Sequence[tuple[str, str, Mapping[str, Any]]]) -> list[Any]:
        tables = [self._held(name) for name, _, _ in operations]  # none is run unless all can be
        return [
            table.call(operation, arguments)
            for table, (_, operation, arguments) in zip(tables, operations, strict=True)
        ]

    def _held(self, name: str) -> Table:
        held = self._tables.get(name)
        if held is None:
            raise ConfigurationError(f"server {self.name} holds no {name!r}: it was dropped")
        return held

    def _create(self, table: Table, name: str) -> None:
        if name in self._tables:
            raise InternalError(f"server {self.name} holds a table {name!r} already")
        self._tables[name] = table


def serve(worker: Worker) -> None:
    """Let a Dask worker answer requests to the parameter servers that it holds.

    Whoever calls the handler keeps the connection. Then messages come, each ``(number, key, table,
    operation, arguments)``, and an answer goes back for each: ``(number, "OK", result)``,
    ``(number, "error", exception)``, or ``(number, "lost")`` if there is no such server any more:
    its process was started again at the same address, or its strategy was closed.
    """

    async def psnb_server(comm: Comm, probe: Probe | None) -> Status:
        sees = can_see(probe)
        await comm.write({"status": "OK", "probe": own_probe(), "sees": sees})
        stream = message_stream(comm)
        making: set[asyncio.Task[None]] = set()
        try:
            seen = await stream.receive()
            if probe is not None and sees:
                stream.share(probe[0], seen=seen)
            while True:
                task = run(stream, await stream.receive())
                if task is not None:
                    making.add(task)
                    task.add_done_callback(making.discard)
        except OSError:  # whoever asked has gone
            return Status.dont_reply
        finally:
            stream.abort()

    def run(stream: MessageStream, message: Any) -> asyncio.Task[None] | None:
        number, key, table, operation, arguments = message
        if operation in _TABLES:
            return asyncio.create_task(make(stream, number, key, table, operation, arguments))
        with answers.going_to(stream.lend):
            result = answer(key, table, operation, arguments)
        del message, arguments  # their memory goes back with the answer
        stream.send((number, *result))
        return None

    def answer(key: str, table: str, operation: str, arguments: Any) -> tuple[Any, ...]:
        server = worker.state.actors.get(key)
        if server is None:
            return ("lost",)
        try:
            return "OK", server.call(table, operation, _plain(arguments))
        except PsnbError as error:
            return "error", error
        except Exception as error:  # a bug of ours must reach its caller, not only the log
            text = f"{operation} of {table!r} on server {server.name}: {error!r}"
            return "error", InternalError(text)

    async def make(
        stream: MessageStream, number: int, key: str, table: str, operation: str, arguments: Any
    ) -> None:
        # What cannot be compiled cannot be made either, and there it is said.
        with contextlib.suppress(Exception):
            await asyncio.to_thread(warm_up, _TABLES[operation], _plain(arguments))
        stream.send((number, *answer(key, table, operation, arguments)))

    worker.handlers[HANDLER] = psnb_server


def _plain(arguments: Any) -> Mapping[str, Any]:
    """Return the arguments of a request, pickled once more if it may hold users' classes."""
    plain: Mapping[str, Any] = loads(arguments) if isinstance(arguments, bytes) else arguments
    return plain
