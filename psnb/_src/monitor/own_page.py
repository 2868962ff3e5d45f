"""CoordinatorWidgets: the controls and figures of a coordinator, singly, for a page of one's own.

They are plain ipywidgets and traits. As with the dashboard, three kinds of threads use them: the
publisher's sets figures, the kernel's deliver clicks beside a running cell (see
`psnb._src.jupyter_compat`), and each command runs on a thread of its own. They share references
that are replaced, never changed.
"""

from __future__ import annotations

import logging
import math
import threading
import uuid
import weakref
from collections.abc import Mapping
from typing import Any, get_type_hints

import ipywidgets
import traitlets

from psnb._src.jupyter_compat import handle_beside_cells, must_wait
from psnb._src.monitor.commands import execute
from psnb._src.monitor.protocol import (
    VERSION,
    Command,
    CommandName,
    CommandReply,
    OptimizerRow,
    Summary,
    Training,
    Update,
)
from psnb._src.monitor.publisher import INTERVAL, Publisher
from psnb._src.monitor.viewed import Viewed
from psnb._src.utils.text import Named

_log = logging.getLogger("psnb")

WAITS = (
    "This kernel handles clicks only when no cell runs; ipykernel 7 with JupyterLab 4.4 or newer "
    "handles them at once"
)

LABELS: dict[CommandName, str] = {
    "pause": "Pause",
    "resume": "Resume",
    "drain": "Drain",
    "cancel_queued": "Cancel queued",
    "stop_training": "Stop training",
    "checkpoint": "Checkpoint now",
    "rewind": "Rewind",
    "add_worker": "Add worker",
}
"""The commands that have a button: those that take no arguments."""

_DECADES = (3, 1)
"""How far below and above its rate a slider reaches at first, in powers of ten."""


