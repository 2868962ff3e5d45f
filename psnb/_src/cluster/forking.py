"""Processes forked from one that has imported what they need: the fork server.

What a worker imports takes a second of CPU time, and each process of a local cluster would import
it anew. On Linux one process does, in which nothing runs: the fork server. It is started by
`local_cluster`, forks each process that a nanny asks for, and is used for all clusters of this
process. The notebook itself, which has threads, is never forked.

What the fork server has imported are libraries: what psnb needs, and those of `LIBRARIES` that the
notebook has imported. Modules of users it never imports: each process finds them as they are then.

A forked process shall differ from one that Dask spawns by its CPU time only. So it gets what that
would have inherited from the notebook at that moment: environment, folder, `sys.path`, standard
output and errors. What libraries look at when they are imported, such as the environment, and what
a process can only inherit, such as its limits, must be the same for a fork server to be used
(`Surroundings`); otherwise another one is started, and this one ends with its last process. Its
random numbers are its own.

Python's own fork server (`multiprocessing.forkserver`) is not used: there is one for a process,
which users may have started with other modules, it keeps the environment in which it was started,
ignores `sys.path`, and where it dies its processes seem to be dead while they go on. Here the
notebook watches each process itself.

To fork with threads may deadlock the fork. So a fork server in which a thread is left after all was
imported ends, no other one like it is started, and processes are spawned, as they are where it
cannot be started, and on macOS, where system libraries have threads of their own.

Threads: the fork server has one. In the notebook nannies start processes from several, and
``psnb-replaced`` waits for the end of a fork server that was replaced, which would be a zombie.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import logging
import os
import pickle
import pkgutil
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from multiprocessing import (
    connection,
    context,
    popen_fork,
    process,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from multiprocessing import popen_spawn_posix as spawning
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from psnb._src.cluster.compiled import load_compiled


def _forks() -> bool:
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # before Linux 5.3, and in sandboxes
        return False
    return True


FORKS = _forks()
"""Whether processes are forked here, else spawned."""

LIBRARIES = ["jax", "torch", "psnb.jax", "psnb.torch"]
"""What the fork server imports if the notebook has: large, and no thread starts by that."""

ALWAYS = ["distributed", "distributed.nanny", "distributed.http.health", "distributed.http.statics"]
ALWAYS += ["distributed.http.worker.prometheus", "numpy.ma", "psnb._src.cluster.preload"]
ALWAYS += ["psnb:ParameterServerStrategy", "psnb:Embedding", "psnb:SGD"]
"""What it imports in any case: modules, and names with all that is behind them."""

# Dask has malloc return memory to the system immediately, so the pages of each large array must be
# cleared again, which costs several times as much as copying it. So this much is kept for the next.
MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(1 << 28), "MALLOC_MMAP_THRESHOLD_": str(1 << 26)}

# What Dask sets for its workers, in the notebook, too, when it starts the first: so it is known
# before Dask is imported. If a release or the user's settings differ, a second fork server starts.
_DASKS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_DASKS_ALWAYS = {"PYTHONHASHSEED": "6640"}

# Nothing looks at these when it is imported: pytest changes its own with each test, Dask sets one
# with the first process.
_UNSEEN = {"PYTEST_CURRENT_TEST", "__DASK_PARENT_PID"}

logger = logging.getLogger("psnb")


class Surroundings(NamedTuple):
    """What a process inherits, and cannot be given later."""

    environment: dict[str, str]
    cores: set[int]
    umask: str
    niceness: int
    limits: list[tuple[int, int]]


def _surroundings(environment: Mapping[str, str]) -> Surroundings:
    kinds = sorted(getattr(resource, each) for each in dir(resource) if each.startswith("RLIMIT_"))
    return Surroundings(
        {name: value for name, value in environment.items() if name not in _UNSEEN},
        os.sched_getaffinity(0),
        _umask(),
        os.nice(0),
        [resource.getrlimit(kind) for kind in kinds],
    )


def _umask() -> str:
    # `os.umask` would have to set another one for a moment, in which threads make files.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((each for each in lines if each.startswith("Umask:")), "")


_THREADS_LEFT = 3  # the exit code of a fork server that must not fork

_FORK_TIMEOUT = 60.0  # for the first, it imports all on a busy machine; stopped, it never answers


class ForkServer:
    """The notebook's side of a fork server, which starts with this.

    Parameters
    ----------
    surroundings : Surroundings
        What it has of the notebook.
    libraries : sequence of str
        Modules that it imports.
    """

    def __init__(self, surroundings: Surroundings, libraries: Sequence[str]) -> None:
        self.surroundings, self.libraries = surroundings, libraries
        self._asking, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:  # not one of 0 to 2, which are free if this process was started without them
            its = socket.socket(fileno=fcntl(other.fileno(), F_DUPFD_CLOEXEC, 3))
        code = (
            f"import sys; sys.path[:] = {[*map(str, sys.path)]!r}; from {__name__} import serve; "
            f"serve({its.fileno()}, {libraries!r})"
        )
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        # The stop button interrupts all of the notebook's process group: it must not hear that
        # before it has said so.
        unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with its:
                self._process = subprocess.Popen(
                    [spawn.get_executable(), *flags, "-c", code],
                    stdin=subprocess.DEVNULL,
                    # A socket that took the number of a closed one would be written to as output.
                    stdout=None if _writes_to(1) else subprocess.DEVNULL,
                    stderr=None if _writes_to(2) else subprocess.DEVNULL,
                    env=surroundings.environment,
                    pass_fds=[its.fileno()],
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)

    def ended(self) -> bool:
        """Whether it has ended, by whatever; its process is then gone from the system's list."""
        return self._process.poll() is not None

    def refuses(self) -> bool:
        """Whether another one with the same libraries would not fork either."""
        return self._process.poll() == _THREADS_LEFT

    def retire(self) -> None:
        """Let it end with the last of its processes."""
        self._asking.close()
        with suppress(RuntimeError):  # there are too many threads: it will be a zombie
            wait = self._process.wait
            threading.Thread(target=wait, name="psnb-replaced", daemon=True).start()

    def fork(self, given: bytes, descriptors: list[int]) -> Forked:
        """Start a process.

        Parameters
        ----------
        given : bytes
            Pickles that it reads: see `_begin`.
        descriptors : list of int
            Files of this process that it gets.

        Raises
        ------
        OSError
            If the fork server has ended or does not answer, or there are too many files or
            processes. Nothing has been started, or it ends as it finds nothing to read.
        """
        with ExitStack() as undo, ExitStack() as its:
            made = []
            for keep in (0, 1):  # of the first the end to read from, of the second the other
                ends = os.pipe()
                undo.callback(os.close, ends[keep])
                its.callback(os.close, ends[1 - keep])
                made.append(ends)
            (status, its_status), (its_given, given_to) = made
            tracker: Any = resource_tracker.getfd()
            sent = [its_given, its_status, tracker, *descriptors]
            try:
                socket.send_fds(self._asking, [b"!"], sent)
            except OSError as error:
                raise ConnectionError(self._why()) from error
            its.close()  # else that it has ended would not be seen
            if not connection.wait([status], _FORK_TIMEOUT):
                raise TimeoutError(f"it does not answer within {_FORK_TIMEOUT:.0f} s")
            if (pid := _read_number(status)) is None:
                raise ConnectionError(self._why())
            undo.callback(os.close, end := os.pidfd_open(pid))
            with open(given_to, "wb", closefd=False) as file:
                file.write(given)
            undo.pop_all()
        return Forked(pid, end, status, given_to)

    def _why(self) -> str:
        with suppress(subprocess.TimeoutExpired):  # its files are closed a moment earlier
            code = self._process.wait(1.0)
            return "a library starts a thread" if code == _THREADS_LEFT else "it has ended"
        return "it has too many processes or files"


