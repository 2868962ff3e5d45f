"""Rewinding: all parameters go back to a mark or a checkpoint, and training goes on from there.

While no closure runs, all that can be refused is checked, then tables are loaded. From then on it
is done wholly, or the tables are dropped, as those of lost servers: half of it is never used. What
servers know of commits does not go back, nor do their numbers: one that had its effect before is
not applied again.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

from psnb._src.checkpoint.loading import Checkpoint
from psnb._src.checkpoint.manifest import checked_metadata
from psnb._src.client.tables.marks import ParameterMarks
from psnb._src.client.whole_tables import others_waiting
from psnb._src.coordinator.core import CoordinatorCore, Training
from psnb._src.monitor.events import EventKind
from psnb._src.server.optimizer import Optimizer
from psnb._src.strategy.recipes import described_optimizer
from psnb._src.utils.checks import path_text
from psnb._src.utils.paths import as_path
from psnb._src.utils.threads import run_in_thread
from psnb.errors import (
    CheckpointError,
    ConfigurationError,
    ServerLostError,
    StaleMarkError,
)

_ATTEMPTS = 5
"""How often it is begun: each time, replicas have taken over from servers meanwhile."""


class Mark:
    """All parameters at one moment, in the memory of their servers: `ClusterCoordinator.mark`.

    It takes no file, and the memory of what has changed since. It ends with `drop`, with the last
    reference to it, or with its strategy.

    Attributes
    ----------
    time : float
        When it was made, in seconds since the epoch.
    metadata : mapping
        What it was made with.
    checkpoint : pathlib.Path, RemotePath or None
        The last checkpoint before it.
    """

    def __init__(self, core: CoordinatorCore, metadata: Mapping[str, Any]) -> None:
        strategy, parameters = core.strategy, core.strategy.parameters()
        self.time = core.records.history_until_now().moment(time.time())
        self.metadata = metadata
        self._strategy = weakref.ref(strategy)
        self._places = core.training_places()
        self._optimizers = {
            name: each.optimizer.current() for name, each in parameters.items() if each.optimizer
        }
        self._kept = ParameterMarks(strategy.server_client, strategy.shards, parameters)
        self.checkpoint = strategy.losses.checkpoint
        forget = partial(core.queue.inbox.post, partial(strategy.ask_soon, self._kept.drops()))
        self._finalizer = weakref.finalize(self, forget)
        self._finalizer.atexit = False

    def __str__(self) -> str:
        return f"the mark of {time.strftime('%H:%M:%S', time.localtime(self.time))}"

    def __repr__(self) -> str:
        return f"<psnb.Mark: {self}{', dropped' if self.dropped else ''}>"

    def drop(self) -> None:
        """Have servers forget it, which gives its memory back; idempotent, returns at once."""
        self._finalizer()

    @property
    def dropped(self) -> bool:
        """Whether it was dropped, or its strategy was closed."""
        strategy = self._strategy()
        return not self._finalizer.alive or strategy is None or strategy.ended() is not None


def mark(core: CoordinatorCore, metadata: Mapping[str, Any] | None, timeout: float | None) -> Mark:
    """Make a mark; see `ClusterCoordinator.mark`."""

    def make() -> Mark:
        with core.barrier(timeout), core.strategy.moment():
            return Mark(core, checked_metadata(metadata or {}))

    made = run_in_thread(make)
    core.marked = weakref.ref(made)
    return made


def rewind(core: CoordinatorCore, to: Any, timeout: float | None) -> Mapping[str, Any] | None:
    """Go back to a mark or a checkpoint; see `ClusterCoordinator.rewind`."""
    if to is None and (to := core.newest()) is None:
        raise CheckpointError(core.cannot_rewind)
    if not isinstance(to, Mark):
        to = as_path(path_text("rewind: a mark, or the path of a checkpoint", to))
    elif to.dropped or to._strategy() is not core.strategy:
        raise ConfigurationError(
            "this mark was dropped, or is of another strategy: nothing was changed"
        )
    trainings = core.trained()
    if len(trainings) > 1:
        raise ConfigurationError("several trainers train: rewind when at most one does")
    go = partial(_go_back, core, to, timeout)
    return trainings[0].at_rest(go) if trainings else run_in_thread(go)


Prepare = Callable[[Mapping[str, Any]], object]
"""Takes metadata before anything is changed; may raise."""


def _go_back(
    core: CoordinatorCore,
    to: Any,
    timeout: float | None,
    prepare: Prepare = bool,
    training: Training | None = None,
) -> Mapping[str, Any]:
    metadata: Mapping[str, Any]
    if isinstance(to, Mark):
        metadata, begin = deepcopy(to.metadata), partial(_from_mark, core, to)
        back = to.time
        prepare(to._places.get(training, {}) if training else {})
    else:
        parameters = core.strategy.parameters()
        saved = Checkpoint(to, parameters, models=core.strategy.models.compared)
        metadata, begin = saved.restored, partial(_from_checkpoint, core, saved)
        back = core.recording.moment_of(saved.restored.run)
        prepare(metadata)
    with core.barrier(timeout), core.strategy.moment():
        try:
            _load(core, begin)
        except StaleMarkError:
            to.drop()  # from now on, the newest is another one
            raise
        core.records.cut(back)
        core.records.events.add(EventKind.REWOUND, f"parameters are as at {to}")
        return metadata


def _from_mark(core: CoordinatorCore, to: Mark) -> Iterator[object]:
    yield from to._kept.loading(core.strategy.parameters())
    _tune(core, to._optimizers)


def _from_checkpoint(core: CoordinatorCore, saved: Checkpoint) -> Iterator[object]:
    yield from saved.loading()
    core.strategy.note_checkpoint(saved.path)
    _tune(core, {name: described_optimizer(each) for name, each in saved.optimizers.items()})


def _tune(core: CoordinatorCore, optimizers: Mapping[str, Optimizer | None]) -> None:
    """Set hyperparameters as they were, where that is known."""
    for name, each in core.strategy.parameters().items():
        before = optimizers.get(name)
        if before is None or (live := each.optimizer) is None or (now := live.current()) == before:
            continue
        for field in now.__dataclass_fields__:
            if getattr(now, field) != (value := getattr(before, field)):
                setattr(live, field, value)


def _load(core: CoordinatorCore, begin: Callable[[], Iterator[object]]) -> None:
    """Load all, or drop all tables; what others ask waits, also while it is tried again."""
    strategy = core.strategy
    changed = False
    with others_waiting(strategy.server_client, strategy.shards) as load:
        for left in reversed(range(_ATTEMPTS)):
            try:
                loading = begin()
                next(loading, None)
                changed = True
                for _ in loading:
                    pass
                return
            except BaseException as error:  # an interrupt, too: half went back
                if not changed:
                    raise
                again = isinstance(error, ServerLostError | CheckpointError) and left
                if again and strategy.settled():  # replicas have taken over, and have it, too
                    continue
                load.drops = True
                error.add_note(
                    "the parameters had gone back in part, so all of them were dropped. "
                    "strategy.recover(checkpoint) brings them back, of a checkpoint; or "
                    f"{strategy.losses.beginning()} starts over"
                )
                raise
