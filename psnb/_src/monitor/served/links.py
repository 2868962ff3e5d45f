"""Which panels hear of a coordinator: those of its Jupyter server, or who attaches its cluster."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from psnb._src.monitor.served.hub_client import find_server
from psnb._src.monitor.served.hub_link import HubLink
from psnb._src.monitor.told import Viewed

if TYPE_CHECKING:
    from distributed import Client

_log = logging.getLogger("psnb")


class PanelLink(Protocol):
    """Tells panels of a coordinator until it is closed; never raises, never holds it up."""

    @property
    def alive(self) -> bool:
        """Whether a thread of it still runs."""

    def close(self) -> None:
        """Tell the last state and end, in a few seconds at most; harmless the second time."""


def tell_panels(source: Viewed, client: Client) -> PanelLink | None:
    """Begin to tell panels of a coordinator, from threads of its own.

    In a kernel, and in what a kernel started, the hub of its Jupyter server hears of it; anywhere
    else the scheduler does, for hubs to which somebody attaches it, unless Dask's setting
    ``psnb.tell-scheduler`` is false (``DASK_PSNB__TELL_SCHEDULER=False``).

    Parameters
    ----------
    source : Viewed
        The coordinator; it is held weakly.
    client : distributed.Client
        Connected to its cluster.

    Returns
    -------
    Link or None
        None if the scheduler cannot be told, or shall not be.
    """
    server = find_server()
    if server is not None:
        hub = HubLink(source, server)
        hub.start()
        return hub
    # The Jupyter server, which imports this room, has no need for Dask.
    import dask

    if not dask.config.get("psnb.tell-scheduler", True):
        return None
    from psnb._src.monitor.served.scheduler_link import SchedulerLink

    link = SchedulerLink(source, client)
    try:
        link.start()
    except Exception:  # a boundary: whatever the scheduler lacks, training goes on without panels
        _log.debug("the scheduler cannot be told of a coordinator", exc_info=True)
        return None
    return link
