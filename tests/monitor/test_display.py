"""How a coordinator shows itself, in a notebook's kernel and elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from psnb._src.monitor.shown import display as display_module
from psnb._src.monitor.shown.display import AS_IT_WAS, NOT_BUILT, LiveView
from tests.monitor.viewed import FakeViewed

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def outputs() -> Iterator[list[dict[str, Any]]]:
    """Have this process look like a notebook's kernel; return what it displays."""
    shell = InteractiveShell.instance()
    shell.kernel = SimpleNamespace()
    publisher = CapturingDisplayPublisher()
    old, shell.display_pub = shell.display_pub, publisher
    yield publisher.outputs
    shell.display_pub = old
    InteractiveShell.clear_instance()


@pytest.fixture
def view() -> Iterator[LiveView]:
    view = LiveView()
    yield view
    view.stop()


def ids(outputs: list[dict[str, Any]]) -> list[str]:
    return [output["transient"]["display_id"] for output in outputs]


def test_outside_of_notebooks_a_line_is_printed(
    view: LiveView, capsys: pytest.CaptureFixture[str]
) -> None:
    viewed = FakeViewed()
    view.show(viewed)
    assert capsys.readouterr().out == f"{viewed!r}\n"


def test_a_notebook_gets_the_live_widget_a_summary_and_text(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed()
    view.show(viewed)
    (shown,) = outputs
    assert set(shown["data"]) == {WIDGET, "text/html", "text/plain"}
    assert AS_IT_WAS in shown["data"]["text/html"]
    assert not shown["update"]


def test_all_outputs_share_one_widget(view: LiveView, outputs: list[dict[str, Any]]) -> None:
    viewed = FakeViewed()
    view.show(viewed)
    view.show(viewed)
    one, two = (output["data"][WIDGET]["model_id"] for output in outputs)
    assert one == two
    assert len(set(ids(outputs))) == 2


def test_at_the_end_every_output_is_replaced_by_the_final_summary(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed(state="running")
    view.show(viewed)
    view.show(viewed)
    viewed.set(state="closed", completed=4321)
    view.stop()
    replaced = outputs[2:]
    assert ids(replaced) == ids(outputs[:2])
    for output in replaced:
        assert output["update"]
        assert set(output["data"]) == {"text/html", "text/plain"}
        assert "4,321" in output["data"]["text/html"]


def test_the_end_may_come_from_another_thread(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed()
    view.show(viewed)
    thread = threading.Thread(target=view.stop)
    thread.start()
    thread.join()
    assert outputs[-1]["update"]


def test_the_end_comes_once(view: LiveView, outputs: list[dict[str, Any]]) -> None:
    viewed = FakeViewed()
    view.show(viewed)
    view.stop()
    view.stop()
    assert len(outputs) == 2


def test_a_coordinator_that_was_never_shown_shows_nothing_at_its_end(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    view.stop()
    assert outputs == []


def test_a_closed_coordinator_is_shown_without_a_widget(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed(state="closed")
    view.show(viewed)
    assert set(outputs[0]["data"]) == {"text/html", "text/plain"}
    assert AS_IT_WAS not in outputs[0]["data"]["text/html"]


def test_without_the_built_page_a_summary_is_shown_and_how_to_build_it(
    view: LiveView,
    outputs: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(display_module, "_SCRIPT", tmp_path / "widget.js")
    viewed = FakeViewed()
    view.show(viewed)
    assert set(outputs[0]["data"]) == {"text/html", "text/plain"}
    assert NOT_BUILT in outputs[0]["data"]["text/html"]
