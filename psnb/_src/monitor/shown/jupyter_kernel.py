"""Which Jupyter kernel this process is, if it is one; imports nothing of Jupyter by itself."""

from __future__ import annotations

import sys
from pathlib import Path


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    return _kernel() is not None


def kernel_id() -> str:
    """Return the kernel's id on its Jupyter server; empty if this process is no kernel."""
    kernel = _kernel()
    application = getattr(kernel, "parent", None)
    file = Path(getattr(application, "connection_file", "") or "")
    return file.stem.removeprefix("kernel-") if file.stem.startswith("kernel-") else ""


def _kernel() -> object | None:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel: object | None = getattr(shell, "kernel", None)
    return kernel
