"""PickledCall: what is needed to call a failed closure again, in the notebook's process.

All is pickled, as it was when the closure was scheduled: nothing here keeps values on the
workers, or the strategy, alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from psnb._src.client.local.dry_run import DryRunClient
from psnb._src.client.updates import Round
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.values import PerWorkerIterator, ResourceRegistry
from psnb._src.protocol.packing import PerWorkerReference, loads
from psnb._src.strategy.core import StrategyCore
from psnb._src.utils.text import error_text
from psnb._src.utils.tracebacks import hide_internal_frames
from psnb._src.worker.context import InputContext, WorkerContext, entered
from psnb._src.worker.reports import ReportedStates
from psnb._src.worker.taken import ReplayedInputs
from psnb.errors import ClosureInputError, CoordinatorClosedError

_TOO_MUCH = "it was too much, or cannot be pickled"


_UNKNOWN = "its worker was lost with it"


@dataclass(frozen=True)
class PickledCall:
    """A closure that has failed.

    Attributes
    ----------
    closure : int
        Its number.
    function, arguments : bytes
        What is called; no arguments are empty.
    inputs : tuple of bytes
        The pickled results of other closures among the arguments.
    values : mapping
        The calls that make the per-worker values that it uses, by their numbers; None is an
        iterator, of which it gets what it had taken.
    taken : bytes or None
        That, pickled; empty if it was not kept, None if it is not known.
    attempt : int
        The one that failed.
    round : int or None
        The round that it took part in.
    worker : str
        Where it ran; empty if unknown.
    place : InputContext
        That worker's place among the others.
    strategy : weakref to StrategyCore
        The way to the parameters.
    """

    closure: int
    function: bytes
    arguments: bytes
    inputs: tuple[bytes, ...]
    values: Mapping[int, bytes | None]
    taken: bytes | None
    attempt: int
    round: int | None
    worker: str
    place: InputContext
    strategy: Callable[[], StrategyCore | None]

    @property
    def parts(self) -> list[bytes]:
        """What it keeps."""
        values = filter(None, self.values.values())
        return [self.function, self.arguments, self.taken or b"", *self.inputs, *values]

    def __call__(self) -> Any:
        """Call it; see `Failure.rerun`."""
        strategy = self.strategy()
        if strategy is None:
            raise CoordinatorClosedError("the strategy of the closure is gone")
        strategy.check_open()
        in_round = None if self.round is None else Round(strategy.name, self.round)
        place = self.place
        context = WorkerContext(
            *(place.worker_index, place.num_workers, self.worker, self.attempt),
            send_report=lambda when, values: None,
            closure=self.closure,
            states=ReportedStates(),
        )
        made: dict[int, Any] = {}

        def resolve(number: int) -> Any:
            if number not in made:
                made[number] = self._value(number, resolve)
            return made[number]

        def call() -> Any:
            function = loads(self.function, resolve)
            args, kwargs = (
                loads(self.arguments, resolve, self.inputs) if self.arguments else ((), {})
            )
            return function(*args, **kwargs)

        try:
            with entered(context):
                return DryRunClient(strategy.server_client).run(call, in_round)
        except Exception as error:  # the user's function may raise anything
            hide_internal_frames(error)
            raise

    def _value(self, number: int, resolve: Callable[[int], Any]) -> Any:
        payload = self.values[number]
        if payload is None:
            if not self.taken:
                return ReplayedInputs(None, _UNKNOWN if self.taken is None else _TOO_MUCH)
            return ReplayedInputs(loads(self.taken).get(number))
        try:
            function, args, kwargs = loads(payload, resolve)
            return function(*args, **kwargs)
        except Exception as error:  # the user's function may raise anything
            raise ClosureInputError(
                f"a per-worker value that the closure uses could not be made here: "
                f"{error_text(error)}"
            ) from error


def pickled_call(
    worker: str,
    closure: Work,
    resources: ResourceRegistry,
    strategy: Callable[[], StrategyCore | None],
) -> PickledCall:
    """Return what is needed to call a closure again that has just failed on a worker.

    Its per-worker values must still be alive.
    """
    function, execution = closure.function, closure.execution
    values: dict[int, bytes | None] = {}

    def add(references: Iterable[PerWorkerReference]) -> None:
        for each in references:
            if isinstance(each, PerWorkerIterator):
                values[each.resource_id] = None
            elif each.resource_id not in values:
                values[each.resource_id], further = resources.made_of(each)
                add(further)

    add((*function.references, *closure.call.references))
    place, taken = execution.taken or (InputContext(1, 0), None)
    return PickledCall(
        closure.number,
        function.payload,
        closure.call.payload,
        tuple(each for each in closure.call.inputs if isinstance(each, bytes)),
        values,
        taken,
        execution.attempt,
        execution.round,
        worker,
        place,
        strategy,
    )
