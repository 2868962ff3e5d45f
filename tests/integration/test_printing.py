"""What closures print is seen where the notebook prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_lines_of_several_workers_have_their_names_and_are_whole(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 8 * 51
    whole = re.compile(r"\[[^]]+\] (closure \d part \d+|no end of line)")
    assert [line for line in lines if not whole.fullmatch(line)] == []
    told = done.stderr.splitlines()
    for number in range(8):
        for text in ("error %d", "UserWarning: warning %d", "logged %d"):
            end = text % number
            assert [line[:8] for line in told if line.endswith(end)] in (["[worker-"],), end
