"""WorkerKnowledge: what a worker was sent, so that it is sent only what is new. On the loop."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.workers.services import Services
from psnb._src.placement.layout import Layout
from psnb._src.protocol import messages

_MOST_FUNCTIONS = 512


class WorkerKnowledge:
    """Makes the messages that say what one worker runs, and with what.

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

    def new_resources(self) -> Iterator[messages.ToWorker]:
        """Yield the messages by which the worker makes and forgets per-worker values."""
        new, gone = self._services.resources.changes(self._resources)
        self._resources.update(number for number, _ in new)
        self._resources.difference_update(gone)
        for number, payload in new:
            yield messages.DefineResource(number, payload)
        if gone:
            yield messages.ReleaseResources(gone)

    def run(self, closures: Sequence[Work], workers: int) -> messages.RunClosures:
        """Return what has the worker run closures; see `RunClosures` for ``workers``."""
        functions = {}
        for closure in closures:
            function = closure.function
            if function.id not in self._functions:
                functions[function.id] = (function.name, function.payload)
            self._functions[function.id] = None
            self._functions.move_to_end(function.id)
        # Functions created for each call, in a loop say, must not pile up on the worker.
        forget = []
        while len(self._functions) > max(_MOST_FUNCTIONS, len(closures)):
            forget.append(self._functions.popitem(last=False)[0])
        return messages.RunClosures(
            self._new_layout(),
            workers,
            functions,
            forget,
            self._assignments(closures),
        )

    def _assignments(self, closures: Sequence[Work]) -> list[messages.Assignment]:
        make = messages.Assignment
        return [
            make(
                each.id,
                each.function.id,
                each.number,
                each.left,
                each.options.results,
                each.execution.attempt,
                each.execution.commit,
                each.execution.round,
                each.call.payload,
                each.call.inputs,  # type: ignore[arg-type]  # all are there, or it would wait
                each.execution.ranges,
                each.options.slot,
            )
            for each in closures
        ]

    def _new_layout(self) -> Layout | None:
        # A server that was taken for lost but lives answers as before until it knows that:
        # closures that begin from now on must not ask it.
        layout = self._services.resolver.layout
        if layout.version == self._layout:
            return None
        self._layout = layout.version
        return layout
