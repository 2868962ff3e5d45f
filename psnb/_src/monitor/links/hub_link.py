"""HubLink: sends the updates of a coordinator in this kernel to the hub on the Jupyter server.

The hub is on the server that started this process; address and token are in that server's own
runtime file. Three kinds of threads post: the publisher's, ``psnb-hub``, updates in their order,
and the end; ``psnb-hub-alive`` heartbeats when there is nothing else, also while an update takes
long to be made; that of a command its reply. If the hub is out of reach, the publisher tries again,
less and less often, and nothing else is posted meanwhile. A message that the hub refuses as invalid
is a fault of psnb: it is logged, once, and dropped.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

import httpcore

from psnb._src.jupyter_compat import SECRET, server_file
from psnb._src.monitor.commands import execute
from psnb._src.monitor.protocol import SECRET_HEADER, VERSION, CommandReply, HubPost, Update
from psnb._src.monitor.publisher import INTERVAL, Publisher
from psnb._src.monitor.updates import chunks
from psnb._src.monitor.viewed import Viewed
from psnb._src.utils.interrupts import uninterrupted

HEARTBEAT = 0.5
"""Seconds without a post after which there is a heartbeat; commands also wait for the next post."""

UNWATCHED = 1.0
"""Seconds between two updates, and heartbeats, while no panel is open."""

_REFUSED = (400, 413)  # the same body would be refused again

_XSRF = "00" * 16  # equal in cookie and header, which a page of another origin cannot do

_log = logging.getLogger("psnb")


_NO_ANSWER = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)
_NO_URL = (httpcore.UnsupportedProtocol, ValueError)


class JupyterServer:
    """A running Jupyter server: takes requests, over connections that stay open; any thread.

    Not an `httpx.Client`: that logs each request at level INFO, four times a second, takes proxies
    and passwords from the environment, and takes three times as long to import.

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

    def __init__(
        self, url: str, socket: str = "", token: str = "", secret: str = "", timeout: float = 2.0
    ) -> None:
        self.url, self.socket, self.token = url, socket, token
        self._limit = {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), timeout)}
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"token {token}"
        else:
            # A server without tokens still checks that the request does not come from a page of
            # another origin; setting cookie and header ourselves proves that.
            headers |= {"Cookie": f"_xsrf={_XSRF}", "X-XSRFToken": _XSRF, SECRET_HEADER: secret}
        # In the encoding in which Jupyter reads tokens of users.
        self._headers = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
        context = _verification(urlsplit(url).hostname or "")
        self._pool = httpcore.ConnectionPool(context, keepalive_expiry=5.0, uds=socket or None)
        self.close = self._pool.close

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
        try:
            answer = self._pool.request(
                method, self.url + path, headers=self._headers, content=body, extensions=self._limit
            )
            return answer.status, answer.content
        except (*_NO_ANSWER, *_NO_URL) as error:
            raise ConnectionError(f"the Jupyter server does not answer: {error}") from error


def _verification(host: str) -> ssl.SSLContext:
    # A certificate names the public host, not this machine's address, and is often self-signed. For
    # other hosts it is checked against the system's certificates.
    try:
        here = host in ("localhost", socket.gethostname()) or ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = False
    if not here:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def find_server() -> JupyterServer | None:
    """Return the Jupyter server that started this process, if it exists and still runs."""
    file = server_file()
    if file is None:
        return None
    try:
        info = json.loads(file.read_text())
        # In JupyterHub a server has no token of its own; kernels inherit the token of JupyterHub.
        token = info.get("token") or os.environ.get("JUPYTERHUB_API_TOKEN", "")
        sock = info.get("sock") or ""
        url = f"http://localhost{info['base_url']}" if sock else info["url"]
    except (OSError, ValueError, KeyError):
        return None
    return JupyterServer(url, sock, token, os.environ.get(SECRET, ""))


class HubLink(Publisher):
    """Posts a coordinator's updates to the hub, and runs the commands that come back.

    It never raises, and nothing waits for the hub, except `stop`.

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
        self._path = f"psnb/coordinators/{quote(viewed.id, safe='')}"
        self._hub = server
        self._number = 0  # of the sent updates, which may be more than the published ones
        self._refused_pause = refused_pause
        self._no_hello_until = 0.0  # by the monotonic clock
        self._warned = False  # whether a refusal by the hub was logged
        self._reached = False  # whether the last post succeeded
        self._posted = time.monotonic()
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="psnb-hub-alive", daemon=True)
        super().__init__(viewed, self._publish, "psnb-hub")
        self.wake(full=True)  # the update from construction is shown nowhere

    @uninterrupted
    def start(self) -> None:
        """Start the threads; once."""
        self._heart.start()
        super().start()

    def _publish(self, update: Update) -> None:
        for chunk in chunks(Update(**update)):  # a copy: the publisher reads its own later
            chunk["sequence"] = self._number
            self._number += 1
            if not self._post([chunk]):
                self._number -= 1  # a refused update leaves no gap
                if chunk["full"]:
                    self._no_hello_until = time.monotonic() + self._refused_pause

    def _beat(self) -> None:
        while not self._over.wait(INTERVAL):
            if time.monotonic() - self._posted >= max(HEARTBEAT, self._interval):
                self._try_to_post()

    def ended(self) -> None:
        """Tell the hub that the coordinator is closed, or gone."""
        self._over.set()
        self._heart.join()
        try:
            if self._reached:
                self._hub.request("DELETE", self._path)
        finally:
            self._hub.close()

    def _reply(self, reply: CommandReply) -> None:
        self._try_to_post([reply])
        self.wake()

    def _try_to_post(self, replies: Sequence[CommandReply] = ()) -> None:
        """Post no updates; if the hub is out of reach, that is left to the publisher.

        Replies are lost then; the hub informs the panels that wait.
        """
        if self._reached and not self._over.is_set():
            try:
                self._post([], replies)
            except OSError:
                self.wake(full=True)

    def _post(self, updates: list[Update], replies: Sequence[CommandReply] = ()) -> bool:
        """Post updates and replies, run the hub's commands; return whether the hub took them.

        Raises
        ------
        OSError
            If the hub could not be reached.
        """
        batch = HubPost(version=VERSION, updates=updates, replies=list(replies))
        body = json.dumps(batch, separators=(",", ":")).encode()
        self._posted = time.monotonic()
        try:
            status, answer = self._hub.request("POST", self._path, body)
            if status != 200 and status not in _REFUSED:
                raise ConnectionError(_refusal(status, answer))
            orders = json.loads(answer) if status == 200 else None
        except (OSError, ValueError) as error:
            self._reached = False
            raise ConnectionError(str(error)) from error
        self._reached = True
        if orders is None:
            if not self._warned:
                self._warned = True
                _log.warning(
                    "Part of what a coordinator sends to its panels is not understood, and left "
                    "out: %s; please report it",
                    _refusal(status, answer),
                )
            return False
        self._interval = INTERVAL if orders["watched"] else UNWATCHED
        if orders["hello"] and time.monotonic() >= self._no_hello_until:
            self.wake(full=True)
        viewed = self._viewed()
        if viewed is not None:
            for command in orders["commands"]:
                execute(viewed, command, "the panel", self._reply)
        return True


def _refusal(status: int, answer: bytes) -> str:
    if status == 404:
        return "the Jupyter server has no hub: its extension psnb is not enabled"
    if status in (401, 403):
        return (
            "the Jupyter server does not let this kernel in: restart the server, so that psnb's "
            f"extension is in it when it starts its kernels; they need its variable {SECRET}"
        )
    return f"the hub answers {status}: {answer[:200]!r}"
