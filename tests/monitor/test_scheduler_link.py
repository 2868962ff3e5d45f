"""A coordinator outside of Jupyter, on a real scheduler: its route, and the hub that asks it."""

from __future__ import annotations

import json
import math
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import quote

import pytest
from distributed import Client, LocalCluster

from psnb._src.monitor.backlog import Extract
from psnb._src.monitor.links import scheduler_link
from psnb._src.monitor.links.scheduler_link import (
    GONE_SECONDS,
    MOST_BYTES,
    MOST_COORDINATORS,
    RARELY,
    READ,
    READ_WITHIN,
    SWEEP,
    SchedulerLink,
    UpdatesRoute,
)
from psnb._src.monitor.protocol import WATCH_ONLY, CommandName
from psnb._src.transport import questions
from psnb._src.transport.questions import Answers
from tests.conftest import DEADLINE, wait_until
from tests.monitor.hub.jupyter import Jupyter
from tests.monitor.hub.updates import update
from tests.monitor.viewed import FakeViewed, reporting


def _extracts(route: UpdatesRoute, after: dict[str, Any] | None = None) -> list[Extract]:
    return cast(list[Extract], json.loads(route.extracts(after or {}))["coordinators"])


def test_a_reader_gets_what_it_does_not_have() -> None:
    route = UpdatesRoute()
    assert route.post("client", "abc", update(1))  # and is asked for a full one
    for each in (update(2, True), update(3), update(4)):
        assert not route.post("client", "abc", each)
    assert _extracts(route) == [
        {"coordinator": "abc", "gone": "", "updates": [update(2, True), update(3), update(4)]}
    ]
    assert _extracts(route, {"abc": 3})[0]["updates"] == [update(4)]
    assert _extracts(route, {"abc": 4, "other": 1})[0]["updates"] == []
    assert _extracts(route, {"abc": "x"})[0]["updates"][0] == update(2, True)


def test_a_coordinator_goes_when_it_says_so_and_with_its_client() -> None:
    route = UpdatesRoute()
    for name, client in (("closed", "one"), ("lost", "one"), ("lives", "two")):
        route.post(client, name, update(0, True))
    route.post("one", "closed", None)
    route.remove_client(cast(Any, None), "one")
    gone = {each["coordinator"]: each["gone"] for each in _extracts(route)}
    assert gone["closed"] == "it was closed"
    assert "its process has ended" in gone["lost"]
    assert gone["lives"] == ""
    route.post("one", "lost", update(1))
    assert [each["gone"] for each in _extracts(route) if each["coordinator"] == "lost"] == [""]


def test_of_too_many_those_that_are_gone_are_forgotten_first() -> None:
    route = UpdatesRoute()
    for each in range(MOST_COORDINATORS):
        route.post("client", str(each), update(0, True))
    route.post("client", "30", None)
    route.post("client", "a", update(0, True))
    route.post("client", "b", update(0, True))
    names = [each["coordinator"] for each in _extracts(route)]
    assert len(names) == MOST_COORDINATORS
    assert not {"30", "0"} & set(names)
    assert {"1", "a", "b"} <= set(names)


def test_what_is_gone_is_forgotten_after_a_while() -> None:
    now = [1000.0]
    route = UpdatesRoute(lambda: now[0])
    for name, client in (("closed", "one"), ("lost", "one"), ("back", "two"), ("lives", "three")):
        route.post(client, name, update(0, True))
    route.post("one", "closed", None)
    route.remove_client(cast(Any, None), "one")
    route.remove_client(cast(Any, None), "two")
    route.post("two", "back", update(1))
    now[0] += GONE_SECONDS - 1
    route.sweep()
    assert len(_extracts(route)) == 4
    now[0] += 1
    route.sweep()
    assert {each["coordinator"] for each in _extracts(route)} == {"back", "lives"}


