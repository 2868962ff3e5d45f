"""Attached schedulers: how they are found, and what happens with those that misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from psnb._src.monitor.jupyter_server import schedulers as module
from psnb._src.monitor.jupyter_server.coordinators import CoordinatorRegistry
from psnb._src.monitor.jupyter_server.panel import Panels
from psnb._src.monitor.jupyter_server.schedulers import MOST_SCHEDULERS, Schedulers
from psnb._src.monitor.protocol import VERSION
from tests.monitor.hub.updates import update


class Bench:
    """Attached schedulers with a clock that tests turn."""

    def __init__(self, time_limit: float = 5.0) -> None:
        self.now = 100.0
        self.sources = CoordinatorRegistry(lambda: self.now)
        self.panels = Panels()
        self.schedulers = Schedulers(self.sources, self.panels, lambda: self.now, time_limit)

    async def poll(self, watched: bool = True) -> None:
        self.panels.clear()
        if watched:
            self.panels.add(Mock())
        self.schedulers.poll()
        asking = [each.asking for each in self.schedulers._watched.values() if each.asking]
        await asyncio.wait_for(asyncio.gather(*asking), 20)

    def error(self) -> str:
        (listed,) = self.schedulers.listed()
        return listed["error"]

    def gone(self, coordinator: str) -> str | None:
        known = self.sources.get(coordinator)
        return None if known is None else known.gone


@pytest.fixture
def bench() -> Bench:
    return Bench()


@contextmanager
def serving(answer: Callable[[RequestHandler], object]) -> Iterator[str]:
    """Serve a route whose answer tests make; inside of an event loop."""

    class Handler(RequestHandler):
        def get(self) -> None:
            answer(self)

    (listening,) = bind_sockets(0, "127.0.0.1")
    http = HTTPServer(Application([(r".*", Handler)], log_function=lambda handler: None))
    http.add_sockets([listening])
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        http.stop()


@pytest.mark.parametrize(
    "address",
    [
        *("", "a host:8786", "tcp://", "http://", "http://host:x", "http://host:99999"),
        *("file:///etc/passwd", "ftp://host:1", "http://user:word@host:1", "http://host:1/?x=1"),
        *("http://" + "x" * 300 + ":1", "http://a..b:1", f"http://{'x' * 64}.org:1", "http://h:0"),
        *("http://[::1:8787", "tcp://a..b:1"),
    ],
)
def test_what_is_no_address_is_refused(bench: Bench, address: str) -> None:
    assert "address of the scheduler's dashboard, which" in asyncio.run(
        bench.schedulers.attach(address)
    )
    assert bench.schedulers.listed() == []


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("tcp://host:8786", ["http://host:8787"]),  # never by what runs what it is answered
        ("tls://host:1", ["http://host:8787"]),
        ("tcp://host", ["http://host:8787"]),
        ("host:8786", ["http://host:8786", "http://host:8787"]),
        ("host:8787", ["http://host:8787"]),
        ("host", ["http://host:8787"]),
        ("[::1]:8786", ["http://[::1]:8786", "http://[::1]:8787"]),
        ("https://host:1/status", ["https://host:1/status"]),
    ],
)
def test_the_dashboard_of_what_connect_takes_is_asked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, address: str, asked: list[str]
) -> None:
    urls: list[str] = []

    async def fetch(url: str, time_limit: float) -> bytes:
        urls.append(url.partition(module.ROUTE)[0])
        raise module._AnswerError("nobody is there")

    monkeypatch.setattr(module, "_fetch", fetch)
    error = asyncio.run(bench.schedulers.attach(address))
    assert urls == [each.removesuffix("/status") for each in asked]
    told = (f"{each}: nobody is there".removeprefix(f"{address}: ") for each in asked)
    assert error == "; ".join(told)
    assert bench.schedulers.listed() == []


@pytest.mark.parametrize("typed", ["tcp://127.0.0.1:{}", "127.0.0.1:{}"])
def test_the_dashboard_at_the_usual_port_is_attached_only_if_it_is_of_the_scheduler_that_was_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    identity: dict[str, Any] = {}

    def answer(handler: RequestHandler) -> None:
        of_dask = handler.request.path.endswith("/json/identity.json")
        handler.write(identity if of_dask else _extracts())

    async def test() -> None:
        with serving(answer) as dashboard, socket.socket() as held:
            held.bind(("127.0.0.1", 0))  # where a scheduler would be, which speaks no HTTP
            port = held.getsockname()[1]
            monkeypatch.setattr(module, "DASHBOARD", int(dashboard.rpartition(":")[2]))
            for stranger in ({"address": f"tcp://10.0.0.1:{port + 1}"}, {"address": "x"}, {}):
                identity.clear()
                identity.update(stranger)
                assert "another scheduler" in await bench.schedulers.attach(typed.format(port))
                assert bench.schedulers.listed() == []
            # As it calls itself in its network.
            identity.update(address=f"tcp://10.0.0.1:{port}", id="Scheduler-1", started=50.5)
            assert await bench.schedulers.attach(typed.format(port)) == ""
            (listed,) = bench.schedulers.listed()
            assert listed["address"] == dashboard

    asyncio.run(test())


def test_host_and_port_attach_the_dashboard(bench: Bench) -> None:
    async def test() -> None:
        with serving(lambda handler: handler.write(_extracts())) as address:
            assert await bench.schedulers.attach(address.removeprefix("http://")) == ""
            (listed,) = bench.schedulers.listed()
            assert listed["address"] == address

    asyncio.run(test())


def test_a_row_has_the_cluster_that_answers_there_by_now(bench: Bench) -> None:
    started, there = 50.5, True

    def answer(handler: RequestHandler) -> None:
        if not there:
            handler.send_error(500)
        elif handler.request.path.endswith("/json/identity.json"):
            handler.write({"address": "tcp://10.0.0.1:8786", "id": "S-1", "started": started})
        else:
            handler.send_error(404)  # there is no coordinator

    async def test() -> None:
        nonlocal started, there
        with serving(answer) as address:
            assert await bench.schedulers.attach(address) == ""
            (listed,) = bench.schedulers.listed()
            assert listed["cluster"] == "tcp://10.0.0.1:8786"
            assert (listed["cluster_id"], listed["cluster_started"]) == ("S-1", 50.5)
            assert (listed["coordinators"], listed["error"]) == (0, "")  # it has answered
            there = False
            await bench.poll()
            started, there = 60.5, True
            await bench.poll()
            (listed,) = bench.schedulers.listed()
            assert listed["cluster_started"] == 60.5

    asyncio.run(test())


@pytest.mark.parametrize("started", ["NaN", "1e999", "-Infinity"])
def test_a_row_has_only_what_pages_can_read_of_a_cluster(bench: Bench, started: str) -> None:
    def answer(handler: RequestHandler) -> None:
        of_dask = handler.request.path.endswith("/json/identity.json")
        identity = f'{{"address": "tcp://10.0.0.1:8786", "id": "S-1", "started": {started}}}'
        handler.write(identity if of_dask else _extracts())

    async def test() -> None:
        with serving(answer) as address:
            assert await bench.schedulers.attach(address) == ""
            (listed,) = bench.schedulers.listed()
            json.dumps(listed, allow_nan=False)

    asyncio.run(test())


def test_no_more_are_attached_than_can_be_watched(bench: Bench) -> None:
    async def test() -> None:
        with serving(lambda handler: handler.write(_extracts())) as address:
            for each in range(MOST_SCHEDULERS):
                assert await bench.schedulers.attach(f"{address}/{each}") == ""
            assert "detach one first" in await bench.schedulers.attach(f"{address}/more")
            assert await bench.schedulers.attach(f"{address}/1") == ""
            assert bench.schedulers.detach(f"{address}/1") == ""
            assert "is not attached" in bench.schedulers.detach(f"{address}/1")

    asyncio.run(test())


def _extracts(*coordinators: dict[str, Any]) -> dict[str, Any]:
    return {"version": VERSION, "coordinators": list(coordinators)}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda handler: handler.redirect("http://127.0.0.1:1/"), "redirects"),
        (lambda handler: handler.send_error(500, reason="Stranger"), "answers with status 500"),
        (lambda handler: handler.write("<html>Stranger"), "not psnb's route"),
        (lambda handler: handler.write("[]"), "not psnb's route"),
        (lambda handler: handler.write({"version": "Stranger"}), "another version"),
        (lambda handler: handler.write(_extracts({"Stranger": 1})), "not psnb's route"),
        (lambda handler: handler.write(b" " * (9 << 20)), "over 8 MiB"),
    ],
    ids=["redirect", "broken", "html", "list", "version", "shape", "huge"],
)
def test_an_invalid_answer_is_reported_in_plain_words(
    bench: Bench, answer: Callable[[RequestHandler], object], said: str
) -> None:
    async def test() -> None:
        with serving(answer) as address:
            error = await bench.schedulers.attach(address)
            assert said in error
            assert "Stranger" not in error
            assert bench.schedulers.listed() == []
            assert not list(bench.sources)

    asyncio.run(test())


def test_a_scheduler_without_coordinators_is_watched_until_one_reports(bench: Bench) -> None:
    async def test() -> None:
        with serving(lambda handler: handler.send_error(404)) as address:
            assert await bench.schedulers.attach(address) == ""
            assert bench.error() == ""  # it has answered
            await bench.poll()
            (listed,) = bench.schedulers.listed()
            assert (listed["coordinators"], listed["error"]) == (0, "")

    asyncio.run(test())


@asynccontextmanager
async def _saying(text: bytes) -> AsyncIterator[str]:
    """Serve one text to whoever says something, and hang up; gives host and port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(text)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "banner",
    [
        b"SSH-2.0-Stranger\r\n",
        b"HTTP/1.1 200 Stranger\r\nContent-Length: Stranger\r\n\r\n",
        b"HTTP/1.1 9999999 Stranger\r\n\r\n",
        b"\xff" * 100 + b"\r\n\r\n",
        b"",
    ],
)
def test_what_does_not_speak_http_is_reported_as_such(bench: Bench, banner: bytes) -> None:
    async def test() -> None:
        async with _saying(banner) as address:
            error = await bench.schedulers.attach(f"http://{address}")
            assert "not HTTP" in error
            assert "Stranger" not in error

    asyncio.run(test())


