"""What runs inside a worker process: per-worker values, execution, the worker plugin."""

from psnb.runtime import memory
from psnb.runtime.context import (
    InputContext,
    WorkerContext,
    report,
    worker_context,
    worker_index,
)
from psnb.runtime.packing import (
    InputReference,
    PerWorkerReference,
    dumps,
    loads,
    pack_error,
    unpack_error,
)
from psnb.runtime.plugin import Runtime
from psnb.runtime.resources import make_dataset, make_iterator, make_leased_iterator
from psnb.runtime.session import HANDLER, exchange_writer

__all__ = [
    "HANDLER",
    "InputContext",
    "InputReference",
    "PerWorkerReference",
    "Runtime",
    "WorkerContext",
    "dumps",
    "exchange_writer",
    "loads",
    "make_dataset",
    "make_iterator",
    "make_leased_iterator",
    "memory",
    "pack_error",
    "report",
    "unpack_error",
    "worker_context",
    "worker_index",
]
