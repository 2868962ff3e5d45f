"""Preloaded into the processes of a local cluster, so that interrupts affect only the notebook.

A notebook's stop button, like Ctrl-C in a terminal, interrupts the whole process group. Without
this it would end the workers, and the servers with all parameters.
"""

from __future__ import annotations

import signal

from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Ignore SIGINT; Dask calls this in the process's main thread when the worker starts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
