"""Single widgets for a page of one's own: their traits and clicks. No browser and no kernel."""

from __future__ import annotations

import gc
import logging
import math
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, get_args

import ipywidgets
import pytest

from psnb import errors
from psnb._src.monitor.commands import _ARGUMENTS
from psnb._src.monitor.display import LiveView
from psnb._src.monitor.own_page import CoordinatorWidgets
from psnb._src.monitor.protocol import CommandName
from psnb._src.monitor.statistics import TrainingProgress
from psnb._src.monitor.viewed import OptimizerState
from tests.monitor.viewed import DEADLINE, FakeViewed

NEVER = 1e6
"""An interval after which no test still runs: only a command or the end wakes such a publisher."""

Make = Callable[..., CoordinatorWidgets]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make the widgets of a coordinator, which end with the test."""
    made: list[CoordinatorWidgets] = []

    def widgets(viewed: FakeViewed, interval: float = NEVER) -> CoordinatorWidgets:
        made.append(CoordinatorWidgets(viewed, interval))
        return made[-1]

    yield widgets
    for each in made:
        each.publisher.stop()


def heard(widgets: CoordinatorWidgets, trait: str) -> queue.SimpleQueue[Any]:
    """Return where the values of a trait come from now on."""
    values: queue.SimpleQueue[Any] = queue.SimpleQueue()
    widgets.observe(lambda change: values.put(change["new"]), trait)
    return values


def send(widget: ipywidgets.Widget, data: dict[str, Any]) -> None:
    """Let a page's message arrive, on a thread of the kernel."""
    message = {"content": {"data": data}, "buffers": []}
    thread = threading.Thread(target=widget.comm.handle_msg, args=(message,))
    thread.start()
    thread.join(DEADLINE)


def click(button: ipywidgets.Button) -> None:
    send(button, {"method": "custom", "content": {"event": "click"}})


def drag(slider: ipywidgets.FloatLogSlider, value: float) -> None:
    send(slider, {"method": "update", "state": {"value": value}, "buffer_paths": []})


def test_all_is_there_before_the_first_update(make: Make) -> None:
    viewed = FakeViewed(examples=320.0)
    viewed.records.history.add(0.0, {"loss": 0.25})
    widgets = make(viewed)
    assert (widgets.state, widgets.queued, widgets.in_flight) == ("idle", 5, 2)
    assert (widgets.examples, widgets.metrics, widgets.epoch) == (320.0, {"loss": 0.25}, None)
    assert widgets.learning_rates == {"users": 0.5}
    assert widgets.rates["users"].value == 0.5
    assert widgets.sliders.children == (widgets.rates["users"],)
    assert widgets.share == widgets.progress.value == pytest.approx(14 / 21)


def test_traits_change_with_the_coordinator(make: Make) -> None:
    viewed = FakeViewed()
    widgets = make(viewed, 0.001)
    states, shares = heard(widgets, "state"), heard(widgets, "share")
    training = TrainingProgress(2, 4, 50, 100, validating=(3, 8))
    viewed.set(state="running", training=training, closures_per_second=float("inf"))
    assert states.get(timeout=DEADLINE) == "running"
    assert shares.get(timeout=DEADLINE) == 0.375
    assert (widgets.epoch, widgets.epochs, widgets.batch, widgets.batches) == (2, 4, 50, 100)
    assert (widgets.validating, widgets.closures_per_second) == ((3, 8), float("inf"))


def test_a_click_does_what_the_dashboards_button_does_and_says_what_came_of_it(make: Make) -> None:
    viewed = FakeViewed()
    widgets = make(viewed)
    outcomes = heard(widgets, "outcome")
    click(widgets.cancel_queued)
    assert outcomes.get(timeout=DEADLINE) == "1,234 closures cancelled"
    assert widgets.message.value == "1,234 closures cancelled"
    assert viewed.done == [("cancel_queued",)]
    assert viewed.told == ["cancel queued, by a page of widgets"]


def test_a_command_that_fails_says_why(make: Make) -> None:
    viewed = FakeViewed()
    widgets = make(viewed)
    outcomes = heard(widgets, "outcome")
    viewed.error = OSError("no space left")
    click(widgets.checkpoint)
    assert outcomes.get(timeout=DEADLINE) == "no space left"


def test_each_command_without_arguments_has_a_button(make: Make) -> None:
    widgets = make(FakeViewed())
    assert set(widgets.buttons) == set(get_args(CommandName)) - set(_ARGUMENTS)


def test_buttons_that_can_do_nothing_are_disabled_and_say_why(make: Make) -> None:
    viewed = FakeViewed()
    viewed.refused = {"pause": "", "resume": "it is not paused"}
    widgets = make(viewed)
    assert (widgets.pause.disabled, widgets.resume.disabled) == (False, True)
    assert widgets.resume.tooltip == "it is not paused"


def test_a_slider_that_is_moved_sets_the_rate(make: Make) -> None:
    viewed = FakeViewed()
    widgets = make(viewed)
    outcomes = heard(widgets, "outcome")
    drag(widgets.rates["users"], 0.25)
    assert outcomes.get(timeout=DEADLINE) == "learning rate of users: 0.25"
    # Back at once, before anyone has told that it has changed.
    drag(widgets.rates["users"], 0.5)
    assert outcomes.get(timeout=DEADLINE) == "learning rate of users: 0.5"
    assert [value for _, _, value in viewed.done] == [0.25, 0.5]


