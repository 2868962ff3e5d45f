"""HubLink: sends the updates of a coordinator in this kernel to the hub on the Jupyter server.

Two threads post, each on a connection of its own: the publisher's, ``psnb-hub-news``, whose updates
must arrive in order, and ``psnb-hub-life``, which gives heartbeats when nothing changes, carries
replies, and reports the end. They share a queue of replies and events. If the hub is out of reach,
the publisher tries again, less and less often, and the other thread pauses until it has succeeded.
A message that the hub refuses as invalid is a fault of psnb: it is logged, once, and dropped.
"""

# Why `HubLink` and `SchedulerLink` both stand; each way to have one of them loses something:
# - The hub's alone: coordinators of scripts, on any host, would not be seen. They know no Jupyter
#   server; its address and token are in a file on its own host, and it may not run yet.
# - The scheduler's alone: its HTTP server authenticates nobody, so all who reach it could read what
#   `outline` leaves out. Coordinators would be seen only once somebody attaches their scheduler,
#   and vanish with it. Commands would have to come by the kernel's comm, which does not reach
#   processes that a kernel started, and waits for the running cell where pages have no subshells.
# - The hub as a client of the scheduler, which TLS authenticates: Jupyter servers would need the
#   cluster's certificates, and the same Dask, Python and psnb.

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import json
import logging
import os
import queue
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import dask
import httpx
from distributed import Client, Scheduler, SchedulerPlugin
from tornado.web import RequestHandler

from psnb._src.dask_compat import (
    add_handler,
    add_route,
    ask_scheduler,
    call_every,
    event_loop,
    is_connected,
)
from psnb._src.jupyter_compat import SECRET, server_file
from psnb._src.monitor.events import CLOSED
from psnb._src.monitor.feed import Backlog, Viewed
from psnb._src.monitor.protocol import (
    SECRET_HEADER,
    VERSION,
    CommandReply,
    HubPost,
    Update,
    chunks,
    outline,
)
from psnb._src.monitor.publisher import Publisher, execute
from psnb._src.utils.loops import LoopErrors
from psnb._src.utils.threads import run_in_thread, run_on_loop, uninterrupted

# Finds the Jupyter server that started this process, and sends requests to it.
#
# Address and token are in the server's own runtime file. A `HubClient` sends one request after the
# other on one connection that stays open, so each thread has its own.

_XSRF = "00" * 16  # equal in cookie and header, which a page of another origin cannot do


@dataclass(frozen=True)
class JupyterServer:
    """A running Jupyter server.

    Parameters
    ----------
    url : str
        Its base URL, with a slash at the end.
    socket : str
        Path of the Unix socket on which it listens; empty if it listens on a port.
    token : str
        For authentication; empty if the server needs none, or only takes passwords.
    secret : str
        What it has given to its kernels, for a server without a token.
    timeout : float
        Seconds within which it must answer.
    """

    url: str
    socket: str
    token: str
    secret: str = ""
    timeout: float = 2.0

    def connection(self) -> HubClient:
        """Return a new connection for the caller."""
        return HubClient(self)


def find_server() -> JupyterServer | None:
    """Return the Jupyter server that started this process, if it exists and still runs."""
    file = server_file()
    if file is None:
        return None
    try:
        return found(json.loads(file.read_text()))
    except (OSError, ValueError, KeyError):
        return None


def found(info: dict[str, Any]) -> JupyterServer:
    """Return a server from what its runtime file says."""
    # In JupyterHub a server has no token of its own; kernels inherit the token of JupyterHub.
    token = info.get("token") or os.environ.get("JUPYTERHUB_API_TOKEN", "")
    sock = info.get("sock") or ""
    url = f"http://localhost{info['base_url']}" if sock else info["url"]
    return JupyterServer(url=url, socket=sock, token=token, secret=os.environ.get(SECRET, ""))


