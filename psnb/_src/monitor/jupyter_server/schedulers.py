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
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from tornado.httpclient import HTTPClientError
from tornado.simple_httpclient import HTTPStreamClosedError, HTTPTimeoutError, SimpleAsyncHTTPClient

from psnb._src.monitor import protocol
from psnb._src.monitor.backlog import Extract, Extracts
from psnb._src.monitor.jupyter_server import messages
from psnb._src.monitor.jupyter_server.addresses import base, dashboards, malformed, scheduler_port
from psnb._src.monitor.jupyter_server.coordinators import (
    CoordinatorEntry,
    CoordinatorRegistry,
    TooManyError,
)
from psnb._src.utils.text import NAME, truncate

MOST_SCHEDULERS = 20

MOST_BYTES = 8 << 20
"""Limit of an answer, in bytes."""

UNWATCHED = 5.0
"""Seconds between two polls while no panel is connected."""

ROUTE = "/psnb/updates"

_log = logging.getLogger("psnb")


class _AnswerError(Exception):
    """Why a scheduler gave no answer, in plain words."""


class _NoRouteError(_AnswerError):
    """No coordinator has reported to this scheduler yet."""


class _Cluster(NamedTuple):
    """What a scheduler says of itself; empty if it says nothing."""

    address: str = ""
    id: str = ""
    started: float = 0.0


class _AttachedScheduler:
    """One scheduler."""

    def __init__(self, address: str, now: float) -> None:
        self.address = address
        self.cluster: _Cluster | None = None  # to be asked, as another one may be there by now
        self.coordinators = 0  # that live
        self.error = ""
        self.due = now
        self.answered = now
        self.asking: asyncio.Task[None] | None = None


class Schedulers:
    """All attached schedulers.

    Parameters
    ----------
    sources : CoordinatorRegistry
        Where their coordinators are added.
    news : callable
        Called when there are updates.
    send_listing : callable
        Called when the list has changed.
    clock : callable
        Returns seconds.
    time_limit : float
        Seconds within which a scheduler must answer.
    """

    def __init__(
        self,
        sources: CoordinatorRegistry,
        news: Callable[[], None],
        send_listing: Callable[[], None],
        clock: Callable[[], float],
        time_limit: float = 5.0,
    ) -> None:
        self._sources = sources
        self._news = news
        self._relist = send_listing
        self._clock = clock
        self._time_limit = time_limit
        self._watched: dict[str, _AttachedScheduler] = {}

    async def attach(self, address: str) -> str:
        """Attach a scheduler, if it answers; return why that failed, or an empty string.

        Parameters
        ----------
        address : str
            That of its dashboard, or what `psnb.connect` takes.
        """
        errors: list[str] = []
        typed = address
        for address in dashboards(typed):  # what is attached is what answers
            if error := malformed(address):
                return error
            watched = _AttachedScheduler(address, self._clock())
            try:
                answer = await self._answer(watched)
            except _AnswerError as error:
                errors.append(str(error) if address == typed else f"{address}: {error}")
                continue
            watched.cluster = await _cluster_of(address, self._time_limit)
            named = scheduler_port(typed)
            guessed = named not in (None, urlsplit(address).port)
            if guessed and urlsplit(watched.cluster.address).port != named:
                errors.append(f"{address}: that is the dashboard of another scheduler")
                continue
            break
        else:
            return "; ".join(errors)
        if address not in self._watched and len(self._watched) >= MOST_SCHEDULERS:
            return f"{MOST_SCHEDULERS} schedulers are attached already: detach one first"
        watched = self._watched.setdefault(address, watched)
        self._relist()
        self._take(watched, answer)
        return ""

    def detach(self, address: str) -> str:
        """Detach a scheduler, and remove its coordinators."""
        if self._watched.pop(address, None) is None:
            return f"{address} is not attached"
        for known in self._sources:
            if known.address == address:
                self._sources.forget(known.coordinator)
        self._relist()
        return ""

    def listed(self) -> list[protocol.Scheduler]:
        """Return the rows that panels get for them."""
        return [_row(each) for each in self._watched.values()]

    def poll_now(self) -> None:
        """Ask all at the next poll."""
        for watched in self._watched.values():
            watched.due = self._clock()

    def poll(self, watched: bool) -> None:
        """Begin to ask the schedulers that are due.

        Parameters
        ----------
        watched : bool
            Whether a panel is connected: then all are due.
        """
        now = self._clock()
        for each in self._watched.values():
            if (watched or now >= each.due) and (each.asking is None or each.asking.done()):
                each.due = now + UNWATCHED
                each.asking = asyncio.ensure_future(self._ask(each))

    async def _ask(self, watched: _AttachedScheduler) -> None:
        try:
            answer = await self._answer(watched)
        except _AnswerError as error:
            self._failed(watched, str(error))
            return
        if watched.cluster is None:
            watched.cluster = await _cluster_of(watched.address, self._time_limit)
            self._relist()
        self._take(watched, answer)

    def _failed(self, watched: _AttachedScheduler, error: str) -> None:
        if self._watched.get(watched.address) is not watched:
            return
        changed, watched.error = watched.error != error, error
        watched.cluster = None
        if self._clock() - watched.answered > self._time_limit:
            for known in self._of(watched):
                if not known.gone:
                    self._sources.end(known, f"its scheduler cannot be reached: {error}")
                    changed = True
        if changed:
            self._relist()

    def _take(self, watched: _AttachedScheduler, answer: Extracts) -> None:
        if self._watched.get(watched.address) is not watched:
            return  # it was detached meanwhile
        before = [each.listed() for each in self._sources], _row(watched)
        watched.error, watched.answered = "", self._clock()
        watched.coordinators = sum(not each["gone"] for each in answer["coordinators"])
        for extract in answer["coordinators"]:
            try:
                self._take_one(watched, extract)
            except TooManyError as error:
                watched.error = str(error)
        there = {each["coordinator"] for each in answer["coordinators"]}
        for known in self._of(watched):
            if known.coordinator not in there and not known.gone:
                self._sources.end(known, "its scheduler does not know it any more")
        if ([each.listed() for each in self._sources], _row(watched)) != before:
            self._relist()
        self._news()

    def _take_one(self, watched: _AttachedScheduler, extract: Extract) -> None:
        known = self._sources.get(extract["coordinator"])
        if known is None:
            unwanted = self._sources.full_of_gone() or self._sources.was_dismissed(
                extract["coordinator"]
            )
            if not extract["updates"] or (extract["gone"] and unwanted):
                return
            known = self._sources.add(extract["coordinator"], "scheduler", watched.address)
        if known.address != watched.address:
            return  # its kernel is here, or the same scheduler has another address
        for update in extract["updates"]:
            # Updates after a gap are not added: the next request asks for what is missing.
            known.add(update)
        known.heard = self._clock()
        if extract["gone"] and not known.gone:
            self._sources.end(known, extract["gone"])
        else:
            known.gone = extract["gone"]

    def _of(self, watched: _AttachedScheduler) -> list[CoordinatorEntry]:
        return [each for each in self._sources if each.address == watched.address]

    async def _answer(self, watched: _AttachedScheduler) -> Extracts:
        after = {each.coordinator: each.backlog.last for each in self._of(watched)}
        query = quote(json.dumps(after), safe="")
        try:
            url = f"{base(watched.address)}{ROUTE}?after={query}"
            return messages.extracts(await _fetch(url, self._time_limit))
        except _NoRouteError:
            return Extracts(version=protocol.VERSION, coordinators=[])
        except TimeoutError:
            raise _AnswerError(f"no answer within {self._time_limit:g} s") from None
        except messages.VersionError:
            raise _AnswerError(
                "the psnb on the scheduler speaks another version of the protocol: install the "
                "same psnb in both places"
            ) from None
        except messages.MalformedError as error:
            _log.debug("%s gave no answer of psnb's route: %s", watched.address, error)
            raise _AnswerError("what answers there is not psnb's route") from None
        except _AnswerError:
            raise
        except Exception as error:  # a boundary: an HTTP client may raise anything
            _log.debug("%s gave no answer", watched.address, exc_info=True)
            raise _AnswerError(f"what answers there is not HTTP: {type(error).__name__}") from error


