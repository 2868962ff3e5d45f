"""Finds the Jupyter server that started this process, and sends requests to it.

Address and token are in the server's own runtime file. A `HubClient` sends one request after the
other on one connection that stays open, so each thread has its own.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import socket
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from psnb._src.jupyter_internals import SECRET, server_file
from psnb._src.monitor.told.protocol import SECRET_HEADER

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
        self._server = server
        self._path = urlsplit(server.url).path
        self._open: http.client.HTTPConnection | None = None

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
        OSError
            If there is no answer within the server's ``timeout``.
        """
        if self._open is not None:
            try:
                return self._ask(self._open, method, path, body)
            except (http.client.HTTPException, ConnectionError):
                self.close()  # the server has closed an idle connection
        try:
            self._open = self._new()
            return self._ask(self._open, method, path, body)
        except http.client.HTTPException as error:
            self.close()
            raise ConnectionError(f"the Jupyter server's answer is none: {error}") from error
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next request connects again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        if self._server.token:
            headers["Authorization"] = f"token {self._server.token}"
        else:
            # A server without tokens still checks that the request does not come from a page of
            # another origin; setting cookie and header ourselves proves that.
            headers |= {"Cookie": f"_xsrf={_XSRF}", "X-XSRFToken": _XSRF}
            headers[SECRET_HEADER] = self._server.secret
        connection.request(method, self._path + path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _new(self) -> http.client.HTTPConnection:
        timeout = self._server.timeout
        if self._server.socket:
            return _UnixConnection(self._server.socket, timeout)
        parts = urlsplit(self._server.url)
        host = parts.hostname or "localhost"
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                host, parts.port, timeout=timeout, context=_context(host)
            )
        return http.client.HTTPConnection(host, parts.port, timeout=timeout)


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a server that listens on a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _context(host: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if _is_this_machine(host):
        # A certificate names the public host, not this address, and is often self-signed.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _is_this_machine(host: str) -> bool:
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
