"""Shared fixtures, and the checks that no test leaves threads or processes behind."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time

# Before any of them is imported: two cores are shared by a whole cluster.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")
# As the documents say to start Dask's processes.
os.environ.setdefault("DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP", "300s")

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from distributed import Client
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, Scheduling

import psnb
import tests.forking  # noqa: F401 - has the fork server load what tests need
from tests.compiling import COMPILED, compile_once
from tests.cost import Cost

OTHER_CLUSTER = "PSNB_TEST_CLUSTER"
"""Set by `tests.integration.cluster.two_hosts`, to run tests on a cluster of its making."""

# A busy machine makes no example wrong.
settings.register_profile("psnb", deadline=None)
# What everybody waits for tries the same examples each time; `make test-all` looks for new ones.
settings.register_profile("first tier", deadline=None, derandomize=True)

DEADLINE = 30.0
"""Seconds after which a test that waits for something gives up."""


_FOLDER = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Let tests be interrupted: a shell that starts them in the background has them ignore it.

    And let JAX and Numba compile a program once for all processes of this run.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Cost())
    first_tier = "not second_tier" in config.option.markexpr
    settings.load_profile("first tier" if first_tier else "psnb")
    if COMPILED not in os.environ:  # else these tests are started by others, and use theirs
        config.stash[_FOLDER] = os.environ[COMPILED] = tempfile.mkdtemp(prefix="psnb-compiled-")
        # Small ones, too: by default only those that took a second are kept.
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    compile_once()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Forget what JAX has compiled: each run begins with nothing."""
    if _FOLDER in config.stash:
        shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)


_LONGEST = ("tests/browser/", "tests/notebooks/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, beside which there is enough to do.

    And ask of each test of the second tier for its reason.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))
    for item in items:
        for mark in item.iter_markers("second_tier"):
            if not mark.args:
                raise pytest.UsageError(f"{item.nodeid}: why is it in the second tier?")


class _ByFile(LoadFileScheduling):
    """Keeps the tests of a file together, and those with a browser: they share it and a server."""

    def _split_scope(self, nodeid: str) -> str:
        browser = _LONGEST[0]
        return browser if nodeid.startswith(browser) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Divide tests among processes."""
    return _ByFile(config, log) if config.option.dist == "loadfile" else None


def wait_until(
    condition: Callable[[], bool],
    what: str,
    deadline: float = DEADLINE,
    otherwise: Callable[[], object] = lambda: None,
) -> None:
    """Poll a condition of another process until it holds; if it does not, call ``otherwise``."""
    end = time.monotonic() + deadline
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end:
            otherwise()
            pytest.fail(f"not within {deadline} s: {what}")
        pause.wait(0.02)


def connected(file: str) -> Client:
    """Connect as people do, to the scheduler whose file this is."""
    return psnb.connect(json.loads(Path(file).read_text())["address"], timeout=DEADLINE)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[object]:
    """Look for no garbage while tests are collected: a third of the time, for nothing.

    Nor later among what is there then, a million objects: each look takes half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _no_thread_of_psnb_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test after which one of psnb's own threads lives on."""
    yield
    wait_until(
        lambda: not _threads_of_psnb(),
        "threads named psnb-* end with what started them; where they are is on stderr",
        5,
        lambda: faulthandler.dump_traceback(sys.__stderr__),
    )


def _threads_of_psnb() -> list[str]:
    # One waits for a fork server that was replaced, and so for clusters of other tests.
    every = {thread.name for thread in threading.enumerate()} - {"psnb-replaced"}
    return [name for name in every if name.startswith("psnb")]


_shared: list[Client] = []
"""The client of `cluster`, if there is one."""


@pytest.fixture(autouse=True)
def _no_loop_ended() -> Iterator[None]:
    """Fail the test that ends the event loop of its module's cluster, and say by what."""
    yield
    for client in _shared:
        if client.loop.asyncio_loop.is_closed():
            _shared.clear()  # the next tests fail as they use it
            thread = (client.cluster or client)._loop_runner._loop_thread  # None if it was told to
            error = None if thread is None else thread._exception
            raise AssertionError("the event loop of this module's cluster has ended") from error


@pytest.fixture(scope="session", autouse=True)
def _no_process_left() -> Iterator[None]:
    """Fail the run if a cluster's process outlives it."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    wait_until(
        lambda: not _processes_since(before), "all processes of all clusters end with the tests"
    )


def _processes_since(before: set[int]) -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.pid not in before and not _has_ended(child) and not _is_pythons_own(child)
    ]


def _has_ended(child: psutil.Process) -> bool:
    # A thread is just waiting for a fork server that was replaced.
    return not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def _is_pythons_own(child: psutil.Process) -> bool:
    """Whether it is a helper, of psnb or multiprocessing, which lives as long as this process."""
    command = " ".join(child.cmdline())
    # Those that were forked from it have the same command line.
    serves = "forking import serve" in command or "forkserver import main" in command
    forks_others = serves and child.ppid() == os.getpid()
    return forks_others or "resource_tracker" in command


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Two workers and two servers, which the tests of one module share and do not harm.

    They are threads of this process, unless the module says ``PROCESSES = True``, because its tests
    ask for what only processes have. Or they are those whose scheduler file `OTHER_CLUSTER` names.
    """
    processes = getattr(request.module, "PROCESSES", False)
    file = os.environ.get(OTHER_CLUSTER)
    with connected(file) if file else psnb.local_cluster(2, 2, processes=processes) as client:
        _shared.append(client)
        yield client
        _shared.clear()


@pytest.fixture
def strategy(cluster: Client) -> Iterator[psnb.ParameterServerStrategy]:
    """A strategy of this test's own on the shared cluster, over both servers."""
    with psnb.ParameterServerStrategy(cluster) as strategy:
        yield strategy


@pytest.fixture
def coordinator(strategy: psnb.ParameterServerStrategy) -> psnb.ClusterCoordinator:
    """The strategy's coordinator; closed with it."""
    return psnb.ClusterCoordinator(strategy)
