"""What stays in the notebook: strategies, coordinators, clients, references to values elsewhere.

A closure that has captured one gets no copy of it: it is refused when it is scheduled, with what to
use instead.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from distributed import Client

from psnb.errors import SerializationError

_CLIENT = (
    "a Dask client stays in its process; in a closure distributed.get_client() gives that of its "
    "worker"
)


class NotebookOnly:
    """Base of objects that cannot be pickled.

    Attributes
    ----------
    stays : str
        What to do, for the error.
    """

    __slots__ = ()

    stays: ClassVar[str]

    def __reduce__(self) -> NoReturn:
        raise SerializationError(self.stays)


def why_here(value: Any) -> str:
    """Return why a value stays where it is, and what to do; empty if it may travel."""
    if isinstance(value, NotebookOnly):
        return value.stays
    return _CLIENT if isinstance(value, Client) else ""
