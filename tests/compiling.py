"""Each function is compiled once for all processes of a run of tests.

Numba keeps what it has compiled in files, but of processes that need a function at the same time
each compiles it, and of two that write its index one may lose what the other has added. So a
process waits for another one that compiles the same function, and then reads what that has kept.
"""

from __future__ import annotations

import fcntl
import functools
import os
from pathlib import Path
from typing import Any

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

COMPILED = "JAX_COMPILATION_CACHE_DIR"
"""Names the folder of a run, for its other processes: of what JAX compiles, and of locks."""


def compile_once() -> None:
    """From now on, compile nothing that another process is compiling."""
    compile_alone = Dispatcher.compile
    folder = Path(os.environ[COMPILED])

    @functools.wraps(compile_alone)
    def compile_or_wait(self: Any, sig: Any) -> Any:
        function = self.py_func
        lock = folder / f"{function.__module__}.{function.__qualname__}.lock"
        # Numba's lock first, which is taken again below: a thread that had only the file's would
        # wait for one that has Numba's and waits for the file. Locks of `lockf` are this process's
        # alone, those of `flock` would live on in its forks.
        with global_compiler_lock, lock.open("a") as held:
            fcntl.lockf(held, fcntl.LOCK_EX)
            return compile_alone(self, sig)

    Dispatcher.compile = compile_or_wait
