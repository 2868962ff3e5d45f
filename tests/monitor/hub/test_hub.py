"""The hub without a server: who is gone, where commands end up, what is forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from psnb._src.monitor.jupyter_server.coordinators import (
    MOST_GONE,
    MOST_SOURCES,
    TooManyError,
)
from psnb._src.monitor.jupyter_server.hub import HEARTBEAT_TIMEOUT, MOST_PANELS, Busy, Hub
from psnb._src.monitor.jupyter_server.panel import Panel
from psnb._src.monitor.protocol import VERSION, Command, CommandReply
from tests.monitor.hub.updates import batch, identity, update


class Managers:
    """The server's managers of kernels and sessions, with what tests set."""

    def __init__(self) -> None:
        self.processes: dict[str, int] = {}  # by kernel
        self.paths: dict[str, str] = {}

    def __contains__(self, kernel: str) -> bool:
        return kernel in self.processes

    def get_kernel(self, kernel: str) -> Any:
        return SimpleNamespace(provisioner=SimpleNamespace(pid=self.processes[kernel]))

    def list_sessions(self) -> list[dict[str, Any]]:
        return [
            {"kernel": {"id": kernel}, "path": path, "type": "notebook"}
            for kernel, path in self.paths.items()
        ]


class Bench:
    """A hub with a clock that tests turn."""

    def __init__(self) -> None:
        self.now = 100.0
        self.managers = Managers()
        self.hub = Hub(self.managers, self.managers, lambda: self.now)
        self.replies: list[CommandReply] = []

    def sweep(self) -> None:
        asyncio.run(self.hub.sweep())

    def gone(self, coordinator: str) -> str | None:
        known = self.hub.sources.get(coordinator)
        return None if known is None else known.gone

    def command(self, coordinator: str = "abc", identity: str = "1") -> None:
        command = Command(
            type="command",
            version=VERSION,
            id=identity,
            coordinator=coordinator,
            command="pause",
            arguments={},
        )
        self.hub.command(command, self.replies.append)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_newcomer_and_one_that_was_missed_are_asked_for_everything(bench: Bench) -> None:
    assert bench.hub.post("abc", batch())["hello"]
    assert bench.hub.post("abc", batch(update(3)))["hello"]
    assert not bench.hub.post("abc", batch(update(4, True), update(5)))["hello"]
    assert not bench.hub.post("abc", batch())["hello"]
    assert bench.hub.post("abc", batch(update(7)))["hello"]


def test_a_kernel_that_is_unresponsive_is_gone_until_it_posts_again(bench: Bench) -> None:
    bench.hub.post("abc", batch(update(0, True)))
    bench.now += HEARTBEAT_TIMEOUT
    bench.sweep()
    assert bench.gone("abc") == ""
    bench.now += 0.1
    bench.sweep()
    assert "no news for 5 s" in str(bench.gone("abc"))
    bench.hub.post("abc", batch())
    assert bench.gone("abc") == ""


def test_a_kernel_that_the_server_misses_is_gone_at_once(bench: Bench) -> None:
    bench.managers.processes = {"one": 1, "two": 2}
    for kernel in ("one", "two", "elsewhere"):
        bench.hub.post(kernel, batch(update(0, True, kernel, identity=identity(kernel))))
    bench.sweep()
    bench.managers.processes = {"two": 3}
    bench.sweep()
    assert bench.gone("one") == "its kernel was shut down"
    assert bench.gone("two") == "its kernel was restarted"
    assert bench.gone("elsewhere") == ""


def test_the_notebook_is_found_by_its_kernel(bench: Bench) -> None:
    bench.managers.paths = {"k": "folder/a.ipynb"}
    bench.hub.post("abc", batch(update(0, True, identity=identity("k"))))
    bench.sweep()
    (listed,) = bench.hub.listing()["sources"]
    assert (listed["kernel"], listed["notebook"]) == ("k", "folder/a.ipynb")


