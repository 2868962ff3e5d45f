"""What the fork server loads for tests, beside what it does for users: see `tests.forking`.

That is Dask's command line, and what has kernels compiled once.
"""

from __future__ import annotations

import logging
import os

import distributed.cli.dask_scheduler
import distributed.cli.dask_worker  # noqa: F401

from tests.compiling import COMPILED, compile_once

# As those of local clusters.
logging.getLogger("distributed").setLevel(logging.WARNING)

if COMPILED in os.environ:
    compile_once()
