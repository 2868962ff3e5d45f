"""The Dask worker plugin that prepares worker processes for psnb, also those that join later.

It registers three handlers on the worker's Dask server: for coordinators (closures), for handles
(parameters), and for other workers (examples of datasets that are shuffled). It does nothing until
they are called. Several strategies, also of several notebooks, share it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

from distributed import Worker, WorkerPlugin

from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.connection import open_connection
from psnb._src.client.server_client import add_process_client, remove_process_client
from psnb._src.cluster.links import SHORT_LIMITS, short_limits
from psnb._src.dask_compat.plugins import add_handler, remove_handler
from psnb._src.dask_compat.reach import CONNECTION_KEPT, Comm, ask_scheduler, event_loop, pool_of
from psnb._src.jupyter_compat import in_notebook
from psnb._src.placement.layout_cache import LayoutCache
from psnb._src.placement.registry import LAYOUT, SERVER_KEY
from psnb._src.protocol.messages import HANDLER, SessionOpening
from psnb._src.server.replication import Opening
from psnb._src.server.serving import GRACE, ParameterServers
from psnb._src.utils.threads import start_task
from psnb._src.utils.version import own_version
from psnb._src.worker.mail import HANDLER as MAIL_HANDLER
from psnb._src.worker.mail import PeerMessages
from psnb._src.worker.printing import begin_printing, end_printing
from psnb._src.worker.session import Session

# Notice: SIGTERM, by which a process learns that it will be killed soon.
#
# Kubernetes sends it 30 seconds before SIGKILL, spot machines likewise. A worker without a nanny
# would end immediately, and so would the process of a nanny if it gets the signal itself. (A nanny
# that gets it has its worker closed, and kills it some seconds later: that is `Runtime.teardown`.)
# So psnb has the process leave cleanly first, and then end as it would have.
#
# Threads: Python runs the handler on the main thread, which must be that of the worker's event
# loop; in all other processes, as in a notebook with a worker inside, nothing is heard.


def hear_notice(leave: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Have the process leave before SIGTERM does what it does; return what undoes that.

    To be called on the event loop. A second SIGTERM ends the waiting.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is None:
        return lambda: None
    loop = asyncio.get_running_loop()
    leaving: list[asyncio.Task[None]] = []

    def end_hearing() -> None:
        if signal.getsignal(signal.SIGTERM) is notice:
            signal.signal(signal.SIGTERM, before)

    async def go() -> None:
        try:
            await leave()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def begin() -> None:
        leaving.append(loop.create_task(go(), name="psnb leaving on notice"))

    def notice(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)
        loop.call_soon_threadsafe(begin)

    signal.signal(signal.SIGTERM, notice)
    return end_hearing


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

        mail = PeerMessages(worker)
        connecting: set[asyncio.Task[None]] = set()

        async def open_to(address: str, opening: Opening) -> None:
            try:
                broken = partial(_broken, opening)
                opening.opened(await open_connection(pool_of(worker), address, broken))
            except OSError as error:
                opening.broken(error)

        def connect(address: str, opening: Opening) -> None:
            start_task(open_to(address, opening), connecting, "psnb copy")

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
        add_handler(worker, SHORT_LIMITS, short_limits)
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

    def transition(self, key: object, start: str, finish: str, **more: object) -> None:
        """Begin and end servers with Dask's actors; Dask calls this for each task, on the loop."""
        if isinstance(key, str) and key.startswith(SERVER_KEY):
            if finish == "memory":
                self._servers.begin(key)
            elif finish == "forgotten":
                self._servers.free(key)

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
