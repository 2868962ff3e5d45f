"""What several tests of real clusters share: processes from the command line, steps, questions."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
from distributed import Client

import psnb
from psnb import EventKind
from psnb._src.cluster.roles import identity
from psnb._src.strategy.strategy import core_of
from tests.conftest import DEADLINE, wait_until
from tests.forking import Forked

Process = Forked | subprocess.Popen[bytes]


@contextmanager
def process(*command: str, before: tuple[str, ...] = (), anew: bool = False) -> Iterator[Process]:
    """Run a Python module until the block ends; ``before`` goes in front of the command.

    It is forked from a process that has imported Dask and psnb, unless ``anew`` says otherwise or
    there is something before it.
    """
    running: Process
    if anew or before:
        words = [*before, sys.executable, "-m", *command]
        running = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    else:
        running = Forked(*command)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(DEADLINE)
        finally:
            running.kill()  # of no effect once it has ended


def free_port() -> int:
    """Return one of the ports that the system gives to nobody who asks it for any."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as asking, suppress(OSError):
            asking.bind(("127.0.0.1", port))
            return port


class CommandLine:
    """A Dask cluster as people start it by hand, from the command line.

    Parameters
    ----------
    folder : Path
        For the scheduler's file and the workers' own.
    host : str
        Where the scheduler listens.
    anew : bool
        Whether each process imports all of it, as people's do; see `process`.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1", anew: bool = False) -> None:
        self._folder, self._host, self._anew = str(folder), host, anew
        self.file = str(folder / "scheduler.json")

    @contextmanager
    def scheduler(
        self, port: int = 0, *options: str, before: tuple[str, ...] = ()
    ) -> Iterator[Process]:
        """Run `dask scheduler` until the block ends."""
        Path(self.file).unlink(missing_ok=True)
        with process(
            *("dask", "scheduler", "--host", self._host, "--port", str(port)),
            *("--no-dashboard", "--scheduler-file", self.file, *options),
            before=before,
            anew=self._anew,
        ) as running:
            wait_until(Path(self.file).exists, "the scheduler runs")
            yield running

    def worker(
        self,
        *options: str,
        where: tuple[str, ...] = ("--host", "127.0.0.1"),
        before: tuple[str, ...] = (),
    ) -> AbstractContextManager[Process]:
        """Run `dask worker` until the block ends."""
        return process(
            *("dask", "worker", "--scheduler-file", self.file, "--nthreads", "1"),
            *("--no-dashboard", "--local-directory", self._folder, *where, *options),
            before=before,
            anew=self._anew,
        )

    def server(self) -> AbstractContextManager[Process]:
        """Run a `dask worker` that is a parameter server until the block ends."""
        return self.worker("--resources", "ps=1", "--name", "server")


def wait_for_file(path: Path) -> None:
    """Wait in a closure until a file is there."""
    end = time.monotonic() + DEADLINE
    pause = threading.Event()
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {DEADLINE} s: {path}")
        pause.wait(0.01)


def this_thread() -> str:
    """Return what `wait_until_thread_ended` wants to know of the thread that calls."""
    return f"/proc/{os.getpid()}/task/{threading.get_native_id()}"


def wait_until_thread_ended(thread: str) -> None:
    """Wait until a thread of a process of this host has ended, and not only what it was told."""
    wait_until(lambda: not Path(thread).exists(), "the thread has ended")


class Steps:
    """A closure that runs until it is told to end, and leaves a trace of each run."""

    def __init__(self, folder: Path) -> None:
        self._runs, self._end = folder / "runs", folder / "end"

    def __call__(self) -> str:
        with self._runs.open("a") as file:
            file.write(f"{psnb.worker_context().worker_name}\n")
        wait_for_file(self._end)
        return psnb.worker_context().worker_name

    def counting(self, counter: psnb.Variable) -> Callable[[], str]:
        """Return a closure that counts, and then does this."""

        def count() -> str:
            counter.assign_add(np.int64(1))
            return self()

        return count

    def runs(self) -> list[str]:
        """Return the names of the workers that ran it."""
        return self._runs.read_text().splitlines() if self._runs.exists() else []

    def begun(self, times: int = 1) -> list[str]:
        """Wait until it has begun so often, and return the names of the workers."""
        wait_until(lambda: len(self.runs()) >= times, f"it has begun {times} times")
        return self.runs()

    def end(self) -> None:
        """Let all runs return."""
        self._end.touch()


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a process for as long as the block lasts."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # killed meanwhile
            os.kill(pid, signal.SIGCONT)


def kill_myself() -> None:
    """End this process with no word to anybody; in closures."""
    os.kill(os.getpid(), signal.SIGKILL)


def address_of(client: Client, name: str) -> str:
    """Return the Dask address of a worker or server."""
    workers = identity(client)["workers"]
    return next(a for a, worker in workers.items() if str(worker["name"]) == name)


def pid_of(client: Client, name: str) -> int:
    """Return the process id of a worker or server; of the process itself, not of its nanny."""
    address = address_of(client, name)
    pids: dict[str, int] = client.run(os.getpid, workers=[address])
    return pids[address]


def state_of(coordinator: psnb.ClusterCoordinator, name: str) -> str:
    """Return a worker's state in the coordinator's eyes."""
    return {w.name: w.state for w in coordinator.statistics().workers}.get(name, "unknown")


def kinds_of(coordinator: psnb.ClusterCoordinator, name: str) -> list[EventKind]:
    """Return what happened to a worker."""
    return [event.kind for event in coordinator.events() if event.worker == name]


def wait_until_ended(*pids: int) -> None:
    """Wait until processes have ended by themselves.

    Those that were retired must, before anybody terminates them: a Dask worker that gets SIGTERM
    while it closes may hang for ever.
    """

    def ended(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_until(lambda: all(map(ended, pids)), f"processes {pids} end by themselves")


def wait_until_whole(client: Client, processes: int) -> None:
    """Wait until a cluster has all of its processes again."""

    def is_whole() -> bool:
        if client.cluster is not None:
            client.cluster.scale(processes)  # Dask may give up one that its nanny starts too slowly
        return len(identity(client)["workers"]) == processes

    wait_until(is_whole, "the cluster is whole", 2 * DEADLINE)


def wait_until_servers(client: Client, count: int) -> None:
    """Wait until a cluster has all of its processes for servers again."""

    def there() -> int:
        workers = identity(client)["workers"].values()
        return sum("ps" in worker["resources"] for worker in workers)

    wait_until(lambda: there() == count, f"{count} servers are there again")


def wait_until_ready(coordinator: psnb.ClusterCoordinator, *names: str) -> None:
    """Wait until these workers get work."""
    wait_until(
        lambda: all(state_of(coordinator, name) == "ready" for name in names),
        f"workers {', '.join(names)} are ready",
    )


def wait_until_gone(coordinator: psnb.ClusterCoordinator, *names: str) -> None:
    """Wait until these workers have left in the coordinator's eyes, too, and get no closure."""
    gone = {EventKind.WORKER_RETIRED, EventKind.WORKER_LOST}
    wait_until(
        lambda: all(gone & set(kinds_of(coordinator, name)) for name in names),
        f"workers {', '.join(names)} are gone",
    )


