"""The Jupyter server's kernels: their notebooks, and whether they still live."""

from __future__ import annotations

from typing import Any

from jupyter_core.utils import ensure_async

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
        sessions = await ensure_async(self._sessions.list_sessions())
        return {
            each["kernel"]["id"]: each["path"]
            for each in sessions
            if each.get("kernel") and each.get("type") == "notebook"
        }

    def ended(self, known: Known) -> str:
        """Return why a coordinator's kernel does not exist any more; empty if it exists."""
        if not known.kernel:
            return ""
        if known.kernel not in self._kernels:
            # A kernel that was never here runs elsewhere; only its silence shows its end.
            return "its kernel was shut down" if known.process is not None else ""
        process = self._process(known.kernel)
        if known.process is None:
            known.process = process
        return "" if process == known.process else "its kernel was restarted"

    def _process(self, kernel: str) -> int | None:
        # A provisioner that starts kernels elsewhere has no process here; then only silence shows
        # it.
        provisioner = getattr(self._kernels.get_kernel(kernel), "provisioner", None)
        return getattr(provisioner, "pid", None)
