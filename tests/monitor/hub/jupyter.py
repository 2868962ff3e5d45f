"""A real Jupyter server with the hub, in a process and folders of its own."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import websocket

from psnb._src.monitor.protocol import VERSION
from tests.conftest import DEADLINE, wait_until

TOKEN = "let-me-in"


@dataclass
class Jupyter:
    """A running server."""

    process: int
    url: str
    runtime: Path

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        token: str | None = TOKEN,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=DEADLINE)
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"token {token}"
        text = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, parts.path + path, text, sent)
            answer = connection.getresponse()
            said = answer.read()
            if "json" in answer.headers.get("Content-Type", "") and said:
                return answer.status, json.loads(said)
            return answer.status, said
        finally:
            connection.close()

    def post(self, coordinator: str, body: object, **options: Any) -> tuple[int, Any]:
        return self.request("POST", f"psnb/coordinators/{coordinator}", body, **options)

    @contextmanager
    def panel(self, token: str | None = TOKEN, **options: Any) -> Iterator[Panel]:
        with self.connected("psnb/stream", token, **options) as connected:
            yield Panel(connected)

    @contextmanager
    def connected(
        self, path: str, token: str | None = TOKEN, **options: Any
    ) -> Iterator[websocket.WebSocket]:
        url = f"{self.url.replace('http', 'ws', 1)}{path}"
        header = {} if token is None else {"Authorization": f"token {token}"}
        raw = socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), DEADLINE)
        # It forgets to close a socket over which it was refused, or hung up on.
        with raw:
            connected = websocket.create_connection(
                url, DEADLINE, header=header, socket=raw, **options
            )
            yield connected
            connected.close()


class Panel:
    """What a page does with its socket."""

    def __init__(self, socket: websocket.WebSocket) -> None:
        self.socket = socket

    def say(self, kind: str, **more: object) -> None:
        self.socket.send(json.dumps({"type": kind, "version": VERSION, **more}))

    def hear(self, kind: str, **wanted: object) -> dict[str, Any]:
        """Return the next message that has these parts."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            said = json.loads(self.socket.recv())
            if said["type"] == kind and wanted.items() <= said.items():
                return said
        pytest.fail(f"the hub said no {kind} with {wanted}")

    def hung_up(self) -> int:
        """Wait until the server closes the socket, and return the code that says why, or 1006."""
        opcode = None
        while opcode != websocket.ABNF.OPCODE_CLOSE:
            try:
                opcode, data = self.socket.recv_data(control_frame=True)
            except (OSError, websocket.WebSocketConnectionClosedException):
                return 1006
        return int.from_bytes(data[:2])

    def hear_of(self, coordinator: str, **wanted: object) -> dict[str, Any]:
        """Return how a coordinator is listed once it is listed like that."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            for source in self.hear("sources")["sources"]:
                if source["coordinator"] == coordinator and wanted.items() <= source.items():
                    return source
        pytest.fail(f"the hub does not list {coordinator} with {wanted}")


@contextmanager
def jupyter(folder: Path, *options: str, wait: bool = True) -> Iterator[Jupyter]:
    """Start a server, wait until it answers on its port if it has one, and end it."""
    environment = {key: value for key, value in os.environ.items() if "JUPYTER" not in key}
    for name in ("CONFIG", "DATA", "RUNTIME"):
        environment[f"JUPYTER_{name}_DIR"] = str(folder / name)
    environment["IPYTHONDIR"] = str(folder / "ipython")
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"]
    command += ["--port=0"] if wait else []
    command += [f"--ServerApp.root_dir={folder}", "--ServerApp.base_url=/a/b/"]
    # Others' extensions take seconds to load.
    others = dict.fromkeys(("jupyterlab", "jupyter_lsp", "notebook"), False)
    enabled = {"psnb": True, "tests.monitor.hub.kernel_sockets": True, **others}
    command += [f"--ServerApp.jpserver_extensions={enabled}", *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    runtime = folder / "RUNTIME"
    file = runtime / f"jpserver-{process.pid}.json"
    try:
        wait_until(lambda: _complete(file) or process.poll() is not None, "Jupyter starts", 60)
        assert process.poll() is None, (folder / "log").read_text()
        server = Jupyter(process.pid, json.loads(file.read_text())["url"], runtime)
        wait_until(lambda: not wait or _answers(server), "Jupyter answers", 60)
        yield server
    finally:
        process.terminate()
        process.wait(DEADLINE)


def _complete(file: Path) -> bool:
    return file.exists() and file.read_text().rstrip().endswith("}")


def _answers(server: Jupyter) -> bool:
    try:
        return server.request("GET", "api")[0] == 200
    except OSError:
        return False
