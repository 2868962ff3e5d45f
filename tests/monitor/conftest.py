"""A Jupyter server for all tests of views that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.monitor.hub.jupyter import TOKEN, Jupyter, jupyter


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    with jupyter(tmp_path_factory.mktemp("jupyter"), f"--IdentityProvider.token={TOKEN}") as server:
        yield server
