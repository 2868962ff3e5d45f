"""The memory of GPUs, of libraries that are imported only."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from psnb._src.worker.gpu_memory import gpu_memory


@pytest.fixture(autouse=True)
def _without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "pynvml"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def torch(*reserved: int, initialized: bool = True) -> Any:
    cuda = SimpleNamespace(
        is_initialized=lambda: initialized,
        device_count=lambda: len(reserved),
        memory_reserved=lambda device: reserved[device],
    )
    return SimpleNamespace(cuda=cuda)


class Nvml:
    """Two devices; this process is on the second only."""

    class NVMLError(Exception):
        pass

    initialized = True

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if not self.initialized:
            raise self.NVMLError
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        other = SimpleNamespace(pid=os.getpid() + 1, usedGpuMemory=1000)
        mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=30)
        return [other, mine] if handle else [other]


def test_nothing_is_imported_for_it() -> None:
    assert gpu_memory() is None
    assert not {"torch", "pynvml"} & set(sys.modules)


def test_it_is_what_the_allocator_of_torch_has_on_all_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch(100, 20))
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    assert gpu_memory() == 120


@pytest.mark.parametrize("found", [torch(100, initialized=False), SimpleNamespace()])
def test_torch_that_uses_no_gpu_or_is_being_imported_is_not_asked(
    found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", found)
    assert gpu_memory() is None


def test_without_torch_it_is_what_the_driver_counts_for_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu_memory() == 30
    nvml.initialized = False
    assert gpu_memory() is None
