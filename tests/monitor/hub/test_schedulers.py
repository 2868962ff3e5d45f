"""Attached schedulers: how they are found, and what happens with those that misbehave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from distributed import LocalCluster
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from psnb.monitor.hub import schedulers as module
from psnb.monitor.hub.schedulers import MOST_SCHEDULERS, Schedulers
from psnb.monitor.hub.sources import Sources
from psnb.monitor.protocol import VERSION
from psnb.monitor.route import UpdatesRoute
from tests.monitor.hub.updates import update


class Bench:
    """Attached schedulers with a clock that tests turn."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sources = Sources(lambda: self.now)
        self.schedulers = Schedulers(self.sources, lambda: None, lambda: None, lambda: self.now)

    async def poll(self, watched: bool = True) -> None:
        self.schedulers.poll(watched)
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
        *("", "127.0.0.1:8786", "tcp://", "tcp://host", "tcp://host:x", "tcp://host:99999"),
        *("file:///etc/passwd", "ftp://host:1", "http://user:word@host:1", "http://host:1/?x=1"),
        *("tcp://host:1/path", "tcp://" + "x" * 300 + ":1"),
    ],
)
def test_what_is_no_address_is_refused(bench: Bench, address: str) -> None:
    assert "no address of a scheduler" in bench.schedulers.attach(address)
    assert bench.schedulers.listed() == []


def test_no_more_are_attached_than_can_be_watched(bench: Bench) -> None:
    for each in range(MOST_SCHEDULERS):
        assert bench.schedulers.attach(f"tcp://host:{each + 1}") == ""
    assert "detach one first" in bench.schedulers.attach("tcp://host:9000")
    assert bench.schedulers.attach("tcp://host:1") == ""
    assert bench.schedulers.detach("tcp://host:1") == ""
    assert "is not attached" in bench.schedulers.detach("tcp://host:1")


def _extracts(*coordinators: dict[str, Any]) -> dict[str, Any]:
    return {"version": VERSION, "coordinators": list(coordinators)}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda handler: handler.redirect("http://127.0.0.1:1/"), "redirects"),
        (lambda handler: handler.send_error(404), "no coordinator outside of Jupyter"),
        (lambda handler: handler.send_error(500), "answers 500"),
        (lambda handler: handler.write("<html>"), "not psnb's route"),
        (lambda handler: handler.write("[]"), "version None"),
        (lambda handler: handler.write({"version": 99}), "version 99"),
        (lambda handler: handler.write(_extracts({"coordinator": 1})), "must be text"),
        (lambda handler: handler.write(b" " * (9 << 20)), "over 8 MB"),
    ],
    ids=["redirect", "absent", "broken", "html", "list", "version", "shape", "huge"],
)
def test_an_answer_that_is_none_is_told_in_plain_words(
    bench: Bench, answer: Callable[[RequestHandler], object], said: str
) -> None:
    async def test() -> None:
        with serving(answer) as address:
            bench.schedulers.attach(address)
            await bench.poll()
            assert said in bench.error()
            assert not list(bench.sources)

    asyncio.run(test())


def test_a_scheduler_that_does_not_answer_is_given_up_in_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIME_LIMIT", 0.1)

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            bench.schedulers.attach(f"http://127.0.0.1:{deaf.getsockname()[1]}")
            await bench.poll()
            assert "no answer within" in bench.error()

    asyncio.run(test())


def test_nobody_there_is_told_and_when_somebody_comes_they_are_heard(bench: Bench) -> None:
    told = _extracts({"coordinator": "abc", "gone": "", "updates": [update(0, True)]})

    async def test() -> None:
        with serving(lambda handler: handler.write(told)) as address:
            bench.schedulers.attach(address)
            await bench.poll()
            assert (bench.error(), bench.gone("abc")) == ("", "")
        bench.now += 1
        await bench.poll()
        assert "cannot be reached" in bench.error()
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
            bench.schedulers.attach(f"{address}/status")
            for _ in range(3):
                await bench.poll()

    asyncio.run(test())
    assert asked == ["{}", '{"abc": 5}', '{"abc": 6}']
    known = bench.sources.get("abc")
    assert known is not None
    assert known.backlog.last == 6
    assert known.gone == "its scheduler does not know it any more"


def test_a_scheduler_cannot_speak_for_a_coordinator_of_a_kernel(bench: Bench) -> None:
    kernel = bench.sources.add("abc", "kernel", "")
    told = _extracts({"coordinator": "abc", "gone": "x", "updates": [update(0, True)]})

    async def test() -> None:
        with serving(lambda handler: handler.write(told)) as address:
            bench.schedulers.attach(address)
            await bench.poll()

    asyncio.run(test())
    assert (kernel.gone, kernel.backlog.last) == ("", None)


def test_while_no_page_listens_it_is_asked_seldom(bench: Bench) -> None:
    asked: list[float] = []

    def answer(handler: RequestHandler) -> None:
        asked.append(bench.now)
        handler.write(_extracts())

    async def test() -> None:
        with serving(answer) as address:
            bench.schedulers.attach(address)
            for _ in range(20):
                await bench.poll(watched=False)
                bench.now += 0.5
            assert asked == [100.0, 105.0]
            bench.schedulers.hasten()
            await bench.poll(watched=False)
            assert len(asked) == 3

    asyncio.run(test())


@pytest.mark.slow
def test_a_scheduler_is_found_by_the_address_that_clients_use(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with LocalCluster(
            n_workers=0,
            processes=False,
            protocol="tcp",
            dashboard_address="127.0.0.1:0",
            asynchronous=True,
        ) as cluster:
            route = UpdatesRoute()
            await cluster.scheduler.register_scheduler_plugin(route, idempotent=True)
            route.tell("client", "abc", update(0, True))
            bench.schedulers.attach(cluster.scheduler.address)
            await bench.poll()
            assert (bench.error(), bench.gone("abc")) == ("", "")
            port = cluster.scheduler.http_server.port
        monkeypatch.setattr(module, "TIME_LIMIT", 0.2)
        bench.schedulers.detach(cluster.scheduler.address)
        bench.schedulers.attach(f"tcp://127.0.0.1:{port}")
        await bench.poll()
        assert bench.error()

    asyncio.run(test())
