"""WorkerKnowledge: what a worker was told, so that it is told only what is new.

Belongs to the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from psnb._src.coordinator.closures import Closure
from psnb._src.coordinator.workers.services import Services
from psnb._src.runtime import session_messages

_MOST_FUNCTIONS = 512


class WorkerKnowledge:
    """Makes the messages that tell one worker what to run, and with what.

    Parameters
    ----------
    services : Services
        Where what there is comes from.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._functions: OrderedDict[str, None] = OrderedDict()
        self._resources: set[int] = set()
        self._layout = 0  # its version

    def new_resources(self) -> Iterator[session_messages.ToWorker]:
        """Yield what tells the worker which per-worker values to make, and which to forget."""
        new, gone = self._services.resources.changes(self._resources)
        self._resources.update(number for number, _ in new)
        self._resources.difference_update(gone)
        for number, payload in new:
            yield session_messages.DefineResource(number, payload)
        if gone:
            yield session_messages.ReleaseResources(gone)

    def run(self, closures: list[Closure], workers: int) -> session_messages.RunClosures:
        """Return what has the worker run closures; see `RunClosures` for ``workers``."""
        functions = {}
        for closure in closures:
            function = closure.function
            if function.id not in self._functions:
                functions[function.id] = (function.name, function.payload)
            self._functions[function.id] = None
            self._functions.move_to_end(function.id)
        # Functions made anew for each call, in a loop say, must not pile up on the worker.
        forget = []
        while len(self._functions) > max(_MOST_FUNCTIONS, len(closures)):
            forget.append(self._functions.popitem(last=False)[0])
        return session_messages.RunClosures(
            self._services.queue.settled_below(),
            self._new_layout(),
            workers,
            functions,
            forget,
            self._assignments(closures),
        )

    def _assignments(self, closures: list[Closure]) -> list[session_messages.Assignment]:
        portions, make = self._services.leases.portions, session_messages.Assignment
        return [
            make(
                each.id,
                each.function.id,
                each.execution.attempt,
                each.execution.commit,
                each.execution.round,
                each.call.payload,
                each.call.inputs,  # type: ignore[arg-type]  # all are there, or it would wait
                portions(each.id),
                each.options.lane,
            )
            for each in closures
        ]

    def _new_layout(self) -> list[Any] | None:
        # A server that was taken for lost but lives answers as before until it hears of that:
        # closures that begin from now on must not ask it.
        layout = self._services.resolver.layout()
        if layout is None or layout.version == self._layout:
            return None
        self._layout = layout.version
        return layout.packed()