def test_a_reply_finds_the_page_that_asked_though_pages_number_alike(bench: Bench) -> None:
    bench.hub.post("abc", batch(update(0, True)))
    bench.command()
    others: list[CommandReply] = []
    bench.hub.command({**_fetched(bench), "id": "1"}, others.append)
    (second,) = bench.hub.post("abc", batch())["commands"]
    bench.hub.post("abc", batch(replies=(_reply(second["id"]),)))
    assert [each["id"] for each in others] == ["1"]
    assert bench.replies == []


def _fetched(bench: Bench) -> Command:
    (command,) = bench.hub.post("abc", batch())["commands"]
    return command


def _reply(identity: str, coordinator: str = "abc") -> CommandReply:
    return CommandReply(
        type="reply", version=VERSION, id=identity, coordinator=coordinator, error="", result=""
    )


def test_a_coordinator_cannot_answer_for_another_one(bench: Bench) -> None:
    bench.hub.post("abc", batch(update(0, True)))
    bench.command()
    command = _fetched(bench)
    bench.hub.post("other", batch(replies=(_reply(command["id"], "other"),)))
    assert bench.replies == []


def test_a_command_that_is_not_fetched_is_withdrawn_and_reported(bench: Bench) -> None:
    bench.hub.post("abc", batch(update(0, True)))
    bench.command()
    for _ in range(31):  # it lives, but its posts do not get through to their end
        bench.now += 1
        bench.hub.sources.get("abc").heard = bench.now  # type: ignore[union-attr]
        bench.sweep()
    assert "withdrawn" in bench.replies[0]["error"]
    assert bench.hub.post("abc", batch())["commands"] == []


def test_a_command_without_a_reply_is_answered_after_half_a_minute(bench: Bench) -> None:
    bench.hub.post("abc", batch(update(0, True)))
    bench.command()
    command = _fetched(bench)
    for _ in range(31):
        bench.now += 1
        bench.hub.post("abc", batch())
        bench.sweep()
    assert ["may still be under way" in each["error"] for each in bench.replies] == [True]
    bench.hub.post("abc", batch(replies=(_reply(command["id"]),)))
    assert len(bench.replies) == 1


def test_a_command_to_one_that_is_gone_or_goes_is_answered_at_once(bench: Bench) -> None:
    bench.hub.post("abc", batch(update(0, True)))
    bench.command()
    bench.hub.close("abc")
    bench.command()
    bench.command("nobody")
    assert ["went" in bench.replies[0]["error"], "reached" in bench.replies[1]["error"]] == [
        *(True, True)
    ]
    assert "no such coordinator" in bench.replies[2]["error"]


def test_too_many_commands_are_refused(bench: Bench) -> None:
    bench.hub.post("abc", batch(update(0, True)))
    for each in range(101):
        bench.command(identity=str(each))
    assert [each["id"] for each in bench.replies] == ["100"]


def test_too_many_posts_are_refused_and_allowed_again(bench: Bench) -> None:
    for _ in range(40):
        bench.hub.post("abc", batch())
    with pytest.raises(Busy):
        bench.hub.post("abc", batch())
    bench.now += 1
    bench.hub.post("abc", batch())


def test_of_those_that_are_gone_the_last_are_kept(bench: Bench) -> None:
    for each in range(MOST_GONE + 2):
        bench.hub.post(str(each), batch())
    for each in reversed(range(MOST_GONE + 2)):
        bench.hub.close(str(each))
    assert bench.gone(str(MOST_GONE + 1)) is None
    assert bench.gone(str(MOST_GONE)) is None
    assert bench.gone("0") == "it was closed"


def test_one_too_many_is_refused_as_long_as_all_live(bench: Bench) -> None:
    for each in range(MOST_SOURCES):
        bench.hub.post(str(each), batch())
    with pytest.raises(TooManyError):
        bench.hub.post("more", batch())
    bench.hub.close("7")
    bench.hub.post("more", batch())
    assert bench.gone("7") is None


def test_a_kernel_takes_the_place_of_what_a_scheduler_reported_of_it(bench: Bench) -> None:
    bench.hub.sources.add("abc", "scheduler", "http://far:1")
    assert bench.hub.post("abc", batch())["hello"]
    (listed,) = bench.hub.listing()["sources"]
    assert (listed["kind"], listed["address"]) == ("kernel", "")


