"""Section: a model in stages on different workers; micro-batches go through them.

Each step of a micro-batch is a closure: reading it, the stages forward, the last one with the
loss, the stages backward. A closure's inputs are the results of others, which the notebook keeps
until they are used. So a worker that dies costs its closures a retry, and another one takes its
stages.

One thread: that which calls `train`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue
from psnb._src.coordinator.coordinator import ClusterCoordinator, coordinator_core
from psnb._src.coordinator.datasets.epoch import as_they_end
from psnb._src.coordinator.datasets.leased import LeasedIterator
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.protocol.modes import Async, Sync
from psnb._src.training.device_workers import DeviceWorker, Step, Watch, positive
from psnb._src.utils.checks import check_fields
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.worker.context import report
from psnb.errors import ConfigurationError


class PipelineStage(Protocol):
    """A part of a model; `psnb.jax.stage` and `psnb.torch.stage` make one.

    It recomputes activations from its inputs, so any worker can do any of its closures.
    """

    def forward(self, inputs: Any) -> Any:
        """Return the outputs; called in a closure."""

    def backward(self, inputs: Any, gradient: Any, scale: float) -> Any:
        """Push the gradients of the parameters times ``scale``; return the inputs' gradient."""

    def train(self, inputs: Any, scale: float) -> tuple[float, int, Any]:
        """Do so in the last stage; return the loss, how many examples, and the gradient."""


@dataclass(frozen=True)
class Section(DeviceWorker):
    """The model is cut into stages on different workers, and micro-batches go through them.

    ``psnb.Trainer(coordinator, worker=psnb.Section([first, second, last]))``.

    An element of the dataset is a micro-batch. ``microbatches`` of them are under way at a time:
    one stage computes one while other stages compute others; gradients come back the same way.

    In mode ``Sync(section.closures)`` that number of micro-batches makes one update, of the mean of
    their gradients: the result equals, up to rounding, that of the undivided model on these joined.
    Otherwise each stage applies the gradient of each micro-batch when it arrives, and stages may be
    at different updates.

    A worker that dies costs a retry of its closures; its stages move to another one, and all
    examples still count exactly once. Activations go from stage to stage through the notebook: use
    this for models that are too large for one worker, not for speed.

    After Huang et al., *GPipe*, NeurIPS 2019 (micro-batches, recomputation), and Paddle's
    ``PipelineTrainer`` with its ``Section`` workers.

    Parameters
    ----------
    stages : sequence of PipelineStage
        Two or more, as `psnb.jax.stage` or `psnb.torch.stage` makes them; the last one returns the
        loss.
    microbatches : int
        How many are under way at the same time; in mode `Sync`, how many make an update.

    Raises
    ------
    ConfigurationError
        If there are no two stages, or no micro-batch.
    """

    takes_step = False

    stages: Sequence[PipelineStage]
    microbatches: int = 4

    def __post_init__(self) -> None:
        check_fields(self, positive(self), "microbatches")
        object.__setattr__(self, "stages", tuple(self.stages))
        if len(self.stages) < 2:
            raise ConfigurationError(
                f"Section takes two stages or more, found {len(self.stages)}: a model in one piece "
                "trains with psnb.Hogwild()"
            )

    @property
    def closures(self) -> int:
        """How many closures make an update, for `Sync`."""
        return self.microbatches * 2 * len(self.stages)

    def train(
        self, coordinator: ClusterCoordinator, step: Step, iterator: LeasedIterator, watch: Watch
    ) -> None:
        """Have all micro-batches go through the stages; see `DeviceWorker.train`.

        Raises
        ------
        ConfigurationError
            If the strategy's mode is neither `Async` nor ``Sync(section.closures)``.
        """
        mode = coordinator.strategy.mode
        if mode not in (Async(), Sync(self.closures)):
            raise ConfigurationError(
                f"Section with {len(self.stages)} stages and {self.microbatches} micro-batches: "
                f"the strategy's mode must be psnb.Async() or psnb.Sync({self.closures}), found "
                f"{mode!r}"
            )
        core, rounds = coordinator_core(coordinator), isinstance(mode, Sync)
        core.resources.require_own((iterator,), "the iterator")
        pipeline = _Pipeline(coordinator, self.stages, iterator, rounds)

        def fill(waiting: list[RemoteValue]) -> bool:
            pipeline.place()
            # A round is of one update: its micro-batches begin and end together.
            if not waiting or not rounds:
                with uninterrupted, core.queue.filling():
                    while iterator.unread() and len(waiting) < self.microbatches:
                        waiting.append(pipeline.begin())
            return bool(waiting) or not iterator.progress().over

        for ended in as_they_end(core, [], fill, watch):
            if ended.status is not ClosureStatus.COMPLETED:
                break  # `join` raises what a closure raised
        coordinator.join(progress=False)


