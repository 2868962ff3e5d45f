"""Attached schedulers: the hub asks these, and no others, for their coordinators.

psnb's route on a scheduler's own HTTP server (`psnb._src.monitor.links.scheduler_link`) answers.
Dask's protocol is not used, because there an answer can run code here. An answer is shown only if
it has the form that the route defines. Everything runs on the event loop of the Jupyter server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import socket
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from tornado.httpclient import HTTPClientError
from tornado.simple_httpclient import HTTPStreamClosedError, HTTPTimeoutError, SimpleAsyncHTTPClient

from psnb._src.monitor import protocol
from psnb._src.monitor.backlog import Extract, Extracts
from psnb._src.monitor.jupyter_server import messages
from psnb._src.monitor.jupyter_server.coordinators import (
    MOST_GONE,
    CoordinatorEntry,
    CoordinatorRegistry,
    TooManyError,
)
from psnb._src.monitor.jupyter_server.panel import Panels
from psnb._src.utils.text import NAME, truncate

DASHBOARD = 8787
"""The port of a scheduler's HTTP server, if it was not given another one."""

MOST_SCHEDULERS = 20

MOST_BYTES = 8 << 20
"""Limit of an answer, in bytes."""

POLL = 0.5
"""Seconds between two polls."""

UNWATCHED = 5.0
"""Seconds between two polls while no panel is connected."""

ROUTE = "/psnb/updates"

_TYPED = re.compile(r"(?:(tcp|tls)://)?([\w.-]+|\[[0-9a-fA-F:]+\])(?::(\d{1,5}))?")

_log = logging.getLogger("psnb")


class _AnswerError(Exception):
    """Why a scheduler gave no answer, in plain words."""


class _NoRouteError(Exception):
    """No coordinator has reported to this scheduler yet."""


_Cluster = tuple[str, str, float]
"""A scheduler's own address, its id, and since when it runs; empty if it does not say."""


class _AttachedScheduler:
    """One scheduler."""

    def __init__(self, address: str, now: float) -> None:
        self.address = address
        self.cluster: _Cluster | None = None  # to be asked, as another may be there by now
        self.coordinators = 0  # that live
        self.error = ""
        self.due = self.answered = now
        self.asking: asyncio.Task[None] | None = None

    def listed(self) -> protocol.Scheduler:
        """Return the row that panels get for it."""
        names = "cluster", "cluster_id", "cluster_started"
        cluster = dict(zip(names, self.cluster or ("", "", 0.0), strict=True))
        listed: protocol.Scheduler = protocol.row(protocol.Scheduler, self, **cluster)
        return listed


