"""Interrupts at random moments leave the coordinator alive, and every effect whole and single."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(folder: Path, *interrupts: int, timeout: float) -> str:
    """Run `interrupted` with so many interrupts for closures, epochs and checkpoints."""
    command = [sys.executable, "-m", "tests.integration.notebook.interrupted", str(folder)]
    # Not in this process: a coordinator that dies takes the thread along that waits for it.
    done = subprocess.run(
        [*command, *map(str, interrupts)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_interrupts_end_no_coordinator_and_lose_and_double_nothing(tmp_path: Path) -> None:
    run(tmp_path, 200, 20, 20, timeout=250)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_thousand_interrupts_do_not_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = run(tmp_path, 20_000, 2000, 2000, timeout=1700)
    with capsys.disabled():
        print(f"\n{told}")