class Forked(NamedTuple):
    """A process, and files of the notebook that belong to it."""

    pid: int
    end: int  # can be read when it has ended
    status: int  # from which its exit code can be read then
    alive: int  # closed when the notebook ends, which it could see


_lock = threading.Lock()  # guards the two below: nannies start processes from several threads
_current: ForkServer | None = None
_told: set[str] = set()  # why there was none


def fork_server(environment: Mapping[str, str], with_libraries: bool = False) -> ForkServer:
    """Return a fork server that is what this process would start now; start one if need be.

    Parameters
    ----------
    environment : mapping of str to str
        That of this process when it will ask for a process.
    with_libraries : bool
        Whether it must have those libraries that this process has now. One that has others will do
        for a process alone: that imports what it needs sooner than another fork server would.
    """
    global _current
    surroundings = _surroundings(environment)
    libraries = [*ALWAYS, *(each for each in LIBRARIES if each in sys.modules)]
    with _lock:
        if _current is not None:
            fits = not with_libraries or _current.libraries == libraries
            there = not _current.ended() or _current.refuses()
            if fits and there and _current.surroundings == surroundings:
                return _current
            _current.retire()
        _current = ForkServer(surroundings, libraries)
        return _current


def begin_fork_server() -> None:
    """Have the fork server import what it needs while this process begins to start a cluster."""
    if FORKS:
        with suppress(OSError):  # the first process logs why
            expected = _DASKS
            if dask := sys.modules.get("dask"):  # else settings of users are not known yet
                own = dask.config.get("distributed.nanny.pre-spawn-environ", {})
                expected = _DASKS | {name: str(each) for name, each in own.items()}
            environment = {**expected, **os.environ, **_DASKS_ALWAYS, **MALLOC}
            fork_server(environment, with_libraries=True)


