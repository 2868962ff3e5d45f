"""The hub: a Jupyter server extension between the coordinators of all kernels and the panel.

The wheel enables it. To enable it by hand: ``jupyter server extension enable psnb``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["_load_jupyter_server_extension"]


def _load_jupyter_server_extension(server: Any) -> None:
    """Add the hub's routes to a Jupyter server, which calls this once."""
    # Importing psnb must not need jupyter_server.
    from jupyter_server.utils import url_path_join
    from tornado.ioloop import PeriodicCallback

    from psnb._src.jupyter_compat import kernel_secret, send_at_once
    from psnb._src.monitor.jupyter_server.handlers import CoordinatorHandler, StreamHandler
    from psnb._src.monitor.jupyter_server.hub import SWEEP, Hub
    from psnb._src.monitor.jupyter_server.schedulers import POLL

    root = Path(server.root_dir).expanduser()
    hub = Hub(server.kernel_manager, server.session_manager, root=root)
    base = server.web_app.settings["base_url"]
    given = {"hub": hub}
    posting = {**given, "secret": kernel_secret()}
    server.web_app.add_handlers(
        ".*$",
        [
            (url_path_join(base, r"psnb/coordinators/([^/]{1,200})"), CoordinatorHandler, posting),
            (url_path_join(base, "psnb/stream"), StreamHandler, given),
        ],
    )
    send_at_once(server.web_app.settings)
    # They end with the server's event loop.
    PeriodicCallback(hub.sweep, 1000 * SWEEP).start()
    PeriodicCallback(hub.schedulers.poll, 1000 * POLL).start()