class HubClient:
    """Sends requests to a server, one at a time; for one thread."""

    def __init__(self, server: JupyterServer) -> None:
        self._url, self._timeout = server.url, httpx.Timeout(server.timeout).as_dict()
        headers = {"Content-Type": "application/json"}
        if server.token:
            headers["Authorization"] = f"token {server.token}"
        else:
            # A server without tokens still checks that the request does not come from a page of
            # another origin; setting cookie and header ourselves proves that.
            headers |= {"Cookie": f"_xsrf={_XSRF}", "X-XSRFToken": _XSRF}
            headers[SECRET_HEADER] = server.secret
        self._headers = httpx.Headers(headers, "latin-1")  # as Jupyter reads tokens of users
        # Not an `httpx.Client`: it logs each request at level INFO, four times a second, and takes
        # proxies and passwords from the environment.
        verify = _verification(urlsplit(server.url).hostname or "")
        self._transport = httpx.HTTPTransport(verify=verify, uds=server.socket or None)

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Ask the server.

        Parameters
        ----------
        method, path : str
            The path is relative to the server's base URL.
        body : bytes, optional
            JSON.

        Returns
        -------
        (int, bytes)
            Status and body of its answer.

        Raises
        ------
        ConnectionError
            If there is no answer within the server's ``timeout``.
        """
        extensions = {"timeout": self._timeout}
        try:
            request = httpx.Request(
                method, self._url + path, headers=self._headers, content=body, extensions=extensions
            )
            answer = self._transport.handle_request(request)
            return answer.status_code, answer.read()
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ConnectionError(f"the Jupyter server does not answer: {error}") from error

    def close(self) -> None:
        """Close the connection; the next request connects again."""
        self._transport.close()


def _verification(host: str) -> ssl.SSLContext | bool:
    # A certificate names the public host, not this machine's address, and is often self-signed. Of
    # other hosts it is checked against what the system trusts, which httpx by itself does not ask.
    return False if _is_this_machine(host) else ssl.create_default_context()


def _is_this_machine(host: str) -> bool:
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


HEARTBEAT = 0.5
"""Maximum seconds between two posts; commands also wait for the next post."""

CLOSE_TIMEOUT = 2.0
"""Maximum seconds that ``close`` takes."""

_REFUSED = (400, 413)  # the same body would be refused again

_log = logging.getLogger("psnb")


class HubLink:
    """Posts a coordinator's updates to the hub, and runs the commands that come back.

    It never raises and never waits for the hub, except in `close`. It has only a weak reference to
    the coordinator, and ends when that is closed or garbage-collected.

    Parameters
    ----------
    viewed : Viewed
        The coordinator.
    server : JupyterServer
        The Jupyter server, from `find_server`.
    refused_pause : float
        Seconds to wait before another full update after the hub has refused one.
    """

    def __init__(self, viewed: Viewed, server: JupyterServer, refused_pause: float = 30.0) -> None:
        self._viewed = weakref.ref(viewed)
        self._path = f"psnb/coordinators/{quote(viewed.id, safe='')}"
        self._news = server.connection()  # for the publisher's thread
        self._life = server.connection()  # for the other thread
        self._number = 0  # of the sent updates, which may be more than the published ones
        self._refused_pause = refused_pause
        self._no_hello_until = 0.0  # by the monotonic clock
        self._surprised = False  # whether a refusal by the hub was logged
        self._replies: queue.SimpleQueue[CommandReply] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._reached = threading.Event()  # set if the last post succeeded
        self._posted = time.monotonic()
        self._publisher = Publisher(viewed, self._send, "psnb-hub-news")
        self._thread = threading.Thread(target=self._run, name="psnb-hub-life", daemon=True)

    @uninterrupted
    def start(self) -> None:
        """Start both threads; once."""
        self._publisher.hello()  # the update from construction is shown nowhere
        self._publisher.start()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether one of its threads still runs."""
        return self._thread.is_alive() or self._publisher.alive

    @uninterrupted  # it takes at most `CLOSE_TIMEOUT`
    def close(self) -> None:
        """Send the hub the last state, and report the end; idempotent."""
        until = time.monotonic() + CLOSE_TIMEOUT
        self._publisher.stop()
        self._wake.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, until - time.monotonic()))

    def _send(self, update: Update) -> None:
        """Post an update; the publisher calls it."""
        for chunk in chunks(Update(**update)):  # a copy: the publisher reads its own later
            chunk["sequence"] = self._number
            self._number += 1
            if not self._post(self._news, [chunk], []):
                self._number -= 1  # a refused update leaves no gap
                if chunk["full"]:
                    self._no_hello_until = time.monotonic() + self._refused_pause

    def _run(self) -> None:
        errors = LoopErrors("Sending heartbeats to the Jupyter server")
        while self._publisher.alive:
            reached = self._reached.is_set()
            quiet = time.monotonic() - self._posted
            self._wake.wait(max(0.0, HEARTBEAT - quiet) if reached else HEARTBEAT)
            self._wake.clear()
            replies = self._taken()
            if reached and (replies or time.monotonic() - self._posted >= HEARTBEAT):
                with errors:
                    try:
                        self._post(self._life, [], replies)
                    except OSError as error:
                        # Its replies are lost; the hub informs the panels that wait.
                        _log.debug("the hub got no heartbeat: %s", error)
                        self._publisher.hello()  # which goes on trying
        try:
            if self._reached.is_set():
                self._life.request("DELETE", self._path)
        except OSError as error:
            _log.debug("the Jupyter server has not received a coordinator's end: %s", error)
        finally:
            self._life.close()
            self._news.close()

    def _taken(self) -> list[CommandReply]:
        taken = []
        while True:
            try:
                taken.append(self._replies.get_nowait())
            except queue.Empty:
                return taken

    def _post(
        self, connection: HubClient, updates: list[Update], replies: list[CommandReply]
    ) -> bool:
        """Post a batch and run the hub's commands; return whether the hub took the batch.

        Raises
        ------
        OSError
            If the hub could not be reached.
        """
        batch = HubPost(version=VERSION, updates=updates, replies=replies)
        body = json.dumps(batch, separators=(",", ":")).encode()
        self._posted = time.monotonic()
        try:
            status, answer = connection.request("POST", self._path, body)
            if status in _REFUSED:
                self._reached.set()
                self._note_refusal(status, answer)
                return False
            if status != 200:
                raise ConnectionError(_refusal(status, answer))
            orders = json.loads(answer)
        except (OSError, ValueError) as error:
            self._reached.clear()
            raise ConnectionError(str(error)) from error
        self._reached.set()
        self._obey(orders)
        return True

    def _note_refusal(self, status: int, answer: bytes) -> None:
        if not self._surprised:
            _log.warning(
                "Part of what a coordinator sends to its panels is not understood, and left out: "
                "%s; please report it",
                _refusal(status, answer),
            )
        self._surprised = True

    def _obey(self, orders: dict[str, Any]) -> None:
        if orders["hello"] and time.monotonic() >= self._no_hello_until:
            self._publisher.hello()
        viewed = self._viewed()
        if viewed is not None:
            for command in orders["commands"]:
                execute(viewed, command, "the panel", self._reply)

    def _reply(self, reply: CommandReply) -> None:
        self._replies.put(reply)
        self._wake.set()
        self._publisher.soon()


