"""Requests to a Jupyter server: over connections that end, and to nobody else."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from distributed import Security

from psnb._src.monitor.links import hub_link
from psnb._src.monitor.links.hub_link import JupyterServer


class _Handler(BaseHTTPRequestHandler):
    """Answers with what it was asked; below ``away/`` it says to go elsewhere."""

    protocol_version = "HTTP/1.1"
    hangs_up = False  # after each answer, without having said so

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.heard.append((self.path, dict(self.headers)))  # type: ignore[attr-defined]
        away = self.path.startswith("/base/away")
        self.send_response(302 if away else 200)
        if away:
            self.send_header("Location", "/base/elsewhere")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
        self.close_connection = self.hangs_up

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(context: ssl.SSLContext | None = None, **of_class: Any) -> Iterator[Any]:
    """Serve on this machine; the server has its address, and in ``heard`` what came."""
    handler = type("Handler", (_Handler,), of_class)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        server.url = f"{scheme}://127.0.0.1:{server.server_port}/base/"  # type: ignore[attr-defined]
        server.heard = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("token", ["secret", "gehéim"])
def test_the_token_does_not_follow_a_redirection(token: str) -> None:
    with serving() as server:
        client = JupyterServer(server.url, "", token)
        assert client.request("POST", "away", b"{}") == (302, b"ok")
        client.close()
        [(path, headers)] = server.heard
    assert path == "/base/away"
    assert headers["Authorization"] == f"token {token}"


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving() as server:
        client = JupyterServer(server.url, "", "secret")
        assert client.request("POST", "here", b"{}") == (200, b"ok")
        client.close()


def test_a_server_that_has_closed_an_idle_connection_is_asked_on_another() -> None:
    with serving(hangs_up=True) as server:
        client = JupyterServer(server.url, "", "")
        for _ in range(3):
            assert client.request("POST", "here", b"{}") == (200, b"ok")
            for thread in threading.enumerate():
                if "process_request_thread" in thread.name:
                    thread.join()  # it has closed the connection
        client.close()
        assert len(server.heard) == 3


def test_silence_is_an_error_of_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        client = JupyterServer(url, "", "", timeout=0.1)
        with pytest.raises(ConnectionError, match="timed out"):
            client.request("POST", "here", b"{}")
        client.close()


def test_a_certificate_of_this_machine_may_be_self_signed(tmp_path: Path) -> None:
    made = Security.temporary().get_tls_config_for_role("scheduler")
    for name in ("cert", "key"):
        (tmp_path / name).write_text(made[name])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with serving(context) as server:
        client = JupyterServer(server.url, "", "secret")
        assert client.request("POST", "here", b"{}") == (200, b"ok")
        client.close()


def test_certificates_of_other_machines_are_checked() -> None:
    context = hub_link._verification("example.org")
    assert isinstance(context, ssl.SSLContext)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_requests_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with serving() as server:
        client = JupyterServer(server.url, "", "secret")
        client.request("POST", "here", b"{}")
        client.close()
    assert not caplog.records
