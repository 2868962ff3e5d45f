"""Has a widget's messages handled while a cell runs, and without a trace in that cell.

JupyterLab sends widgets' messages to a *subshell* of the kernel, a thread beside the one that runs
cells, so that clicks work while a cell blocks in ``join``. Two things of the kernel are in the way:

- ipykernel 7.4 sends each message to the shell that last published on the comm instead, and that is
  usually the one of the running cell (``BaseComm._reply_subshell_for``). On psnb's own comm, the
  page's choice stands. The name is private: a kernel that lacks it is left alone.
- A comm fires ``pre_execute`` and ``post_execute`` around each message, as for a cell. Upon the
  latter the inline backend shows and closes the figures that the running cell still builds.
  psnb's messages are handled without: they draw nothing.

Elsewhere (older kernels, pages that know no subshells) messages wait until the running cell has
ended; `must_wait` and `has_waited` tell. ``tests/browser/test_clicks.py`` fails when Jupyter
changes any of this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def handle_beside_cells(comm: Any, handle: Callable[[dict[str, Any]], object]) -> None:
    """Have a comm's messages handled wherever the page sent them, and no cell's events fired.

    Parameters
    ----------
    comm : comm.base_comm.BaseComm
        One of psnb's own; no other comm changes.
    handle : callable
        Takes each message; called on a thread of the kernel, one at a time.
    """
    comm.handle_msg = handle
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default


def must_wait(comm: Any) -> bool:
    """Return whether messages certainly wait for cells, because the kernel has no subshells."""
    kernel = getattr(comm, "kernel", None)
    features = getattr(kernel, "kernel_info", {}).get("supported_features", ())
    return kernel is not None and "kernel subshells" not in features


def has_waited() -> bool:
    """Return, while a message is handled, whether it was handled where cells run.

    A page's very first message may be although later ones are not: it comes before its subshell.
    """
    return threading.current_thread() is threading.main_thread()
