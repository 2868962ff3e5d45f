"""What psnb needs of Jupyter beyond its documented interface: all of it is here, nowhere else.

Jupyter may change any of this in any release. Each function says what it relies on; if a release
breaks it, only this module changes. `TESTED` names the releases with which the tests pass.

Nothing of Jupyter is imported until a function needs it: workers and scripts have no use for it.

JupyterLab sends widgets' messages to a *subshell* of the kernel, another thread than the one that
runs cells, so that clicks work while a cell blocks in ``join``. `handle_beside_cells` removes what
prevents that. Otherwise (older kernels, pages without subshells) messages wait until the running
cell has ended; `must_wait` and `has_waited` detect this. ``tests/browser/test_clicks.py`` fails
when Jupyter changes any of this.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

TESTED = {"ipykernel": "7.4.0", "ipywidgets": "8.1.9", "jupyter_server": "2.21.1"}
"""The releases with which the tests pass."""

H = TypeVar("H", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    return _kernel() is not None


def kernel_id() -> str:
    """Return the kernel's id on its Jupyter server; empty if this process is not a kernel.

    Relies on the kernel's ``parent``, its application, and the name of its ``connection_file``.
    """
    application = getattr(_kernel(), "parent", None)
    file = Path(getattr(application, "connection_file", "") or "")
    return file.stem.removeprefix("kernel-") if file.stem.startswith("kernel-") else ""


def notebook_name() -> str:
    """Return the name of the notebook's file, without its ending; empty if it is not known.

    Relies on ``JPY_SESSION_NAME``, which a Jupyter server gives its kernels, and on the variable
    that VS Code sets in a notebook.
    """
    kernel = _kernel()
    if kernel is None:
        return ""
    names = getattr(getattr(kernel, "shell", None), "user_ns", {})
    path = str(names.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME", ""))
    file = path.replace("\\", "/").rpartition("/")[2]
    return file.removesuffix(".ipynb").strip() if file.endswith(".ipynb") else ""


def _kernel() -> object | None:
    # Relies on ipykernel's shell, which has the kernel.
    return getattr(_shell(), "kernel", None)


def _shell() -> object | None:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def cell_of(file: str) -> str:
    """Return what IPython calls the cell whose code has this name: ``Cell In[7]``; else nothing.

    Relies on the compiler of IPython's shell, which knows the names of cells.
    """
    name_of = getattr(getattr(_shell(), "compile", None), "format_code_name", None)
    parts = name_of(file) if name_of is not None else None
    return " ".join(parts) if parts else ""


def current_cell() -> str:
    """Return the cell whose code has called this; empty if none has."""
    frame = sys._getframe()
    while frame is not None:
        if cell := cell_of(frame.f_code.co_filename):
            return cell
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def format_error(error: BaseException) -> list[str]:
    """Return the lines that IPython shows of an error, in the user's mode and colours.

    Relies on the ``InteractiveTB`` of IPython's shell.
    """
    shell: Any = _shell()
    if shell is None:
        return traceback.format_exception(error)
    lines: list[str] = shell.InteractiveTB.structured_traceback(
        type(error), error, error.__traceback__
    )
    return lines


def after_cells(function: Callable[[], object]) -> Callable[[], None]:
    """Call a function at the end of each cell, also of one that raises; return what ends that.

    In the thread that runs cells, while all that is displayed is still an output of that cell:
    programs that only execute a notebook, such as nbconvert and papermill, take no later one.
    Relies on the ``events`` of IPython's shell.
    """
    shell: Any = _shell()

    def ended(*_: object) -> None:
        function()

    def end() -> None:
        with suppress(ValueError):  # the user has removed all of them
            shell.events.unregister("post_run_cell", ended)

    shell.events.register("post_run_cell", ended)
    return end


def handle_beside_cells(widget: Any) -> None:
    """Handle a widget's messages in the shell that the page chose, without events of a cell.

    Relies on three things:

    - A widget's ``_handle_msg`` takes each message of its ``comm``, on a thread of the kernel, one
      at a time.
    - A comm's ``handle_msg`` fires ``pre_execute`` and ``post_execute`` around each message, as for
      a cell. On the latter the inline backend shows and closes the figures that the running cell
      still builds. psnb's messages are handled without these events: they draw nothing.
    - ipykernel 7.4 sends each message to the shell that last published on the comm, which is
      usually that of the running cell (``BaseComm._reply_subshell_for``). On psnb's own comm, the
      page's choice is used. A kernel without that method is not changed.

    Parameters
    ----------
    widget : ipywidgets.Widget
        One of psnb; the comms of others are not changed.
    """
    comm = widget.comm
    comm.handle_msg = widget._handle_msg
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default


def must_wait(widget: Any) -> bool:
    """Return whether messages certainly wait for cells, because the kernel has no subshells.

    Relies on the ``kernel`` of ipykernel's comms, and the features in its ``kernel_info``.
    """
    kernel = getattr(widget.comm, "kernel", None)
    features = getattr(kernel, "kernel_info", {}).get("supported_features", ())
    return kernel is not None and "kernel subshells" not in features


def has_waited() -> bool:
    """Return, while a message is handled, whether this thread is the one that runs cells.

    That may be so for a page's first message although not for later ones: it is sent before the
    page has a subshell. Relies on ipykernel running cells in the main thread.
    """
    return threading.current_thread() is threading.main_thread()


def server_file() -> Path | None:
    """Return the runtime file of the Jupyter server that started this process; it may be gone.

    None if no Jupyter server did. Relies on ``JPY_PARENT_PID``, which kernels and their processes
    inherit, and on the name of the file. jupyter_server's ``list_running_servers`` does the same,
    but takes two seconds to import.
    """
    parent = os.environ.get("JPY_PARENT_PID", "")
    if not parent.isdigit():
        return None
    try:
        from jupyter_core.paths import jupyter_runtime_dir
    except ImportError:
        return None
    return Path(jupyter_runtime_dir()) / f"jpserver-{parent}.json"


async def notebooks(sessions: Any) -> dict[str, str]:
    """Return the path of the notebook, relative to the server's root, by kernel id.

    Relies on the result of ``SessionManager.list_sessions``, which may have to be awaited.
    """
    from jupyter_core.utils import ensure_async

    return {
        each["kernel"]["id"]: each["path"]
        for each in await ensure_async(sessions.list_sessions())
        if each.get("kernel") and each.get("type") == "notebook"
    }


def kernel_process(kernels: Any, kernel: str) -> int | None:
    """Return the process of a kernel that runs now; None if it runs elsewhere.

    Relies on the ``provisioner`` of a kernel's manager: one for this machine has a ``pid``.
    """
    return getattr(getattr(kernels.get_kernel(kernel), "provisioner", None), "pid", None)


def send_at_once(settings: dict[str, Any]) -> None:
    """Have a Jupyter server send what kernels say to their pages at once; for pages to come.

    Otherwise a small message waits until the page's system acknowledges the one before, which it
    delays by 40 ms: a click's effect came that late, as the kernel says first that it is busy.
    Relies on the server's setting for the class of a page's connection to a kernel, on ``connect``
    being called when the page's socket is open, and on ``websocket_handler``, which has that.

    Parameters
    ----------
    settings : dict
        Of the server's web application.
    """
    base: Any = settings.get("kernel_websocket_connection_class")
    if base is None:
        return

    class Connection(base):
        def connect(self) -> Any:
            self.websocket_handler.set_nodelay(True)
            return super().connect()

    settings["kernel_websocket_connection_class"] = Connection


SECRET = "PSNB_HUB_SECRET"
"""The environment variable by which kernels have their server's secret."""


def kernel_secret() -> str:
    """Return what only this server's kernels know; called in the server, before it starts any.

    A server that only takes passwords has no token that they could show. Relies on kernels being
    started with the environment of their server. One that was started in a kernel or terminal of
    another server has that one's secret; an empty one would open it to all.
    """
    secret = os.environ.get(SECRET) or secrets.token_hex(32)
    os.environ[SECRET] = secret
    return secret


def checked_by_itself(method: F) -> F:
    """Have a handler's method be called for users that the server does not know, too.

    Relies on the attribute that jupyter_server's ``allow_unauthenticated`` sets, from 2.13 on.
    """
    setattr(method, "__allow_unauthenticated", True)
    return method


def untracked(handler: H) -> H:
    """Have requests to a handler not count as activity, which keeps an idle server from ending.

    Relies on ``JupyterHandler._track_activity``.
    """
    handler._track_activity = False  # type: ignore[attr-defined]
    return handler
