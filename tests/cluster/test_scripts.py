"""Scripts as people write them: with a guard and without, and what they are told."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from multiprocessing import spawn
from pathlib import Path
from textwrap import indent
from types import ModuleType

import pytest

from psnb._src.dask_compat.local import script_hidden

BEGINNING = """
import os
import psnb

print("script begins", flush=True)


class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second


def double(number):
    return 2 * number


def step(number):
    return Pair(double(number), os.getpid())


"""

WORK = """
client = psnb.local_cluster(workers=1, servers=1)
coordinator = psnb.ClusterCoordinator(psnb.ParameterServerStrategy(client))
pair = coordinator.schedule(step, (21,)).fetch()
print(pair.first, type(pair) is Pair, pair.second != os.getpid())
"""

KILL = """
os.kill(pair.second, 9)
print("once more", coordinator.schedule(step, (4,)).fetch().first)
"""

SPAWNED = """
from psnb._src.cluster import forking

forking.FORKS = False
"""

HOW = pytest.mark.parametrize(
    "how",
    [
        pytest.param("", id="forked"),
        pytest.param(
            SPAWNED,
            id="spawned",
            marks=pytest.mark.second_tier("each process imports all; where nothing forks"),
        ),
    ],
)
"""How the processes of a local cluster start: as here, and as on macOS."""

GUARD = 'if __name__ == "__main__":\n'


def run(tmp_path: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "job.py").write_text("".join(parts))
    return subprocess.run(
        [sys.executable, "job.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.second_tier("a process of each kind: the script whose worker is killed trains, too")
@pytest.mark.parametrize("guarded", [False, True], ids=["without a guard", "with a guard"])
def test_a_script_trains_and_workers_get_its_functions(tmp_path: Path, guarded: bool) -> None:
    work = GUARD + indent(WORK, "    ") if guarded else WORK
    done = run(tmp_path, BEGINNING, work)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["script begins", "42 True True"]
    # On a busy machine a nanny may find that its worker takes long to end.
    late = "did not end in time"
    assert [each for each in done.stderr.splitlines() if late not in each] == []


@pytest.mark.second_tier("killed workers are in the first tier; so are scripts")
@HOW
def test_a_worker_that_is_killed_comes_back_in_a_script_without_a_guard(
    tmp_path: Path, how: str
) -> None:
    done = run(tmp_path, how, BEGINNING, WORK, KILL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["script begins", "42 True True", "once more 8"]
    assert "the process of worker-0 has ended: it is started again" in done.stderr
    assert "distributed.nanny" not in done.stderr


def test_a_cluster_that_cannot_start_says_what_went_wrong(tmp_path: Path) -> None:
    preload = '{"distributed.worker.preload": ["not_installed"]}'
    done = run(tmp_path, f"import dask\ndask.config.set({preload})\n", BEGINNING, WORK)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "psnb.errors.ClusterError: the local cluster did not start: "
        "ModuleNotFoundError: No module named 'not_installed'"
    )
    assert "AttributeError" not in done.stderr


@pytest.mark.parametrize("how", ["name", "path"])  # python -m script, python script.py
def test_other_processes_import_the_script_as_ever(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ModuleType("__main__")
    if how == "name":
        script.__spec__ = ModuleSpec("script", None)
    else:
        script.__file__ = "/script.py"
    monkeypatch.setitem(sys.modules, "__main__", script)
    before = spawn.get_preparation_data
    theirs = before("another")
    with script_hidden(), script_hidden():
        assert spawn.get_preparation_data("another") == theirs
        ours = spawn.get_preparation_data("Dask Worker process (from Nanny)")
    assert theirs.keys() - ours.keys() == {f"init_main_from_{how}"}
    assert spawn.get_preparation_data is before


PRELOAD = """
import atexit
import gc
import sys
import types


def dask_setup(worker):
    if worker.name == "worker-0":
        atexit.register(tell)  # before psnb's, so it is called after that
        module = sys.modules["of_a_user"] = types.ModuleType("of_a_user")
        module.file = open("written", "w")
        module.file.write("all of it")
        module.log = Log()
        module.log.write("all of it, too")


class Log:
    def __init__(self):
        self.file = open("log", "w")
        self.write = self.file.write
        self.me = self


def tell():
    with open("told", "w") as told:
        print(gc.get_freeze_count() > 0, gc.isenabled(), file=told)
"""

PRELOADED = """
import dask

dask.config.set({"distributed.worker.preload": [os.path.abspath("preload.py")]})
"""

CLOSE = """
client.close()
"""


@pytest.mark.second_tier("processes that end are in the first tier in test_orphans.py")
@HOW
def test_python_collects_garbage_once_when_a_process_ends_and_writes_what_is_open(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / "preload.py").write_text(PRELOAD)
    done = run(tmp_path, how, BEGINNING, PRELOADED, WORK, CLOSE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "told").read_text() == "True False\n"
    assert (tmp_path / "written").read_text() == "all of it"
    assert (tmp_path / "log").read_text() == "all of it, too"
