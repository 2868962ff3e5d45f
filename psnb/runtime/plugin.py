"""The Dask worker plugin that prepares a worker process for psnb, workers that join later too.

It registers three handlers on the worker's Dask server: for coordinators (closures), for handles
(parameters), and for other workers (examples of datasets that are shuffled). It does nothing until
somebody calls, and several strategies, also of several notebooks, share it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from distributed import Worker, WorkerPlugin
from distributed.comm import Comm
from distributed.core import Status

from psnb.parameters import CommTransport, open_connection, set_process_transport
from psnb.placement import Directory
from psnb.runtime.mail import HANDLER as MAIL_HANDLER
from psnb.runtime.mail import Mail
from psnb.runtime.session import HANDLER, Session
from psnb.server import HANDLER as SERVER_HANDLER
from psnb.server import serve


class Runtime(WorkerPlugin):
    """What psnb is on a Dask worker."""

    name = "psnb"
    idempotent = True
    """A second strategy finds it there and leaves the sessions of the first alone."""

    def setup(self, worker: Worker) -> None:
        """Register the handlers; Dask calls this on every worker, before it gets any work."""
        sessions: set[Session] = set()
        directory = Directory(lambda strategy: worker.scheduler.psnb_layout(strategy=strategy))
        transport = CommTransport(worker.loop, worker.rpc, directory)

        mail = Mail(worker)

        async def psnb_session(comm: Comm, **opening: Any) -> Status:
            session = Session(worker, comm, transport, mail, **opening)
            sessions.add(session)
            try:
                await session.serve()
            finally:
                sessions.discard(session)
            return Status.dont_reply

        self._sessions = sessions
        worker.handlers[HANDLER] = psnb_session
        worker.handlers[MAIL_HANDLER] = mail.handle
        serve(worker, partial(open_connection, worker.rpc))
        set_process_transport(transport)

    async def teardown(self, worker: Worker) -> None:
        """Let the closures that are here end, then end all sessions.

        Dask awaits this when the worker closes, however it was asked to, before it takes the
        connections down. Retiring does not wait for anything that is no task of Dask's.
        """
        worker.handlers.pop(HANDLER, None)
        await asyncio.gather(*(session.drain() for session in self._sessions))
        for session in list(self._sessions):
            session.close()
        worker.handlers.pop(MAIL_HANDLER, None)
        worker.handlers.pop(SERVER_HANDLER, None)
