"""Starting the processes of nannies without the script that the user runs.

A process that multiprocessing spawns begins by importing the script of its parent. What a script
does outside of ``if __name__ == "__main__":`` it would do again in each worker: first of all, start
a cluster. Workers need nothing of it, as what a script defines is pickled by value.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from multiprocessing import spawn
from typing import Any

_PROCESS = "Dask Worker process (from Nanny)"
_SCRIPT = ("init_main_from_name", "init_main_from_path")

_lock = threading.Lock()  # guards the two below: each cluster may have an event loop of its own
_starting = 0
_with_script = spawn.get_preparation_data


@contextlib.contextmanager
def script_hidden() -> Iterator[None]:
    """Have nannies start processes that do not import this one's script, until the block ends.

    Processes of anybody else are started as ever, and the script itself sees nothing of it. Relies
    on ``multiprocessing.spawn.get_preparation_data``, which tells a process what it needs to know
    of its parent, also one that a fork server starts; and on the name of nannies' processes.
    """
    global _starting
    with _lock:
        _starting += 1
        spawn.get_preparation_data = _without_script
    try:
        yield
    finally:
        with _lock:
            _starting -= 1
            if not _starting:
                spawn.get_preparation_data = _with_script


def _without_script(name: str) -> dict[str, Any]:
    told = _with_script(name)
    return {k: v for k, v in told.items() if name != _PROCESS or k not in _SCRIPT}
