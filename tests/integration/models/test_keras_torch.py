"""What is tested of Keras with one backend, tested with the other one: a process has one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[3]
OTHER = {"jax": "torch", "torch": "jax"}[keras.backend.backend()]
TESTS = (
    "tests/models/keras",
    "tests/integration/models/test_keras_models.py",
    "tests/integration/models/test_adopting.py::test_a_keras_model_fits_on_from_the_epoch_of_a_checkpoint",
    "tests/integration/models/test_flights_models.py"
    "::test_one_epoch_of_keras_over_the_flights_reaches_an_auc_of_081",
)


@pytest.mark.second_tier("the other backend of the same tests")
@pytest.mark.timeout(900)  # of some sixty tests, each of which has the usual limit
def test_what_holds_with_one_backend_holds_with_the_other(tmp_path: Path) -> None:
    options = ["-q", "-m", "not soak", "-p", "no:cacheprovider", "--basetemp", f"{tmp_path}/inner"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *TESTS, *options],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": OTHER},
        capture_output=True,
        text=True,
        timeout=870,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    last = done.stdout.splitlines()[-1]
    assert "passed" in last
    for word in ("skipped", "deselected", "xfailed", "warning"):
        assert word not in last
