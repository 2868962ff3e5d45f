"""The live widget: what travels between it and its pages. No browser and no kernel."""

from __future__ import annotations

import gc
import json
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from psnb._src.monitor.protocol import VERSION, Update
from psnb._src.monitor.widget import WAITS, CoordinatorWidget
from tests.monitor.updates import full_update
from tests.monitor.viewed import DEADLINE, FakeViewed, reporting

NEVER = 1e6
"""An interval after which no test still runs: only a hello or the end wakes such a publisher."""

HELLO = {"type": "hello", "version": VERSION}


def _ignore(update: Update) -> None:
    pass


class Page:
    """A widget as its page sees it: takes what is sent, and sends from a thread of the kernel."""

    def __init__(self, widget: CoordinatorWidget) -> None:
        self.widget = widget
        self.got: queue.Queue[Any] = queue.Queue()
        widget.comm.send = self._take

    def send(self, message: object, on_main_thread: bool = False) -> None:
        self.send_content({"text": json.dumps(message)}, on_main_thread)

    def send_content(self, content: object, on_main_thread: bool = False) -> None:
        message = {"content": {"data": {"method": "custom", "content": content}}, "buffers": []}
        if on_main_thread:
            self.widget.comm.handle_msg(message)
        else:
            thread = threading.Thread(target=self.widget.comm.handle_msg, args=(message,))
            thread.start()
            thread.join(DEADLINE)

    def next(self, kind: str) -> Any:
        """Return the next message of a kind."""
        while True:
            message = self.got.get(timeout=DEADLINE)
            if message["type"] == kind:
                return message

    def next_notice(self) -> str:
        """Return the next notice; updates without one may come before it."""
        while (notice := self.next("update").get("notice")) is None:
            pass
        return str(notice)

    def _take(self, data: Any, buffers: object = None) -> None:
        if data["method"] == "custom":
            self.got.put(json.loads(data["content"]["text"]))


Show = Callable[..., Page]


@pytest.fixture
def show() -> Iterator[Show]:
    """Show a coordinator on a page; its widget is closed after the test."""
    pages: list[Page] = []

    def make(viewed: FakeViewed, interval: float = NEVER) -> Page:
        pages.append(Page(CoordinatorWidget(viewed, _ignore, interval=interval)))
        return pages[-1]

    yield make
    for page in pages:
        page.widget.close()


def command(name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "type": "command",
        "version": VERSION,
        "id": "1",
        "coordinator": FakeViewed.id,
        "command": name,
        "arguments": arguments,
    }


def test_a_view_knows_everything_before_it_hears_anything(show: Show) -> None:
    viewed = reporting(1.0, 2.0)
    first = json.loads(show(viewed).widget.first)
    assert first["full"]
    assert first["summary"]["completed"] == viewed.now.completed
    assert first["metrics"][0]["count"] == 2


def test_a_change_is_sent_as_an_update(show: Show) -> None:
    viewed = FakeViewed()
    page = show(viewed, 0.001)
    viewed.set(completed=11)
    assert page.next("update")["summary"]["completed"] == 11


def test_a_page_that_says_hello_gets_everything(show: Show) -> None:
    viewed = FakeViewed()
    page = show(viewed)
    page.send(HELLO)
    update = page.next("update")
    assert update["full"]
    assert update["workers"]


def test_a_command_is_done_and_answered(show: Show) -> None:
    viewed = FakeViewed()
    page = show(viewed)
    page.send(command("pause"))
    reply = page.next("reply")
    assert (reply["id"], reply["error"], reply["result"]) == ("1", "", "paused")
    assert viewed.done == [("pause",)]


def test_what_a_command_changed_is_sent_at_once(show: Show) -> None:
    viewed = FakeViewed()
    page = show(viewed)  # no update is due ever
    viewed.set(completed=11)
    page.send(command("pause"))
    assert page.next("update")["summary"]["completed"] == 11


def test_a_command_is_noted_as_the_widgets(show: Show) -> None:
    viewed = FakeViewed()
    page = show(viewed)
    page.send(command("pause"))
    page.next("reply")
    assert viewed.told == ["pause, by the widget"]


def test_a_command_that_fails_is_answered_with_the_reason(show: Show) -> None:
    viewed = FakeViewed()
    page = show(viewed)
    viewed.error = OSError("no space left")
    page.send(command("checkpoint"))
    assert "no space left" in page.next("reply")["error"]


@pytest.mark.parametrize(
    "content",
    [{"text": "{"}, {"text": 5}, {}, [], "hello", {"text": "[1]"}],
    ids=["broken JSON", "no text", "empty", "a list", "a string", "no message"],
)
def test_what_is_no_message_is_answered_with_an_error(show: Show, content: object) -> None:
    viewed = FakeViewed()
    page = show(viewed)
    page.send_content(content)
    assert "not a command" in page.next("reply")["error"]


def test_a_command_for_a_coordinator_that_is_gone_is_refused(show: Show) -> None:
    viewed = FakeViewed()
    page = show(viewed)
    del viewed
    gc.collect()
    page.send(command("pause"))
    reply = page.next("reply")
    assert (reply["id"], reply["error"]) == ("1", "The coordinator is gone.")


def test_a_notice_says_that_clicks_wait_for_cells(show: Show) -> None:
    viewed = FakeViewed()
    page = show(viewed)
    page.send(command("pause"), on_main_thread=True)
    assert page.next_notice() == WAITS


def test_a_first_hello_between_cells_does_not_mean_that_clicks_wait(show: Show) -> None:
    viewed = FakeViewed()
    page = show(viewed)
    page.send(HELLO, on_main_thread=True)
    assert page.next_notice() == ""


def test_the_notice_goes_when_clicks_wait_no_longer(show: Show) -> None:
    viewed = FakeViewed()
    page = show(viewed)
    page.send(command("pause"), on_main_thread=True)
    assert page.next_notice() == WAITS
    page.send(command("resume"))
    assert page.next_notice() == ""


def test_the_end_is_shown_on_pages_that_come_later(show: Show) -> None:
    viewed = FakeViewed()
    page = show(viewed)
    end = full_update(summary={"state": "closed", "completed": 77})
    page.widget.finish(end)
    assert json.loads(page.widget.first) == end
    page.send(HELLO)
    while (update := page.next("update"))["summary"]["completed"] != 77:
        pass
    assert update["full"]


def test_a_page_that_comes_after_the_coordinator_was_collected_gets_its_end(show: Show) -> None:
    viewed = FakeViewed(state="running")
    page = show(viewed, 0.001)
    del viewed
    gc.collect()
    while page.next("update")["summary"]["state"] != "closed":
        pass
    join_publishers()
    page.send(HELLO)
    update = page.next("update")
    assert update["full"]
    assert (update["summary"]["state"], update["notice"]) == ("closed", "The coordinator is gone.")


def test_the_end_of_a_widget_is_the_end_of_its_thread(show: Show) -> None:
    viewed = FakeViewed()
    page = show(viewed)
    page.widget.finish(full_update())
    assert not page.widget.live
    assert not publishers()


def test_closing_a_widget_ends_its_thread(show: Show) -> None:
    viewed = FakeViewed()
    show(viewed).widget.close()
    assert not publishers()


def test_a_widget_of_a_broken_source_raises_where_it_is_made() -> None:
    viewed = FakeViewed()
    viewed.error = RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        CoordinatorWidget(viewed, _ignore)


def publishers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "psnb-widget"]


def join_publishers() -> None:
    for thread in publishers():
        thread.join(DEADLINE)
        assert not thread.is_alive()
