"""DeviceWorker: how the workers go through one epoch; Paddle's name for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from psnb._src.client.local_copies import PulledVariables
from psnb._src.client.updates import accumulating
from psnb._src.coordinator.coordinator import ClusterCoordinator, filling
from psnb._src.coordinator.epoch import LeasedIterator
from psnb._src.coordinator.remote_value import ClosureStatus, RemoteValue
from psnb._src.monitor.statistics import WorkerStatistics
from psnb._src.protocol.messages import Async, Geo, Sync
from psnb._src.utils.checks import integer
from psnb._src.utils.threads import uninterrupted
from psnb._src.worker.context import report
from psnb._src.worker.leasing import taken_in_vain
from psnb._src.worker.resources import lease_requests
from psnb.errors import ConfigurationError


class DeviceWorker:
    """How the workers go through one epoch: base of `Hogwild` and the others, and of your own.

    Attributes
    ----------
    takes_step : bool
        Whether it trains a step; else it has what it trains.

    Notes
    -----
    It has one method, `train`. `Trainer` calls it for each epoch, in the thread that called
    `Trainer.train_from_dataset`.
    """

    takes_step: ClassVar[bool] = True

    def train(
        self,
        coordinator: ClusterCoordinator,
        step: Callable[..., Any],
        iterator: LeasedIterator,
        watch: Callable[[], object],
    ) -> None:
        """Have every example of an epoch used exactly once.

        Parameters
        ----------
        coordinator : ClusterCoordinator
            Schedules.
        step : callable
            A closure of an iterator, which trains on what it takes.
        iterator : LeasedIterator
            The epoch.
        watch : callable
            To be called in this thread about ten times a second: fetch lines, callbacks, save
            intervals and requests to stop happen in it. It may raise; then nothing new must begin,
            and what it raises is raised. `Trainer` waits for what runs.

        Raises
        ------
        Exception
            What a closure raised, or ``watch``.
        """
        coordinator.run_epoch(step, iterator, progress=False, watch=watch)


@dataclass(frozen=True)
class Hogwild(DeviceWorker):
    """Each worker trains on batch after batch, without waiting for others; the default.

    Its threads share the parameters and the dataset's iterator. No update waits for another: what a
    step has read may be out of date by as many updates as there are threads of all workers. With
    more threads than cores, pulling the next batch and committing the last overlap with computing;
    numpy, numba, XLA and PyTorch release the interpreter's lock.

    After Niu et al., *Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent*,
    NIPS 2011; Paddle's ``HogwildWorker``, whose threads share the memory of one process.

    Parameters
    ----------
    threads : int, optional
        How many threads of each worker train at the same time; by default as many as it has.

    Raises
    ------
    ConfigurationError
        If ``threads`` is not a positive integer.
    """

    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None:
            object.__setattr__(self, "threads", integer("Hogwild: threads", self.threads, 1))

    def train(
        self,
        coordinator: ClusterCoordinator,
        step: Callable[..., Any],
        iterator: LeasedIterator,
        watch: Callable[[], object],
    ) -> None:
        """Train in ``threads`` threads of each worker; see `DeviceWorker.train`."""
        coordinator.use_threads(self.threads)
        try:
            super().train(coordinator, step, iterator, watch)
        finally:
            coordinator.use_threads(None)


@dataclass(frozen=True)
class Downpour(DeviceWorker):
    """Workers compute with variables pulled now and then, and push gradients added up.

    Variables that a step reads as a whole come from the worker's copies. After every ``pull_every``
    batches a thread of its own pulls them again, while steps go on with the last ones; so they are
    up to twice as many batches old. Rows of embeddings are looked up for each batch, as by Paddle.

    A closure takes ``push_every`` batches. The gradients of each variable, and of each row, are
    added up over them and pushed once, as one step of its optimizer. A step does not see what the
    batches before it have pushed. Everything that a closure writes has its effect exactly once, as
    in other closures; if its worker dies, it computes all of its batches again.

    In `Sync` mode each round has one closure, that is ``push_every`` batches, of each worker. Which
    variables it has read depends on time, so two runs are not equal bit for bit.

    After Dean et al., *Large Scale Distributed Deep Networks*, NIPS 2012 (without the replica's own
    steps between two pulls), and Paddle's ``DownpourWorker``.

    Parameters
    ----------
    pull_every : int
        After how many batches of a worker its variables are pulled again.
    push_every : int
        After how many batches gradients are pushed.

    Raises
    ------
    ConfigurationError
        If a number is below 1.
    """

    pull_every: int = 1
    push_every: int = 1

    def __post_init__(self) -> None:
        for name in ("pull_every", "push_every"):
            object.__setattr__(self, name, integer(f"Downpour: {name}", getattr(self, name), 1))

    def train(
        self,
        coordinator: ClusterCoordinator,
        step: Callable[..., Any],
        iterator: LeasedIterator,
        watch: Callable[[], object],
    ) -> None:
        """Train in closures of several batches; see `DeviceWorker.train`.

        Raises
        ------
        ConfigurationError
            If the strategy's mode is `Geo`, where workers have copies of their own, or gradients
            are to be added up that an optimizer clips by their norm.
        """
        if isinstance(coordinator.strategy.mode, Geo):
            raise ConfigurationError(
                "Downpour pushes gradients, and in mode Geo workers send differences instead: take "
                "psnb.Hogwild() there, or another mode"
            )
        clipped = [
            name
            for name, each in coordinator.strategy.parameters.items()
            if each.optimizer is not None and each.optimizer.clipnorm is not None
        ]
        if self.push_every > 1 and clipped:
            raise ConfigurationError(
                f"Downpour(push_every={self.push_every}) adds gradients up, and the optimizers of "
                f"{', '.join(map(repr, clipped))} clip each by its norm: make them without "
                "clipnorm, and clip in the step"
            )
        variables = coordinator.create_per_worker_resource(PulledVariables, (self.pull_every,))
        batches = _Batches(step, self.push_every)
        coordinator.run_epoch(batches, iterator, (variables,), progress=False, watch=watch)


class _Batches:
    """A closure that makes several steps."""

    def __init__(self, step: Callable[..., Any], count: int) -> None:
        self._step, self._count = step, count
        self.__name__ = getattr(step, "__name__", type(step).__name__)

    def __call__(self, iterator: Iterator[Any], variables: PulledVariables) -> None:
        taken = lease_requests().taken
        with accumulating(variables):
            for number in range(self._count):
                variables.begin_batch()
                before = taken.counts.copy()
                try:
                    self._step(iterator)
                except StopIteration as error:
                    if not number:
                        raise  # there was nothing to do at all
                    if count := taken.in_vain(before):
                        raise taken_in_vain(count) from error
                    break


# Section: a model in stages on different workers; micro-batches go through them.
#
# Each step of a micro-batch is a closure: reading it, the stages forward, the last one with the
# loss, the stages backward. A closure's inputs are the results of others, which the notebook keeps
# until they are used. So a worker that dies costs its closures a retry, and another one takes its
# stages.
#
# One thread: that which calls `train`.

_LOOK_AGAIN = 0.1
"""Seconds after which ``watch`` is called again, and lost workers are noticed."""

_FAILED = (ClosureStatus.FAILED, ClosureStatus.CANCELLED)


class PipelineStage(Protocol):
    """A part of a model; `psnb.jax.stage` and `psnb.torch.stage` make one.

    It recomputes what it needs from its inputs, so any worker can do any of its closures.
    """

    def forward(self, inputs: Any) -> Any:
        """Return the outputs; called in a closure."""

    def backward(self, inputs: Any, gradient: Any, scale: float) -> Any:
        """Push the gradients of the parameters times ``scale``; return that of the inputs."""

    def train(self, inputs: Any, scale: float) -> tuple[float, int, Any]:
        """Do so in the last stage; return the loss, how many examples, and the gradient."""


@dataclass(frozen=True)
class Section(DeviceWorker):
    """The model is cut into stages on different workers, and micro-batches go through them.

    ``psnb.Trainer(coordinator, worker=psnb.Section([first, second, last]))``.

    An element of the dataset is a micro-batch. Of ``microbatches`` of them at a time, one stage
    computes one while other stages compute others; gradients come back the same way.

    In mode ``Sync(section.closures)`` that number of micro-batches makes one update, of the mean of
    their gradients: the result equals, up to rounding, that of the undivided model on these joined.
    Otherwise each stage applies the gradient of each micro-batch when it is there, and stages may
    be at different updates.

    A worker that dies costs a retry of what it was doing; its stages move to another one, and all
    examples still count exactly once. What stages hand on goes through the notebook: take this for
    models that are too large for one worker, not for speed.

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
        count = integer("Section: microbatches", self.microbatches, 1)
        object.__setattr__(self, "microbatches", count)
        object.__setattr__(self, "stages", tuple(self.stages))
        if len(self.stages) < 2:
            raise ConfigurationError(
                f"Section takes two stages or more, found {len(self.stages)}: a model in one piece "
                "trains with psnb.Hogwild()"
            )

    @property
    def closures(self) -> int:
        """How many closures make an update: what `Sync` takes."""
        return self.microbatches * 2 * len(self.stages)

    def train(
        self,
        coordinator: ClusterCoordinator,
        step: Callable[..., Any],
        iterator: LeasedIterator,
        watch: Callable[[], object],
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
        pipeline = _Pipeline(coordinator, self.stages, iterator, isinstance(mode, Sync))
        open_: list[RemoteValue] = []
        while open_ or not iterator.progress().over:
            pipeline.place()
            # A round is of one update: its micro-batches begin and end together.
            if not open_ or not pipeline.rounds:
                with uninterrupted, filling(coordinator):
                    while iterator.unread() and len(open_) < self.microbatches:
                        open_.append(pipeline.begin())
            if open_:
                open_[0].wait(_LOOK_AGAIN)
            if any(each.status in _FAILED for each in open_):
                break  # `join` raises what a closure raised
            watch()
            open_ = [each for each in open_ if not each.done()]
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
        self._coordinator, self._iterator, self.rounds = coordinator, iterator, rounds
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
        # One worker: of several, those that lease nothing would return nothing.
        able = [worker.index for worker in workers if self._iterator.suits(worker)]
        if able and self._reader not in able:
            first = self._places[0]
            self._reader = first if first in able else able[0]

    def begin(self) -> RemoteValue:
        """Schedule the closures of a micro-batch; return the last one's value."""
        schedule, suits = self._coordinator.schedule, self._suits
        # What is nearer to its end goes first, so little is under way at a time.
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