def test_a_long_answer_is_given_in_parts() -> None:
    route = UpdatesRoute()
    for each in range(4):
        notice = "x" * (MOST_BYTES // 2 - 1000)
        route.post("client", "abc", update(each, each == 0, notice=notice))
    parts: list[list[int]] = []
    have: dict[str, int] = {}
    while part := _extracts(route, have)[0]["updates"]:
        parts.append([each["sequence"] for each in part])
        have = {"abc": parts[-1][-1]}
    assert parts == [[0, 1], [2, 3]]


@pytest.fixture(scope="module")
def scheduler() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster


@pytest.fixture
def client(scheduler: LocalCluster) -> Iterator[Client]:
    with Client(scheduler, timeout=10) as client:
        client.register_plugin(Answers())  # as each strategy does
        yield client


def _base(client: Client) -> str:
    port = client.scheduler_info()["services"]["dashboard"]
    return f"http://127.0.0.1:{port}"


def _asked(client: Client, after: str = "{}") -> Any:
    url = f"{_base(client)}/psnb/updates?after={quote(after)}"
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.loads(answer.read())


def _viewed(name: str) -> FakeViewed:
    viewed = reporting(1.0, 0.5)
    viewed.id = name
    commands: tuple[CommandName, ...] = ("pause", "resume")
    viewed.refused = dict.fromkeys(commands, "")
    return viewed


def _told(client: Client, name: str) -> dict[str, Any] | None:
    coordinators = _asked(client)["coordinators"]
    return next((each for each in coordinators if each["coordinator"] == name), None)


def test_a_coordinator_tells_the_scheduler_and_takes_no_commands_from_there(
    client: Client,
) -> None:
    viewed = _viewed("told")
    link = SchedulerLink(viewed, client)
    link.start()
    try:
        wait_until(lambda: bool(_told(client, "told")), "the scheduler has heard of it")
        told = _told(client, "told")
        assert told is not None
        first = told["updates"][0]
        assert first["full"]
        assert [each["name"] for each in first["metrics"]] == ["loss"]
        assert first["controls"] == {"pause": WATCH_ONLY, "resume": WATCH_ONLY}
    finally:
        link.stop()
    closed = _told(client, "told")
    assert closed is not None
    assert closed["gone"] == "it was closed"
    assert not link.alive


def test_updates_are_made_while_someone_reads_them(
    client: Client, scheduler: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "INTERVAL", 0.02)
    monkeypatch.setattr(scheduler_link, "INTERVAL", 0.02)
    now = [1000.0]
    client.register_plugin(UpdatesRoute())
    route = scheduler.scheduler.plugins["psnb-updates"]
    monkeypatch.setattr(route, "_clock", lambda: now[0])
    monkeypatch.setattr(route, "_read", -math.inf)
    asked = threading.Semaphore(0)
    read = scheduler.scheduler.handlers[READ]
    monkeypatch.setitem(scheduler.scheduler.handlers, READ, lambda: (asked.release(), read())[1])
    viewed = _viewed("unread")
    link = SchedulerLink(viewed, client)
    link.start()
    try:
        wait_until(lambda: "unread" in route._kept, "the scheduler has heard of it")
        first = route._kept["unread"].backlog.last
        viewed.set(completed=7)
        for _ in range(3):
            assert asked.acquire(timeout=DEADLINE)
        assert route._kept["unread"].backlog.last == first

        _told(client, "unread")
        wait_until(
            lambda: _told(client, "unread")["updates"][-1]["summary"]["completed"] == 7,  # type: ignore[index]
            "the reader gets what is new",
        )
        now[0] += READ_WITHIN  # it has gone
        wait_until(lambda: link._interval == RARELY, "nobody reads")
    finally:
        link.stop()


def test_the_scheduler_forgets_what_is_gone_by_itself(
    client: Client, scheduler: LocalCluster
) -> None:
    client.register_plugin(UpdatesRoute())
    route = scheduler.scheduler.plugins["psnb-updates"]
    route.post("client", "forgotten", update(0, True))
    route.post("client", "forgotten", None)
    sweep = scheduler.scheduler.periodic_callbacks["psnb-updates"]
    assert sweep.is_running()
    assert sweep.callback_time == 1000 * SWEEP
    assert sweep.callback == route.sweep


def test_a_question_that_is_none_is_refused(client: Client) -> None:
    client.register_plugin(UpdatesRoute())
    for after in ("[]", "{", "[" * 5000):
        with pytest.raises(urllib.error.HTTPError, match="400") as caught:
            _asked(client, after)
        caught.value.close()


def test_a_page_sees_an_attached_schedulers_coordinators_and_their_end(
    server: Jupyter, scheduler: LocalCluster
) -> None:
    viewed = _viewed("far")
    with server.panel() as panel:
        with Client(scheduler, timeout=10) as client:
            client.register_plugin(Answers())
            address = _base(client) + "/status"
            link = SchedulerLink(viewed, client)
            link.start()
            panel.say("attach", id="1", address=address)
            assert panel.hear("reply", id="1")["error"] == ""
            panel.hear_of("far", kind="scheduler", address=address, gone="", kernel="")
            panel.hear("update", coordinator="far", full=True)
            viewed.set(completed=11)
            while panel.hear("update", coordinator="far")["summary"]["completed"] != 11:
                pass
            panel.say("command", id="2", coordinator="far", command="pause", arguments={})
            assert "for watching" in panel.hear("reply", id="2")["error"]
        # Its client is gone without a word from it.
        panel.hear_of("far", gone="its process has ended, or left the cluster")
        link.stop()
        panel.say("detach", id="3", address=address)
        assert panel.hear("reply", id="3")["error"] == ""