def test_an_unknown_host_is_reported_as_such(bench: Bench) -> None:
    error = asyncio.run(bench.schedulers.attach("http://no-such-host.invalid:8787"))
    assert "not known here" in error


def test_a_server_without_tls_is_reported_as_such(bench: Bench) -> None:
    async def test() -> None:
        async with _saying(b"HTTP/1.1 400 Stranger\r\n\r\n") as address:
            assert "it speaks no TLS" in await bench.schedulers.attach(f"https://{address}")

    asyncio.run(test())


def test_an_error_of_whatever_kind_ends_no_watching(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(url: str, time_limit: float) -> bytes:
        raise KeyError("Stranger")

    async def test() -> None:
        with serving(lambda handler: handler.write(_extracts())) as address:
            await bench.schedulers.attach(address)
            monkeypatch.setattr(module, "_fetch", fails)
            await bench.poll()
            assert bench.error() == "what answers there is not HTTP: KeyError"

    asyncio.run(test())


def test_a_scheduler_that_does_not_answer_is_given_up_in_time() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
            bench = Bench(time_limit=0.1)
            assert await bench.schedulers.attach(address) == "no answer within 0.1 s"

    asyncio.run(test())


def test_an_address_without_scheduler_is_reported_and_asked_again(bench: Bench) -> None:
    told = _extracts({"coordinator": "abc", "gone": "", "updates": [update(0, True)]})

    async def test() -> None:
        with serving(lambda handler: handler.write(told)) as address:
            await bench.schedulers.attach(address)
            assert (bench.error(), bench.gone("abc")) == ("", "")
        bench.now += 1
        await bench.poll()
        assert "nothing can be reached there: Connection refused" in bench.error()
        assert bench.gone("abc") == ""  # once is an accident
        bench.now += 5
        await bench.poll()
        assert "its scheduler cannot be reached" in str(bench.gone("abc"))

    asyncio.run(test())


def test_it_is_asked_for_what_is_new_only_and_those_it_forgot_are_gone(bench: Bench) -> None:
    asked: list[str] = []
    answers = [
        _extracts({"coordinator": "abc", "gone": "", "updates": [update(4, True), update(5)]}),
        _extracts({"coordinator": "abc", "gone": "", "updates": [update(6)]}),
        _extracts(),
    ]

    def answer(handler: RequestHandler) -> None:
        asked.append(handler.get_query_argument("after"))
        handler.write(answers[len(asked) - 1])

    async def test() -> None:
        with serving(answer) as address:
            await bench.schedulers.attach(f"{address}/status")
            for _ in range(2):
                await bench.poll()

    asyncio.run(test())
    assert asked == ["{}", '{"abc": 5}', '{"abc": 6}']
    known = bench.sources.get("abc")
    assert known is not None
    assert known.backlog.last == 6
    assert known.gone == "its scheduler does not know it any more"


def test_what_was_dismissed_does_not_come_back_though_its_scheduler_goes_on_telling(
    bench: Bench,
) -> None:
    told = _extracts({"coordinator": "abc", "gone": "x", "updates": [update(0, True)]})

    async def test() -> None:
        with serving(lambda handler: handler.write(told)) as address:
            await bench.schedulers.attach(address)
            assert bench.gone("abc") == "x"
            del bench.sources["abc"]
            bench.sources.dismissed.append("abc")
            await bench.poll()

    asyncio.run(test())
    assert bench.gone("abc") is None


def test_a_scheduler_cannot_speak_for_a_coordinator_of_a_kernel(bench: Bench) -> None:
    kernel = bench.sources.add("abc", "kernel", "")
    told = _extracts({"coordinator": "abc", "gone": "x", "updates": [update(0, True)]})

    async def test() -> None:
        with serving(lambda handler: handler.write(told)) as address:
            await bench.schedulers.attach(address)
            await bench.poll()

    asyncio.run(test())
    assert (kernel.gone, kernel.backlog.last) == ("", None)


def test_while_no_page_listens_it_is_asked_seldom(bench: Bench) -> None:
    asked: list[float] = []

    def answer(handler: RequestHandler) -> None:
        if handler.request.path.endswith(module.ROUTE):
            asked.append(bench.now)
        handler.write(_extracts())

    async def test() -> None:
        with serving(answer) as address:
            await bench.schedulers.attach(address)
            for _ in range(20):
                await bench.poll(watched=False)
                bench.now += 0.5
            assert asked == [100.0, 100.0, 105.0]
            await bench.poll()
            assert len(asked) == 4

    asyncio.run(test())
