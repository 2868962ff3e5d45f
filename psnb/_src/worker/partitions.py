"""Partitions of a Dask collection inside a worker: those that it holds, and those of others.

Closure threads are not threads of Dask's pool, so one that waits here takes nothing from the tasks
that compute what it waits for. A partition that this worker holds is not copied.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from distributed import Future, Worker, get_client, get_worker

from psnb._src.dask_compat.collections import sizeof, task_value
from psnb._src.dask_compat.reach import event_loop
from psnb._src.data.block import Block
from psnb._src.data.nodes.partitions import rows_of_partition
from psnb._src.data.spec import Spec
from psnb._src.utils.text import error_text
from psnb._src.utils.threads import run_on_loop
from psnb._src.worker.context import current_context
from psnb.errors import ClosureCancelledError, DatasetError

MOVE_TIMEOUT = 300.0
"""Seconds in which a partition must arrive; then it is asked again who has it."""

GONE_SECONDS = 30.0
"""Seconds for which Dask may not know a partition: a graph may arrive after what asks for it."""

_RELEASED = (
    "Dask has no partition {} any more: the collection was released, or its client was closed. "
    "Persist it again, and make the dataset of that"
)
_GONE = {
    None: _RELEASED,
    "released": _RELEASED,
    "forgotten": _RELEASED,
    "no-worker": (
        "no worker is there that may compute partition {} again: persist the collection without "
        "workers=, or with allow_other_workers=True"
    ),
}
"""What is wrong if a partition is in such a state for long."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1


@dataclass(frozen=True)
class WorkerPartitions:
    """Reads partitions, by their keys; see `PartitionSource`.

    Attributes
    ----------
    keys : tuple
        Dask's, by number.
    columns : list of str or None
        Which columns of tables.
    known : Spec
        That of the rows, if it is known.
    worker : distributed.Worker or None
        Where this is; None outside of workers.
    """

    keys: tuple[Any, ...]
    columns: list[str] | None
    known: Spec
    worker: Worker | None

    def spec(self) -> Spec:
        """Return that of the rows, if it is known."""
        return self.known

    def read(self, number: int) -> tuple[Block, int]:
        """Return the rows of a partition, and the bytes that have come from another worker."""
        if self.worker is None:
            raise DatasetError("a Dask collection is read in the notebook, and on psnb's workers")
        value, fetched = self._value(number, self.worker)
        try:
            rows = rows_of_partition(value, self.columns)
        except DatasetError as error:
            raise DatasetError(f"from_dask, partition {number}: {error}") from error
        return rows, sizeof(value) if fetched else 0

    def _value(self, number: int, worker: Worker) -> tuple[Any, bool]:
        key, pause = self.keys[number], _FIRST_PAUSE
        gone_since: float | None = None
        while True:
            ask = partial(task_value, worker, key)
            try:
                state, value, fetched = run_on_loop(event_loop(worker), ask, MOVE_TIMEOUT)
            except TimeoutError:
                continue
            if state == "memory":
                return value, fetched
            if state == "erred":
                raise _failed(number, key)
            context = current_context()  # the closure may be cancelled meanwhile
            if context is not None and context.cancelled:
                raise ClosureCancelledError("the closure was cancelled while it waited for data")
            now = time.monotonic()
            gone_since = (gone_since or now) if state in _GONE else None
            if gone_since is not None and now - gone_since > GONE_SECONDS:
                raise DatasetError(f"from_dask: {_GONE[state].format(number)}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def on_this_worker(keys: tuple[Any, ...], columns: list[str] | None, known: Spec) -> Any:
    """Return what reads partitions here: called where the notebook's source is unpickled."""
    try:
        worker = get_worker()
    except ValueError:
        worker = None
    return WorkerPartitions(keys, columns, known, worker)


def _failed(number: int, key: Any) -> DatasetError:
    try:
        client = get_client()
        # Dask informs a client of its own tasks only; this one fails, with the partition's error.
        task = client.submit(type, Future(key, client), pure=False)
        cause = task.exception(timeout=GONE_SECONDS)
    except Exception as error:  # of the connection: the message says less then
        cause = error
    made = DatasetError(
        f"from_dask: Dask could not compute partition {number}: {error_text(cause)}"
    )
    made.__cause__ = cause
    return made
