"""Addresses that people type, and where the dashboards of schedulers are. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

DASHBOARD = 8787
"""The port of a scheduler's HTTP server, if it was not given another one."""

_PORT = re.compile(r":\d+$")
_HOST = re.compile(r"[\w.-]+(:\d+)?|\[[0-9a-fA-F:]+\](:\d+)?")


def dashboards(address: str) -> list[str]:
    """Return where the dashboard may be of a scheduler whose address was typed.

    Dask's own protocol is not asked: an answer in it could run code here, where it is unpickled.
    """
    if "://" not in address and _HOST.fullmatch(address):
        scheme, place = "", address
    elif address.startswith(("tcp://", "tls://")):
        scheme, _, place = address.partition("://")
    else:
        return [address]
    host, _, port = place.rpartition(":") if _PORT.search(place) else (place, "", "")
    usual = f"http://{host}:{DASHBOARD}"
    return [usual] if scheme or not port else list(dict.fromkeys([f"http://{place}", usual]))


def scheduler_port(address: str) -> int | None:
    """Return the port of the scheduler itself, if an address was typed that names one."""
    if address.startswith(("http://", "https://")):
        return None
    port = _PORT.search(address)
    return int(port[0][1:]) if port else None


def malformed(address: str) -> str:
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


def base(address: str) -> str:
    """Return the URL of a scheduler's HTTP server, without a slash at its end."""
    parts = urlsplit(address)
    # People copy what the browser shows.
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/status')}"