class _Received:
    """A file that a process gets, by its place among them."""

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        return _received[self._place]


_received: list[int] = []  # in a forked process


class _Popen(popen_fork.Popen):
    """A process that is forked by the fork server, as multiprocessing sees it.

    The notebook is not its parent, and so gets its exit code from the fork server. That it has
    ended it sees itself: to take it for dead because the fork server is would start another one
    while it goes on.
    """

    method = "spawn"
    DupFd = _Received

    def __init__(self, process_obj: Any) -> None:
        self._descriptors: list[int] = []
        super().__init__(process_obj)

    def duplicate_for_child(self, fd: int) -> int:
        self._descriptors.append(fd)
        return len(self._descriptors) - 1

    def _launch(self, process_obj: Any) -> None:
        given = io.BytesIO()
        context.set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            output = {fd: self.duplicate_for_child(fd) for fd in (1, 2) if _writes_to(fd)}
            reduction.dump((dict(os.environ), output), given)
            reduction.dump(spawn.get_preparation_data(process_obj.name), given)
            reduction.dump(process_obj, given)
        finally:
            context.set_spawning_popen(None)
        made = fork_server(os.environ).fork(given.getvalue(), self._descriptors)
        self.pid, self.sentinel, self._status = made.pid, made.end, made.status
        self.finalizer = util.Finalize(self, util.close_fds, made[1:])  # type: ignore[attr-defined]

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            if not connection.wait([self.sentinel], 0 if flag == os.WNOHANG else None):
                return None
            code = _read_number(self._status)
            self.returncode = 255 if code is None else code  # as Dask says where nobody knows
        return self.returncode


