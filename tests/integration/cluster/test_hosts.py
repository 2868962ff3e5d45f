"""Parameters on another host, and in containers: the same tests pass, without shared memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.namespaces import ADD_LINK, APART, AS_ROOT, OWN_PROCESSES, require_namespaces

pytestmark = pytest.mark.second_tier(
    "another kind of cluster; tests/client has the same over the network"
)


def run_tests(folder: Path, kind: str, *before: str) -> None:
    done = subprocess.run(
        [*before, sys.executable, "-m", "tests.integration.cluster.two_hosts", str(folder), kind],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_parameters_between_two_hosts(tmp_path: Path) -> None:
    require_namespaces(*APART, *ADD_LINK)
    require_namespaces(*APART, *OWN_PROCESSES, "true")
    run_tests(tmp_path, "hosts", *APART)


def test_parameters_in_containers_on_one_host(tmp_path: Path) -> None:
    require_namespaces(*AS_ROOT, *OWN_PROCESSES, "true")
    run_tests(tmp_path, "containers", *AS_ROOT)
