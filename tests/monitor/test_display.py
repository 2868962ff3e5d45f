"""How a coordinator shows itself, in a notebook's kernel and elsewhere."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from ipywidgets import widget_serialization

from psnb._src.monitor import display as display_module
from psnb._src.monitor.display import NOT_BUILT, LiveView
from tests.monitor.notebook_outputs import notebook_outputs
from tests.monitor.viewed import FakeViewed

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def outputs() -> Iterator[list[dict[str, Any]]]:
    yield from notebook_outputs()


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


def test_a_notebook_gets_the_live_widget_and_a_summary_to_be_saved(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed()
    view.show(viewed)
    live, saved = outputs
    assert set(live["data"]) == {WIDGET, "text/plain"}
    assert "not live" in saved["data"]["text/html"]
    assert not live["update"]
    assert not saved["update"]


def test_the_saved_summary_follows_what_the_widget_shows(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed(state="running")
    view.show(viewed)
    viewed.set(state="idle", completed=4321)
    viewed.wait_for_looks(3)  # the publisher's next one, that of the summary, one more
    replaced = outputs[2]
    assert replaced["update"]
    assert ids([replaced]) == ids([outputs[1]])
    assert "4,321" in replaced["data"]["text/html"]


def end_cell() -> None:
    """Have IPython say that a cell has ended."""
    InteractiveShell.instance().events.trigger("post_run_cell", None)


def test_when_a_cell_ends_the_saved_summary_and_the_widgets_first_state_are_of_that_moment(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed(state="running")
    view.show(viewed)
    viewed.set(completed=4321)  # the state is the same, so that the publisher waits for seconds
    end_cell()
    replaced = outputs[-1]
    assert replaced["update"]
    assert ids([replaced]) == ids([outputs[1]])
    assert "4,321" in replaced["data"]["text/html"]
    model = outputs[0]["data"][WIDGET]["model_id"]
    widget = widget_serialization["from_json"](f"IPY_MODEL_{model}", None)
    first = json.loads(widget.first)
    assert first["summary"]["completed"] == 4321


def test_when_a_cell_ends_nothing_is_written_if_nothing_has_changed(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed(state="running")
    view.show(viewed)
    end_cell()
    assert len(outputs) == 2


def test_when_a_cell_ends_nothing_is_written_of_a_coordinator_that_is_closed(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed(state="running")
    view.show(viewed)
    view.stop()
    count = len(outputs)
    viewed.set(completed=4321)
    end_cell()
    assert len(outputs) == count


def test_a_summary_that_cannot_be_made_when_a_cell_ends_is_logged(
    view: LiveView, outputs: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    viewed = FakeViewed(state="running")
    view.show(viewed)
    with caplog.at_level("ERROR", logger="psnb"):
        viewed.error = ValueError("no figures")
        end_cell()
    viewed.error = None
    assert "no figures" in caplog.text
    assert len(outputs) == 2


def test_after_its_end_a_view_hears_of_no_more_cells(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    callbacks = InteractiveShell.instance().events.callbacks["post_run_cell"]
    before = len(callbacks)
    viewed = FakeViewed()
    view.show(viewed)
    view.show(viewed)
    assert len(callbacks) == before + 1
    view.stop()
    assert len(callbacks) == before
    viewed.set(state="closed")
    view.show(viewed)  # what is closed has no more to tell, nor another end
    assert len(callbacks) == before


def test_of_a_coordinator_that_is_gone_without_an_end_no_cell_is_heard(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    callbacks = InteractiveShell.instance().events.callbacks["post_run_cell"]
    before = len(callbacks)
    view.show(FakeViewed())
    end_cell()
    assert len(callbacks) == before


def test_the_end_comes_although_all_callbacks_of_cells_were_removed(
    view: LiveView, outputs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = InteractiveShell.instance().events
    view.show(FakeViewed())
    monkeypatch.setitem(events.callbacks, "post_run_cell", [])
    view.stop()


def test_all_outputs_share_one_widget(view: LiveView, outputs: list[dict[str, Any]]) -> None:
    viewed = FakeViewed()
    view.show(viewed)
    view.show(viewed)
    one, two = (output["data"][WIDGET]["model_id"] for output in outputs[::2])
    assert one == two
    assert len(set(ids(outputs))) == 4


def test_at_the_end_every_output_is_replaced_by_the_final_summary(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed(state="running")
    view.show(viewed)
    view.show(viewed)
    viewed.set(state="closed", completed=4321)
    view.stop()
    shown, replaced = outputs[:4], {each["transient"]["display_id"]: each for each in outputs[4:]}
    for output in (replaced[each] for each in ids(shown[::2])):
        assert output["update"]
        assert set(output["data"]) == {"text/html", "text/plain"}
        assert "4,321" in output["data"]["text/html"]
    assert [replaced[each]["data"]["text/html"] for each in ids(shown[1::2])] == ["", ""]


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
    count = len(outputs)
    view.stop()
    assert len(outputs) == count


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
    assert len(outputs) == 1


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


def display_result(result: Any) -> dict[str, Any]:
    """Do what a cell does with its last expression; return what is left to put out."""
    formatter = InteractiveShell.instance().display_formatter
    assert formatter is not None
    left: dict[str, Any] = formatter.format(result)[0]
    return left


def test_a_notebook_gets_the_widget_which_the_cell_that_has_shown_it_does_not_show_again(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed()
    widget: Any = view.show(viewed)
    assert widget.model_id == outputs[0]["data"][WIDGET]["model_id"]
    assert display_result(widget) == {}
    assert len(outputs) == 2


def test_a_later_cell_shows_the_widget_with_a_summary_to_be_saved(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed()
    widget = view.show(viewed)
    end_cell()
    display_result(widget)
    assert [set(each["data"]) for each in outputs[2:]] == [
        {WIDGET, "text/plain"},
        {"text/html", "text/plain"},
    ]


def test_the_widget_of_a_coordinator_that_is_gone_can_still_be_shown(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed()
    widget = view.show(viewed)
    end_cell()
    view.stop()
    del viewed
    assert WIDGET in display_result(widget)


def test_the_widget_of_a_coordinator_that_was_closed_in_its_first_cell_can_still_be_shown(
    view: LiveView, outputs: list[dict[str, Any]]
) -> None:
    viewed = FakeViewed()
    widget = view.show(viewed)
    viewed.set(state="closed")
    view.stop()
    end_cell()
    count = len(outputs)
    display_result(widget)
    assert len(outputs) == count + 1


@pytest.fixture
def marimo(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What psnb uses of marimo, in a notebook of it."""
    fake = SimpleNamespace(
        running_in_notebook=lambda: True,
        ui=SimpleNamespace(anywidget=lambda widget: ("element", widget)),
        Html=lambda text: ("html", text),
    )
    monkeypatch.setitem(sys.modules, "marimo", fake)
    return fake


def test_marimo_gets_the_widget_as_an_element_and_nothing_is_printed(
    view: LiveView, marimo: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    viewed = FakeViewed(state="running")
    kind, widget = view.show(viewed)
    assert kind == "element"
    assert capsys.readouterr().out == ""
    viewed.set(state="closed", completed=4321)
    view.stop()
    assert json.loads(widget.first)["summary"]["completed"] == 4321


def test_marimo_gets_the_summary_of_a_coordinator_that_is_closed(
    view: LiveView, marimo: SimpleNamespace
) -> None:
    kind, text = view.show(FakeViewed(state="closed", completed=4321))
    assert kind == "html"
    assert "4,321" in text


def test_a_script_that_has_imported_marimo_prints_a_line(
    view: LiveView, marimo: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    marimo.running_in_notebook = lambda: False
    viewed = FakeViewed()
    assert view.show(viewed) is None
    assert capsys.readouterr().out == f"{viewed!r}\n"
