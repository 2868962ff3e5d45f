"""A kernel's way to the hub: on a real Jupyter server, and on one that misbehaves."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from psnb._src.jupyter_compat import SECRET
from psnb._src.monitor.links.hub_link import UNWATCHED, HubLink, JupyterServer, find_server
from psnb._src.monitor.publisher import INTERVAL
from psnb._src.monitor.statistics import Statistics
from tests.conftest import DEADLINE, wait_until
from tests.monitor.hub.jupyter import Jupyter, jupyter
from tests.monitor.viewed import FakeViewed, reporting


@pytest.fixture
def inside(server: Jupyter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the server started this process."""
    monkeypatch.setenv("JPY_PARENT_PID", str(server.process))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(server.runtime))


def _viewed(name: str) -> FakeViewed:
    viewed = reporting(1.0, 0.5)
    viewed.id = name
    return viewed


def _link(viewed: FakeViewed) -> HubLink:
    found = find_server()
    assert found is not None
    link = HubLink(viewed, found)
    link.start()
    return link


def test_without_a_server_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    assert find_server() is None
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    assert find_server() is None


@pytest.mark.usefixtures("inside")
def test_a_page_sees_a_coordinator_change_and_close(server: Jupyter) -> None:
    viewed = _viewed("changes")
    link = _link(viewed)
    try:
        with server.panel() as panel:
            first = panel.hear("update", coordinator="changes", full=True)
            assert [each["name"] for each in first["metrics"]] == ["loss"]
            viewed.set(completed=11)
            while panel.hear("update", coordinator="changes")["summary"]["completed"] != 11:
                pass
            link.stop()
            assert panel.hear_of("changes", gone="it was closed")
    finally:
        link.stop()
    assert not link.alive


@pytest.mark.usefixtures("inside")
def test_a_button_in_a_page_reaches_a_coordinator_that_is_idle(server: Jupyter) -> None:
    viewed = _viewed("obeys")
    link = _link(viewed)
    try:
        with server.panel() as panel:
            panel.hear("update", coordinator="obeys")
            command = {"coordinator": "obeys", "command": "cancel_queued", "arguments": {}}
            panel.say("command", id="7", **command)
            reply = panel.hear("reply", id="7")
            assert (reply["error"], reply["result"]) == ("", "1,234 closures cancelled")
        assert viewed.told == ["cancel queued, by the panel"]
    finally:
        link.stop()


@pytest.mark.usefixtures("inside")
def test_a_hub_that_forgot_a_coordinator_gets_everything_again(server: Jupyter) -> None:
    viewed = _viewed("forgotten")
    link = _link(viewed)
    try:
        with server.panel() as panel:
            panel.hear("update", coordinator="forgotten", full=True)
            for _ in range(2):
                server.request("DELETE", "psnb/coordinators/forgotten")
            panel.hear("update", coordinator="forgotten", full=True)
    finally:
        link.stop()


