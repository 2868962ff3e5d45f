"""What numba does not import to load compiled loops."""

import subprocess
import sys

import pytest

CODE = """
import sys
import numba
from psnb._src.server import kernels
from psnb._src.cluster.compiled import load_compiled

load_compiled()
print("scipy.linalg" in sys.modules)

from numba.np import arraymath, linalg

arraymath.ensure_blas()
print("scipy.linalg" in sys.modules, arraymath.ensure_blas is linalg.ensure_blas)
"""


@pytest.mark.second_tier("imports numba in a process of its own")
def test_scipy_is_imported_when_numba_needs_it() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]