def test_a_slider_follows_a_rate_that_others_set_and_sets_nothing_then(make: Make) -> None:
    viewed = FakeViewed()
    widgets = make(viewed, 0.001)
    rates = heard(widgets, "learning_rates")
    moved: queue.SimpleQueue[float] = queue.SimpleQueue()
    slider = widgets.rates["users"]
    slider.observe(lambda change: moved.put(change["new"]), "value")
    viewed.rates = {"users": OptimizerState("Adagrad", 1e-9), "items": OptimizerState("SGD", 0.1)}
    assert rates.get(timeout=DEADLINE) == {"users": 1e-9, "items": 0.1}
    assert moved.get(timeout=DEADLINE) == 1e-9  # beyond where it reached
    viewed.wait_for_looks(2)
    assert widgets.sliders.children == (slider, widgets.rates["items"])
    assert viewed.done == []


def test_a_slider_that_cannot_show_a_rate_exactly_sets_nothing(make: Make) -> None:
    viewed = FakeViewed()
    widgets = make(viewed, 0.001)
    rates = heard(widgets, "learning_rates")
    rate = math.nextafter(1000.0, math.inf)  # its logarithm is that of 1000
    viewed.rates = {"users": OptimizerState("Adagrad", rate)}
    assert rates.get(timeout=DEADLINE) == {"users": rate}
    viewed.wait_for_looks(2)
    assert widgets.rates["users"].value == 1000.0
    assert viewed.done == []


def test_a_page_that_removes_all_observers_keeps_the_bar_and_the_message(make: Make) -> None:
    viewed = FakeViewed()
    widgets = make(viewed, 0.001)
    widgets.unobserve_all()
    outcomes, shares = heard(widgets, "outcome"), heard(widgets, "share")
    click(widgets.cancel_queued)
    viewed.set(queued=0, in_flight=0)
    assert (outcomes.get(timeout=DEADLINE), shares.get(timeout=DEADLINE)) == (
        "1,234 closures cancelled",
        1.0,
    )
    viewed.wait_for_looks(2)
    assert (widgets.message.value, widgets.progress.value) == (widgets.outcome, 1.0)


def test_a_slider_goes_back_if_its_rate_was_refused(make: Make) -> None:
    viewed = FakeViewed()
    widgets = make(viewed)
    slider = widgets.rates["users"]
    moved: queue.SimpleQueue[float] = queue.SimpleQueue()
    slider.observe(lambda change: moved.put(change["new"]), "value")
    viewed.error = errors.ServerLostError("the server is gone")
    drag(slider, 0.25)
    # Either may be heard first: the refusal comes on another thread.
    assert {moved.get(timeout=DEADLINE) for _ in range(2)} == {0.25, 0.5}
    assert slider.value == 0.5
    assert widgets.outcome == "the server is gone"


@pytest.mark.parametrize("rate", [0.0, float("nan")])
def test_a_slider_shows_in_words_a_rate_that_no_logarithm_has(make: Make, rate: float) -> None:
    viewed = FakeViewed()
    viewed.rates = {"users": OptimizerState("Adagrad", rate)}
    widgets = make(viewed, 0.001)
    slider = widgets.rates["users"]
    assert (slider.description, slider.readout) == (f"users: {rate:g}", False)
    texts: queue.SimpleQueue[Any] = queue.SimpleQueue()
    slider.observe(lambda change: texts.put(change["new"]), "readout")
    viewed.rates = {"users": OptimizerState("Adagrad", 0.25)}  # as when it has warmed up
    assert texts.get(timeout=DEADLINE) is True


def test_traits_and_widgets_are_linked_and_arranged_as_others_are(make: Make) -> None:
    viewed = FakeViewed()
    widgets = make(viewed, 0.001)
    text = ipywidgets.IntText()
    ipywidgets.dlink((widgets, "completed"), (text, "value"))
    ipywidgets.VBox([ipywidgets.HBox([widgets.pause, widgets.resume]), widgets.sliders, text])
    counts = heard(widgets, "completed")
    viewed.set(completed=11)
    counts.get(timeout=DEADLINE)
    assert text.value == 11


def test_what_observes_a_trait_and_fails_is_logged_once_and_ends_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    viewed = FakeViewed()
    widgets = make(viewed, 0.001)

    def fail(change: object) -> None:
        raise ZeroDivisionError

    widgets.observe(fail, "completed")
    counts = heard(widgets, "queued")
    with caplog.at_level(logging.ERROR, "psnb"):
        for number in range(2):
            viewed.set(completed=100 + number, queued=200 + number)
            assert counts.get(timeout=DEADLINE) == 200 + number
    assert [record.message for record in caplog.records] == [
        "What observes 'completed' of coordinator.widgets has failed"
    ]


def test_a_coordinator_that_is_gone_is_said_to_be(make: Make) -> None:
    viewed = FakeViewed()
    widgets = make(viewed)
    del viewed
    gc.collect()
    click(widgets.pause)
    assert widgets.outcome == "The coordinator is gone."


def test_a_name_that_is_not_there_is_said(make: Make) -> None:
    widgets = make(FakeViewed())
    with pytest.raises(AttributeError, match="has no 'stop_it'"):
        widgets.stop_it  # noqa: B018


def test_a_coordinator_has_its_widgets_once_and_they_end_with_it() -> None:
    live, viewed = LiveView(), FakeViewed()
    widgets = live.widgets(viewed)
    assert live.widgets(viewed) is widgets
    viewed.set(state="closed")
    live.stop()
    assert widgets.state == "closed"
    assert not widgets.publisher.alive


def test_without_ipywidgets_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "psnb._src.monitor.own_page")
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(errors.ConfigurationError, match="pip install ipywidgets"):
        LiveView().widgets(FakeViewed())