def _refusal(status: int, answer: bytes) -> str:
    if status == 404:
        return "the Jupyter server has no hub: its extension psnb is not enabled"
    if status in (401, 403):
        return (
            "the Jupyter server does not let this kernel in: restart the server, so that psnb's "
            f"extension is in it when it starts its kernels; they need its variable {SECRET}"
        )
    return f"the hub answers {status}: {answer[:200]!r}"


class PanelLink(Protocol):
    """Sends updates of a coordinator until it is closed; never raises, never blocks it."""

    @property
    def alive(self) -> bool:
        """Whether one of its threads still runs."""

    def close(self) -> None:
        """Send the last state and end, in a few seconds at most; idempotent."""


def connect_panels(viewed: Viewed, client: Client) -> PanelLink | None:
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
    PanelLink or None
        None if the updates cannot go to the scheduler, or are switched off.
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
    except Exception:  # a boundary: whatever fails on the scheduler, training goes on
        _log.debug("the scheduler cannot be sent what a coordinator shows", exc_info=True)
        return None
    return link


# SchedulerLink: for coordinators outside of Jupyter, a route on the Dask scheduler's HTTP server.
#
# A coordinator sends updates to the scheduler (`SchedulerLink`). A plugin there (`UpdatesRoute`)
# keeps the backlog of each coordinator and serves it beside the dashboard. The hub of a Jupyter
# server asks there, if the scheduler is attached. Like the dashboard, the route needs no password:
# anyone who can open the dashboard can read it. So the scheduler gets only an outline
# (`psnb._src.monitor.protocol`), and the route takes no commands.

