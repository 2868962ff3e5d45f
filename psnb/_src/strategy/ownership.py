"""Ownership: what a strategy's owner registers at the scheduler, so that others find the strategy.

On the client's event loop. The scheduler refuses one whose strategy was taken over
(`psnb._src.placement.registry`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, replace
from types import MappingProxyType
from typing import Any

from distributed import Client

from psnb._src.client.embedding import Embedding
from psnb._src.client.variable import Variable
from psnb._src.cluster.links import listens
from psnb._src.dask_compat.reach import (
    ask_scheduler,
    has_ended,
    is_connected,
    scheduler_address,
    scheduler_identity,
)
from psnb._src.jupyter_compat import kernel_id
from psnb._src.placement.layout import Layout, ServerAddress, unpacked
from psnb._src.placement.registry import (
    CLAIM,
    DESCRIBE,
    LEAVE,
    MOVE,
    NOTE_MODEL,
    PUBLISH,
    REGISTER,
    UNKNOWN,
    Owner,
    OwnershipRecord,
)
from psnb._src.utils.loops import LoopErrors
from psnb._src.utils.text import shown
from psnb.errors import (
    ClusterError,
    ConfigurationError,
    OwnershipLostError,
    PsnbError,
    SchedulerLostError,
    ServerLostError,
)

# SchedulerLife: notices that the Dask scheduler has ended. On the client's event loop.
#
# Dask's client tries for minutes to connect again, silently: see `psnb._src.cluster.links`. But
# when its scheduler ends, every Dask worker ends within seconds, with all parameters that it holds,
# and a scheduler that is started at the same address knows nothing of them. So there is nothing to
# wait for, once nothing listens there any more, or another scheduler does. A connection that has
# only broken is made again by Dask.

_LOOK = 0.25
_GRACE = 1.0
"""Seconds that Dask gets to connect again."""

_ANSWER_TIMEOUT = 10.0


async def scheduler_ends(client: Client, look: float = _LOOK) -> None:
    """Wait for the end of a client's scheduler; returns if the client is closed.

    Parameters
    ----------
    client : distributed.Client
        The client.
    look : float
        Seconds between two looks.

    Raises
    ------
    SchedulerLostError
        When it has ended.
    """
    loop, address = asyncio.get_running_loop(), scheduler_address(client)
    errors = LoopErrors("Looking after the scheduler", SchedulerLostError)
    known, since = "", None
    while not has_ended(client):
        with errors:
            if not is_connected(client):
                since = since or loop.time()
                if loop.time() - since >= _GRACE and await listens(address) is False:
                    raise scheduler_lost(address)
            elif since is not None or not known:  # it is connected again
                since, found = None, await _id(client)
                if known and found not in ("", known):
                    raise scheduler_lost(address)
                known = known or found
        await asyncio.sleep(look)


async def check_scheduler(client: Client) -> None:
    """Wait a little until a client's scheduler answers.

    Raises
    ------
    SchedulerLostError
        If it has ended. If it only does not answer, it may be busy: then this returns.
    """
    loop, address = asyncio.get_running_loop(), scheduler_address(client)
    until = loop.time() + _GRACE
    # A client takes itself for connected until it has noticed.
    while not (is_connected(client) and await _id(client, _LOOK)):
        if has_ended(client):
            return
        if loop.time() >= until:
            if await listens(address) is False:
                raise scheduler_lost(address)
            return
        await asyncio.sleep(_LOOK)


async def _id(client: Client, timeout: float = _ANSWER_TIMEOUT) -> str:
    try:
        async with asyncio.timeout(timeout):
            return str((await scheduler_identity(client))["id"])
    except (OSError, AttributeError):  # the connection is broken, or the client is closed
        return ""


def scheduler_lost(address: str) -> SchedulerLostError:
    """Return what is raised when the scheduler at an address has ended."""
    return SchedulerLostError(
        f"the Dask scheduler at {address} has ended, and with it all workers and servers of its "
        "cluster, and the parameters there: start a cluster, connect with a new client, and go on "
        "from what was saved last with psnb.resume(directory, client)"
    )


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
    deed : OwnershipRecord
        What the strategy is.
    owner : Owner, optional
        What the scheduler knows of the owner, if it does.
    parameters, models : mapping of str to bytes, optional
        Those that are known to the scheduler.

    Attributes
    ----------
    deed : OwnershipRecord
        As given; with the name that the scheduler has given, once it is registered.
    """

    def __init__(
        self,
        client: Client,
        deed: OwnershipRecord,
        owner: Owner | None = None,
        parameters: Mapping[str, bytes] | None = None,
        models: Mapping[str, bytes] | None = None,
    ) -> None:
        self._client, self.deed = client, deed
        self._owner = owner or _new_owner(client)
        self._parameters, self._models = dict(parameters or {}), dict(models or {})
        self._turns = itertools.count(1)

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
        arguments = {"strategy": strategy, "name": name}
        try:
            if await self._call(DESCRIBE, **arguments, packed=packed) == UNKNOWN:
                await self.register(strategy)
        except BaseException:  # the answer was lost, or the caller interrupted: it may be noted
            del self._parameters[name]
            with suppress(PsnbError):
                await self._call(DESCRIBE, **arguments, packed=None)
            raise

    async def note_model(self, strategy: str, name: str, packed: bytes) -> None:
        """Note a model, or a change of it."""
        arguments = {"strategy": strategy, "name": name, "packed": packed}
        if await self._call(NOTE_MODEL, **arguments) == UNKNOWN:
            await self.register(strategy)
            await self._call(NOTE_MODEL, **arguments)
        self._models[name] = packed

    async def publish(self, layout: Layout, servers: Sequence[ServerAddress]) -> None:
        """Publish where the shards are, and which servers there should be, as a heartbeat."""
        arguments: dict[str, Any] = {"strategy": layout.strategy, "layout": layout.packed()}
        arguments |= {"servers": [server.key for server in servers], "turn": next(self._turns)}
        if await self._call(PUBLISH, **arguments) == UNKNOWN:
            await self.register(layout.strategy)
            await self._call(PUBLISH, **arguments)

    async def close(self, strategy: str) -> None:
        """Have the scheduler forget the strategy."""
        await self._call(PUBLISH, strategy=strategy, layout=None)

    async def leave(self, strategy: str) -> None:
        """Give a strategy up, so that another process may claim it."""
        await _ask(self._client, LEAVE, token=self._owner.token, strategy=strategy)

    async def move(self, before: str, layout: Layout, servers: Mapping[str, str]) -> None:
        """Give the strategy the id that its new layout has; former keys of servers by new ones."""
        arguments = {"before": before, "after": layout.strategy, "layout": layout.packed()}
        if refusal := await self._call(MOVE, **arguments, servers=servers):
            raise OwnershipLostError(f"the scheduler does not know the strategy: {refusal}")

    async def _call(self, handler: str, **arguments: Any) -> str:
        refusal: str = await _ask(self._client, handler, token=self._owner.token, **arguments)
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
            "has closed its Dask client; one that does not answer for some seconds counts as gone"
        )
    deed, _, layout, parameters, models = found
    return Ownership(client, OwnershipRecord(*deed), owner, parameters, models), unpacked(layout)


