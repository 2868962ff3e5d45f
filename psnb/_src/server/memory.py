"""The memory that grows with what a server holds and is asked for: all of it is got here. Pure.

A server changes a table in two steps: it gets all memory that the change needs, and then it makes
the change, in loops that only write into memory that is there. So a server without memory refuses a
change, and nothing of it is made. (To undo a change that has failed halfway was rejected: a copy of
what it overwrites takes memory and time itself, with each push.) Objects of a few hundred bytes are
not counted: a process that cannot get them ends, as one ends that the system kills for its memory.

Tests replace `allocate`, and let one call after the other fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any, Protocol

import numpy as np

from psnb._src import own_pages
from psnb._src.aligned import aligned
from psnb.errors import ServerMemoryError

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

Shape = tuple[int, ...]


class NoMemoryError(MemoryError):
    """There is no such memory.

    Attributes
    ----------
    nbytes : int
        How much was wanted.
    """

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.nbytes = nbytes


class Promising(Protocol):
    """Has room that it keeps for some.

    Attributes
    ----------
    promises, promised : int
        For how many, and how much in all.
    """

    promises: int
    promised: int


class Promise:
    """Room that is kept for one user, until this is released or nothing refers to it any more.

    So it ends in whatever way a commit ends that was prepared and is not applied.
    """

    __slots__ = ("_by", "_count")

    def __init__(self, by: Promising, count: int) -> None:
        self._by: Promising | None = by
        self._count = count
        by.promises += 1
        by.promised += count

    def release(self) -> None:
        """Give the room back; idempotent."""
        if self._by is not None:
            self._by.promises -= 1
            self._by.promised -= self._count
            self._by = None

    def __del__(self) -> None:
        self.release()


def scratch(shape: Shape | int, dtype: Any) -> np.ndarray:
    """Return memory that is not filled, for one operation: the heap has it again soon."""
    found: np.ndarray = allocate(np.empty, shape, dtype)
    return found


def lasting(shape: Shape, dtype: Any) -> np.ndarray:
    """Return memory for rows, from the beginning of a cache line on, which is not filled."""
    found: np.ndarray = allocate(_lasting, shape, dtype)
    return found


def pages(nbytes: int) -> mmap:
    """Return zeroed memory in small pages."""

    def get(shape: Any, dtype: Any) -> Any:
        try:
            return mmap(-1, shape, MAP_PRIVATE | MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError from error

    found: mmap = allocate(get, nbytes, np.uint8)
    return found


def allocate(get: Callable[[Any, Any], Any], shape: Shape | int, dtype: Any) -> Any:
    """Return what ``get`` returns, or raise NoMemoryError."""
    try:
        return get(shape, dtype)
    except (MemoryError, ValueError):  # numpy's for more than there are addresses
        count = shape if isinstance(shape, int) else math.prod(shape)
        raise NoMemoryError(count * np.dtype(dtype).itemsize) from None


def _lasting(shape: Any, dtype: Any) -> np.ndarray:
    dtype = np.dtype(dtype)
    if math.prod(shape) * dtype.itemsize <= own_pages.SMALL:
        return aligned(shape, dtype)
    return own_pages.zeroed(math.prod(shape), dtype).reshape(shape)


def refusal(error: MemoryError, what: str, where: str) -> ServerMemoryError:
    """Return the error that says that something could not be done for want of memory.

    Parameters
    ----------
    error : MemoryError
        What was raised.
    what, where : str
        What could not be done, and where.
    """
    if isinstance(error, ServerMemoryError):
        return error
    nbytes = _wanted(error)
    wanted = "more memory" if nbytes is None else f"{nbytes:,} bytes more"
    # Its frames have what was got before, which others need now.
    error.__traceback__ = error.__cause__ = None
    return ServerMemoryError(
        f"{where} has no memory for {what}: that needs {wanted}, and {_limit()}. Nothing was "
        "changed. Give the processes of servers more memory, start more of them, or hold less "
        "there: fewer rows (admission=, shrink) or a smaller push"
    )


def _wanted(error: MemoryError) -> int | None:
    if isinstance(nbytes := getattr(error, "nbytes", None), int):
        return nbytes
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)  # numpy's
    return None if shape is None or dtype is None else math.prod(shape) * dtype.itemsize


def _limit() -> str:
    if resource is not None:
        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            return f"its process may have {most:,} in all (ulimit -v)"
    return "the system does not give it"
