"""What each process of a cluster would load anew, loaded by the one that they are forked from.

That is Dask and psnb, and what Numba imports for its first function (a third of a second) and reads
of compiled ones. See `tests.forking`.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os

import dask.cli
import distributed.cli.dask_scheduler
import distributed.cli.dask_worker
import distributed.nanny  # noqa: F401
import numpy as np
from distributed.utils import get_mp_context

import psnb
import psnb._src.worker.plugin
from tests.client.in_process import embedding, variable
from tests.compiling import COMPILED, compile_once
from tests.forking import FORKED


def _use_kernels() -> None:
    for rows in (10, None):
        for optimizer in (psnb.SGD(0.1), psnb.Adagrad(0.1)):
            table = embedding(rows, optimizer=optimizer)
            table.push([1, 2, 1], np.ones((3, 2), np.float32))
            table.lookup([1, 2])
    variable(np.zeros(3), optimizer=psnb.SGD(0.1)).push(np.ones(3))


with dask.config.set(FORKED):
    get_mp_context()  # which imports what Dask finds large

# As those of local clusters.
logging.getLogger("distributed").setLevel(logging.WARNING)

if COMPILED in os.environ:
    compile_once()

# What is broken is told by its tests; an error here would end the start of every cluster.
with contextlib.suppress(Exception):
    _use_kernels()

# Processes that are forked share what is there, and do not look for garbage in it.
gc.freeze()
