"""What runs inside a worker process: sessions, per-worker values, the worker plugin."""

from psnb._src.runtime import session_messages, worker_memory
from psnb._src.runtime.futures import GivenFutures, captured
from psnb._src.runtime.left_behind import leave_behind
from psnb._src.runtime.module_files import Uploads, is_local, read_files
from psnb._src.runtime.packing import (
    InputReference,
    PerWorkerReference,
    dumps,
    loads,
    pack_error,
    unpack_error,
)
from psnb._src.runtime.plugin import Runtime
from psnb._src.runtime.reported_states import ReportedStates, split_outcome
from psnb._src.runtime.resources import (
    latest_element,
    make_dataset,
    make_iterator,
    make_leased_iterator,
    read_spec,
)
from psnb._src.runtime.session_messages import exchange_writer
from psnb._src.runtime.taken_elements import NothingKept, Taken, TakenAgain
from psnb._src.runtime.uploaded_module import UploadedModule
from psnb._src.runtime.worker_context import (
    InputContext,
    WorkerContext,
    current_context,
    entered,
    report,
    worker_context,
    worker_index,
)

__all__ = [
    "GivenFutures",
    "InputContext",
    "InputReference",
    "NothingKept",
    "PerWorkerReference",
    "ReportedStates",
    "Runtime",
    "Taken",
    "TakenAgain",
    "UploadedModule",
    "Uploads",
    "WorkerContext",
    "captured",
    "current_context",
    "dumps",
    "entered",
    "exchange_writer",
    "is_local",
    "latest_element",
    "leave_behind",
    "loads",
    "make_dataset",
    "make_iterator",
    "make_leased_iterator",
    "pack_error",
    "read_files",
    "read_spec",
    "report",
    "session_messages",
    "split_outcome",
    "unpack_error",
    "worker_context",
    "worker_index",
    "worker_memory",
]
