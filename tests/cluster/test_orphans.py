"""No process of a local cluster outlives the notebook's process, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import DEADLINE, wait_until

NOTEBOOK = """
import sys, time
import psnb

client = psnb.local_cluster(workers=2, servers=1)
strategy = psnb.ParameterServerStrategy(client)
coordinator = psnb.ClusterCoordinator(strategy)

def busy():
    print("busy", flush=True)
    time.sleep(1000)

coordinator.schedule(busy)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["asked", "killed"])
def test_nothing_is_left_of_a_cluster_whose_notebook_is_gone(
    tmp_path: Path, how: signal.Signals
) -> None:
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    notebook = subprocess.Popen(
        [sys.executable, str(tmp_path / "notebook.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with notebook:
        assert notebook.stdout is not None
        line = notebook.stdout.readline()
        assert "busy" in line, line  # a closure runs on a worker
        processes = psutil.Process(notebook.pid).children(recursive=True)
        assert len(processes) >= 3
        notebook.send_signal(how)
        notebook.wait(DEADLINE)
        wait_until(
            lambda: not any(each.is_running() for each in processes),
            "the cluster's processes have ended",
            otherwise=lambda: [each.kill() for each in processes if each.is_running()],
        )
