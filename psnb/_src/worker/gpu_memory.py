"""The memory of GPUs that this process has, by the libraries that it has imported already."""

from __future__ import annotations

import os
import sys
from typing import Any


def gpu_memory() -> int | None:
    """Return the bytes of all GPUs that this process has; None if it uses none.

    Of PyTorch's allocator if that is in use, else as NVIDIA's driver counts for the process, if
    someone has initialized ``pynvml`` here.
    """
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # missing while another thread imports torch
    if cuda is not None and cuda.is_initialized():
        return sum(cuda.memory_reserved(device) for device in range(cuda.device_count()))
    nvml: Any = sys.modules.get("pynvml")
    if not hasattr(nvml, "NVMLError"):
        return None
    try:
        devices = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        running = [each for it in devices for each in nvml.nvmlDeviceGetComputeRunningProcesses(it)]
    except nvml.NVMLError:  # not initialized, or the driver is gone
        return None
    used = [each.usedGpuMemory or 0 for each in running if each.pid == os.getpid()]
    return sum(used) if used else None
