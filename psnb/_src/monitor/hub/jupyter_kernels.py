"""The Jupyter server's kernels: their notebooks, and whether they still live."""

from __future__ import annotations

from typing import Any

from psnb._src.jupyter_internals import kernel_process, notebooks
from psnb._src.monitor.hub.known_coordinators import Known


class Kernels:
    """Asks the managers of the server; used on its event loop.

    Parameters
    ----------
    kernel_manager, session_manager
        Of the running `ServerApp`.
    """

    def __init__(self, kernel_manager: Any, session_manager: Any) -> None:
        self._kernels = kernel_manager
        self._sessions = session_manager

    async def notebooks(self) -> dict[str, str]:
        """Return the path of the notebook, relative to the server's root, by kernel id."""
        return await notebooks(self._sessions)

    def ended(self, known: Known) -> str:
        """Return why a coordinator's kernel does not exist any more; empty if it exists."""
        if not known.kernel:
            return ""
        if known.kernel not in self._kernels:
            # A kernel that was never here runs elsewhere; only its silence shows its end.
            return "its kernel was shut down" if known.process is not None else ""
        # Of one that runs elsewhere only silence shows the end.
        process = kernel_process(self._kernels, known.kernel)
        if known.process is None:
            known.process = process
        return "" if process == known.process else "its kernel was restarted"
