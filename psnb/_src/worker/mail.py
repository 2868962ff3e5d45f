"""Mail: messages (bytes) that workers send directly to each other, to a receiver's name.

They go over Dask's own connections between workers. A message is answered when the receiver has
processed it, so a sender is never more than `_UNDER_WAY` messages ahead.

Threads: closure threads send and wait. The worker's event loop does the rest, and runs receivers
in Dask's thread for long work (`offload`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from weakref import WeakValueDictionary

from distributed import Worker

from psnb._src.dask_compat.reach import ask, event_loop, give_back_connection, offload, pool_of
from psnb._src.data.memory.memory import Memory
from psnb._src.transport.connecting import connect
from psnb.errors import WorkerLostError

HANDLER = "psnb_mail"
"""The name of the handler on each Dask worker."""

CONNECT_TIMEOUT, SEND_TIMEOUT = 5.0, 60.0
"""Seconds to reach a worker, and for one message to be processed there."""

_UNDER_WAY = 4


class PeerMessages:
    """A worker's mailbox.

    Parameters
    ----------
    worker : distributed.Worker
        The Dask worker.

    Attributes
    ----------
    receivers : mapping of str to Memory
        Take the messages to a name, for as long as they live; in any thread.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._loop = event_loop(worker)
        # A receiver goes with the session that it belongs to.
        self.receivers: WeakValueDictionary[str, Memory] = WeakValueDictionary()

    async def handle(self, name: str, data: bytes) -> bool:
        """Process a message; False if there is no receiver. Called by Dask."""
        receiver = self.receivers.get(name)
        if receiver is None:
            return False
        await offload(receiver.receive, data)
        return True

    def send(self, address: str, name: str, data: bytes) -> Future[bool]:
        """Send a message; the result is whether it was processed. Any thread but the loop's."""
        return asyncio.run_coroutine_threadsafe(self._send(address, name, data), self._loop)

    async def _send(self, address: str, name: str, data: bytes) -> bool:
        pool = pool_of(self.worker)
        comm = await connect(pool, address, CONNECT_TIMEOUT)
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                return bool(await ask(comm, HANDLER, name=name, data=data))
        finally:
            give_back_connection(pool, address, comm)


class Sender:
    """Sends messages, several at a time, and checks that each is processed; for one thread.

    Parameters
    ----------
    mail : PeerMessages
        This worker's mailbox.
    name : str
        The receivers' name.
    """

    def __init__(self, mail: PeerMessages, name: str) -> None:
        self._mail, self._name = mail, name
        self._under_way: deque[tuple[str, Future[bool]]] = deque()

    def send(self, address: str, data: bytes) -> None:
        """Send a message; waits while too many are under way.

        Raises
        ------
        WorkerLostError
            If one before it did not arrive.
        Exception
            What a receiver raised.
        """
        while len(self._under_way) >= _UNDER_WAY:
            self._wait()
        self._under_way.append((address, self._mail.send(address, self._name, data)))

    def settle(self) -> None:
        """Wait until all are processed; raises as `send` does."""
        while self._under_way:
            self._wait()

    def _wait(self) -> None:
        address, future = self._under_way.popleft()
        try:
            taken = future.result(CONNECT_TIMEOUT + 2 * SEND_TIMEOUT)
        except OSError as error:  # a timeout, or a broken connection
            raise WorkerLostError(
                f"the worker at {address} cannot be reached: {error or type(error).__name__}"
            ) from error
        if not taken:
            raise WorkerLostError(
                f"the worker at {address} has none of the dataset: it was started again"
            )
