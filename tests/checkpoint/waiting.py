"""Tells what would wait for another: instead of waiting, it fails."""

from __future__ import annotations

import fcntl
from collections.abc import Callable

import pytest


class _WouldWait(BaseException):
    pass


def would_wait(action: Callable[[], object]) -> bool:
    """Return whether an action has to wait for a lock; if so, it was broken off."""
    flock = fcntl.flock

    def impatient(file: int, how: int) -> None:
        try:
            flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if how & fcntl.LOCK_NB:
                raise
            raise _WouldWait from None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", impatient)
        try:
            action()
        except _WouldWait:
            return True
    return False
