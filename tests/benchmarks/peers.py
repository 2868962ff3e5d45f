"""What other systems do on the same work, in the same run, if they are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_PYTHON = os.environ.get("TENSORFLOW_PYTHON", sys.executable)
"""An interpreter that has TensorFlow; it may be another one than ours."""


def tensorflow(work: str, module: str = "tests.benchmarks.tensorflow_peer") -> float | None:
    """Return what TensorFlow does a second; None if it is not installed.

    See the module for what ``work`` may be.
    """
    here = subprocess.run([_PYTHON, "-c", "import tensorflow"], capture_output=True, check=False)
    if here.returncode:
        return None
    done = subprocess.run(
        [_PYTHON, "-m", module, work],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        timeout=600,
        env={key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"},
    )
    return float(json.loads(done.stdout.splitlines()[-1]))
