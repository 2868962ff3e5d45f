"""Schedulers that somebody attached: the hub asks them for their coordinators, and nobody else.

psnb's route on a scheduler's own HTTP server (`psnb.monitor.route`) answers. A ``tcp://`` or
``tls://`` address is asked, by Dask's protocol, where that server listens. Whoever attaches one
trusts it as much as with ``distributed.Client(address)``. All of it runs on the event loop of the
Jupyter server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import quote, urlsplit

from tornado.httpclient import HTTPClientError
from tornado.simple_httpclient import HTTPStreamClosedError, HTTPTimeoutError, SimpleAsyncHTTPClient

from psnb.monitor import Extract, Extracts, protocol
from psnb.monitor.hub.shape import parsed, problem
from psnb.monitor.hub.sources import Known, Sources, TooManyError

MOST_SCHEDULERS = 20
MOST_BYTES = 8 << 20
"""Size of an answer."""

TIME_LIMIT = 5.0
"""Seconds in which a scheduler has to answer."""

UNWATCHED = 5.0
"""Seconds between two polls while no panel is connected."""

ROUTE = "/psnb/updates"


class _AnswerError(Exception):
    """Why a scheduler gave no answer, in plain words."""


class _Watched:
    """One scheduler."""

    def __init__(self, address: str, now: float) -> None:
        self.address = address
        self.error = ""
        self.base = ""  # URL of its HTTP server, once it is known
        self.due = now
        self.answered = now
        self.asking: asyncio.Task[None] | None = None


class Schedulers:
    """All that are attached.

    Parameters
    ----------
    sources : Sources
        Where their coordinators are put.
    news : callable
        Called when there are updates.
    relist : callable
        Called when what is listed has changed.
    clock : callable
        Returns seconds.
    """

    def __init__(
        self,
        sources: Sources,
        news: Callable[[], None],
        relist: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._sources = sources
        self._news = news
        self._relist = relist
        self._clock = clock
        self._watched: dict[str, _Watched] = {}

    def attach(self, address: str) -> str:
        """Watch a scheduler from now on; return why that cannot be, or nothing."""
        if error := _malformed(address):
            return error
        if address not in self._watched and len(self._watched) >= MOST_SCHEDULERS:
            return f"{MOST_SCHEDULERS} schedulers are attached already: detach one first"
        self._watched.setdefault(address, _Watched(address, self._clock()))
        self._relist()
        return ""

    def detach(self, address: str) -> str:
        """Watch a scheduler no longer, and forget what it told."""
        if self._watched.pop(address, None) is None:
            return f"{address} is not attached"
        for known in self._sources:
            if known.address == address:
                self._sources.forget(known.coordinator)
        self._relist()
        return ""

    def listed(self) -> list[protocol.Scheduler]:
        """Return them as panels are told of them."""
        return [
            protocol.Scheduler(address=w.address, error=w.error) for w in self._watched.values()
        ]

    def hasten(self) -> None:
        """Ask all at the next poll."""
        for watched in self._watched.values():
            watched.due = self._clock()

    def poll(self, watched: bool) -> None:
        """Begin to ask those whose turn it is.

        Parameters
        ----------
        watched : bool
            Whether a panel is connected: then it is everybody's turn.
        """
        now = self._clock()
        for each in self._watched.values():
            if (watched or now >= each.due) and (each.asking is None or each.asking.done()):
                each.due = now + UNWATCHED
                each.asking = asyncio.ensure_future(self._ask(each))

    async def _ask(self, watched: _Watched) -> None:
        try:
            async with asyncio.timeout(2 * TIME_LIMIT):
                answer = await self._answer(watched)
        except TimeoutError:
            self._failed(watched, f"no answer within {TIME_LIMIT:.0f} s")
        except _AnswerError as error:
            self._failed(watched, str(error))
        else:
            self._take(watched, answer)

    def _failed(self, watched: _Watched, error: str) -> None:
        if self._watched.get(watched.address) is not watched:
            return
        watched.base = ""  # it may have been started again, with another port
        changed, watched.error = watched.error != error, error
        if self._clock() - watched.answered > TIME_LIMIT:
            for known in self._of(watched):
                if not known.gone:
                    self._sources.end(known, f"its scheduler cannot be reached: {error}")
                    changed = True
        if changed:
            self._relist()

    def _take(self, watched: _Watched, answer: Extracts) -> None:
        if self._watched.get(watched.address) is not watched:
            return  # it was detached meanwhile
        before = [each.listed() for each in self._sources], watched.error
        watched.error, watched.answered = "", self._clock()
        for extract in answer["coordinators"]:
            try:
                self._take_one(watched, extract)
            except TooManyError as error:
                watched.error = str(error)
        told = {each["coordinator"] for each in answer["coordinators"]}
        for known in self._of(watched):
            if known.coordinator not in told and not known.gone:
                self._sources.end(known, "its scheduler does not know it any more")
        if ([each.listed() for each in self._sources], watched.error) != before:
            self._relist()
        self._news()

    def _take_one(self, watched: _Watched, extract: Extract) -> None:
        known = self._sources.get(extract["coordinator"])
        if known is None:
            if not extract["updates"] or (extract["gone"] and self._sources.full_of_gone()):
                return
            known = self._sources.add(extract["coordinator"], "scheduler", watched.address)
        if known.address != watched.address:
            return  # of a kernel here, or of the same scheduler by another address
        for update in extract["updates"]:
            # What does not follow is asked for again: see what `_after` says.
            known.add(update)
        known.heard = self._clock()
        if extract["gone"] and not known.gone:
            self._sources.end(known, extract["gone"])
        else:
            known.gone = extract["gone"]

    def _of(self, watched: _Watched) -> list[Known]:
        return [each for each in self._sources if each.address == watched.address]

    async def _answer(self, watched: _Watched) -> Extracts:
        if not watched.base:
            watched.base = await _base(watched.address)
        after = {each.coordinator: each.backlog.last for each in self._of(watched)}
        query = quote(json.dumps(after), safe="")
        body = await _fetch(f"{watched.base}{ROUTE}?after={query}")
        try:
            answer = cast(Any, parsed(body))
        except ValueError as error:
            raise _AnswerError(f"what answers there is not psnb's route: {error}") from None
        version = answer.get("version") if isinstance(answer, dict) else None
        if version != protocol.VERSION:
            raise _AnswerError(
                f"the psnb on the scheduler speaks version {version} of the protocol, the one "
                f"here {protocol.VERSION}: install the same psnb in both places"
            )
        if wrong := problem(answer, Extracts, "the answer"):
            raise _AnswerError(f"what answers there is not psnb's route: {wrong}")
        return cast(Extracts, answer)


def _malformed(address: str) -> str:
    """Return what is wrong with an address; empty if it is one."""
    wrong = (
        f"{address[:100]!r} is no address of a scheduler: give tcp://host:port, tls://host:port or "
        "the http:// address of its dashboard"
    )
    try:
        parts = urlsplit(address)
        if (
            parts.scheme not in ("tcp", "tls", "http", "https")
            or not parts.hostname
            or not parts.port
        ):
            return wrong
    except ValueError:  # of the port
        return wrong
    if parts.username is not None or parts.query or parts.fragment or len(address) > 300:
        return wrong
    return wrong if parts.scheme in ("tcp", "tls") and parts.path.strip("/") else ""


async def _base(address: str) -> str:
    """Return the URL of a scheduler's HTTP server, without a slash at its end."""
    parts = urlsplit(address)
    if parts.scheme in ("http", "https"):
        # People copy what the browser shows.
        path = parts.path.rstrip("/").removesuffix("/status")
        return f"{parts.scheme}://{parts.netloc}{path}"
    port = await _dashboard_port(address)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"http://{host}:{port}"


