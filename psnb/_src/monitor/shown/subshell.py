"""Handles a widget's messages while a cell runs, without side effects on that cell.

JupyterLab sends widgets' messages to a *subshell* of the kernel, a thread beside the one that runs
cells, so that clicks work while a cell blocks in ``join``. Two properties of the kernel prevent
that:

- ipykernel 7.4 instead sends each message to the shell that last published on the comm, which is
  usually that of the running cell (``BaseComm._reply_subshell_for``). On psnb's own comm, the
  page's choice is used. The name is private: a kernel without it is not changed.
- A comm fires ``pre_execute`` and ``post_execute`` around each message, as for a cell. On the
  latter the inline backend shows and closes the figures that the running cell still builds.
  psnb's messages are handled without these events: they draw nothing.

Otherwise (older kernels, pages without subshells) messages wait until the running cell has ended;
`must_wait` and `has_waited` detect this. ``tests/browser/test_clicks.py`` fails when Jupyter
changes any of this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def handle_beside_cells(comm: Any, handle: Callable[[dict[str, Any]], object]) -> None:
    """Handle a comm's messages in the shell that the page chose, without events of a cell.

    Parameters
    ----------
    comm : comm.base_comm.BaseComm
        A comm of psnb; other comms are not changed.
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
    """Return, while a message is handled, whether this thread is the one that runs cells.

    That may be so for a page's first message although not for later ones: it is sent before the
    page has a subshell.
    """
    return threading.current_thread() is threading.main_thread()
