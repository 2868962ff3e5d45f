"""Running a closure again and again, for some time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psnb


def run_for(
    seconds: float,
    coordinator: psnb.ClusterCoordinator,
    closure: Callable[..., Any],
    *args: Any,
    together: int = 20,
) -> int:
    """Run a closure until the time is over, so many at a time; return how many there were."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for _ in range(together):
            coordinator.schedule(closure, args)
        coordinator.join()
        count += together
    return count