_PROCESS = """
import sys
from psnb._src.monitor.links.hub_link import HubLink, find_server
from tests.monitor.viewed import FakeViewed
viewed = FakeViewed()
viewed.id = "process"
HubLink(viewed, find_server()).start()
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("inside")
def test_a_process_that_is_killed_is_gone_and_its_history_stays(server: Jupyter) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        with server.panel() as panel:
            panel.hear("update", coordinator="process")
            os.kill(process.pid, signal.SIGKILL)
            listed = panel.hear_of("process")
            while not listed["gone"]:
                listed = panel.hear_of("process")
            assert "no news for 5 s" in listed["gone"]
        with server.panel() as panel:
            panel.hear("update", coordinator="process", full=True)


# The server may not listen yet, and httpcore leaves a socket that it refused to be collected.
@pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")
def test_a_server_on_a_unix_socket_that_wants_no_token_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (f"--ServerApp.sock={tmp_path}/sock", "--IdentityProvider.token=")
    with jupyter(tmp_path, *options, wait=False) as server:
        monkeypatch.setenv("JPY_PARENT_PID", str(server.process))
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(server.runtime))
        there = find_server()
        assert there is not None
        assert (there.socket, there.token) == (f"{tmp_path}/sock", "")
        wait_until(lambda: _posted(there), "the hub takes a post")


_HASHED = "sha1:0123456789ab:" + hashlib.sha1(b"open sesame" + b"0123456789ab").hexdigest()


@pytest.mark.parametrize(
    ("given", "welcome"),
    [
        ("given to kernels", {"given to kernels": True, "guessed": False}),
        ("", {"": False}),  # as if it was set to nothing where the server was started
    ],
)
def test_a_server_that_takes_only_passwords_lets_its_own_kernels_in(
    given: str, welcome: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET, given)
    options = ("--IdentityProvider.token=", f"--PasswordIdentityProvider.hashed_password={_HASHED}")
    with jupyter(tmp_path, *options, "--ServerApp.allow_unauthenticated_access=False") as server:
        monkeypatch.setenv("JPY_PARENT_PID", str(server.process))
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(server.runtime))
        for shown, expected in welcome.items():
            monkeypatch.setenv(SECRET, shown)
            there = find_server()
            assert there is not None
            assert _posted(there) is expected


def _posted(there: JupyterServer) -> bool:
    body = b'{"version": 1, "updates": [], "replies": []}'
    try:
        return there.request("POST", "psnb/coordinators/x", body)[0] == 200
    except OSError:
        return False
    finally:
        there.close()


def test_the_token_of_the_hub_of_jupyterhub_is_used_where_a_server_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = {"url": "http://localhost:1/user/x/", "base_url": "/user/x/", "sock": "", "token": ""}
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "abc")
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    for own, token in (("", "abc"), ("own", "own")):
        (tmp_path / "jpserver-1.json").write_text(json.dumps({**info, "token": own}))
        there = find_server()
        assert there is not None
        assert there.token == token


class _Server(BaseHTTPRequestHandler):
    """A server that answers posts as the test says."""

    protocol_version = "HTTP/1.1"
    posts: queue.SimpleQueue[dict[str, Any]]
    status: Callable[[dict[str, Any]], int]
    orders = b'{"version": 1, "hello": false, "watched": true, "commands": []}'

    def do_POST(self) -> None:
        batch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(type(self).status(batch))
        self.send_header("Content-Length", str(len(self.orders)))
        self.end_headers()
        self.wfile.write(self.orders)
        self.posts.put(batch)

    def do_DELETE(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def _linked(
    status: Callable[[dict[str, Any]], int],
    viewed: FakeViewed | None = None,
    refused_pause: float = 30.0,
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Link a coordinator to a server, and give what returns the server's next post."""
    posts: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    kind = type("Server", (_Server,), {"posts": posts, "status": staticmethod(status)})
    viewed = viewed or FakeViewed()  # held here: a link does not
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        there = JupyterServer(f"http://127.0.0.1:{server.server_port}/", "", "")
        link = HubLink(viewed, there, refused_pause)
        try:
            link.start()
            yield lambda: posts.get(timeout=DEADLINE)
        finally:
            link.stop()
            assert not link.alive
            server.shutdown()
            thread.join()


class _Hub:
    """A hub that has one panel, or none."""

    def __init__(self, watched: bool) -> None:
        self._orders = json.dumps({"hello": False, "watched": watched, "commands": []}).encode()

    def request(self, *of: object) -> tuple[int, bytes]:
        return 200, self._orders


@pytest.mark.parametrize(("watched", "seconds"), [(True, INTERVAL), (False, UNWATCHED)])
def test_while_no_panel_is_open_posts_are_rare(watched: bool, seconds: float) -> None:
    viewed = FakeViewed()
    link = HubLink(viewed, _Hub(watched))  # type: ignore[arg-type]
    link._post([])
    assert link._interval == seconds


def test_a_server_without_a_hub_is_asked_again_for_everything_and_costs_no_error() -> None:
    with _linked(lambda batch: 404) as next_post:
        for _ in range(3):
            assert next_post()["updates"][0]["full"]


