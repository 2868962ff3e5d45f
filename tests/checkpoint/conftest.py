"""What several tests of checkpoints need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.delta_model import MEMORY, ROWS, Model, forget_memory


@pytest.fixture(params=["local", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "run") if request.param == "local" else MEMORY
    forget_memory()


@pytest.fixture
def model() -> Model:
    made = Model()
    made.push(*range(ROWS))
    made.push(*range(ROWS))
    return made
