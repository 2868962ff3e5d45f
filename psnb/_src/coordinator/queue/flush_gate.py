"""FlushGate: for `Geo`, where workers keep updates for a while. Pure; under the queue's lock."""

from __future__ import annotations

from psnb._src.coordinator.closures import Closure
from psnb._src.coordinator.queue.gate import Flush, Gate


class FlushGate(Gate):
    """Lets everything begin; before the queue says that all is done, workers send their updates."""

    def __init__(self) -> None:
        self._held = self._wanted = self._flushing = False

    def begin(self, closure: Closure) -> None:
        self._held = True
        self._wanted = False  # not before it has ended: it would be left out

    def finish(self) -> None:
        self._wanted = self._held

    def complete(self) -> bool:
        return not self._held and not self._flushing

    def due(self) -> Flush | None:
        if not self._wanted or self._flushing:
            return None
        self._held = self._wanted = False
        self._flushing = True
        return Flush()

    def stepped(self) -> None:
        self._flushing = False
