"""Starts and retires workers of a cluster, if the cluster can do that."""

from __future__ import annotations

from typing import Any

from distributed import Client

from psnb._src.dask_compat.reach import ask_scheduler, event_loop, scales_itself, scheduler_identity
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.threads import run_on_loop
from psnb.errors import ClusterError

_RETIRE_TIMEOUT = 60.0


def cannot_add(client: Client) -> str:
    """Return why a worker cannot be started from here; empty if it can."""
    cluster = client.cluster
    if not hasattr(cluster, "scale") or not hasattr(cluster, "plan"):
        return (
            "this notebook has not started the cluster, so it cannot add workers: start one with "
            "`dask worker ADDRESS --nthreads 1`"
        )
    if scales_itself(cluster):
        return "the cluster scales itself by its work (adapt): it starts workers when it needs them"
    return ""


@uninterrupted
def add_worker(client: Client) -> None:
    """Have the cluster start one more process; returns immediately.

    Raises
    ------
    ClusterError
        If the cluster cannot.
    """
    if reason := cannot_add(client):
        raise ClusterError(reason)
    client.cluster.scale(len(client.cluster.plan) + 1)


def retire_worker(client: Client, address: str) -> None:
    """Have a worker finish its closures and leave; an interrupt ends only the waiting.

    Raises
    ------
    ClusterError
        If it did not leave in a minute.
    """

    async def retire() -> None:
        cluster: Any = client.cluster
        worker = (await scheduler_identity(client))["workers"].get(address)
        if worker is not None and hasattr(cluster, "worker_spec"):
            # Else the cluster would start another worker in its place.
            name = str(worker["name"])
            await cluster.scale_down([each for each in cluster.worker_spec if str(each) == name])
        else:
            await ask_scheduler(
                client,
                "retire_workers",
                workers=[address],
                remove=True,
                close_workers=True,
                stimulus_id="psnb-retire-worker",
            )

    try:
        run_on_loop(event_loop(client), retire, _RETIRE_TIMEOUT, goes_on=True)
    except (OSError, TimeoutError) as error:
        raise ClusterError(f"the worker at {address} did not leave: {error}") from error
