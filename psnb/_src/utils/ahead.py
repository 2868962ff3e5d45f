"""Work that a thread does ahead, before it is known for which closure. Pure."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class NoClosureYet(BaseException):  # no error, and not for `except Exception`
    """Ends work ahead that asks for what belongs to a closure; the closure will do it again."""

    def __init__(self) -> None:
        super().__init__(
            "this ran ahead, for a closure that was not known yet, and asked psnb for what belongs "
            "to the closure: let this exception pass, the closure calls the function again"
        )


class _Ahead(threading.local):
    active = asked = False


_ahead = _Ahead()


@contextmanager
def before_closure() -> Iterator[None]:
    """Have `require_closure` raise in a block, and the block, too, if it was called there."""
    _ahead.active, _ahead.asked = True, False
    try:
        yield
    finally:
        _ahead.active = False
        if _ahead.asked:  # a function may have caught it
            raise NoClosureYet


def require_closure() -> None:
    """Raise `NoClosureYet` if this thread works ahead."""
    if _ahead.active:
        _ahead.asked = True
        raise NoClosureYet
