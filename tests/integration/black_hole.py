"""BlackHole: a forwarder that stops forwarding, as a cut cable does, until it is mended.

Nothing is closed or refused: bytes that arrive are swallowed, new connections are accepted and
never answered.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CHUNK = 1 << 16


class BlackHole:
    """Forwards connections on this machine to a port, unless it is cut. One thread of its own.

    Parameters
    ----------
    target : int
        The port that it forwards to.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._is_cut = threading.Event()
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._opened: list[socket.socket] = [self._listener]

    def cut(self) -> None:
        """Forward nothing more: what arrives is lost."""
        self._is_cut.set()

    def mend(self) -> None:
        """Forward what arrives from now on."""
        self._is_cut.clear()

    @contextmanager
    def running(self) -> Iterator[BlackHole]:
        """Forward until the block ends."""
        thread = threading.Thread(target=self._run, name="black hole")
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()
            self._selector.close()
            for each in self._opened:
                each.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.1):
                if key.data is None:
                    self._accept()
                else:
                    self._forward(key.fileobj, key.data)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        self._opened.append(near)
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except ConnectionRefusedError:
            near.close()
            return
        self._opened.append(far)
        self._selector.register(near, selectors.EVENT_READ, far)
        self._selector.register(far, selectors.EVENT_READ, near)

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            data = source.recv(_CHUNK)
        except ConnectionError:
            data = b""
        if not data:
            self._selector.unregister(source)
        if self._is_cut.is_set():
            return
        with suppress(OSError):  # the other side has gone: its own end tells ours
            if data:
                sink.sendall(data)
            else:
                sink.shutdown(socket.SHUT_WR)
