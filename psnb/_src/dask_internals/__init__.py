"""What psnb needs of Dask beyond its documented interface: all of it is here, and nowhere else.

Dask may change any of this in any release. Each function says what it relies on; if a release
breaks it, only this room changes. It imports nothing of psnb. `TESTED` names the oldest and the
newest release with which the tests pass (``make test-oldest`` and ``make test``).
"""

from psnb._src.dask_internals.additions import (
    add_handler,
    add_route,
    be_worker,
    call_every,
    keep_awake,
    memory_limit,
    plugin_named,
    remove_handler,
    replace_operation,
    serves_dashboard,
    threads_of,
)
from psnb._src.dask_internals.borrowed import (
    Comm,
    ConnectionPool,
    WorkerState,
    cloudpickled,
    offload,
    parse_timedelta,
    unpickled,
)
from psnb._src.dask_internals.local_nodes import (
    PatientNanny,
    PrivateScheduler,
    PrivateWorker,
    SteadyCluster,
)
from psnb._src.dask_internals.reaching import (
    CONNECTION_KEPT,
    ask,
    ask_scheduler,
    connect_apart,
    event_loop,
    give_back_connection,
    has_ended,
    has_open_connection,
    host_and_port,
    is_connected,
    is_open,
    pool_of,
    scales_itself,
    scheduler_address,
    scheduler_has,
    scheduler_identity,
    scheduler_since,
    socket_stream,
    tls_context,
    tls_context_of,
)
from psnb._src.dask_internals.words import await_heartbeats

TESTED = ("2026.3.0", "2026.8.0")
"""The oldest and the newest release of Dask with which the tests pass."""

__all__ = [
    "CONNECTION_KEPT",
    "TESTED",
    "Comm",
    "ConnectionPool",
    "PatientNanny",
    "PrivateScheduler",
    "PrivateWorker",
    "SteadyCluster",
    "WorkerState",
    "add_handler",
    "add_route",
    "ask",
    "ask_scheduler",
    "await_heartbeats",
    "be_worker",
    "call_every",
    "cloudpickled",
    "connect_apart",
    "event_loop",
    "give_back_connection",
    "has_ended",
    "has_open_connection",
    "host_and_port",
    "is_connected",
    "is_open",
    "keep_awake",
    "memory_limit",
    "offload",
    "parse_timedelta",
    "plugin_named",
    "pool_of",
    "remove_handler",
    "replace_operation",
    "scales_itself",
    "scheduler_address",
    "scheduler_has",
    "scheduler_identity",
    "scheduler_since",
    "serves_dashboard",
    "socket_stream",
    "threads_of",
    "tls_context",
    "tls_context_of",
    "unpickled",
]