class Schedulers:
    """All attached schedulers.

    Parameters
    ----------
    sources : CoordinatorRegistry
        Where their coordinators are added.
    panels : Panels
        Woken by news of them; while there is none, schedulers are asked seldom.
    clock : callable
        Returns seconds.
    time_limit : float
        Seconds within which a scheduler must answer.
    """

    def __init__(
        self,
        sources: CoordinatorRegistry,
        panels: Panels,
        clock: Callable[[], float],
        time_limit: float = 5.0,
    ) -> None:
        self._sources, self._panels = sources, panels
        self._clock = clock
        self._time_limit = time_limit
        self._watched: dict[str, _AttachedScheduler] = {}

    async def attach(self, typed: str) -> str:
        """Attach a scheduler, if it answers; return why that failed, or an empty string.

        Parameters
        ----------
        typed : str
            The address of its dashboard, or what `psnb.connect` takes.
        """
        errors: list[str] = []
        addresses, port = _dashboards(typed)
        for address in addresses:  # what is attached is what answers
            if error := _malformed(address):
                return error
            try:
                answer = await self._answer(address)
            except _AnswerError as error:
                errors.append(str(error) if address == typed else f"{address}: {error}")
                continue
            cluster = await self._cluster(address)
            if port in (None, urlsplit(address).port, urlsplit(cluster[0]).port):
                break
            errors.append(f"{address}: that is the dashboard of another scheduler")
        else:
            return "; ".join(errors)
        if address not in self._watched and len(self._watched) >= MOST_SCHEDULERS:
            return f"{MOST_SCHEDULERS} schedulers are attached already: detach one first"
        watched = self._watched.setdefault(address, _AttachedScheduler(address, self._clock()))
        self._take(watched, answer, cluster)
        self._panels.wake(listing=True)
        return ""

    def detach(self, address: str) -> str:
        """Detach a scheduler, and remove its coordinators."""
        if self._watched.pop(address, None) is None:
            return f"{address} is not attached"
        for known in self._of(address):
            del self._sources[known.coordinator]
        self._panels.wake(listing=True)
        return ""

    def listed(self) -> list[protocol.Scheduler]:
        """Return the rows that panels get for them."""
        return [each.listed() for each in self._watched.values()]

    def poll(self) -> None:
        """Begin to ask the schedulers that are due, or all if a panel is connected."""
        now = self._clock()
        for each in self._watched.values():
            if (self._panels or now >= each.due) and (each.asking is None or each.asking.done()):
                each.due = now + UNWATCHED
                each.asking = asyncio.ensure_future(self._ask(each))

    async def _ask(self, watched: _AttachedScheduler) -> None:
        cluster, error = watched.cluster, ""
        try:
            answer = await self._answer(watched.address)
            if cluster is None:
                cluster = await self._cluster(watched.address)
        except _AnswerError as caught:
            error = str(caught)
        if self._watched.get(watched.address) is not watched:
            return  # it was detached meanwhile
        before = self._listed(watched)
        if not error:
            self._take(watched, answer, cluster)
        else:
            watched.error, watched.cluster = error, None
            if self._clock() - watched.answered > self._time_limit:  # once is an accident
                for known in self._of(watched.address):
                    if not known.gone:
                        self._sources.end(known, f"its scheduler cannot be reached: {error}")
        self._panels.wake(listing=self._listed(watched) != before)

    def _listed(self, watched: _AttachedScheduler) -> tuple[Any, ...]:
        return watched.listed(), [each.listed() for each in self._sources.values()]

    def _take(
        self, watched: _AttachedScheduler, answer: Extracts, cluster: _Cluster | None
    ) -> None:
        watched.error, watched.answered, watched.cluster = "", self._clock(), cluster
        watched.coordinators = sum(not each["gone"] for each in answer["coordinators"])
        for extract in answer["coordinators"]:
            try:
                self._take_one(watched.address, extract)
            except TooManyError as error:
                watched.error = str(error)
        there = {each["coordinator"] for each in answer["coordinators"]}
        for known in self._of(watched.address):
            if known.coordinator not in there and not known.gone:
                self._sources.end(known, "its scheduler does not know it any more")

    def _take_one(self, address: str, extract: Extract) -> None:
        name, gone = extract["coordinator"], extract["gone"]
        known = self._sources.get(name)
        if known is None:
            full = len(self._sources.gone()) >= MOST_GONE
            if not extract["updates"] or (gone and (full or name in self._sources.dismissed)):
                return
            known = self._sources.add(name, "scheduler", address)
        if known.address != address:
            return  # its kernel is here, or the same scheduler has another address
        for update in extract["updates"]:
            # Updates after a gap are not added: the next request asks for what is missing.
            known.add(update)
        if gone and not known.gone:
            self._sources.end(known, gone)
        known.gone = gone

    def _of(self, address: str) -> list[CoordinatorEntry]:
        return [each for each in self._sources.values() if each.address == address]

    async def _answer(self, address: str) -> Extracts:
        after = {each.coordinator: each.backlog.last for each in self._of(address)}
        query = quote(json.dumps(after), safe="")
        try:
            body = await _fetch(f"{_base(address)}{ROUTE}?after={query}", self._time_limit)
            found: Extracts = messages.read(body, Extracts)
            return found
        except _NoRouteError:
            return Extracts(version=protocol.VERSION, coordinators=[])
        except messages.VersionError:
            raise _AnswerError(
                "the psnb on the scheduler speaks another version of the protocol: install the "
                "same psnb in both places"
            ) from None
        except messages.MalformedError as error:
            _log.debug("%s gave no answer of psnb's route: %s", address, error)
            raise _AnswerError("what answers there is not psnb's route") from None
        except _AnswerError:
            raise
        except Exception as error:  # a boundary: an HTTP client may raise anything
            _log.debug("%s gave no answer", address, exc_info=True)
            raise _AnswerError(f"what answers there is not HTTP: {type(error).__name__}") from error

    async def _cluster(self, dashboard: str) -> _Cluster:
        """Return whose dashboard it is."""
        try:
            url = f"{_base(dashboard)}/json/identity.json"
            found = json.loads(await _fetch(url, self._time_limit))
            address = truncate(str(found["address"]), NAME)
            _ = urlsplit(address).port  # raises if it is not an address
            started = float(found["started"])
            # JSON has no other numbers: pages could read nothing that has them.
            since = started if math.isfinite(started) else 0.0
            return address, truncate(str(found["id"]), NAME), since
        except Exception:  # a boundary: an HTTP client may raise anything, and so may what answers
            _log.debug("%s did not say whose dashboard it is", dashboard, exc_info=True)
            return "", "", 0.0


