"""Code that changes between two closures reaches the workers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from distributed import Client

import psnb


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    """A worker and a server, which have modules of their own."""
    with psnb.local_cluster(workers=1, servers=1) as client:
        yield client


def test_a_changed_global_reaches_the_next_closure(
    coordinator: psnb.ClusterCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = 512

    def size() -> int:
        return batch

    assert coordinator.schedule(size).fetch() == 512
    batch = 1024
    assert coordinator.schedule(size).fetch() == 1024


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's that the workers cannot find."""
    (tmp_path / "uploaded_by_a_test.py").write_text("def rate():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module("uploaded_by_a_test")
    del sys.modules["uploaded_by_a_test"]


def _edit(module: ModuleType) -> None:
    Path(str(module.__file__)).write_text("def rate():\n    return 2\n")
    importlib.reload(module)


def test_an_uploaded_module_is_used_and_after_an_edit_the_new_one(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    module: ModuleType,
) -> None:
    def through_the_module() -> int:
        rate: int = module.rate()
        return rate

    strategy.upload(module)
    assert coordinator.schedule(module.rate).fetch() == 1
    assert coordinator.schedule(through_the_module).fetch() == 1
    _edit(module)
    strategy.upload(module)
    assert coordinator.schedule(module.rate).fetch() == 2
    assert coordinator.schedule(through_the_module).fetch() == 2


def test_an_upload_to_a_closed_strategy_is_refused(
    strategy: psnb.ParameterServerStrategy, module: ModuleType
) -> None:
    strategy.close()
    with pytest.raises(psnb.errors.CoordinatorClosedError):
        strategy.upload(module)


def test_a_worker_that_joins_later_has_an_uploaded_module(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    module: ModuleType,
) -> None:
    strategy.upload(module)
    Path(str(module.__file__)).unlink()  # new processes look where this one does
    first = coordinator.schedule(lambda: psnb.worker_context().worker_name).fetch()
    coordinator.add_worker()
    remote = coordinator.schedule(module.rate, worker=lambda w: str(w.name) != first)
    assert remote.fetch() == 1
