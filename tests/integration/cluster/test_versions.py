"""Workers and servers that have another version of psnb."""

from __future__ import annotations

import pytest
from distributed import Client

import psnb
from psnb import errors
from psnb._src.server import serving
from psnb._src.worker import plugin
from tests.conftest import DEADLINE


def test_a_worker_with_another_version_is_refused_by_name_and_versions(
    strategy: psnb.ParameterServerStrategy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(plugin, "own_version", lambda: "0.0.9")  # that of the workers
    coordinator = psnb.ClusterCoordinator(strategy)
    remote = coordinator.schedule(int)
    versions = rf"has psnb 0\.0\.9, and this process psnb {psnb.__version__}: install"
    with pytest.raises(errors.WorkerLostError, match=rf"worker 'worker-0' at .*{versions}"):
        remote.fetch(DEADLINE)
    with pytest.raises(errors.WorkerLostError):
        coordinator.join(DEADLINE)
    told = [e for e in coordinator.events() if e.kind is psnb.EventKind.WORKER_UNREACHABLE]
    assert {e.worker for e in told} == {"worker-0", "worker-1"}
    assert all("0.0.9" in e.message for e in told)
    refused = [each for each in caplog.messages if "is refused" in each]
    assert len(refused) == len({*refused}) == 2
    monkeypatch.undo()
    # Somebody has installed it, and started them again at the same addresses.
    coordinator.close()
    assert psnb.ClusterCoordinator(strategy).schedule(int).fetch(DEADLINE) == 0


def test_others_work_beside_a_worker_with_another_version(
    strategy: psnb.ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter(["0.0.9"])
    monkeypatch.setattr(plugin, "own_version", lambda: next(asked, psnb.__version__))
    coordinator = psnb.ClusterCoordinator(strategy)
    assert coordinator.schedule(int).fetch(DEADLINE) == 0


def test_a_server_with_another_version_is_refused(
    cluster: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "own_version", lambda: "0.0.9")
    with pytest.raises(errors.PsnbError, match=r"has psnb 0\.0\.9, and this process psnb"):
        psnb.ParameterServerStrategy(cluster)
