"""Links: how Dask's processes are reached, and for how long a link that is down is waited for.

Both are decided here. A link that is down looks like a host that has died. For Dask, a peer that
does not answer for 30 s is dead, and that ends what is left: a worker or server whose connection to
the scheduler has broken ends with all that it holds, and a client that cannot connect again closes.
psnb notices unresponsive processes much earlier, by heartbeats (`heartbeat_timeout`): replicas take
over and closures run elsewhere, and nothing is discarded. So Dask may wait for minutes, as long as
a switch takes to start again, or a laptop to find its network.

The limits are Dask's settings, which each process has when it makes a connection: psnb raises them
in the notebook, and so in what is started from there; of processes that others have started it says
what to set.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import dask
from distributed import Client, Security

from psnb._src.dask_compat.reach import (
    ask_scheduler,
    await_before_reconnecting,
    connect_separately,
    event_loop,
    host_and_port,
    parse_timedelta,
    renew_tcp_timeouts,
    scheduler_address,
    scheduler_identity,
    tls_context_of,
)
from psnb._src.utils.checks import seconds
from psnb._src.utils.text import truncate
from psnb._src.utils.threads import run_on_loop
from psnb.errors import ClusterError, ConfigurationError

LINK = 300.0
"""Seconds for which a link may be down until Dask may take it that the other side is dead."""

_LIMITS = ("distributed.comm.timeouts.tcp", "distributed.scheduler.worker-ttl")
"""Dask's settings by which it decides that, in the order of their defaults: 30 s, and 5 minutes."""

CLIENT_ENDED = (
    "the Dask client is closed: make a new one with psnb.local_cluster() or psnb.connect(address), "
    "then a new strategy"
)


def connection_ended(name: str, retention: float) -> str:
    """Return what to do when the client of a strategy is closed, by whatever."""
    return (
        "the Dask client is closed, by a call or because its scheduler could not be reached for "
        f"{LINK:.0f} s. The servers of a cluster that goes on keep the strategy for {retention:g} "
        f"s: client = psnb.connect(address), then psnb.attach(client, {name!r}) gives it back with "
        "all that was applied. Where there is none any more, make a new one"
    )


logger = logging.getLogger("psnb")


def connect(address: str, *, timeout: float = 8.0, security: Security | None = None) -> Client:
    """Connect to a running cluster.

    If the connection breaks later, the client reconnects for up to five minutes; queued closures
    wait, and workers continue with theirs. After that the client is closed; then `attach` gives a
    strategy back, with all that it holds, for as long as its ``retention``.

    Parameters
    ----------
    address : str
        The scheduler's address, for example ``"tcp://host:8786"``.
    timeout : float
        Seconds in which the scheduler must answer at first.
    security : distributed.Security, optional
        The certificates with which a scheduler at ``tls://…`` lets in, for example
        ``Security(tls_ca_file=…, tls_client_cert=…, tls_client_key=…, require_encryption=True)``.
        By default those that Dask's configuration names.

    Returns
    -------
    distributed.Client
        Connected.

    Raises
    ------
    ClusterError
        If no scheduler answers there in time, or if the address is for TLS and there are no
        certificates.
    ConfigurationError
        If ``timeout`` is not a positive number, or ``security`` is of another type.
    """
    timeout = seconds("connect: timeout", timeout)
    if not isinstance(security, Security | None):
        raise ConfigurationError(
            f"connect: security must be a distributed.Security, found {truncate(repr(security))}"
        )
    # Checked before: Dask raises a TypeError, and its client waits for itself when it is collected.
    if address.startswith("tls://") and tls_context_of(security or Security()) is None:
        raise ClusterError(
            f"{address!r} admits only clients with certificates: name them with security=, or in "
            "Dask's configuration, distributed.comm.tls"
        )
    raise_limits()
    try:
        client = Client(address, timeout=timeout, security=security)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address!r}: {error}. Start one with `dask scheduler`, "
            "or check the address it printed, which is tls://... where it wants certificates"
        ) from None  # Dask's own errors say the same in a hundred lines
    hold(client)
    return client


def raise_limits() -> None:
    """Have this process, and what it starts, wait for links as long as psnb does, if not longer."""
    dask.config.set({setting: f"{LINK:.0f}s" for setting in _LIMITS if _is_short(setting)})


def hold(client: Client) -> None:
    """Have a client of this process wait for its links as long as psnb does; idempotent.

    Also for clients that psnb did not make: they reconnect for `LINK` seconds, not only for their
    timeout of connecting. Not on its event loop.
    """
    raise_limits()
    if scheduler_address(client).startswith(("tcp://", "tls://")):
        await_before_reconnecting(client, partial(_await_scheduler, client))
        run_on_loop(event_loop(client), partial(renew_tcp_timeouts, client))


