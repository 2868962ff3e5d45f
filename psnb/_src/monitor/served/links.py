"""PanelLink: sends a coordinator's updates to the hub of its Jupyter server, or its scheduler."""

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
    """Sends updates of a coordinator until it is closed; never raises, never blocks it."""

    @property
    def alive(self) -> bool:
        """Whether one of its threads still runs."""

    def close(self) -> None:
        """Send the last state and end, in a few seconds at most; idempotent."""


def tell_panels(viewed: Viewed, client: Client) -> PanelLink | None:
    """Begin to send a coordinator's updates to panels, from separate threads.

    In a kernel, and in processes that a kernel started, the updates go to the hub of its Jupyter
    server. Anywhere else they go to the scheduler, for hubs to which it is attached, unless Dask's
    setting ``psnb.tell-scheduler`` is false (``DASK_PSNB__TELL_SCHEDULER=False``).

    Parameters
    ----------
    viewed : Viewed
        The coordinator; only a weak reference is kept.
    client : distributed.Client
        Connected to its cluster.

    Returns
    -------
    PanelLink or None
        None if the updates cannot go to the scheduler, or are switched off.
    """
    server = find_server()
    if server is not None:
        hub = HubLink(viewed, server)
        hub.start()
        return hub
    # The Jupyter server imports this module, and does not need Dask.
    import dask

    if not dask.config.get("psnb.tell-scheduler", True):
        return None
    from psnb._src.monitor.served.scheduler_link import SchedulerLink

    link = SchedulerLink(viewed, client)
    try:
        link.start()
    except Exception:  # a boundary: whatever fails on the scheduler, training goes on
        _log.debug("the scheduler cannot be told of a coordinator", exc_info=True)
        return None
    return link