def test_one_that_is_idle_gives_signs_of_life_and_tells_everything_when_one_is_lost() -> None:
    failed: list[int] = []

    def status(batch: dict[str, Any]) -> int:
        if not batch["updates"] and not failed:
            failed.append(1)
            return 500
        return 200

    with _linked(status) as next_post:

        def next_updates() -> list[bool]:
            # On a busy machine there is more than one heartbeat between them.
            posts = (next_post()["updates"] for _ in itertools.count())
            return [each["full"] for each in next(filter(None, posts))]

        assert next_updates() == [True]
        assert next_post()["updates"] == []  # the first heartbeat is the one that is lost
        assert next_updates() == [True]
        assert next_post()["updates"] == []


def test_one_that_takes_long_to_be_looked_at_gives_signs_of_life_meanwhile() -> None:
    viewed, asked, free = FakeViewed(), threading.Event(), threading.Event()
    look = viewed.statistics

    def slow() -> Statistics:
        asked.set()
        free.wait(DEADLINE)
        return look()

    with _linked(lambda batch: 200, viewed) as next_post:
        assert next_post()["updates"][0]["full"]
        viewed.statistics = slow  # type: ignore[method-assign]
        try:
            assert asked.wait(DEADLINE)
            posts = [next_post()["updates"] for _ in range(4)]
            assert posts[-3:] == [[], [], []]  # one that was made before may come first
        finally:
            free.set()


def test_what_the_hub_refuses_is_reported_once_left_out_and_not_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    viewed = FakeViewed()
    refused: list[dict[str, Any]] = []

    def status(batch: dict[str, Any]) -> int:
        if any(each.get("failures") for each in batch["updates"]):
            refused.append(batch)
            return 400
        return 200

    with _linked(status, viewed) as next_post:
        assert next_post()["updates"][0]["full"]
        taken = []
        for count in (1, 2):
            viewed.records.failures.add("alice", "step", pickle.dumps(ValueError("x")))
            wait_until(lambda count=count: len(refused) == count, "the hub has refused it")
            viewed.set(completed=viewed.now.completed + 1)
            posts = (next_post() for _ in itertools.count())
            taken += next(
                each["updates"] for each in posts if each["updates"] and each not in refused
            )
        told = [row["number"] for batch in refused for row in batch["updates"][0]["failures"]]
    assert told == [0, 1]
    assert [each["sequence"] for each in taken] == [1, 2]  # the hub sees no gap
    assert not any(each["full"] for each in taken)
    assert [each.message for each in caplog.records if "left out" in each.message] == [
        "Part of what a coordinator sends to its panels is not understood, and left out: the hub "
        """answers 400: b'{"version": 1, "hello": false, "watched": true, "commands": []}'; """
        "please report it"
    ]


def test_a_full_update_that_the_hub_refuses_is_not_sent_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def status(batch: dict[str, Any]) -> int:
        return 400 if any(each["full"] for each in batch["updates"]) else 200

    orders = b'{"version": 1, "hello": true, "watched": true, "commands": []}'  # it has no full one
    monkeypatch.setattr(_Server, "orders", orders)
    with _linked(status) as next_post:
        sent = [each["full"] for _ in range(6) for each in next_post()["updates"]]
    assert sent == [True]
    begin = time.monotonic()
    with _linked(status, refused_pause=0.0) as next_post:
        while sent.count(True) < 3:  # after the pause it is
            sent += [each["full"] for each in next_post()["updates"]]
    assert time.monotonic() - begin < 30  # which it is by default


def test_closing_does_not_wait_for_a_server_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        viewed = FakeViewed()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        # It would be waited for longer than below.
        link = HubLink(viewed, JupyterServer(url, "", "", timeout=1000.0))
        link.start()
        closer = threading.Thread(target=link.stop)
        closer.start()
        closer.join(DEADLINE)
        assert not closer.is_alive()
    wait_until(lambda: not link.alive, "the link's threads end")