class _Pipeline:
    """The stages, where they are, and the closures of a micro-batch."""

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        stages: Sequence[PipelineStage],
        iterator: LeasedIterator,
        rounds: bool,
    ) -> None:
        self._coordinator, self._iterator = coordinator, iterator
        # A round divides by how many of its closures have pushed: all stages, where one is meant.
        scale = float(len(stages)) if rounds else 1.0
        *others, last = stages
        self._forward = [partial(_forward, stage) for stage in others]
        self._last = partial(_train, last, scale)
        self._backward = [partial(_backward, stage, scale) for stage in others]
        self._places: dict[int, int] = {}
        self._reader = -1
        self._suits = [partial(self._is_at, number) for number in range(len(stages))]

    def place(self) -> None:
        """Give each stage a worker that is there, and have one read that has something to read."""
        workers = [each for each in self._coordinator.statistics().workers if each.state == "ready"]
        there = [worker.index for worker in workers]
        for number in range(len(self._suits)):
            if there and self._places.get(number) not in there:
                self._places[number] = there[number % len(there)]
        # One worker: of several, some would lease and return nothing.
        leases, epoch = coordinator_core(self._coordinator).leases, self._iterator.epoch
        able = [worker.index for worker in workers if leases.suits(epoch, worker.name)]
        if able and self._reader not in able:
            first = self._places[0]
            self._reader = first if first in able else able[0]

    def begin(self) -> RemoteValue:
        """Schedule the closures of a micro-batch; return the last one's value."""
        schedule, suits = self._coordinator.schedule, self._suits
        # Micro-batches that are nearer to their end go first, so few are under way at a time.
        inputs = [schedule(_read, (self._iterator,), worker=self._reads)]
        for number, forward in enumerate(self._forward):
            made = schedule(forward, (inputs[-1],), worker=suits[number], priority=1 + number)
            inputs.append(made)
        count = len(suits)
        gradient = schedule(self._last, (inputs.pop(),), worker=suits[-1], priority=count)
        for number in reversed(range(count - 1)):
            arguments = inputs.pop(), gradient
            how: dict[str, Any] = {"worker": suits[number], "priority": 2 * count - number}
            gradient = schedule(self._backward[number], arguments, **how)
        return gradient

    def _reads(self, worker: WorkerStatistics) -> bool:
        return self._reader == worker.index

    def _is_at(self, number: int, worker: WorkerStatistics) -> bool:
        return self._places.get(number) == worker.index


def _read(iterator: Iterator[Any]) -> Any:
    return next(iterator, None)


def _forward(stage: PipelineStage, inputs: Any) -> Any:
    return None if inputs is None else stage.forward(inputs)


def _train(stage: PipelineStage, scale: float, inputs: Any) -> Any:
    if inputs is None:
        return None
    loss, examples, gradient = stage.train(inputs, scale)
    report(loss=loss, examples=examples)
    return gradient


def _backward(stage: PipelineStage, scale: float, inputs: Any, gradient: Any) -> Any:
    return None if inputs is None else stage.backward(inputs, gradient, scale)