def _dashboards(typed: str) -> tuple[list[str], int | None]:
    """Return where the dashboard may be of a scheduler, and its own port if an address names it.

    Dask's own protocol is not asked: an answer in it could run code here, where it is unpickled.
    """
    parts = _TYPED.fullmatch(typed)
    if parts is None:
        return [typed], None
    scheme, host, port = parts.groups()
    usual = f"http://{host}:{DASHBOARD}"
    if not port:
        return [usual], None
    return [usual] if scheme else list(dict.fromkeys([f"http://{host}:{port}", usual])), int(port)


def _malformed(address: str) -> str:
    """Return what is wrong with an address; empty if it is valid."""
    # JupyterLab shows 140 characters, so the advice comes first.
    wrong = (
        "give the http:// address of the scheduler's dashboard, which client.dashboard_link has: "
        f"{address[:100]!r} is none"
    )
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as the name lookup will
    except ValueError:  # of the port, or of the name
        return wrong
    if parts.scheme not in ("http", "https") or not host or port == 0 or len(address) > 300:
        return wrong
    return wrong if parts.username is not None or parts.query or parts.fragment else ""


def _base(address: str) -> str:
    """Return the URL of a scheduler's HTTP server, without a slash at its end."""
    parts = urlsplit(address)
    # People copy what the browser shows.
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/status')}"


async def _fetch(url: str, time_limit: float) -> bytes:
    client = SimpleAsyncHTTPClient(force_instance=True, max_body_size=MOST_BYTES)
    try:
        response = await client.fetch(
            url,
            follow_redirects=False,
            decompress_response=False,  # a small answer could unpack to a large one
            connect_timeout=time_limit,
            request_timeout=time_limit,
        )
        return response.body
    except HTTPTimeoutError:
        error = f"no answer within {time_limit:g} s"
    except HTTPStreamClosedError:
        error = (
            "it hung up in the middle of its answer, or that is not HTTP, or over "
            f"{MOST_BYTES >> 20} MiB"
        )
    except HTTPClientError as caught:
        if caught.code == 404:
            raise _NoRouteError from None
        error = f"its HTTP server answers with status {caught.code}"
        if 300 <= caught.code < 400:
            error = "it redirects to another address, where psnb does not follow"
    except socket.gaierror:
        error = "its host is not known here: look for a slip in the name"
    except ssl.SSLError:
        error = "it speaks no TLS, or its certificate is not trusted here"
    except OSError as caught:
        why = os.strerror(caught.errno) if caught.errno else type(caught).__name__
        error = f"nothing can be reached there: {why}"
    finally:
        client.close()
    raise _AnswerError(error)