_POLL_INTERVAL = 0.5
_ANSWER = 2.0
_CONNECT_TIMEOUT = 1.0


async def _await_scheduler(client: Client) -> bool:
    """Wait until a client's scheduler answers, or has ended; return False if it says nothing."""
    loop, address = asyncio.get_running_loop(), scheduler_address(client)
    end = loop.time() + LINK
    while loop.time() < end:
        there = await listens(address)
        if there is False or (there and await _answers(client, address)):
            return True  # Dask tries for some seconds whether another one is started there
        await asyncio.sleep(_POLL_INTERVAL)
    logger.error("%s could not be reached for %.0f s: the Dask client is closed", address, LINK)
    return False


async def _answers(client: Client, address: str) -> bool:
    # The listener may be the near end of a tunnel.
    try:
        async with asyncio.timeout(_ANSWER):
            comm = await connect_separately(client, address)
    except OSError:
        return False
    comm.abort()
    return True


async def listens(address: str) -> bool | None:
    """Return whether something listens at an address; None if there is no answer to that."""
    if not address.startswith(("tcp://", "tls://")):
        return None
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            _, writer = await asyncio.open_connection(*host_and_port(address))
    except ConnectionRefusedError:
        return False
    except OSError:
        return None  # it cannot be reached: it may be there still
    writer.close()
    return True


# A process whose link is down for long must be distinguished from one that can be used.

PRESENT_WITHIN = 30.0
"""Seconds without a heartbeat to the Dask scheduler after which nothing begins on a process."""


def present(cluster: dict[str, Any]) -> dict[str, Any]:
    """Return a scheduler's description of its cluster without unresponsive processes.

    It lists one whose host has died as long as it waits for its link. Pure.
    """
    workers = cluster["workers"]
    # By the scheduler's own clock: the latest heartbeat is as good as now, or none came.
    since = max((each["last_seen"] for each in workers.values()), default=0.0) - PRESENT_WITHIN
    heard = {address: each for address, each in workers.items() if each["last_seen"] >= since}
    return {**cluster, "workers": heard}


# In the processes of a cluster that others have started.

SHORT_LIMITS = "psnb_short_limits"
"""The name of the handler on the Dask scheduler and workers."""

_ASK_TIMEOUT = 5.0
_MOST_NAMED = 4


def _is_short(setting: str) -> bool:
    limit = parse_timedelta(dask.config.get(setting, default=None), default="seconds")
    return limit is not None and limit < LINK


def short_limits() -> list[str]:
    """Return which limits of this process are too short, as what to set in its environment."""
    return [_line(setting) for setting in _LIMITS if _is_short(setting)]


def _line(setting: str) -> str:
    words = setting.replace("-", "_").upper().split(".")
    return f"DASK_{'__'.join(words)}={LINK:.0f}s"


async def warn_of_short_limits(client: Client) -> None:
    """Log which processes of a cluster Dask would end over a link that is down for less long.

    Only workers that have loaded psnb (`psnb._src.strategy.servers.extend`); on the client's event
    loop.
    """
    # Unresponsive workers are reported elsewhere; they must not hide the scheduler's error.
    own: list[str] = []
    workers: dict[str, Any] = {}
    found: dict[str, list[str]] = {}
    try:
        async with asyncio.timeout(_ASK_TIMEOUT):
            own = await ask_scheduler(client, SHORT_LIMITS)
            workers = (await scheduler_identity(client))["workers"]
            message = {"op": SHORT_LIMITS}
            found = await ask_scheduler(client, "broadcast", msg=message, on_error="ignore")
    except OSError as error:
        logger.debug("not all say for how long their Dask waits for links: %r", error)
    names = {address: repr(str(worker["name"])) for address, worker in workers.items()}
    answers = {names.get(address, address): lines for address, lines in found.items()}
    answers = {"the scheduler": own, **{name: answers[name] for name in sorted(answers)}}
    for line in map(_line, _LIMITS):
        short = [name for name, lines in answers.items() if line in lines]
        if short:
            more = f" and {len(short) - _MOST_NAMED:,} more" if len(short) > _MOST_NAMED else ""
            logger.warning(
                "Dask ends processes, with the parameters that they hold, when a link was down for "
                "less than %.0f s. Set %s in the environment, before they start, of %s%s",
                LINK,
                line,
                ", ".join(short[:_MOST_NAMED]),
                more,
            )