POST = "psnb_tell"
"""The name of the handler on the scheduler."""

MOST_COORDINATORS = 50
"""Limit of coordinators whose backlog the scheduler keeps."""

MOST_BYTES = 4 << 20
"""Limit of the updates in one answer, in bytes, unless there is only one; the next answer goes
on."""

GONE_SECONDS = 300.0
"""Seconds after which a coordinator that is gone is removed."""

SWEEP = 10.0
"""Seconds between two checks for those."""

INTERVAL = 1.0
"""Seconds between two updates."""

TIMEOUT = 5.0
"""Seconds within which the scheduler must answer."""


class _KeptCoordinator:
    """What the scheduler keeps of one coordinator."""

    def __init__(self, owner: str) -> None:
        self.owner = owner  # id of its client
        self.gone = ""
        self.until = 0.0  # when it is removed, if it is gone
        self.backlog = Backlog()


class UpdatesRoute(SchedulerPlugin):
    """Keeps the updates of coordinators and serves them; all on the scheduler's event loop.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    """

    name = "psnb-updates"
    idempotent = True

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, _KeptCoordinator] = {}  # the latest sender comes last

    async def start(self, scheduler: Scheduler) -> None:
        """Register the handler and the route; Dask calls this once."""
        call_every(scheduler, self.name, SWEEP, self.sweep)
        add_handler(scheduler, POST, self.post)
        add_route(scheduler, r"(?:/.*)?/psnb/updates", _UpdatesHandler, {"route": self})

    def post(self, owner: str, coordinator: str, update: Update | None) -> bool:
        """Take an update from a client; None means that the coordinator was closed.

        Returns
        -------
        bool
            Whether a full update is needed.
        """
        kept = self._kept.pop(coordinator, None) or _KeptCoordinator(owner)
        self._kept[coordinator] = kept
        if len(self._kept) > MOST_COORDINATORS:
            gone = (each for each, kept in self._kept.items() if kept.gone)
            del self._kept[next(gone, next(iter(self._kept)))]
        if update is None:
            self._end(kept, "it was closed")
            return False
        kept.owner, kept.gone = owner, ""
        return kept.backlog.add(update)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Note that the coordinators of a client are gone with it."""
        for kept in self._kept.values():
            if kept.owner == client and not kept.gone:
                self._end(kept, "its process has ended, or left the cluster")

    def sweep(self) -> None:
        """Remove coordinators that went long ago; every `SWEEP` seconds."""
        now = self._clock()
        for coordinator, kept in list(self._kept.items()):
            if kept.gone and now >= kept.until:
                del self._kept[coordinator]

    def _end(self, kept: _KeptCoordinator, reason: str) -> None:
        kept.gone, kept.until = reason, self._clock() + GONE_SECONDS

    def extracts(self, after: dict[str, Any]) -> bytes:
        """Return `psnb._src.monitor.feed.Extracts` as JSON.

        Parameters
        ----------
        after : dict
            The last sequence number that the reader has, by coordinator.
        """
        left = MOST_BYTES
        parts = []
        for coordinator, kept in self._kept.items():
            have = after.get(coordinator)
            texts = []
            for _, text in kept.backlog.since(have if isinstance(have, int) else None):
                if left < len(text) and left < MOST_BYTES:
                    break
                left -= len(text)
                texts.append(text)
            # The updates are JSON already.
            head = json.dumps({"coordinator": coordinator, "gone": kept.gone}).encode()[:-1]
            parts.append(b'%b, "updates": [%b]}' % (head, b",".join(texts)))
        return b'{"version": %d, "coordinators": [%b]}' % (VERSION, b",".join(parts))


class _UpdatesHandler(RequestHandler):
    """``GET /psnb/updates?after={"coordinator": sequence}``."""

    def initialize(self, route: UpdatesRoute) -> None:
        self._route = route

    def get(self) -> None:
        try:
            after = json.loads(self.get_query_argument("after", "{}"))
        except (ValueError, RecursionError):
            after = None
        if not isinstance(after, dict):
            self.send_error(400)
            return
        self.set_header("Content-Type", "application/json")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")
        self.finish(self._route.extracts(after))


class SchedulerLink:
    """Sends a coordinator's updates to the scheduler, once a second, from a thread ``psnb-route``.

    It has only a weak reference to the coordinator, and ends when that is closed or
    garbage-collected.

    Parameters
    ----------
    viewed : Viewed
        The coordinator.
    client : distributed.Client
        Connected to its cluster; its scheduler must be able to import psnb.
    """

    def __init__(self, viewed: Viewed, client: Client) -> None:
        self._coordinator = viewed.id
        self._client = client
        self._numbers = itertools.count()  # of sent updates: maybe more than published
        self._publisher = Publisher(viewed, self._send, "psnb-route", INTERVAL)

    def start(self) -> None:
        """Register the route, and begin; once.

        Raises
        ------
        Exception
            Whatever Dask raises if the scheduler does not answer, or has another psnb.
        """
        run_in_thread(self._client.register_plugin, UpdatesRoute())  # Dask blocks there
        self._publisher.hello()  # the update from construction is shown nowhere
        self._publisher.start()

    @property
    def alive(self) -> bool:
        """Whether its thread still runs."""
        return self._publisher.alive

    def close(self) -> None:
        """Send the scheduler the last state, and report the end; idempotent."""
        self._publisher.stop()
        try:
            self._post(None)
        except OSError as error:
            _log.debug("the scheduler has not received a coordinator's end: %s", error)

    def _send(self, update: Update) -> None:
        for chunk in chunks(outline(update)):
            chunk["sequence"] = next(self._numbers)
            if self._post(chunk):
                self._publisher.hello()
        if update["summary"]["state"] == CLOSED:
            self._post(None)

    def _post(self, update: Update | None) -> bool:
        """Call the plugin.

        Raises
        ------
        OSError
            If the scheduler does not answer, or the client is closed.
        """
        if not is_connected(self._client):
            raise ConnectionError("the client is not connected to its scheduler")
        try:
            # This limit is for the case that the event loop ends meanwhile.
            loop = event_loop(self._client)
            wanted: bool = run_on_loop(loop, partial(self._call, update), TIMEOUT + 1)
        except RuntimeError as error:  # of an event loop that has just ended
            raise ConnectionError(str(error)) from error
        return wanted

    async def _call(self, update: Update | None) -> Any:
        async with asyncio.timeout(TIMEOUT):
            return await ask_scheduler(
                self._client,
                POST,
                owner=self._client.id,
                coordinator=self._coordinator,
                update=update,
            )
