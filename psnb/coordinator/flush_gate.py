"""FlushGate: workers hold updates for a while. Pure; guarded by the queue's lock."""

from __future__ import annotations

from psnb.coordinator.closure import Closure
from psnb.coordinator.gate import Flush, Gate


class FlushGate(Gate):
    """Lets everything begin; before anybody hears that all is done, workers send what they hold."""

    def __init__(self) -> None:
        self._held = self._wanted = self._flushing = False

    def begin(self, closure: Closure) -> None:  # noqa: D102 - inherited
        self._held = True
        self._wanted = False  # not before it has ended: it would be left out

    def finish(self) -> None:  # noqa: D102 - inherited
        self._wanted = self._held

    def complete(self) -> bool:  # noqa: D102 - inherited
        return not self._held and not self._flushing

    def due(self) -> Flush | None:  # noqa: D102 - inherited
        if not self._wanted or self._flushing:
            return None
        self._held = self._wanted = False
        self._flushing = True
        return Flush()

    def stepped(self) -> None:  # noqa: D102 - inherited
        self._flushing = False