class _Process(context.SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - multiprocessing's name
        try:
            return _Popen(process_obj)
        except OSError as error:
            with _lock:
                known = str(error) in _told
                _told.add(str(error))
            if not known:
                logger.warning(
                    "there is no fork server (%s), so processes of the local cluster import all "
                    "they need, each by itself",
                    error,
                )
            return spawning.Popen(process_obj)


class ForkContext(context.SpawnContext):
    """A context of multiprocessing whose processes are forked by the fork server."""

    Process = _Process


def _writes_to(fd: int) -> bool:
    """Whether this is this process's output, or its errors: one closed may be another file."""
    if (sys.__stdout__, sys.__stderr__)[fd - 1] is None:  # it was closed as Python started
        return False
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


_NUMBER = struct.Struct("q")


def _read_number(file: int) -> int | None:
    read = os.read(file, _NUMBER.size)
    return _NUMBER.unpack(read)[0] if read else None


@atexit.register  # so called after that which closes clusters
def _end() -> None:
    if _current is not None:
        _current._asking.close()
        with suppress(subprocess.TimeoutExpired):
            _current._process.wait(1.0)


# In the fork server.


def serve(asking: int, libraries: Iterable[str]) -> None:
    """Fork a process for each message, until nobody can send one and all processes have ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    _import_all(libraries)
    if _threads_after_fork() > 1:
        os._exit(_THREADS_LEFT)
    running: dict[int, tuple[int, int]] = {}  # by the file that tells of a process's end
    with (
        socket.socket(fileno=asking) as messages,
        selectors.DefaultSelector() as selector,
    ):
        selector.register(messages, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if key.fd in running:
                    selector.unregister(key.fd)
                    pid, status = running.pop(key.fd)
                    _, code = os.waitpid(pid, 0)
                    _write_number(status, os.waitstatus_to_exitcode(code))
                    os.close(status)
                    os.close(key.fd)
                    continue
                message, descriptors, flags, _ = socket.recv_fds(messages, 1, 250)
                if not message:
                    selector.unregister(messages)
                    continue
                pid = -1
                with suppress(OSError):  # the asker sees its files closed
                    if not flags & socket.MSG_CTRUNC:
                        given, status, tracker, *files = descriptors
                        pid = os.fork()
                if not pid:
                    # Nothing of the fork server's is left in the process, nor of other processes.
                    selector.close()
                    messages.close()
                    for each in (status, *running, *(other for _, other in running.values())):
                        os.close(each)
                    _run(given, tracker, files)
                for each in descriptors:
                    if pid < 0 or each != status:
                        os.close(each)
                if pid > 0:
                    _write_number(status, pid)
                    running[end := os.pidfd_open(pid)] = pid, status
                    selector.register(end, selectors.EVENT_READ)
    os._exit(0)


def _import_all(libraries: Iterable[str]) -> None:
    gc.disable()  # as in `import_named`
    import_named(libraries)
    load_compiled()
    gc.freeze()  # processes share what is here as long as they do not look through it
    gc.enable()


def import_named(names: Iterable[str]) -> None:
    """Import modules, and what names like ``psnb:Embedding`` stand for, with all that needs."""
    collects = gc.isenabled()
    gc.disable()  # what is imported is no garbage: a tenth of the time
    for each in names:
        with suppress(Exception):  # processes that need it raise it
            pkgutil.resolve_name(each)
    if collects:
        gc.enable()


def _threads_after_fork() -> int:
    """Return how many threads there are; some, as OpenBLAS's, end by themselves before a fork."""
    if not (pid := os.fork()):
        os._exit(0)
    os.waitpid(pid, 0)
    return len(list(Path("/proc/self/task").iterdir()))


def _write_number(file: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the asker is gone
        os.write(file, _NUMBER.pack(number))


def _run(given: int, tracker: int, files: list[int]) -> NoReturn:
    """Be the process that was asked for.

    To end as Python ends takes a third of a second with a framework imported, only to clear what
    the fork server has made; `psnb._src.cluster.preload` says what is left out by that.
    """
    code = 1
    try:
        code = _begin(given, tracker, files)
        atexit._run_exitfuncs()
    except BaseException:  # of any kind: nothing above would show it
        traceback.print_exc()
    finally:
        util._flush_std_streams()  # type: ignore[attr-defined]
        os._exit(code)


def seed_anew() -> None:
    """Have libraries draw other random numbers here than in other processes that are forked.

    Python's own module does so by itself, and JAX has only the keys of users. What torch draws on a
    device it begins to draw when it first uses that.
    """
    importlib.import_module("numpy").random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


def _begin(given: int, tracker: int, files: list[int]) -> int:
    """Become the process that was asked for; return its exit code."""
    _received[:] = files
    resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
    parent = os.dup(given)
    with open(given, "rb") as pickles:
        process.current_process()._inheriting = True  # type: ignore[attr-defined]
        try:
            environment, output = pickle.load(pickles)
            os.environ.clear()
            os.environ.update(environment)
            for fd, place in output.items():
                os.dup2(files[place], fd)
                os.close(files[place])
            seed_anew()
            importlib.invalidate_caches()  # of folders, which may have got modules since
            spawn.prepare(pickle.load(pickles))
            made = pickle.load(pickles)
        finally:
            del process.current_process()._inheriting  # type: ignore[attr-defined]
    return int(made._bootstrap(parent))
