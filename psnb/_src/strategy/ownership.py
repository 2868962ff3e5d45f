"""Ownership: a strategy's registration at the scheduler, by which others find the strategy.

On the client's event loop. The scheduler refuses one whose strategy was taken over
(`psnb._src.placement.registry`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from distributed import Client

from psnb._src.dask_compat.reach import ask_scheduler, scheduler_address
from psnb._src.jupyter_compat import kernel_id
from psnb._src.placement import registry
from psnb._src.placement.layout import Layout, ServerAddress, unpacked
from psnb._src.strategy.scheduler_life import scheduler_lost
from psnb.errors import ClusterError, OwnershipLostError, PsnbError, ServerLostError

_TIMEOUT = 10.0


class Ownership:
    """A process owns a strategy.

    Every method raises `ServerLostError` if the scheduler does not answer, `SchedulerLostError` if
    another one does that knows nothing of psnb, and `OwnershipLostError` if the strategy was taken
    over.

    Parameters
    ----------
    client : distributed.Client
        The owner's.
    record : OwnershipRecord
        The strategy's record.
    owner : Owner, optional
        The owner as the scheduler knows it, if it does.
    strategy : str
        The id under which the scheduler knows the strategy, if it does.
    parameters, models : mapping of str to bytes, optional
        As far as the scheduler knows them.

    Attributes
    ----------
    record : OwnershipRecord
        As given; with the name that the scheduler has given, once it is registered.
    parameters : dict
        The strategy's parameters by name, pickled.
    models : dict
        What of which model is in which parameter, by the models' names, packed.
    """

    def __init__(
        self,
        client: Client,
        record: registry.OwnershipRecord,
        owner: registry.Owner | None = None,
        strategy: str = "",
        parameters: Mapping[str, bytes] | None = None,
        models: Mapping[str, bytes] | None = None,
    ) -> None:
        self._client, self.record, self._strategy = client, record, strategy
        self._owner = owner or _new_owner(client)
        self.parameters, self.models = dict(parameters or {}), dict(models or {})
        self._turns = itertools.count(1)

    async def register(self, strategy: str) -> None:
        """Begin to be the owner of a new strategy."""
        self._strategy = strategy
        found = await _ask(
            self._client,
            registry.REGISTER,
            strategy=strategy,
            record=[*self.record],
            owner=[*self._owner],
            parameters=self.parameters,
            models=self.models,
        )
        if isinstance(found, str):
            raise OwnershipLostError(found)
        self.record = self.record._replace(name=found[0])

    async def describe(self, name: str, packed: bytes) -> None:
        """Note a parameter; if this raises, none was noted."""
        self.parameters[name] = packed
        try:
            await self._tell(registry.DESCRIBE, name=name, packed=packed)
        except BaseException:  # the answer was lost, or the caller interrupted: it may be noted
            del self.parameters[name]
            with suppress(PsnbError):
                await self._call(registry.DESCRIBE, name=name, packed=None)
            raise

    async def note_model(self, name: str, packed: bytes) -> None:
        """Note a model, or a change of it."""
        await self._tell(registry.DESCRIBE, name=name, packed=packed, model=True)
        self.models[name] = packed

    async def publish(self, layout: Layout, servers: Sequence[ServerAddress]) -> None:
        """Publish where the shards are, and which servers there should be, as a heartbeat."""
        await self._tell(registry.PUBLISH, **self.publication(layout, servers))

    def publication(self, layout: Layout, servers: Sequence[ServerAddress]) -> dict[str, Any]:
        """Return what the scheduler's `PUBLISH` is called with for that."""
        keys, turn = [server.key for server in servers], next(self._turns)
        return {**self._known(), "layout": layout.packed(), "servers": keys, "turn": turn}

    def _known(self) -> dict[str, str]:
        return {"token": self._owner.token, "strategy": self._strategy}

    async def close(self) -> None:
        """Have the scheduler forget the strategy."""
        await self._call(registry.PUBLISH, layout=None)

    async def leave(self) -> None:
        """Give the strategy up, so that another process may claim it."""
        token = self._owner.token
        await _ask(self._client, registry.LEAVE, token=token, strategy=self._strategy)

    async def move(self, layout: Layout, servers: Mapping[str, str]) -> None:
        """Give the strategy the id that its new layout has; former keys of servers by new ones."""
        arguments = {"after": layout.strategy, "layout": layout.packed(), "servers": servers}
        if refusal := await self._call(registry.MOVE, **arguments):
            raise OwnershipLostError(f"the scheduler does not know the strategy: {refusal}")
        self._strategy = layout.strategy

    async def _tell(self, handler: str, **arguments: Any) -> None:
        """Call a handler; register the strategy if the scheduler does not know it any more."""
        if await self._call(handler, **arguments) == registry.UNKNOWN:
            await self.register(self._strategy)
            await self._call(handler, **arguments)

    async def _call(self, handler: str, **arguments: Any) -> str:
        refusal: str = await _ask(self._client, handler, **{**self._known(), **arguments})
        if refusal not in ("", registry.UNKNOWN):
            raise OwnershipLostError(refusal)
        return refusal


async def claim(client: Client, strategy: str) -> tuple[Ownership, Layout]:
    """Become the owner of a strategy that has none; return its layout, too.

    Raises
    ------
    ClusterError
        If it has an owner that lives, or was freed meanwhile.
    ServerLostError
        If the scheduler does not answer.
    """
    owner = _new_owner(client)
    found = await _ask(client, registry.CLAIM, strategy=strategy, owner=[*owner])
    if isinstance(found, str):
        found = found.replace(owner.where, "this process itself", 1)
        raise ClusterError(
            f"the strategy cannot be attached: {found}. It can be when that process has ended or "
            "has closed its Dask client; one that does not answer for some seconds counts as gone"
        )
    record, _, layout, parameters, models = found
    owned = registry.OwnershipRecord(*record)
    return Ownership(client, owned, owner, strategy, parameters, models), unpacked(layout)


def _new_owner(client: Client) -> registry.Owner:
    kernel = f", kernel {kernel_id()}" if kernel_id() else ""
    where = f"process {os.getpid()} on {socket.gethostname()}{kernel}"
    return registry.Owner(uuid.uuid4().hex, client.id, where, time.time())


async def _ask(client: Client, handler: str, **arguments: Any) -> Any:
    try:
        async with asyncio.timeout(_TIMEOUT):
            answer = await ask_scheduler(client, handler, **arguments)
    except OSError as error:  # a timeout, or a broken connection, or the client is closed
        raise ServerLostError(f"the Dask scheduler does not answer: {error!r}") from error
    if answer is None:  # Dask's, where there is no such handler: psnb's return something
        raise scheduler_lost(scheduler_address(client))
    return answer