def worker_name() -> str:
    """Return where it runs; a closure."""
    return psnb.worker_context().worker_name


class Ending:
    """Ends a worker when code on it says `wait`: by SIGKILL, or by retiring it."""

    def __init__(self, coordinator: psnb.ClusterCoordinator, folder: Path, how: str) -> None:
        begun, go_on = folder / "begun", folder / "go on"

        def wait() -> None:  # of these files alone: it travels to workers
            if not begun.exists():
                begun.write_text(f"{os.getpid()} {psnb.worker_context().worker_name}")
                wait_for_file(go_on)

        def end() -> None:
            wait_until(lambda: begun.exists() and begun.read_text(), "it has begun")
            pid, name = begun.read_text().split()
            if how == "killed":
                os.kill(int(pid), signal.SIGKILL)
            else:
                threading.Thread(target=coordinator.retire_worker, args=(name,)).start()
            go_on.touch()

        self.wait, self._thread = wait, threading.Thread(target=end)
        self.happened = begun.exists

    def __enter__(self) -> Ending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(DEADLINE)
        assert self.happened()


class Killer:
    """Kills workers at random, by SIGKILL, while its block runs; one is always left.

    ``between`` are the least and the most seconds before each.
    """

    def __init__(
        self,
        client: Client,
        strategy: psnb.ParameterServerStrategy,
        seed: int,
        most: int,
        between: tuple[float, float] = (0.3, 1.0),
    ) -> None:
        self._client, self._strategy, self._most = client, strategy, most
        self._between = between
        self._rng, self._stop = np.random.default_rng(seed), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.kills = 0

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(DEADLINE)

    def _run(self) -> None:
        while (
            not self._stop.wait(float(self._rng.uniform(*self._between)))
            and self.kills < self._most
        ):
            servers = set(self._strategy.server_addresses)
            found = self._client.run(os.getpid, on_error="ignore").items()
            victims = [pid for address, pid in found if address not in servers]
            if len(victims) > 1:
                os.kill(int(self._rng.choice(victims)), signal.SIGKILL)
                self.kills += 1


def closure_workers(strategy: psnb.ParameterServerStrategy) -> dict[str, str]:
    """Return name by address of the workers that may run closures."""
    return core_of(strategy).closure_workers(identity(strategy.client))
