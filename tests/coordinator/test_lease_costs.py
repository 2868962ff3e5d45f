"""What a lease costs does not grow with workers or splits: the lines that run are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.protocol.messages import AskLease, Taken


def lines_of(function: Callable[[], object]) -> int:
    """Return how many lines a call executes; each turn of a loop counts."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return lines


def lease_lines(kind: str, workers: int, each: int) -> list[int]:
    """Return the lines of each lease, and of what is asked beside it, in an epoch."""
    names = [f"worker {n:03}" for n in range(workers)]
    splits = range(workers * each)
    leases = LeaseRegistry(workers if kind == "ordered" else None)
    for number, name in enumerate(names):
        leases.enter(number, name)
    owners = {n: names[n % workers] for n in splits} if kind == "owned" else None
    epoch = leases.open(len(splits), owners=owners)
    if kind == "placed":
        leases.place(epoch, {n: {names[n % workers]} for n in splits})
    step, lines = 0, []

    def lease(worker: int) -> None:
        slot = worker if kind == "ordered" else None
        assert leases.suits(epoch, names[worker], slot)
        found = leases.lease(worker, AskLease(epoch, step, slot))
        assert found is not None
        leases.take(worker, Taken(epoch, found.number, step, 0, 1, None, True))
        assert not leases.progress(epoch).over

    for _ in range(each):
        for worker in range(workers):
            lines.append(lines_of(lambda worker=worker: lease(worker)))  # type: ignore[misc]
            step += 1
    return sorted(lines)


@pytest.mark.parametrize("kind", ["plain", "owned", "placed", "ordered"])
def test_a_lease_costs_the_same_whatever_the_number_of_workers_and_splits(kind: str) -> None:
    few, many = lease_lines(kind, 4, 4), lease_lines(kind, 100, 12)
    assert many[len(many) // 2] <= few[len(few) // 2] + 5
    # The first after a worker has come goes through the workers.
    assert many[-20] <= few[-1] + 5
