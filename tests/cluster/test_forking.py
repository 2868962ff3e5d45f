"""The fork server: forked processes differ from others by what they have not to import only."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import psnb
from psnb._src.cluster import forking
from tests.cluster.test_scripts import run
from tests.conftest import wait_until

CONTEXT = forking.ForkContext()


@pytest.fixture(scope="module", autouse=True)
def _all_imports_after_this_file() -> Iterator[None]:
    yield
    forking.fork_server(os.environ, with_libraries=True)


@pytest.fixture(autouse=True)
def _few_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many of these fork servers are replaced: none is to import for seconds."""
    monkeypatch.setattr(forking, "ALWAYS", [])
    monkeypatch.setattr(forking, "LIBRARIES", [])
    forking.fork_server(os.environ, with_libraries=True)


def _answer(question: Callable[..., Any], arguments: tuple[Any, ...], out: Connection) -> None:
    out.send(question(*arguments))


def ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a forked process."""
    mine, its = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_answer, args=(question, arguments, its))
    process.start()
    its.close()
    answer = mine.recv()
    process.join()
    assert process.exitcode == 0
    return answer


def server_pid() -> int:
    return forking.fork_server(os.environ)._process.pid


def test_processes_have_what_the_notebook_has_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_pid()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_a_user.py").write_text("import os; value = os.getppid()")
    assert ask(os.getcwd) == str(tmp_path)
    assert ask(_of_a_user) == server
    (tmp_path / "of_a_user.py").write_text("value = 'edited'")
    assert ask(_of_a_user) == "edited"


def _of_a_user() -> Any:
    import of_a_user  # type: ignore[import-not-found]

    return of_a_user.value


def test_another_environment_is_that_of_another_fork_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = psutil.Process(server_pid())
    monkeypatch.setenv("OF_A_TEST", "1")
    assert ask(_variable, "OF_A_TEST") == "1"
    assert server_pid() != before.pid
    wait_until(lambda: not psutil.pid_exists(before.pid), "it has ended, and is no zombie")


@pytest.mark.second_tier("a fork server more, which imports for seconds")
def test_so_is_what_a_process_can_only_inherit() -> None:
    before = os.umask(0o022)
    try:
        for mask in (0o022, 0o077):
            os.umask(mask)
            assert ask(os.umask, 0) == mask
    finally:
        os.umask(before)


def _variable(name: str) -> str | None:
    return os.environ.get(name)


def test_a_fork_server_that_is_replaced_forks_on_until_its_last_process_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = CONTEXT.Process(target=signal.pause)
    process.start()
    before = psutil.Process(server_pid())
    monkeypatch.setenv("OF_A_TEST", "2")
    assert server_pid() != before.pid
    assert before.status() != "zombie"
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    wait_until(lambda: not psutil.pid_exists(before.pid), "it has ended")


@pytest.mark.second_tier("several clusters one after another")
def test_random_numbers_are_those_of_each_process() -> None:
    for draw in (_of_python, _of_numpy):
        assert len({ask(draw) for _ in range(3)}) == 3


def _of_python() -> float:
    return random.random()


def _of_numpy() -> float:
    return np.random.random()


def test_so_are_those_of_torch() -> None:
    import torch  # here: fork servers of other tests shall not import it

    before = torch.initial_seed()
    forking.seed_anew()
    assert torch.initial_seed() != before


def test_a_process_gets_no_file_but_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)):
        server_pid()
        other = CONTEXT.Process(target=signal.pause)
        other.start()
        files = ask(_files)
        other.kill()
        other.join()
    sockets = [each for each in files if each.startswith(("socket:", "anon_inode"))]
    assert sockets == []


def _files() -> list[str]:
    found = []
    for each in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{each}"))
        except OSError:  # that of the folder itself
            continue
    return found


def test_what_a_process_prints_goes_where_the_notebook_prints(
    capfd: pytest.CaptureFixture[str],
) -> None:
    server_pid()
    ask(_print)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("out\n", "err\n")


def _print() -> None:
    print("out", flush=True)
    print("err", file=sys.stderr, flush=True)


@pytest.mark.parametrize(("end", "code"), [(sys.exit, 3), (os._exit, 4)])
def test_the_exit_code_of_a_process_is_known(end: Callable[[int], Any], code: int) -> None:
    process = CONTEXT.Process(target=end, args=(code,))
    process.start()
    process.join()
    assert process.exitcode == code


def test_processes_do_not_hear_the_stop_button() -> None:
    assert ask(signal.getsignal, signal.SIGINT) is signal.SIG_IGN


def test_a_process_goes_on_when_its_fork_server_is_killed() -> None:
    process = CONTEXT.Process(target=signal.pause)
    process.start()
    server = server_pid()
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: server_pid() != server, "there is another one")
    assert process.exitcode is None
    assert psutil.Process(process.pid).is_running()
    process.kill()
    process.join()
    assert process.exitcode == 255  # nobody knows it


THREAD = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


@pytest.mark.second_tier("it takes 14 s, as two fork servers import all they need")
def test_no_process_is_forked_beside_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "starts_a_thread.py").write_text(THREAD)
    monkeypatch.setattr(forking, "_told", set())
    with monkeypatch.context() as patched:
        patched.syspath_prepend(tmp_path)
        patched.setattr(forking, "ALWAYS", ["starts_a_thread"])
        forking.fork_server(os.environ, with_libraries=True)
        server = server_pid()
        for _ in range(2):
            assert ask(os.getppid) == os.getpid()  # it was spawned
        forking.fork_server(os.environ, with_libraries=True)
        assert server_pid() == server  # there was no second attempt
    assert caplog.text.count("there is no fork server (a library starts a thread)") == 1
    forking.fork_server(os.environ, with_libraries=True)
    assert ask(os.getppid) == server_pid()


@pytest.mark.second_tier("a fork server more, which imports for seconds")
def test_a_fork_server_that_has_too_many_files_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forking, "_told", set())
    server = server_pid()
    assert ask(os.getppid) == server
    limits = resource.prlimit(server, resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (8, limits[1]))
    assert ask(os.getppid) == os.getpid()  # it was spawned
    assert "too many processes or files" in caplog.text
    resource.prlimit(server, resource.RLIMIT_NOFILE, limits)
    assert ask(os.getppid) == server


@pytest.mark.second_tier("a process that is spawned imports for seconds")
def test_a_fork_server_that_is_stopped_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forking, "_told", set())
    server = server_pid()
    assert ask(os.getppid) == server
    os.kill(server, signal.SIGSTOP)
    with monkeypatch.context() as shorter:
        shorter.setattr(forking, "_FORK_TIMEOUT", 0.1)
        assert ask(os.getppid) == os.getpid()  # it was spawned
    assert "it does not answer within 0 s" in caplog.text
    os.kill(server, signal.SIGCONT)
    assert ask(os.getppid) == server
    wait_until(lambda: not psutil.Process(server).children(), "what it forked late has ended")


@pytest.mark.second_tier(
    "what a fork has is in the first tier: what the notebook has at that moment"
)
def test_libraries_that_the_notebook_has_imported_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(forking, "LIBRARIES", ["library"])
    assert not ask(_has_imported, "library")
    monkeypatch.setitem(sys.modules, "library", None)
    assert not ask(_has_imported, "library")  # a process alone does not wait for another one
    forking.fork_server(os.environ, with_libraries=True)
    assert ask(_has_imported, "library")


def _has_imported(name: str) -> bool:
    return name in sys.modules


def test_processes_of_clusters_come_from_one_fork_server_that_was_started_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    with psnb.local_cluster(1, 1) as first:
        server = server_pid()
        assert set(first.run(os.getppid).values()) == {server}
    with psnb.local_cluster(1, 1) as second:
        assert set(second.run(os.getppid).values()) == {server}


SCRIPT = """
import os
from psnb._src.cluster import forking

