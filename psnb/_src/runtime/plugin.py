"""The Dask worker plugin that prepares worker processes for psnb, also those that join later.

It registers three handlers on the worker's Dask server: for coordinators (closures), for handles
(parameters), and for other workers (examples of datasets that are shuffled). It does nothing until
somebody calls. Several strategies, also of several notebooks, share it.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Any

from distributed import Worker, WorkerPlugin

from psnb._src.dask_internals import (
    CONNECTION_KEPT,
    Comm,
    add_handler,
    ask_scheduler,
    event_loop,
    pool_of,
    remove_handler,
)
from psnb._src.jupyter_internals import in_notebook
from psnb._src.parameters import (
    CommServerClient,
    add_process_client,
    open_connection,
    remove_process_client,
)
from psnb._src.placement import LAYOUT, LayoutCache
from psnb._src.runtime.mail import HANDLER as MAIL_HANDLER
from psnb._src.runtime.mail import Mail
from psnb._src.runtime.notice import GRACE, hear_notice
from psnb._src.runtime.printed_lines import begin_printing, end_printing
from psnb._src.runtime.session import Session
from psnb._src.runtime.session_messages import HANDLER, SessionOpening
from psnb._src.server import Opening, ParameterServers
from psnb._src.version import own_version


class Runtime(WorkerPlugin):
    """psnb's part of a Dask worker."""

    name = "psnb"
    idempotent = True
    """A second strategy finds it there and leaves the sessions of the first alone."""

    def setup(self, worker: Worker) -> None:
        """Register the handlers; Dask calls this on every worker, before it gets any work."""
        sessions: set[Session] = set()
        directory = LayoutCache(lambda strategy: ask_scheduler(worker, LAYOUT, strategy=strategy))
        server_client = CommServerClient(event_loop(worker), pool_of(worker), directory)

        mail = Mail(worker)
        connecting: set[asyncio.Task[None]] = set()

        async def open_to(address: str, opening: Opening) -> None:
            try:
                broken = partial(_broken, opening)
                opening.opened(await open_connection(pool_of(worker), address, broken))
            except OSError as error:
                opening.broken(error)

        def connect(address: str, opening: Opening) -> None:
            task = asyncio.create_task(open_to(address, opening), name="psnb copy")
            connecting.add(task)
            task.add_done_callback(connecting.discard)

        async def psnb_session(comm: Comm, psnb: str = "", **opening: Any) -> object:
            if psnb != own_version():  # then the opening may be another one, too
                return {"status": "another version", "psnb": own_version()}
            session = Session(worker, comm, server_client, mail, SessionOpening(**opening))
            sessions.add(session)
            try:
                await session.serve()
            finally:
                sessions.discard(session)
            return CONNECTION_KEPT

        self._worker, self._sessions = worker, sessions
        self._leaving: asyncio.Task[None] | None = None
        add_handler(worker, HANDLER, psnb_session)
        add_handler(worker, MAIL_HANDLER, mail.handle)
        self._servers = ParameterServers(worker, connect)
        # Not in the notebook's own process, where a worker may be, too.
        self._own_process = not in_notebook()
        if self._own_process:
            begin_printing()
            # JAX takes the number of its threads from there; other libraries, for which Dask has
            # set it to 1, from here. A second thread of a worker only takes a core from others.
            if (threads := os.environ.get("OMP_NUM_THREADS")) is not None:
                os.environ.setdefault("NPROC", threads)
        self._server_client = server_client
        add_process_client(server_client)
        self._end_hearing = hear_notice(self.leave)

    async def leave(self) -> None:
        """Let the closures that run end, and have servers hand over what they hold.

        Returns when that is done, or has taken too long; a second call waits for the first.
        """
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(), name="psnb leaving")
        await asyncio.shield(self._leaving)

    async def _leave(self) -> None:
        remove_handler(self._worker, HANDLER)
        await asyncio.gather(
            self._servers.leave(GRACE), *(session.drain() for session in self._sessions)
        )

    async def teardown(self, worker: Worker) -> None:
        """Leave, then end all sessions.

        Dask awaits this when the worker closes, for whatever reason, before it closes the
        connections. Retiring by itself waits for Dask's own tasks only.
        """
        self._end_hearing()
        await self.leave()
        for session in list(self._sessions):
            session.close()
        remove_handler(worker, MAIL_HANDLER)
        remove_process_client(self._server_client)
        self._servers.close()
        if self._own_process:
            end_printing()


def _broken(opening: Opening, exchanges: list[Any], error: OSError) -> None:
    opening.broken(error)