class Page:
    """A panel's connection that takes a message when the test says so."""

    def __init__(self, bench: Bench, write_timeout: float = 30.0) -> None:
        self.heard: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.closed = ""
        self.panel = Panel(
            bench.hub.sources, bench.hub.listing, self._write, self._close, write_timeout
        )
        bench.hub.join(self.panel)

    async def _write(self, text: str) -> None:
        await self.reads.wait()
        self.heard.append(json.loads(text))

    def _close(self, reason: str) -> None:
        self.closed = reason

    def sequences(self) -> list[int]:
        return [each["sequence"] for each in self.heard if each["type"] == "update"]


async def _settle() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


def _run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_a_page_that_reads_slowly_misses_nothing_and_is_not_waited_for(bench: Bench) -> None:
    async def test() -> None:
        slow, quick = Page(bench), Page(bench)
        bench.hub.post("abc", batch(update(0, True)))
        await _settle()
        slow.reads.clear()
        for sequence in range(1, 5):
            bench.hub.post("abc", batch(update(sequence)))
            await _settle()
        assert quick.sequences() == [0, 1, 2, 3, 4]
        assert slow.sequences() == [0]
        slow.reads.set()
        await _settle()
        assert slow.sequences() == [0, 1, 2, 3, 4]

    _run(test)


def test_a_page_that_lags_far_behind_goes_on_with_the_newest_full_update(bench: Bench) -> None:
    async def test() -> None:
        page = Page(bench)
        bench.hub.post("abc", batch(update(0, True)))
        await _settle()
        page.reads.clear()
        bench.hub.post("abc", batch(update(1)))
        await _settle()
        bench.hub.post("abc", batch(update(2), update(3, True), update(4)))
        page.reads.set()
        await _settle()
        assert page.sequences() == [0, 1, 3, 4]

    _run(test)


def test_a_page_that_never_reads_is_hung_up_on(bench: Bench) -> None:
    async def test() -> None:
        page = Page(bench, write_timeout=0.01)
        page.reads.clear()
        bench.hub.post("abc", batch(update(0, True)))
        async with asyncio.timeout(5):
            while not page.closed:
                await asyncio.sleep(0.01)

    _run(test)


def test_no_more_pages_listen_than_may_and_one_that_leaves_makes_room(bench: Bench) -> None:
    async def test() -> None:
        pages = [Page(bench) for _ in range(MOST_PANELS)]
        with pytest.raises(TooManyError):
            Page(bench)
        bench.hub.panels.discard(pages[0].panel)
        Page(bench)
        await _settle()

    _run(test)


def test_a_page_that_lets_replies_pile_up_is_hung_up_on(bench: Bench) -> None:
    async def test() -> None:
        page = Page(bench)
        page.reads.clear()
        for _ in range(300):
            page.panel.reply_to(_reply("1"))
        assert "replies" in page.closed
        page.reads.set()
        await _settle()

    _run(test)


def test_two_of_one_name_are_called_as_in_their_notebooks(bench: Bench) -> None:
    for each in ("one", "two"):
        bench.hub.post(each, batch(update(0, True, each, identity=identity())))
    kept = [known.backlog.since()[0][1] for known in bench.hub.sources.values()]
    names = [json.loads(text)["identity"]["name"] for text in kept]
    assert names == ["a strategy", "a strategy"]


def test_one_that_is_gone_can_be_dismissed_and_comes_back_when_it_posts(bench: Bench) -> None:
    bench.hub.post("abc", batch(update(0, True)))
    bench.hub.close("abc")
    assert [each["gone"] for each in bench.hub.listing()["sources"]] == ["it was closed"]
    bench.hub.close("abc")
    assert bench.hub.listing()["sources"] == []
    bench.hub.post("abc", batch(update(1, True)))
    assert [each["gone"] for each in bench.hub.listing()["sources"]] == [""]