forking.begin_fork_server()
server = forking._current
import psnb

with psnb.local_cluster(workers=1, servers=1) as client:
    parents = set(client.run(os.getppid).values())
    print(parents == {server._process.pid}, forking._current is server)
"""

SETTING = """
import dask

dask.config.set({"distributed.nanny.pre-spawn-environ": {"OMP_NUM_THREADS": 2, "OF_A_TEST": 1}})
"""


USERS = pytest.param(SETTING, marks=pytest.mark.second_tier("the same by another source"))


@pytest.mark.second_tier("it looks at Dask's processes, of which versions change")
@pytest.mark.parametrize("before", ["", USERS], ids=["by itself", "as the user says"])
def test_what_dask_will_set_is_known_before_it_does(tmp_path: Path, before: str) -> None:
    done = run(tmp_path, before + SCRIPT)
    assert done.stdout == "True True\n", done.stderr
    assert done.stderr == ""


CLOSED = """
import os
import sys
import psnb

if __name__ == "__main__":
    files = [open(each, "w") for each in sys.argv[1:]]  # the first ones have the free numbers
    with psnb.local_cluster(workers=1, servers=1) as client:
        print(set(client.run(lambda: 3).values()), file=files[0])
"""


@pytest.mark.second_tier("a process of its own that starts a cluster")
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-", "2>&-"])
def test_a_process_without_input_and_output_starts_a_cluster(tmp_path: Path, closed: str) -> None:
    (tmp_path / "script.py").write_text(CLOSED)
    names = ["first", "second", "third", "fourth"]
    command = f'exec "{sys.executable}" script.py {" ".join(names)} {closed}'
    subprocess.run(command, shell=True, cwd=tmp_path, timeout=60, check=True)
    assert [(tmp_path / each).read_text() for each in names] == ["{3}\n", "", "", ""]
