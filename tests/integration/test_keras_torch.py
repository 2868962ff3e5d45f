"""What is tested of Keras with JAX, tested with torch: a process has one backend of Keras."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(keras.backend.backend() == "torch", reason="this process has torch"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "tests",
    [
        "tests/keras_models",
        "tests/integration/test_keras_models.py",
        "tests/integration/test_flights_models.py -k keras",
    ],
)
def test_what_holds_with_jax_holds_with_torch(tests: str, tmp_path: Path) -> None:
    options = [*tests.split(), "-q", "-p", "no:cacheprovider", "--basetemp", f"{tmp_path}/inner"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "skipped" not in done.stdout
