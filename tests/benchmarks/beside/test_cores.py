"""Where the cores go: by process, idle and others', which add up to what the machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.benchmarks.beside import cores

BUSY = """
import sys, time
while True:
    sys.stdin.readline()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    print(flush=True)
"""


class Busy:
    """A process that takes 0.3 s of CPU whenever it is asked."""

    def __init__(self, *, new_session: bool = False) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            [sys.executable, "-c", BUSY], text=True, start_new_session=new_session, **pipes
        )
        self.work()  # it has started then

    def work(self) -> None:
        """Let it, and wait."""
        assert self.process.stdin
        assert self.process.stdout
        print(file=self.process.stdin, flush=True)
        self.process.stdout.readline()


@pytest.fixture
def busy() -> Iterator[list[Busy]]:
    """Two of them: one of another session, as some daemons are."""
    found = [Busy(), Busy(new_session=True)]
    yield found
    for each in found:
        each.process.kill()
        each.process.communicate()


def test_each_process_has_its_own_and_all_add_up_to_the_machine(busy: list[Busy]) -> None:
    first, second = busy
    before = cores.now()
    for each in (first, first, second):
        each.work()
    after = cores.now()
    seconds = after.when - before.when

    found = cores.between(before, after, {first.process.pid: cores.WORKER})

    (worker,), (rest,), (notebook,) = (found[each] for each in ("worker", "rest", "notebook"))
    assert worker * seconds == pytest.approx(0.6, abs=0.05)
    assert rest * seconds >= 0.25  # and what else this session runs, beside other tests
    assert notebook * seconds == pytest.approx(0.0, abs=0.1)
    total = sum(map(sum, found.values()))
    assert total == pytest.approx(os.cpu_count(), abs=0.15)
    assert found[cores.IDLE][0] >= 0
    assert found[cores.OTHERS][0] >= -0.1  # its clocks tick a hundred times a second


def test_what_others_use_is_not_idle() -> None:
    this, other = os.getpid(), 1 << 30
    processes = {
        this: cores.Process(0, this, 10.0),
        other: cores.Process(0, other, 50.0),
    }
    before = cores.Moment(0.0, processes, idle=100.0, all=200.0)
    processes = {
        this: cores.Process(0, this, 11.0),
        other: cores.Process(0, other, 52.0),
    }
    after = cores.Moment(2.0, processes, idle=101.0, all=204.0)

    assert cores.between(before, after, {}) == {
        "notebook": [0.5],
        "rest": [0.0],
        "idle": [0.5],
        "others": [1.0],
    }


def test_a_process_that_began_meanwhile_counts_from_its_begin() -> None:
    this, child = os.getpid(), 1 << 30
    before = cores.Moment(0.0, {this: cores.Process(0, this, 1.0)}, idle=0.0, all=0.0)
    now = {this: cores.Process(0, this, 1.0), child: cores.Process(this, child, 0.5)}
    after = cores.Moment(1.0, now, idle=1.5, all=2.0)

    assert cores.between(before, after, {child: cores.WORKER})["worker"] == [0.5]
