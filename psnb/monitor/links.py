"""Where a coordinator tells of itself, for panels: its Jupyter server, or its scheduler.

Importing the links is put off until a coordinator begins: workers never need them.
"""

from __future__ import annotations

import logging
from typing import Protocol

from distributed import Client

from psnb.monitor.kernel import in_notebook
from psnb.monitor.source import Source

_log = logging.getLogger("psnb")


class Link(Protocol):
    """The way to a place that panels look at."""

    def close(self) -> None:
        """Tell the last state, and end; idempotent, bounded in time."""


def begin_link(source: Source, client: Client) -> Link | None:
    """Begin to tell of a coordinator; it never fails, at worst nobody is told.

    A kernel tells the Jupyter server that started it, everything else the Dask scheduler.
    """
    from psnb.monitor.post import HubLink
    from psnb.monitor.route import SchedulerLink
    from psnb.monitor.server import find_server

    server = find_server() if in_notebook() else None
    link = SchedulerLink(source, client) if server is None else HubLink(source, server)
    try:
        link.start()
    except OSError as error:
        _log.debug("nobody is told of this coordinator: %s", error)
        return None
    return link
