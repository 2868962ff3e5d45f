"""What closures print is seen where the notebook prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import psnb

WHOLE = re.compile(r"\[[^]]+\] (closure \d part \d+|no end of line)")

SCRIPT = """
import logging, sys, warnings
import psnb

def talk(number):
    for part in range(50):
        print("closure", number, "part", part)
    print("error", number, file=sys.stderr)
    warnings.warn(f"warning {number}")
    logging.getLogger("mine").warning("logged %d", number)
    print("no end of line", end="")

if __name__ == "__main__":
    with psnb.local_cluster(2, 1) as client, psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.map(talk, range(8))
        coordinator.join()
"""


def talk(number: int) -> None:
    for part in range(50):
        print("closure", number, "part", part)
    print("error", number, file=sys.stderr)
    print("no end of line", end="")


def test_lines_of_several_workers_have_their_names_and_are_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        psnb.local_cluster(workers=2, processes=False) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.map(talk, range(8))
        coordinator.join()
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == 8 * 51
    assert [line for line in lines if not WHOLE.fullmatch(line)] == []
    for number in range(8):
        end = f"] error {number}"
        assert [line[:8] for line in err.splitlines() if line.endswith(end)] == ["[worker-"]


@pytest.mark.second_tier("as people start processes; what logging writes is in tests/worker")
def test_lines_of_several_processes_have_their_names_and_are_whole(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 8 * 51
    assert [line for line in lines if not WHOLE.fullmatch(line)] == []
    told = done.stderr.splitlines()
    for number in range(8):
        for text in ("error %d", "UserWarning: warning %d", "logged %d"):
            end = text % number
            assert [line[:8] for line in told if line.endswith(end)] in (["[worker-"],), end
