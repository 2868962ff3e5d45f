"""HubClient: finds the Jupyter server that started this process, and sends requests to it.

Address and token are in the server's own runtime file. A `HubClient` sends one request after the
other on one connection that stays open, so each thread has its own.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from psnb._src.jupyter_compat import SECRET, server_file
from psnb._src.monitor.protocol import SECRET_HEADER

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
    """Return the server that a runtime file describes."""
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
    # A certificate names the public host, not this machine's address, and is often self-signed. For
    # other hosts it is checked against the system's certificates, which httpx does not use by
    # default.
    return False if _is_this_machine(host) else ssl.create_default_context()


def _is_this_machine(host: str) -> bool:
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
