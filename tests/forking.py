"""Local clusters for tests: their processes are forked from one that has imported all they need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dask
from distributed.utils import get_mp_context


@contextmanager
def forked_workers() -> Iterator[None]:
    """Fork the processes of local clusters, as Dask can, until the block ends.

    Users' are not: each imports all of it anew, for seconds, and tests start hundreds.
    """
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        context = get_mp_context()  # the first call sets what Dask wants to be imported
        context.set_forkserver_preload(["tests.preloaded"])
        yield
