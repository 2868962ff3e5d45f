"""Attaching: what lives on a cluster's servers, and taking it over from an owner that has gone."""

from __future__ import annotations

from typing import NamedTuple, overload

from distributed import Client

from psnb._src.coordinator.coordinator import ClusterCoordinator
from psnb._src.coordinator.queue import finish_halfway
from psnb._src.strategy import (
    ParameterServerStrategy,
    StoredStrategies,
    check_client,
    leave_to_others,
    stored_strategies,
    taken_over,
)
from psnb._src.threads import uninterrupted
from psnb.errors import ConfigurationError


class Attached(NamedTuple):
    """What `attach` gives back: a pair.

    Attributes
    ----------
    strategy : ParameterServerStrategy
        With all parameters.
    coordinator : ClusterCoordinator
        A new one, with the defaults; nothing is queued.
    """

    strategy: ParameterServerStrategy
    coordinator: ClusterCoordinator


@overload
def attach(client: Client) -> StoredStrategies: ...


@overload
def attach(client: Client, name: str) -> Attached: ...


def attach(client: Client, name: str | None = None) -> StoredStrategies | Attached:
    """Take a strategy over whose owner has gone; without a name, list what lives on the cluster.

    The parameters are as the last closures left them: the effect of each is there wholly or not at
    all. What was queued is lost. The strategy has its mode and parameters again, with optimizer
    state; per-worker values, datasets and checkpoint managers must be made again. Handles from
    before are refused from now on, also in a process that was taken for dead and wakes up
    (`errors.OwnershipLostError`), and in closures of it that still run.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    name : str, optional
        The name of the strategy.

    Returns
    -------
    StoredStrategies or Attached
        A list of the strategies that live on the cluster; or strategy and coordinator.

    Raises
    ------
    ClusterError
        If the strategy's owner lives; the message says where. Or if the client is closed.
    SchedulerLostError
        If the client's scheduler has ended.
    ConfigurationError
        If there is no strategy of this name.
    ServerSilentError
        If a server does not respond that holds what no other does; try again when it does.
    SerializationError
        If a class or function that the strategy was made with cannot be unpickled here.

    Examples
    --------
    >>> psnb.attach(client)
    >>> strategy, coordinator = psnb.attach(client, "flights")
    >>> strategy.parameters["embedding"].lookup([1, 2, 3])
    """
    check_client(client)
    stored = stored_strategies(client)
    if name is None:
        return stored
    found = [each for each in stored if each.name == name]
    if not found:
        names = ", ".join(repr(each.name) for each in stored) or "none"
        raise ConfigurationError(
            f"no strategy named {name!r} lives on the cluster; those that do: {names}. What had no "
            "owner for longer than its keep= is freed; what was saved can be restored"
        )
    strategy = None
    try:
        with uninterrupted:  # except while it waits
            strategy = taken_over(client, found[0].id, finish_halfway)
            return Attached(strategy, ClusterCoordinator(strategy))
    except BaseException:
        if strategy is not None:  # nobody would hold it, and its parameters would be freed
            leave_to_others(strategy)
        raise
