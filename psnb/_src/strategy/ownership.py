"""Ownership: what a strategy's owner tells the scheduler, so that others find the strategy.

On the client's event loop. The scheduler refuses one whose strategy was taken over
(`psnb._src.placement.layout_registry`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any

from distributed import Client

from psnb._src.dask_internals import ask_scheduler, scheduler_address
from psnb._src.jupyter_internals import kernel_id
from psnb._src.placement import (
    CLAIM,
    DESCRIBE,
    LEAVE,
    MOVE,
    NOTE_MODEL,
    PUBLISH,
    REGISTER,
    UNKNOWN,
    Deed,
    Layout,
    Owner,
    unpacked,
)
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
    deed : Deed
        What the strategy is.
    owner : Owner, optional
        What the scheduler knows of the owner, if it does.
    parameters, models : mapping of str to bytes, optional
        Those that are known to the scheduler.

    Attributes
    ----------
    deed : Deed
        As given; with the name that the scheduler has given, once it is registered.
    """

    def __init__(
        self,
        client: Client,
        deed: Deed,
        owner: Owner | None = None,
        parameters: Mapping[str, bytes] | None = None,
        models: Mapping[str, bytes] | None = None,
    ) -> None:
        self._client, self.deed = client, deed
        self._owner = owner or _new_owner(client)
        self._parameters, self._models = dict(parameters or {}), dict(models or {})

    @property
    def parameters(self) -> Mapping[str, bytes]:
        """The strategy's parameters by name, pickled."""
        return self._parameters

    @property
    def models(self) -> Mapping[str, bytes]:
        """What of which model is in which parameter, by the models' names, packed."""
        return self._models

    async def register(self, strategy: str) -> None:
        """Begin to be the owner of a new strategy."""
        found = await _ask(
            self._client,
            REGISTER,
            strategy=strategy,
            deed=list(astuple(self.deed)),
            owner=list(astuple(self._owner)),
            parameters=self._parameters,
            models=self._models,
        )
        if isinstance(found, str):
            raise OwnershipLostError(found)
        self.deed = replace(self.deed, name=found[0])

    async def describe(self, strategy: str, name: str, packed: bytes) -> None:
        """Note a parameter; what raises has noted none."""
        self._parameters[name] = packed
        told = {"strategy": strategy, "name": name}
        try:
            if await self._tell(DESCRIBE, **told, packed=packed) == UNKNOWN:
                await self.register(strategy)
        except BaseException:  # the answer was lost, or the caller interrupted: it may be noted
            del self._parameters[name]
            with suppress(PsnbError):
                await self._tell(DESCRIBE, **told, packed=None)
            raise

    async def note_model(self, strategy: str, name: str, packed: bytes) -> None:
        """Note a model, or what became of it."""
        told = {"strategy": strategy, "name": name, "packed": packed}
        if await self._tell(NOTE_MODEL, **told) == UNKNOWN:
            await self.register(strategy)
            await self._tell(NOTE_MODEL, **told)
        self._models[name] = packed

    async def publish(self, layout: Layout) -> None:
        """Publish where the shards are, as a sign of life."""
        told: dict[str, Any] = {"strategy": layout.strategy, "layout": layout.packed()}
        if await self._tell(PUBLISH, **told) == UNKNOWN:
            await self.register(layout.strategy)
            await self._tell(PUBLISH, **told)

    async def close(self, strategy: str) -> None:
        """Have the scheduler forget the strategy."""
        await self._tell(PUBLISH, strategy=strategy, layout=None)

    async def leave(self, strategy: str) -> None:
        """Give a strategy up, so that another process may claim it."""
        await _ask(self._client, LEAVE, token=self._owner.token, strategy=strategy)

    async def move(self, before: str, layout: Layout) -> None:
        """Give the strategy the id that its new layout has."""
        after = layout.strategy
        if refusal := await self._tell(MOVE, before=before, after=after, layout=layout.packed()):
            raise OwnershipLostError(f"the scheduler does not know the strategy: {refusal}")

    async def _tell(self, handler: str, **told: Any) -> str:
        refusal: str = await _ask(self._client, handler, token=self._owner.token, **told)
        if refusal not in ("", UNKNOWN):
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
    found = await _ask(client, CLAIM, strategy=strategy, owner=list(astuple(owner)))
    if isinstance(found, str):
        found = found.replace(owner.where, "this process itself", 1)
        raise ClusterError(
            f"the strategy cannot be attached: {found}. It can be when that process has ended or "
            "has closed its Dask client; one that says nothing for some seconds counts as gone"
        )
    deed, _, layout, parameters, models = found
    return Ownership(client, Deed(*deed), owner, parameters, models), unpacked(layout)


def _new_owner(client: Client) -> Owner:
    kernel = f", kernel {kernel_id()}" if kernel_id() else ""
    where = f"process {os.getpid()} on {socket.gethostname()}{kernel}"
    return Owner(uuid.uuid4().hex, client.id, where, time.time())


async def _ask(client: Client, handler: str, **told: Any) -> Any:
    if not scheduler_address(client):
        raise ServerLostError("the Dask client was closed, the way to the scheduler")
    try:
        async with asyncio.timeout(_TIMEOUT):
            answer = await ask_scheduler(client, handler, **told)
    except (OSError, RuntimeError) as error:
        # A timeout, or a broken connection; or Dask's client is closed in this very moment.
        raise ServerLostError(f"the Dask scheduler does not answer: {error!r}") from error
    if answer is None:  # Dask's, where there is no such handler: psnb's return something
        raise scheduler_lost(scheduler_address(client))
    return answer