def _new_owner(client: Client) -> Owner:
    kernel = f", kernel {kernel_id()}" if kernel_id() else ""
    where = f"process {os.getpid()} on {socket.gethostname()}{kernel}"
    return Owner(uuid.uuid4().hex, client.id, where, time.time())


async def _ask(client: Client, handler: str, **arguments: Any) -> Any:
    if not scheduler_address(client):
        raise ServerLostError("the Dask client was closed, the way to the scheduler")
    try:
        async with asyncio.timeout(_TIMEOUT):
            answer = await ask_scheduler(client, handler, **arguments)
    except (OSError, RuntimeError) as error:
        # A timeout, or a broken connection; or Dask's client is closed in this very moment.
        raise ServerLostError(f"the Dask scheduler does not answer: {error!r}") from error
    if answer is None:  # Dask's, where there is no such handler: psnb's return something
        raise scheduler_lost(scheduler_address(client))
    return answer


# Registry: the names and handles of a strategy's parameters.
#
# Thread-safe. A name is taken before its tables are made, so that two threads cannot take the same
# one.


class Registry:
    """Variables and embeddings by name, in the order in which the names were taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the dict; not held during requests
        self._parameters: dict[str, Variable | Embedding | None] = {}  # None: being made

    def __len__(self) -> int:
        """Return how many names are taken."""
        return len(self._parameters)

    @contextmanager
    def reserved(self, name: str | None, kind: str) -> Iterator[str]:
        """Take a name, or make one up; it is free again if the block raises.

        Raises
        ------
        ConfigurationError
            If it is not a valid name, or is taken.
        """
        name = self._take(name, kind)
        try:
            yield name
        except BaseException:  # whatever ends it, an interrupt too: the name is free again
            with self._lock:
                del self._parameters[name]
            raise

    def add(self, parameter: Variable | Embedding) -> None:
        """Store a handle under its name, which was taken before."""
        with self._lock:
            self._parameters[parameter.name] = parameter

    def all(self) -> Mapping[str, Variable | Embedding]:
        """Return a read-only snapshot of the parameters that were made."""
        with self._lock:
            made = {name: p for name, p in self._parameters.items() if p is not None}
        return MappingProxyType(made)

    def _take(self, name: str | None, kind: str) -> str:
        with self._lock:
            if name is None:
                number = 1
                while (name := f"{kind}_{number}") in self._parameters:
                    number += 1
            if not isinstance(name, str) or not name:
                raise ConfigurationError(
                    f"the name of a {kind} must be a text, found {shown(name)}"
                )
            if name in self._parameters:
                raise ConfigurationError(
                    f"the strategy has {name!r} already: use strategy.parameters[{name!r}], or "
                    "another name"
                )
            self._parameters[name] = None
        return name
