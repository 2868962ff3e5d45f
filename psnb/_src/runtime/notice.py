"""Notice: SIGTERM, by which a process hears that it will be killed soon.

Kubernetes sends it 30 seconds before SIGKILL, spot machines likewise. A worker without a nanny
would end at once, and so would the process of a nanny if it gets the signal itself. (A nanny that
gets it has its worker closed, and kills it some seconds later: that is `Runtime.teardown`.) So psnb
has the process leave in good order first, and then end as it would have.

Threads: Python runs the handler on the main thread, which must be that of the worker's event loop;
in all other processes, as in a notebook with a worker inside, nothing is heard.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from types import FrameType

GRACE = 25.0
"""Seconds that servers get to hand over what they hold."""


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
