"""Preloaded into the processes of a local cluster: only the notebook is interrupted; they end soon.

A notebook's stop button, like Ctrl-C in a terminal, interrupts the whole process group. Without
this it would end the workers, and the servers with all parameters.

After its worker has closed and its exit handlers have run, a process only tears Python down. There
the garbage collector looks through all objects again and again: with torch or jax and numba
imported that takes seconds on a busy machine, more than Dask waits for before it kills. So it does
so once, and what is left then is not garbage.

A forked process then ends; in one that was spawned modules are still cleared. ``__del__`` is not
called on what is left: on nothing in a forked process, and else not on objects in cycles, which
only the collector would find later. Python promises it for neither; open files among them would
lack their ends, so they are flushed before.
"""

from __future__ import annotations

import atexit
import gc
import io
import signal
from contextlib import suppress

from distributed import Worker

from psnb._src.dask_compat.local import await_heartbeats


def dask_setup(worker: Worker) -> None:
    """Dask calls this in the process's main thread when the worker starts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit.register(_collect_once)  # atexit runs last-in-first-out: this runs last
    await_heartbeats(worker)


def _collect_once() -> None:
    gc.collect()
    for each in gc.get_objects():
        # By type: to be asked for its class, a proxy may import or connect.
        if type(each) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            with suppress(OSError, ValueError):  # it is closed, or the disk is full
                each.flush()
    gc.freeze()
    gc.disable()
