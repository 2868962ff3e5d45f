"""How a peer's process is asked what it does a second: a line for a question, a line of JSON back.

Answers have a pipe of their own, as libraries print what they like. Peers import this module in
environments of their own: only the standard library is needed here.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.beside import cores

ROOT = Path(__file__).parents[3]
START_SECONDS, ANSWER_SECONDS = 120.0, 240.0
WARM = 2
"""How many times as long as a round the first one is, which does not count."""


class Done(NamedTuple):
    """What some work has done: how much, and the mean loss if it trains."""

    amount: float
    loss: float = math.nan


Some = Callable[[], Done]
"""Does some of a work, in a fraction of a second."""


class Answer(NamedTuple):
    """What a peer has measured: amount a second, last steps' loss or NaN, and cores by process."""

    rate: float
    loss: float
    cores: cores.Cores


class PeerError(Exception):
    """A peer cannot be had, or has failed; the message says why."""


def serve(package: str, works: Mapping[str, Callable[[], Some]], roles: cores.Roles = dict) -> None:
    """Answer until no more is asked. A work is made and warmed up when it is first asked for."""
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    print(json.dumps({"version": version(package)}), file=answers)
    made: dict[str, Some] = {}
    for question in sys.stdin:
        work, seconds = json.loads(question)
        if work not in made:
            made[work] = works[work]()
            made[work]()  # compiles
            _measure(made[work], WARM * seconds, roles)
        answer = _measure(made[work], seconds, roles)
        print(json.dumps(answer._asdict()), file=answers)


def _measure(some: Some, seconds: float, roles: cores.Roles) -> Answer:
    before = cores.now()
    begin, amount = time.perf_counter(), 0.0
    while True:
        done = some()
        amount += done.amount
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            after = cores.now()
            return Answer(amount / elapsed, done.loss, cores.between(before, after, roles()))


class Process:
    """A peer's process.

    Parameters
    ----------
    module : str
        Of `tests.benchmarks.beside.peers`.
    python : str or Path
        Of the peer's environment.
    threads : int, optional
        Of OpenMP; by default the library decides.
    log : Path
        For what the process prints.
    """

    def __init__(self, module: str, python: str | Path, log: Path, threads: int | None = 1) -> None:
        env = {key: each for key, each in os.environ.items() if not key.startswith("OMP_")}
        # A thread for each worker: two of them would take two cores from each other.
        env["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        if threads is not None:
            env["OMP_NUM_THREADS"] = str(threads)
        ours, theirs = os.pipe()
        self._log, self._answers = log, os.fdopen(ours)
        with log.open("w") as out:
            self._process = subprocess.Popen(
                [str(python), "-m", f"tests.benchmarks.beside.peers.{module}", str(theirs)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                text=True,
                cwd=ROOT,
                env=env,
                pass_fds=[theirs],
                start_new_session=True,
            )
        os.close(theirs)
        try:
            self.version: str = self._answer(START_SECONDS)["version"]
        except PeerError:
            self.close()
            raise

    def ask(self, work: str, seconds: float) -> Answer:
        """Return what it does a second, from so many seconds of it or a little more."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # there is no answer then, which says more
            print(json.dumps([work, seconds]), file=self._process.stdin, flush=True)
        return Answer(**self._answer(ANSWER_SECONDS))

    def close(self) -> None:
        """End it, with all processes that it has started."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._answers.close()

    def _answer(self, seconds: float) -> dict:
        ready, _, _ = select.select([self._answers], [], [], seconds)
        if not ready:
            raise PeerError(f"no answer in {seconds:.0f} s")
        line = self._answers.readline()
        if not line:
            raise PeerError(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines()]
        errors = [line for line in lines if "Error" in line] or [line for line in lines if line]
        return (errors or ["it ended without a word"])[-1][:200]