class CoordinatorWidgets(traitlets.HasTraits):
    """See `ClusterCoordinator.widgets`.

    Parameters
    ----------
    viewed : Viewed
        What to show and to steer; held weakly.
    interval : float
        Seconds between two updates.

    Attributes
    ----------
    publisher : Publisher
        It sets the figures, until it is stopped or the coordinator has ended.
    """

    state = traitlets.Unicode()
    meaning = traitlets.Unicode()
    elapsed = traitlets.Float()
    eta = traitlets.Float(None, allow_none=True)
    queued = traitlets.Int()
    in_flight = traitlets.Int()
    completed = traitlets.Int()
    failed = traitlets.Int()
    cancelled = traitlets.Int()
    retried = traitlets.Int()
    workers_lost = traitlets.Int()
    servers_lost = traitlets.Int()
    closures_per_second = traitlets.Float()
    examples = traitlets.Float(None, allow_none=True)
    examples_per_second = traitlets.Float(None, allow_none=True)
    epoch = traitlets.Int(None, allow_none=True)
    epochs = traitlets.Int(None, allow_none=True)
    batch = traitlets.Int(None, allow_none=True)
    batches = traitlets.Int(None, allow_none=True)
    validating = traitlets.Tuple(None, allow_none=True)
    share = traitlets.Float()
    metrics = traitlets.Dict()
    learning_rates = traitlets.Dict()
    outcome = traitlets.Unicode()

    def __init__(self, viewed: Viewed, interval: float = INTERVAL) -> None:
        super().__init__()
        self._viewed = weakref.ref(viewed)
        self._complained = False
        self.buttons = {name: self._button(name, label) for name, label in LABELS.items()}
        self.progress = ipywidgets.FloatProgress(min=0.0, max=1.0)
        self.message = ipywidgets.Label()
        self.rates = Named[ipywidgets.FloatLogSlider]({}, "slider")
        # Of each thread: ``name``, the parameter whose slider it moves, which is no page's wish.
        self._moves = threading.local()
        self.sliders = ipywidgets.VBox()
        self.publisher = Publisher(viewed, self._show, "psnb-page", interval)
        self._show(self.publisher.last)
        if must_wait(self.message):
            self._set("outcome", WAITS)
        self.publisher.start()

    def __getattr__(self, name: str) -> ipywidgets.Button:
        # Each button by its command, as a method of the coordinator is called.
        buttons = self.__dict__.get("buttons", {})
        if name in buttons:
            return buttons[name]
        raise AttributeError(f"coordinator.widgets has no {name!r}; dir() lists what it has")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.buttons]

    def __repr__(self) -> str:
        return f"<psnb widgets of a coordinator, {self.state}: {', '.join(self.buttons)}, ...>"

    # What a page does: threads of the kernel.

    def _button(self, name: CommandName, label: str) -> ipywidgets.Button:
        button = ipywidgets.Button(description=label)
        button.on_click(lambda _: self._give(name))
        handle_beside_cells(button)
        return button

    def _slider(self, parameter: str, rate: float) -> ipywidgets.FloatLogSlider:
        value = rate if 0 < rate < math.inf else 1.0
        below, above = _DECADES
        slider = ipywidgets.FloatLogSlider(
            value=value,
            min=math.floor(math.log10(value)) - below,
            max=math.ceil(math.log10(value)) + above,
            step=0.05,
            description=parameter,
            readout_format=".3g",
            continuous_update=False,  # one command when it is let go, not fifty on the way
        )
        handle_beside_cells(slider)

        def moved(change: Mapping[str, Any]) -> None:
            if getattr(self._moves, "name", None) != parameter:
                self._give("set_learning_rate", parameter=parameter, value=change["new"])

        slider.observe(moved, "value")
        return slider

    def _give(self, name: CommandName, **arguments: Any) -> None:
        viewed = self._viewed()
        if viewed is None:
            self._set("outcome", "The coordinator is gone.")
            return
        command = Command(
            type="command",
            version=VERSION,
            id=uuid.uuid4().hex,
            coordinator=viewed.id,
            command=name,
            arguments=arguments,
        )

        def done(reply: CommandReply) -> None:
            self._set("outcome", reply["error"] or reply["result"])
            if reply["error"] and name == "set_learning_rate":
                self._move(arguments["parameter"])  # back to where it is
            self.publisher.wake()

        execute(viewed, command, "a page of widgets", done)

    # What the coordinator does: the publisher's thread.

    def _show(self, update: Update) -> None:
        summary = update["summary"]
        figures: Mapping[str, Any] = {**summary, **(summary["training"] or _NO_TRAINING)}
        for name in self.trait_names() & figures.keys():
            self._set(name, _python(figures[name]))
        self._set("share", _share(summary))
        if reported := update.get("metrics"):
            news = {each["name"]: float(each["last"]) for each in reported}
            self._set("metrics", {**self.metrics, **news})
        if (rows := update.get("optimizers")) is not None:
            self._show_rates(rows)
        for name, reason in update.get("controls", {}).items():
            if button := self.buttons.get(name):  # type: ignore[call-overload]
                button.disabled, button.tooltip = bool(reason), reason

    def _show_rates(self, rows: list[OptimizerRow]) -> None:
        rates = {each["parameter"]: float(each["learning_rate"]) for each in rows}
        before = self.learning_rates
        self._set("learning_rates", rates)
        for parameter, rate in rates.items():
            if parameter not in self.rates:
                self.rates[parameter] = self._slider(parameter, rate)
                self._move(parameter)
            elif rate != before.get(parameter):  # else it may be older than a move
                self._move(parameter)
        self.sliders.children = [*self.rates.values()]

    def _move(self, parameter: str) -> None:
        slider, rate = self.rates[parameter], self.learning_rates[parameter]
        has_place = (
            0 < rate < math.inf
        )  # 0 has none on an axis of logarithms: a warm-up begins there
        slider.readout = has_place
        slider.description = parameter if has_place else f"{parameter}: {rate:g}"
        if not has_place:
            return
        exponent = math.log10(rate)
        self._moves.name = parameter
        try:
            slider.min = min(slider.min, math.floor(exponent))
            slider.max = max(slider.max, math.ceil(exponent))
            slider.value = rate
        finally:
            self._moves.name = None

    def _set(self, name: str, value: Any) -> None:
        try:
            setattr(self, name, value)
        except Exception:  # of a function that a user has observe: it must not end the updates
            if not self._complained:
                self._complained = True
                _log.exception("What observes %r of coordinator.widgets has failed", name)
        # No observers, which a page may remove with its own.
        if name == "outcome":
            self.message.value = self.outcome
        elif name == "share":
            self.progress.value, self.progress.description = self.share, f"{self.share:.0%}"


_NO_TRAINING = dict.fromkeys(get_type_hints(Training))


def _python(value: Any) -> Any:
    """Return a value in the form that Python has for it, not JSON."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if value in ("nan", "inf", "-inf") else value


def _share(summary: Summary) -> float:
    """Return how much is done: of all epochs, or without training of what was scheduled."""
    training = summary["training"]
    if training is not None:
        epochs, done = training["epochs"] or 1, (training["epoch"] or 1) - 1
        of_epoch = training["batch"] / training["batches"] if training["batches"] else 0.0
        return min(1.0, (done + of_epoch) / epochs)
    ended = summary["completed"] + summary["failed"] + summary["cancelled"]
    return ended / max(1, ended + summary["queued"] + summary["in_flight"])
