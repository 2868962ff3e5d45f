"""The hub on a real Jupyter server: who may come in, what is refused, what arrives."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import websocket

from psnb._src.monitor.protocol import VERSION
from tests.conftest import DEADLINE, wait_until
from tests.monitor.hub.jupyter import Jupyter
from tests.monitor.hub.updates import batch, identity, update

_numbers = count()


@pytest.fixture
def name() -> str:
    return f"coordinator-{next(_numbers)}"


def test_a_kernel_without_the_token_is_refused(server: Jupyter, name: str) -> None:
    body = batch(update(0, True, name))
    assert server.post(name, body, token=None)[0] == 403
    assert server.post(name, body, token="guessed")[0] == 403


def test_a_page_without_the_token_is_refused(server: Jupyter) -> None:
    with (
        pytest.raises(websocket.WebSocketBadStatusException, match="403"),
        server.panel(token=None),
    ):
        pass


def _cookie(server: Jupyter) -> str:
    """Log in as a browser does, and return its cookies."""
    parts = urlsplit(server.url)
    with socket.create_connection(("127.0.0.1", parts.port or 0)) as connection:
        request = f"GET {parts.path}tree?token=let-me-in HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n"
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    lines = [line for line in answer.splitlines() if line.lower().startswith("set-cookie:")]
    return "; ".join(line.split(": ", 1)[1].split(";")[0] for line in lines)


def test_a_browser_that_is_logged_in_needs_the_xsrf_token_to_post(
    server: Jupyter, name: str
) -> None:
    cookie = _cookie(server)
    assert "username-" in cookie
    body = batch(update(0, True, name))
    assert server.post(name, body, token=None, headers={"Cookie": cookie})[0] == 403


def test_a_browser_that_is_logged_in_may_listen_from_the_servers_own_pages_only(
    server: Jupyter,
) -> None:
    cookie = _cookie(server)
    host = urlsplit(server.url).netloc
    with server.panel(token=None, cookie=cookie, origin=f"http://{host}") as panel:
        panel.hear("sources")
    with (
        pytest.raises(websocket.WebSocketBadStatusException, match="403"),
        server.panel(token=None, cookie=cookie, origin="http://evil.example"),
    ):
        pass


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not JSON"),
        (b'{"version": 1, "updates": NaN, "replies": []}', "not JSON"),
        (b'{"x":' + b"[" * 100_000, "nested too deeply"),
        ({"version": 99, "updates": [], "replies": []}, "version 99"),
        ({"version": VERSION, "updates": []}, "missing required field `replies`"),
        (batch(update(0, True, "another")), "about one coordinator"),
    ],
)
def test_a_malformed_post_is_answered_with_what_is_wrong(
    server: Jupyter, body: object, said: str
) -> None:
    status, answer = server.post("malformed", body)
    assert status == 400
    assert said in answer["message"]


def test_a_post_that_says_it_is_too_large_is_refused_before_it_comes(server: Jupyter) -> None:
    parts = urlsplit(server.url)
    with socket.create_connection(("127.0.0.1", parts.port or 0)) as connection:
        connection.sendall(
            f"POST {parts.path}psnb/coordinators/x HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: token let-me-in\r\nContent-Length: {(4 << 20) + 1}\r\n\r\n".encode()
        )
        assert b" 413 " in connection.recv(100)


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize("size", ["Content-Length: 4000", "Transfer-Encoding: chunked"])
def test_a_request_without_the_token_is_refused_before_its_body_comes(
    server: Jupyter, method: str, size: str
) -> None:
    parts = urlsplit(server.url)
    with socket.create_connection(("127.0.0.1", parts.port or 0), timeout=DEADLINE) as connection:
        connection.sendall(
            f"{method} {parts.path}psnb/coordinators/x HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            "Cookie: _xsrf=00ff00ff\r\nX-XSRFToken: 00ff00ff\r\n"  # anybody can send two equal ones
            f"{size}\r\n\r\n".encode()
        )
        assert b" 403 " in connection.recv(100)


@pytest.mark.parametrize("length", ["many", "-", "9" * 5000])
def test_a_post_with_a_length_that_is_none_is_a_bad_request(server: Jupyter, length: str) -> None:
    parts = urlsplit(server.url)
    with socket.create_connection(("127.0.0.1", parts.port or 0)) as connection:
        connection.sendall(
            f"POST {parts.path}psnb/coordinators/x HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: token let-me-in\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert b" 400 " in connection.recv(100)


def test_a_post_that_does_not_say_how_large_it_is_is_refused_when_it_was_too_much(
    server: Jupyter,
) -> None:
    def body() -> Any:
        for _ in range(5):
            yield b" " * (1 << 20)

    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port)
    try:
        connection.request(
            "POST",
            f"{parts.path}psnb/coordinators/x",
            body(),
            {"Authorization": "token let-me-in"},
            encode_chunked=True,
        )
        assert connection.getresponse().status == 413
    finally:
        connection.close()


def test_a_coordinator_that_posts_too_often_gets_an_error(server: Jupyter, name: str) -> None:
    # All at once, and so many that a slow server does not let them pass: 20 a second are allowed.
    parts, body = urlsplit(server.url), json.dumps(batch()).encode()
    post = (
        f"POST {parts.path}psnb/coordinators/{name} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Authorization: token let-me-in\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    with socket.create_connection(("127.0.0.1", parts.port or 0), DEADLINE) as connection:
        connection.sendall(300 * post)
        said = b""
        while b" 429 " not in said:
            said += (more := connection.recv(1 << 16))
            assert more, said
    assert said.startswith(b"HTTP/1.1 200 ")


def test_a_page_gets_the_history_when_it_comes_and_the_news_when_they_come(
    server: Jupyter, name: str
) -> None:
    server.post(name, batch(update(0, True, name)))
    server.post(name, batch(update(1, coordinator=name)))
    for _ in range(2):  # it connects, and connects again
        with server.panel() as panel:
            panel.hear_of(name, kind="kernel", gone="")
            assert panel.hear("update", coordinator=name) == update(0, True, name)
            assert panel.hear("update", coordinator=name) == update(1, coordinator=name)
    with server.panel() as panel:
        panel.hear("update", coordinator=name, sequence=1)
        assert server.post(name, batch(update(2, coordinator=name)))[1] == {
            "version": VERSION,
            "hello": False,
            "watched": True,
            "commands": [],
        }
        panel.hear("update", coordinator=name, sequence=2)


def test_a_page_that_says_hello_gets_everything_again(server: Jupyter, name: str) -> None:
    server.post(name, batch(update(0, True, name)))
    with server.panel() as panel:
        panel.hear("update", coordinator=name)
        panel.say("hello")
        panel.hear_of(name)
        panel.hear("update", coordinator=name, full=True)


def test_a_command_goes_with_the_next_post_and_its_reply_returns_to_who_asked(
    server: Jupyter, name: str
) -> None:
    server.post(name, batch(update(0, True, name)))
    with server.panel() as panel:
        panel.hear("update", coordinator=name)
        panel.say("command", id="1", coordinator=name, command="pause", arguments={})
        # Answered after the command: so that has been taken in.
        panel.say("command", id="2", coordinator="nobody", command="pause", arguments={})
        assert "no such coordinator" in panel.hear("reply", id="2")["error"]
        (command,) = server.post(name, batch())[1]["commands"]
        assert command["command"] == "pause"
        reply: Any = {
            "type": "reply",
            "version": VERSION,
            "id": command["id"],
            "coordinator": name,
            "error": "",
            "result": "paused",
        }
        server.post(name, batch(replies=(reply,)))
        assert panel.hear("reply", id="1") == {**reply, "id": "1"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "nothing that a panel says"),
        (json.dumps({"type": "hello", "version": 99}), "version 99"),
        (json.dumps({"type": "attach", "version": VERSION, "id": "x"}), "field `address`"),
        (json.dumps({"type": ["x"], "version": VERSION}), "nothing that a panel says"),
    ],
)
def test_a_malformed_message_of_a_page_is_answered_with_what_is_wrong(
    server: Jupyter, text: str, said: str
) -> None:
    with server.panel() as panel:
        panel.socket.send(text)
        reply = panel.hear("reply")
        assert said in reply["error"]
        assert reply["id"] == ("x" if '"id"' in text else "")


def test_a_page_that_attaches_what_does_not_answer_gets_the_reason(server: Jupyter) -> None:
    with server.panel() as panel, socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody else listens there meanwhile
        panel.say("attach", id="1", address=f"http://127.0.0.1:{held.getsockname()[1]}")
        assert "nothing can be reached there" in panel.hear("reply", id="1")["error"]


def test_a_page_that_talks_too_much_is_hung_up_on(server: Jupyter) -> None:
    with server.panel() as panel:
        for _ in range(300):  # of which a slow server may let 20 a second pass
            panel.say("hello")
        assert panel.hung_up() == 1008


def test_a_page_that_says_too_much_at_once_is_hung_up_on(server: Jupyter) -> None:
    with server.panel() as panel:
        panel.hear("sources")
        panel.socket.send(" " * 100_000)
        assert panel.hung_up() in (1009, 1006)  # whether it got to say why or not


def test_a_coordinator_that_was_closed_stays_until_it_is_dismissed(
    server: Jupyter, name: str
) -> None:
    server.post(name, batch(update(0, True, name)))
    assert server.request("DELETE", f"psnb/coordinators/{name}")[0] == 204
    with server.panel() as panel:
        assert panel.hear_of(name)["gone"] == "it was closed"
        panel.hear("update", coordinator=name)
        assert server.request("DELETE", f"psnb/coordinators/{name}")[0] == 204
        # One from before may be on its way.
        while name in [each["coordinator"] for each in panel.hear("sources")["sources"]]:
            pass


def _session(server: Jupyter, path: str) -> str:
    body = {"path": path, "name": "", "type": "notebook", "kernel": {"name": "python3"}}
    status, session = server.request("POST", "api/sessions", body)
    assert status == 201, session
    return str(session["kernel"]["id"])


def test_what_a_kernel_says_does_not_wait_until_its_page_acknowledges_what_came_before(
    server: Jupyter,
) -> None:
    kernel = _session(server, "c.ipynb")
    with server.connected(f"api/kernels/{kernel}/channels"):
        # The socket is open before the server has registered it.
        wait_until(lambda: server.request("GET", "kernel-sockets")[1]["at_once"], "it is there")
        assert server.request("GET", "kernel-sockets")[1]["at_once"] == [True]
    server.request("DELETE", f"api/kernels/{kernel}")


def test_a_notebook_is_named_and_its_kernel_shut_down_is_gone(server: Jupyter, name: str) -> None:
    kernel = _session(server, "folder/a.ipynb")
    server.post(name, batch(update(0, True, name, identity=identity(kernel))))
    with server.panel() as panel:
        panel.hear_of(name, notebook="folder/a.ipynb", kernel=kernel, gone="")
        server.request("DELETE", f"api/kernels/{kernel}")
        assert panel.hear_of(name, gone="its kernel was shut down")


def test_a_kernel_that_is_killed_is_gone(server: Jupyter, name: str) -> None:
    before = {each.pid for each in psutil.Process(server.process).children()}
    kernel = _session(server, "b.ipynb")
    (process,) = {each.pid for each in psutil.Process(server.process).children()} - before
    server.post(name, batch(update(0, True, name, identity=identity(kernel))))
    with server.panel() as panel:
        panel.hear_of(name, notebook="b.ipynb", gone="")
        os.kill(process, signal.SIGKILL)
        # By Jupyter, which starts it again; or nothing came for five seconds.
        end = next(each for each in iter(lambda: panel.hear_of(name), None) if each["gone"])
        assert end["gone"].startswith(("its kernel was restarted", "no news for 5 s"))
    server.request("DELETE", f"api/kernels/{kernel}")