async def _dashboard_port(address: str) -> int:
    # Dask takes a second to import, and servers that watch no scheduler do without.
    core, security = await asyncio.to_thread(_dask)
    scheduler = core.rpc(
        address,
        timeout=TIME_LIMIT,
        connection_args=security.Security().get_connection_args("client"),
    )
    try:
        async with asyncio.timeout(TIME_LIMIT):
            identity = await scheduler.identity(n_workers=0)
        return int(identity["services"]["dashboard"])
    except TimeoutError:
        raise
    except OSError as error:
        raise _AnswerError(f"no Dask scheduler answers there: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise _AnswerError("what answers there has no dashboard, or is no scheduler") from error
    finally:
        await scheduler.close_rpc()


def _dask() -> tuple[Any, Any]:
    from distributed import core, security

    return core, security


async def _fetch(url: str) -> bytes:
    client = SimpleAsyncHTTPClient(force_instance=True, max_body_size=MOST_BYTES)
    try:
        response = await client.fetch(
            url,
            follow_redirects=False,
            decompress_response=False,  # a small answer could become a large one
            connect_timeout=TIME_LIMIT,
            request_timeout=TIME_LIMIT,
        )
    except HTTPTimeoutError:
        raise TimeoutError from None
    except HTTPStreamClosedError:
        raise _AnswerError(
            f"it hung up in the middle of its answer, or that is over {MOST_BYTES >> 20} MB"
        ) from None
    except HTTPClientError as error:
        raise _AnswerError(_told(error)) from None
    except OSError as error:
        raise _AnswerError(f"its HTTP server cannot be reached: {error}") from None
    finally:
        client.close()
    return response.body


def _told(error: HTTPClientError) -> str:
    if error.code == 404:
        return "no coordinator outside of Jupyter has reported to this scheduler yet"
    if 300 <= error.code < 400:
        return "it redirects to another address, where psnb does not follow"
    return f"its HTTP server answers {error.code} {error.message}"