def _row(watched: _AttachedScheduler) -> protocol.Scheduler:
    cluster = watched.cluster or _Cluster()
    return protocol.Scheduler(
        address=watched.address,
        cluster=cluster.address,
        cluster_id=cluster.id,
        cluster_started=cluster.started,
        coordinators=watched.coordinators,
        error=watched.error,
    )


async def _cluster_of(dashboard: str, time_limit: float) -> _Cluster:
    """Return which scheduler a dashboard is of."""
    try:
        found = json.loads(await _fetch(f"{base(dashboard)}/json/identity.json", time_limit))
        address = truncate(str(found["address"]), NAME)
        _ = urlsplit(address).port  # raises if it is not an address
        started = float(found["started"])
        # JSON has no other numbers: pages could read nothing that has them.
        since = started if math.isfinite(started) else 0.0
        return _Cluster(address, truncate(str(found["id"]), NAME), since)
    except Exception:  # a boundary: an HTTP client may raise anything, and so may what answers
        _log.debug("%s did not say whose dashboard it is", dashboard, exc_info=True)
        return _Cluster()


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
    except HTTPTimeoutError:
        raise TimeoutError from None
    except HTTPStreamClosedError:
        raise _AnswerError(
            f"it hung up in the middle of its answer, or that is not HTTP, or over "
            f"{MOST_BYTES >> 20} MiB"
        ) from None
    except HTTPClientError as error:
        raise _translated(error) from None
    except socket.gaierror:
        raise _AnswerError("its host is not known here: look for a slip in the name") from None
    except ssl.SSLError:
        raise _AnswerError("it speaks no TLS, or its certificate is not trusted here") from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else type(error).__name__
        raise _AnswerError(f"nothing can be reached there: {why}") from None
    finally:
        client.close()
    return response.body


def _translated(error: HTTPClientError) -> _AnswerError:
    if error.code == 404:
        return _NoRouteError("psnb has no route there yet: there will be one with a coordinator")
    if 300 <= error.code < 400:
        return _AnswerError("it redirects to another address, where psnb does not follow")
    return _AnswerError(f"its HTTP server answers with status {error.code}")
