"""The exceptions of psnb, split by whose fault it is.

::

    PsnbError
    ├── ClosureError                the closure's: it raised, and its own exception could not travel
    │   └── ClosureInputError       the closure's: something it was given could not be made
    ├── ClosureCancelledError       no one's: the closure never ran; schedule it again
    ├── WorkerLostError             a worker's: the closure was lost with its worker too often
    ├── ServerLostError             a server's: a parameter server has ended, or does not answer
    │   └── ServerUnresponsiveError a server's: it does not answer, and may come back
    ├── ServerMemoryError           a server's: it has no memory, and has changed nothing (also a
    │                               MemoryError)
    ├── ConfigurationError          the caller's (also a ValueError)
    │   ├── ClusterError            the caller's: no scheduler there, or too few workers
    │   ├── SerializationError      the caller's: what cannot be pickled (also a TypeError)
    │   ├── InvalidArrayError       the caller's: a bad array or gradient (also a TypeError)
    │   └── IdOutOfRangeError       the caller's: an id outside a table (also an IndexError)
    ├── CoordinatorClosedError      the caller's: used after ``close``, parameters too
    │   ├── OwnershipLostError      no one's: another process has taken the strategy over
    │   └── SchedulerLostError      the scheduler's: it has ended, with all workers and servers
    ├── CheckpointError             a checkpoint that cannot be written, found or loaded
    │   └── StaleMarkError          no one's: a server does not have a mark any more
    ├── DatasetError                a dataset's source
    ├── ExportError                 an exported model that cannot be written, found or loaded
    ├── PlatformError               the system's: psnb does not run on it (also an ImportError)
    └── InternalError               ours: please report it

    EndOfDataWarning                a closure has returned nothing, as its data had ended

A closure that raises an exception of its own is *not* wrapped: `ClusterCoordinator.join` raises
that very type. Every class takes one message and nothing else, so each survives pickling; the
message says what happened, where, and what to do.
"""

from psnb._src.utils.text import printable as _printable


class PsnbError(Exception):
    """Base of everything that psnb raises on its own account."""

    def __str__(self) -> str:
        # Names of files, functions and parameters may be a stranger's.
        return _printable(super().__str__())

    def __reduce__(self) -> str | tuple[object, ...]:
        # Of their own, though it is that of all exceptions: Dask has tblib pickle those that are
        # imported before it, which makes errors without one again by a ``__new__`` that refuses
        # `ServerMemoryError`.
        return super().__reduce__()

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this; psnb's own frames are left out.
        from psnb._src.utils.tracebacks import render

        return render(self)


class ClosureError(PsnbError):
    """A closure raised an exception that could not be sent to the notebook unchanged."""


class ClosureInputError(ClosureError):
    """A per-worker or remote value that a closure uses could not be made; see the cause."""


class ClosureCancelledError(PsnbError):
    """A closure was cancelled before it ran, because another one failed or on close."""


class WorkerLostError(PsnbError):
    """A closure was lost with its worker more often than its ``retries`` allow.

    It has written nothing. Queued closures also fail with this error when there is no worker for
    ``worker_timeout`` seconds.
    """


class ServerLostError(PsnbError):
    """A parameter server has ended; its data are lost, unless there is a copy.

    Queued closures fail with this error, too, when there is no worker either for
    ``heartbeat_timeout`` seconds.
    """


class ServerUnresponsiveError(ServerLostError):
    """A parameter server does not answer: it is frozen or out of reach, and may come back.

    Nothing is given up: the work that waits for it goes on when it comes back. If it does not come
    back, `ParameterServerStrategy.recover` replaces it.
    """


class ServerMemoryError(PsnbError, MemoryError):
    """A parameter server has no memory for what it was asked, and has changed nothing.

    Or it has, but would then be ended for it: by its nanny, or by the kernel.

    It goes on, and so does everything that needs no more memory. A closure that fails with this
    error has written nothing, on no server, and is not retried.
    """


class ConfigurationError(PsnbError, ValueError):
    """An argument of the caller is invalid."""


class ClusterError(ConfigurationError):
    """There is no scheduler at the address, or the cluster is too small."""


class SerializationError(ConfigurationError, TypeError):
    """A closure, argument or result cannot be pickled, or its receiver cannot unpickle it."""


class InvalidArrayError(ConfigurationError, TypeError):
    """An array does not have the parameter's shape or dtype, or a gradient is not finite."""


class IdOutOfRangeError(ConfigurationError, IndexError):
    """An id is outside the rows of its embedding table."""


class CoordinatorClosedError(PsnbError):
    """The coordinator, or the strategy under it, was closed."""


class OwnershipLostError(CoordinatorClosedError):
    """Another process has taken the strategy over with `attach`, as this one sent nothing."""


class SchedulerLostError(CoordinatorClosedError):
    """The Dask scheduler has ended, and all workers and servers with it."""


class CheckpointError(PsnbError):
    """A checkpoint cannot be written, found or loaded."""


class StaleMarkError(CheckpointError):
    """A mark cannot be gone back to: a server that had it was lost or has left, or ran short.

    Nothing was changed. Go back to a checkpoint.
    """


class DatasetError(PsnbError):
    """A dataset cannot be made or read."""


class ExportError(PsnbError):
    """A model cannot be exported to a folder, or is not there, or is damaged."""


class PlatformError(PsnbError, ImportError):
    """The operating system lacks what psnb needs; ``import psnb`` raises this."""


class InternalError(PsnbError):
    """psnb has broken one of its own guarantees; please report it."""


class EndOfDataWarning(UserWarning):
    """`RemoteValue.fetch` returns None: its closure found the data at their end and did nothing."""
