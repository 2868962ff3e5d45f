"""The live widget of a coordinator: carries updates to the page, and commands back.

The page decides what is drawn, and how (``extension/src``, built into ``static/widget.js``). Three
kinds of threads use this class. The publisher's thread sends updates, also while the notebook's
thread is blocked in ``join``. The kernel's threads deliver the page's messages (see
`psnb._src.jupyter_compat`). Each command runs, and replies, on a thread of its own. All
send through the kernel's comm, which any thread may use; they share only references that are
replaced, never changed.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import anywidget
import traitlets

from psnb._src.jupyter_compat import handle_beside_cells, has_waited, must_wait
from psnb._src.monitor.commands import execute
from psnb._src.monitor.protocol import CommandReply, Update, reply
from psnb._src.monitor.publisher import INTERVAL, Publisher
from psnb._src.monitor.viewed import Viewed

STATIC = Path(__file__).with_name("static")
"""Where ``make frontend`` puts the files for the page."""

WAITS = (
    "This page or kernel handles clicks only when no cell runs. JupyterLab 4.4 or newer with "
    "ipykernel 7 handles them at once; await coordinator.join_async() lets them through anywhere."
)


class CoordinatorWidget(anywidget.AnyWidget):
    """Live view of a coordinator, from the moment it is made until it is closed or collected.

    Parameters
    ----------
    viewed : Viewed
        What to show; held weakly.
    follow : callable
        Called with each update, on the publisher's thread.
    show : callable
        Called when a cell displays the widget itself; returns whether nothing is left to display.
    interval : float
        Seconds between two updates.

    Attributes
    ----------
    first : str
        JSON text of a full `Update`: the first state that a view shows. Custom messages carry the
        rest, each as ``{"text": JSON text}``.
    """

    _esm = STATIC / "widget.js"
    _css = STATIC / "widget.css"

    first = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        viewed: Viewed,
        follow: Callable[[Update], object],
        show: Callable[[], bool] = bool,
        interval: float = INTERVAL,
    ) -> None:
        self._viewed, self._follow, self._display = weakref.ref(viewed), follow, show
        self._publisher = Publisher(viewed, self._show, "psnb-widget", interval)
        self._full = self._publisher.last
        self._waits = False  # whether clicks are known to be handled only between cells
        # Passed here, it is in the message that opens the comm, so the page is never empty.
        super().__init__(first=json.dumps(self._full))
        self.on_msg(self._receive)
        handle_beside_cells(self)
        self._waits = must_wait(self)
        self._publisher.start()

    @property
    def live(self) -> bool:
        """Whether it still follows its coordinator."""
        return self._publisher.alive

    def finish(self, update: Update) -> None:
        """End the updates and keep showing this full one, also on pages that open later.

        Idempotent, any thread.
        """
        self._publisher.stop()
        self._full = self._publisher.last = update
        self.first = json.dumps(update)

    def close(self) -> None:
        """End the updates and remove the widget from the page."""
        # A widget whose constructor failed is closed by its finalizer and has no publisher.
        publisher: Publisher | None = getattr(self, "_publisher", None)
        if publisher is not None:
            publisher.stop()
        super().close()

    def _ipython_display_(self) -> None:
        if not self._display():
            raise NotImplementedError  # IPython takes the widget's own bundle then.

    def __repr__(self) -> str:
        """Return the text that a page without widgets shows instead."""
        return f"<psnb coordinator, {self._publisher.last['summary']['state']}>"

    def _show(self, update: Update) -> None:
        if update["full"]:
            self._full = update
        # Only in updates with a notice: a view keeps a notice until it gets another one.
        if self._waits and update.get("notice") == "":
            update = {**update, "notice": WAITS}
        self._deliver(update)
        self._follow(update)

    def _deliver(self, message: Update | CommandReply) -> None:
        # As text: otherwise ipywidgets and the kernel would process each of a thousand points.
        self.send({"text": json.dumps(message)})

    def _reply(self, reply: CommandReply) -> None:
        self._deliver(reply)
        self._publisher.wake()

    def _receive(self, _widget: object, content: object, _buffers: object) -> None:
        message = content
        if isinstance(content, Mapping) and isinstance(text := content.get("text"), str):
            with suppress(ValueError):
                message = json.loads(text)
        if isinstance(message, dict) and message.get("type") == "hello":
            self._greet()
            return
        if has_waited() != self._waits:
            self._waits = not self._waits
            self._greet()
        viewed = self._viewed()
        if viewed is not None:
            execute(viewed, message, "the widget", self._reply)
        else:
            identity = str(message.get("id", "")) if isinstance(message, dict) else ""
            self._deliver(reply(identity, self._full["coordinator"], "The coordinator is gone."))

    def _greet(self) -> None:
        if self._publisher.alive:
            self._publisher.wake(full=True)
        else:  # Nothing changes any more: send the final state.
            ended = self._publisher.last
            notice = ended.get("notice", "")
            self._deliver({**self._full, "summary": ended["summary"], "notice": notice})
