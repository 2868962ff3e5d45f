"""Exceptions across the wire: pickled with their causes, and with their tracebacks as text."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import cloudpickle

from psnb._src.protocol.lost_shards import completed
from psnb._src.protocol.packing import PROTOCOL
from psnb._src.protocol.remote_traceback import NOWHERE, RemoteTraceback
from psnb._src.utils.text import error_text, is_interrupt, text_of, truncate
from psnb._src.utils.tracebacks import causes, hide_internal_frames
from psnb.errors import ClosureError, InternalError


def pack_error(error: BaseException, where: str = "") -> bytes:
    """Pickle an exception with its traceback as text, so that it can be raised elsewhere.

    Its causes travel with it. An exception that cannot be pickled becomes a `ClosureError` that
    describes it. Nothing is raised here, whatever the exception's class does.

    Parameters
    ----------
    error : BaseException
        It loses its traceback: frames of another process are of no use here.
    where : str
        A line about what was being done.
    """
    traceback, chain = NOWHERE, [error]
    with contextlib.suppress(BaseException):  # whatever its class may raise
        traceback = RemoteTraceback.of(error)
        chain = causes(error)[:_MOST_CAUSES]
    packed = [(_pickled(each), each.__cause__ is not None) for each in chain]
    for each in chain:
        with contextlib.suppress(BaseException):  # likewise, such as a frozen dataclass
            each.__traceback__ = None
    return pickle.dumps((packed, where, traceback, truncate(error_text(error))), protocol=PROTOCOL)


def packed_text(data: bytes) -> str:
    """Return what a packed exception says, in a line, without making it."""
    text: str = pickle.loads(data)[-1]
    return text


_MOST_CAUSES = 10


class _ErrorPickler(cloudpickle.Pickler):
    """Pickles one exception without its causes, however its class pickles.

    The exception stays as it is: other threads may raise the same one.
    """

    def __init__(self, buffer: io.BytesIO, error: BaseException) -> None:
        super().__init__(buffer, protocol=PROTOCOL)
        self._error = error

    def reducer_override(self, obj: Any) -> Any:
        if obj is self._error:
            return obj.__reduce_ex__(PROTOCOL)
        return super().reducer_override(obj)


def _pickled(error: BaseException) -> bytes:
    try:
        buffer = io.BytesIO()
        _ErrorPickler(buffer, error).dump(error)
        packed = buffer.getvalue()
        # Many exceptions pickle, but do not come back, or take nothing that is said about them.
        pickle.loads(packed).add_note("")
    except BaseException:  # again: its class, or an attribute's, may raise anything
        substitute = ClosureError(
            f"{type(error).__qualname__}: {truncate(text_of(error, repr), 500)}"
        )
        packed = cloudpickle.dumps(substitute, protocol=PROTOCOL)
    return packed


def _raisable(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    wrapped = ClosureError(
        f"the closure raised {error_text(error)}. That would end the notebook, or cancel what "
        "waits there: a closure ends with return, or with an exception such as RuntimeError"
    )
    wrapped.__cause__ = error
    return wrapped


def _chained(packed: Sequence[tuple[bytes, bool]]) -> Any:
    """Return the first exception, with its causes."""
    first, *rest = packed
    error = upper = pickle.loads(first[0])
    is_cause = first[1]
    with suppress(Exception):  # a cause that this process cannot unpickle ends the chain
        for each, next_is_cause in rest:
            lower = pickle.loads(each)
            if is_cause:
                upper.__cause__ = lower
            else:
                upper.__context__ = lower
            upper, is_cause = lower, next_is_cause
    return error


def unpack_error(data: bytes) -> BaseException:
    """Return what `pack_error` packed; a `ClosureError` if its type cannot be imported here.

    An exception that would end or cancel the caller (SystemExit, KeyboardInterrupt, the
    CancelledError of asyncio) becomes the cause of a `ClosureError`.

    Its notes say where it was raised, with the user's frames. Its attribute ``full_traceback`` has
    all frames.
    """
    where, traceback = "", NOWHERE
    try:
        packed, where, traceback, _ = pickle.loads(data)
        error = _chained(packed)
    except BaseException as failure:  # likewise; most often ImportError
        if is_interrupt(failure):
            raise
        error = ClosureError(
            "a closure failed with an exception that this process cannot unpickle: "
            + truncate(text_of(failure, repr))
        )
    if not isinstance(error, BaseException):
        raise InternalError(f"a closure failed with {error!r}, which is not an exception")
    error = completed(_raisable(error))
    if note := "\n".join(filter(None, (where, traceback.text()))):
        error.add_note(note)
    with contextlib.suppress(Exception):  # its class may allow no attributes
        error.full_traceback = traceback.full()  # type: ignore[attr-defined]
    return hide_internal_frames(error)
