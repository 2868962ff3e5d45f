"""What psnb imports from modules of Dask that are not documented, by the names used here.

Relies on these modules and names: Dask has moved such before.
"""

from __future__ import annotations

from dask.utils import parse_timedelta
from distributed.comm import Comm
from distributed.core import ConnectionPool
from distributed.protocol.pickle import dumps as cloudpickled
from distributed.protocol.pickle import loads as unpickled
from distributed.scheduler import WorkerState
from distributed.utils import offload

__all__ = [
    "Comm",
    "ConnectionPool",
    "WorkerState",
    "cloudpickled",
    "offload",
    "parse_timedelta",
    "unpickled",
]
