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
import weakref
from collections.abc import Sequence
from typing import Any

from distributed import Worker
from distributed.comm import Comm
from distributed.core import Status

from psnb.arena import Probe, can_see
from psnb.arena import probe as own_probe
from psnb.server import answers
from psnb.server.copy import Connect
from psnb.server.host import Host, Operation, may_compile, to_compile
from psnb.server.reply import Answer, Reply
from psnb.server.tables import TABLES, warm_up
from psnb.stream import MessageStream, message_stream

HANDLER = "psnb_server"
"""The name of the handler on each Dask worker."""


class ParameterServer:
    """Holds shards of a strategy; see `Host`.

    Parameters
    ----------
    name : str
        For messages.
    """

    def __init__(self, name: str) -> None:
        self.host = Host(f"server {name}")
        # Dropped by Dask, on the event loop, it takes its connections to other servers with it.
        weakref.finalize(self, self.host.close).atexit = False


def serve(worker: Worker, connect: Connect) -> None:
    """Let a Dask worker answer requests to the parameter servers that it holds.

    Whoever calls the handler keeps the connection. Then messages come, each ``(number, key,
    operations)``, and an answer goes back for each: ``(number, "OK", answers)``, or ``(number,
    "lost")`` if there is no such server any more: its process was started again at the same
    address, or its strategy was closed. The operations of a message run without others in between.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    connect : callable
        Connects it to another server.
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
                task = begin(stream, await stream.receive())
                if task is not None:
                    making.add(task)
                    task.add_done_callback(making.discard)
        except OSError:  # whoever asked has gone
            return Status.dont_reply
        finally:
            stream.abort()

    def begin(stream: MessageStream, message: Any) -> asyncio.Task[None] | None:
        # In a frame of its own, so that the message is not held while waiting for the next: its
        # memory goes back with the answer.
        number, key, operations = message
        if any(map(may_compile, operations)):
            return asyncio.create_task(compile_and_run(stream, number, key, operations))
        del message
        run(stream, number, key, operations)
        return None

    def run(stream: MessageStream, number: int, key: str, operations: Sequence[Operation]) -> None:
        server = worker.state.actors.get(key)
        if server is None:
            stream.send((number, "lost"))
            return

        def send(found: list[Answer]) -> None:
            stream.send((number, "OK", found))

        with answers.going_to(stream.lend):
            server.host.run(operations, Reply(send), connect)

    async def compile_and_run(
        stream: MessageStream, number: int, key: str, operations: Sequence[Any]
    ) -> None:
        # What cannot be compiled cannot be made either, and there it is said.
        with contextlib.suppress(Exception):
            for operation, arguments in filter(None, map(to_compile, operations)):
                await asyncio.to_thread(warm_up, TABLES[operation], arguments)
        run(stream, number, key, operations)

    worker.handlers[HANDLER] = psnb_server
