"""connect_panels: sends a coordinator's updates to panels, by the way that there is."""

# Why there are both `HubLink` and `SchedulerLink`; each way to have one of them loses something:
# - The hub's alone: coordinators of scripts, on any host, would not be seen. They know no Jupyter
#   server; its address and token are in a file on its own host, and it may not run yet.
# - The scheduler's alone: its HTTP server has no authentication, so anyone with access could read
# the data that `outline` leaves out. Coordinators would be seen only once a user attaches their
# scheduler, and vanish with it. Commands would have to come by the kernel's comm, which does not
# reach processes that a kernel started, and waits for the running cell where pages have no
# subshells.
# - One link that posts by HTTP to either: on the scheduler's server anyone could post in a
#   coordinator's name, and where only the scheduler's own port is open, no coordinator could.
# - The hub as a client of the scheduler, which TLS authenticates: Jupyter servers would need the
#   cluster's certificates, and the same Dask, Python and psnb.

from __future__ import annotations

import logging

import dask
from distributed import Client

from psnb._src.monitor.links.hub_link import HubLink, find_server
from psnb._src.monitor.links.scheduler_link import SchedulerLink
from psnb._src.monitor.publisher import Publisher
from psnb._src.monitor.viewed import Viewed

_log = logging.getLogger("psnb")


def connect_panels(viewed: Viewed, client: Client) -> Publisher | None:
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
    Publisher or None
        It has begun. None if the updates cannot go to the scheduler, or are switched off.
    """
    server = find_server()
    if server is not None:
        hub = HubLink(viewed, server)
        hub.start()
        return hub
    if not dask.config.get("psnb.tell-scheduler", True):
        return None

    link = SchedulerLink(viewed, client)
    try:
        link.start()
    except Exception:  # a boundary: whatever fails on the scheduler, training continues
        _log.debug("the scheduler cannot be sent what a coordinator shows", exc_info=True)
        return None
    return link
