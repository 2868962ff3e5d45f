"""What it costs to count: the phases of closures and the stages of datasets, with and without.

Of the phases: microseconds a closure in one thread, and a training step of the demo's model on two
workers, whose clocks are switched off and on in turn. Of the stages: nanoseconds a block, and
chains as of `tests.benchmarks.data`. With and without are measured in turn, by the time of the
processors; each is the best of its runs, as other programs only make them slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

import psnb
import psnb.jax
from psnb._src.data.stages import StageCounters
from psnb._src.demo import model, run
from psnb._src.utils import phases
from psnb._src.utils.phases import COMMIT, COMPUTE, PULL, PUSH, READ, counted_as
from psnb.data import Dataset
from tests.benchmarks.rows import BATCH, BUFFER, rows

BATCH_SIZE, STEPS, PAIRS = 512, 40, 11
CHAIN_PAIRS = 12
TOGETHER = 16
"""Closures whose results travel in one message."""


class StoppedClock:
    """In place of a `PhaseClock`: knows how long a closure took, and no more."""

    def __init__(self, phase: int) -> None:
        self._start = time.perf_counter()

    def turn(self, phase: int) -> int:
        """Do nothing."""
        return phase

    @property
    def seconds(self) -> list[float]:
        """All of it."""
        return [time.perf_counter() - self._start, 0.0, 0.0, 0.0, 0.0]


def per_call(work: Callable[[], object], calls: int = 500) -> float:
    """Return seconds of a call: the best of many short runs, between which other programs run."""
    found = []
    for _ in range(400):
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        found.append((time.perf_counter() - begin) / calls)
    return min(found)


def of_a_closure(*behind: int) -> float:
    """Return seconds that counting takes in a closure that goes through doors of these phases."""

    def door() -> None:
        pass

    together: list[list[float]] = []
    doors = [counted_as(phase)(door) for phase in behind]

    def counted() -> list[float]:
        clock = phases.start_clock(READ)
        clock.turn(COMPUTE)
        for each in doors:
            each()
        clock.turn(COMMIT)
        clock.turn(COMMIT)
        phases.stop_clock()
        sum(clock.seconds)
        together.append(clock.seconds)
        if len(together) == TOGETHER:
            list(map(sum, zip(*together, strict=True)))
            together.clear()
        return clock.seconds

    def plain() -> float:
        start = time.perf_counter()
        for _ in behind:
            door()
        return time.perf_counter() - start

    return per_call(counted) - per_call(plain)


def switch(on: bool) -> None:
    """Switch the clocks of closures on or off, in a worker's process."""
    from psnb._src.worker import attempt

    clock: Any = phases.start_clock if on else StoppedClock
    attempt.start_clock = clock


def of_a_step() -> tuple[float, float, float, str]:
    """Return a step's seconds with and without, the ratio, and where its time goes."""
    with (
        psnb.local_cluster(workers=2, servers=1) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        workers = [each.address for each in coordinator.statistics().workers]
        train_step = psnb.jax.step(model.loss, has_aux=True, **run.place(strategy))

        def step(number: int) -> None:
            train_step.train_on(vars(run.loaded()[0].batch(number, BATCH_SIZE)))

        def seconds(on: bool) -> float:
            client.run(switch, on, workers=workers)
            before = sum(client.run(time.process_time, workers=workers).values())
            for number in range(STEPS):
                coordinator.schedule(step, (number,))
            coordinator.join()
            after = sum(client.run(time.process_time, workers=workers).values())
            return (after - before) / STEPS

        for _ in range(3):
            seconds(True)  # compiles
        pairs = [_in_turn(seconds, number) for number in range(PAIRS)]
        told = repr(coordinator.phases())
    return *_summed_up(pairs), told


def _in_turn(seconds: Callable[[bool], float], number: int) -> tuple[float, float]:
    """Return seconds with and without; which comes first, changes."""
    first = bool(number % 2)
    found = {first: seconds(first)}
    found[not first] = seconds(not first)
    return found[True], found[False]


def _summed_up(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    counted, plain = zip(*pairs, strict=True)
    return min(counted), min(plain), min(counted) / min(plain)


def of_a_block() -> float:
    """Return seconds that counting takes of a block."""

    class Source:
        def next_block(self, limit: int) -> None:
            return None

    source: Any = Source()
    above = StageCounters(Dataset.range(1).node, 1, None, False)
    stage = StageCounters(Dataset.range(1).node, 2, above, False)
    counted = per_call(lambda: stage.next_block(source, 1))
    return counted - per_call(lambda: source.next_block(1))


def of_a_chain(work: Callable[[], Iterable[object]]) -> tuple[float, float, float, int]:
    """Return seconds of an iteration with and without, the ratio, and how many blocks it has."""
    blocks = 0
    counting = StageCounters.next_block

    def plain(self: StageCounters, source: Any, limit: int) -> Any:
        nonlocal blocks
        blocks += 1
        return source.next_block(limit)

    def seconds(on: bool) -> float:
        StageCounters.next_block = counting if on else plain  # type: ignore[method-assign]
        begin = time.process_time()
        for _ in work():
            pass
        return time.process_time() - begin

    try:
        seconds(True)
        pairs = [_in_turn(seconds, number) for number in range(CHAIN_PAIRS)]
    finally:
        StageCounters.next_block = counting  # type: ignore[method-assign]
    return *_summed_up(pairs), blocks // len(pairs)


def main() -> None:
    """Run all and print a table."""
    source = Dataset.from_tensor_slices(rows())
    some = source.take(2000)
    chains = {
        "shuffle, batch": source.shuffle(BUFFER).batch(BATCH),
        "shuffle of a stream, batch": source.ignore_errors().shuffle(BUFFER).batch(BATCH),
        "map of whole batches, batch": source.map(
            lambda a, b, c: (a + 1, b, c), batched=True
        ).batch(BATCH),
        "map one by one, batch": some.map(lambda a, b, c: (a + 1, b, c)).batch(BATCH),
        "map, filter, one by one": some.map(lambda a, b, c: c).filter(lambda c: c > 0),
    }
    table = Table("", "counted", "not counted", "ratio", "of it", title="what counting costs")
    for name, behind in {
        "phases of an empty closure": (),
        "phases of a closure that reads, pulls, pushes": (READ, PULL, PUSH),
        "the same with a second pull": (READ, PULL, PULL, PUSH),
    }.items():
        table.add_row(name, f"{of_a_closure(*behind) * 1e6:.2f} µs more", "", "")
    *step, told = of_a_step()
    table.add_row(f"step of the demo's model, batch {BATCH_SIZE}, ms of processors", *_cells(step))
    block = of_a_block()
    table.add_row("stage of a block", f"{block * 1e6:.2f} µs more", "", "")
    for name, chain in chains.items():
        *found, blocks = of_a_chain(lambda chain=chain: chain)
        share = f"{blocks} blocks: {blocks * block / found[0]:.1%}"
        table.add_row(f"{name}, ms", *_cells(found), share)
    Console().print(table)
    Console().print(told)


def _cells(found: Iterable[float]) -> tuple[str, str, str]:
    counted, plain, ratio = found
    return f"{counted * 1e3:.3f}", f"{plain * 1e3:.3f}", f"{ratio:.3f}"


if __name__ == "__main__":
    main()
