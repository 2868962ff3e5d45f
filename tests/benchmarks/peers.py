"""What other systems do on the same work, in the same run, if they are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def tensorflow(work: str, module: str = "tests.benchmarks.tensorflow_peer") -> float | None:
    """Return what TensorFlow does a second; None if it is not installed.

    See the module for what ``work`` may be. ``TENSORFLOW_PYTHON`` names an interpreter that has it.
    """
    return _measured("tensorflow", module, work)


def torchrec(work: str) -> float | None:
    """Return what TorchRec does a second, with ``TORCHREC_PYTHON``; None if it is not installed."""
    return _measured("torchrec", "tests.benchmarks.torchrec_peer", work)


def paddle(work: str) -> float | None:
    """Return what Paddle does a second, with ``PADDLE_PYTHON``; None if it is not installed."""
    return _measured("paddle", "tests.benchmarks.paddle_peer", work)


def _measured(package: str, module: str, work: str) -> float | None:
    # It may be another interpreter than ours.
    python = os.environ.get(f"{package.upper()}_PYTHON", sys.executable)
    here = subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False)
    if here.returncode:
        return None
    done = subprocess.run(
        [python, "-m", module, work],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        timeout=600,
        env={key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"},
    )
    return float(json.loads(done.stdout.splitlines()[-1]))
