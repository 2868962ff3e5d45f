"""Connecting to a worker, and noticing soon that its process has ended.

Dask tries a refused connection again until the timeout, because the other side may be about to
start. Processes that psnb connects to are not: if one has ended, what it held is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from psnb._src.dask_compat.reach import (
    Comm,
    ConnectionPool,
    has_open_connection,
    host_and_port,
    tls_context,
)

_SLOW = 0.1
"""Seconds after which connecting is slow enough to ask why."""

_HANDSHAKE = 1.0
"""Seconds for the TLS handshake of a connection that only checks whether a process is there."""

_REFUSALS = 3
_PAUSE = 0.05


async def connect(pool: ConnectionPool, address: str, timeout: float) -> Comm:
    """Return a connection from the pool, an open or a new one.

    Raises
    ------
    OSError
        If there is no connection within ``timeout`` seconds or, sooner, if nothing listens there,
        or if the pool is closed.
    """
    try:
        if has_open_connection(pool, address):
            return await pool.connect(address, timeout=timeout)
        connecting = asyncio.ensure_future(pool.connect(address, timeout=timeout))
        context = tls_context(pool)
        try:
            await asyncio.wait({connecting}, timeout=_SLOW)
            if not connecting.done() and await _refused(address, context) and not connecting.done():
                raise ConnectionRefusedError("its process is gone")
            return await connecting
        finally:
            connecting.cancel()  # of no effect when it is done
    except RuntimeError as error:  # what Dask raises if the pool is closed
        raise ConnectionAbortedError(str(error)) from error


async def _refused(address: str, context: ssl.SSLContext | None) -> bool:
    """Return whether an address refuses connections, several times in a row."""
    if not address.startswith(("tcp://", "tls://")):
        return False
    host, port = host_and_port(address)
    for _ in range(_REFUSALS):
        try:
            async with asyncio.timeout(_SLOW):
                _, writer = await asyncio.open_connection(host, port)
        except ConnectionRefusedError:
            await asyncio.sleep(_PAUSE)
        except OSError:  # slow, or unreachable for now
            return False
        else:
            with contextlib.suppress(OSError):
                if context is not None:  # or the other side would log a handshake that failed
                    async with asyncio.timeout(_HANDSHAKE):
                        await writer.start_tls(context)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return False
    return True
