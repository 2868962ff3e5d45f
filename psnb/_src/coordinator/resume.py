"""resume: strategy, parameters and coordinator again, of a checkpoint alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

from distributed import Client

from psnb._src.checkpoint.manager import FolderManager
from psnb._src.checkpoint.reader import SavedCheckpoint, latest_full
from psnb._src.checkpoint.save_schedule import SaveSchedule
from psnb._src.coordinator.coordinator import ClusterCoordinator, coordinator_core
from psnb._src.coordinator.saving import Saves
from psnb._src.coordinator.settings import SavedRun, SavingSettings
from psnb._src.strategy.recipes import described_parameter
from psnb._src.strategy.stored import StoredStrategies, stored_strategies
from psnb._src.strategy.strategy import (
    ParameterServerStrategy,
    check_client,
    core_of,
    leave_to_others,
    taken_over,
)
from psnb._src.utils.checks import check_instance, path_text
from psnb._src.utils.interrupts import uninterrupted
from psnb._src.utils.paths import AnyPath, as_path
from psnb._src.utils.text import counted, shown
from psnb.errors import CheckpointError, ConfigurationError


class Attached(NamedTuple):
    """What `attach` gives back: a pair.

    Attributes
    ----------
    strategy : ParameterServerStrategy
        With all parameters.
    coordinator : ClusterCoordinator
        A new one, with the defaults; nothing is queued.
    """

    strategy: ParameterServerStrategy
    coordinator: ClusterCoordinator


@overload
def attach(client: Client) -> StoredStrategies: ...


@overload
def attach(client: Client, name: str) -> Attached: ...


def attach(client: Client, name: str | None = None) -> StoredStrategies | Attached:
    """Take a strategy over whose owner has gone; without a name, list what lives on the cluster.

    The parameters are as the last closures left them: the effect of each is there wholly or not at
    all. What was queued is lost. The strategy has its mode and parameters again, with optimizer
    state; per-worker values, datasets and checkpoint managers must be made again. Handles from
    before are refused from now on, also in a process that was taken for dead and wakes up
    (`errors.OwnershipLostError`), and in closures of it that still run.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    name : str, optional
        The name of the strategy.

    Returns
    -------
    StoredStrategies or Attached
        A list of the strategies that live on the cluster; or strategy and coordinator.

    Raises
    ------
    ClusterError
        If the strategy's owner lives; the message says where. Or if the client is closed.
    SchedulerLostError
        If the client's scheduler has ended.
    ConfigurationError
        If there is no strategy of this name.
    ServerUnresponsiveError
        If a server does not respond that holds what no other does; try again when it does.
    SerializationError
        If a class or function that the strategy was made with cannot be unpickled here.

    Examples
    --------
    >>> psnb.attach(client)
    >>> strategy, coordinator = psnb.attach(client, "flights")
    >>> strategy.parameters["embedding"].lookup([1, 2, 3])
    """
    check_client(client)
    stored = stored_strategies(client)
    if name is None:
        return stored
    found = [each for each in stored if each.name == name]
    if not found:
        names = ", ".join(repr(each.name) for each in stored) or "none"
        raise ConfigurationError(
            f"no strategy named {name!r} lives on the cluster; those that do: {names}. What had no "
            "owner for longer than its retention= is freed; what was saved can be restored"
        )
    strategy = None
    try:
        with uninterrupted:  # except while it waits
            strategy = taken_over(client, found[0].id)
            return Attached(strategy, ClusterCoordinator(strategy))
    except BaseException:  # an interrupt, too
        if strategy is not None:  # without a holder its parameters would be freed
            leave_to_others(strategy)
        raise


class CheckpointManager(FolderManager):
    """Numbered checkpoints in one directory.

    The servers write what they hold, in parallel, while training goes on: see `save`. So they must
    reach the directory, too.

    With ``every`` or ``steps`` it saves automatically while a call waits for closures: polls
    `ClusterCoordinator.done`, or is in `join`, `join_async`, `run_epoch`, a `Trainer` or Keras's
    ``fit``. That happens in the background. If one fails, training goes on: a warning and an event
    report it once, it is tried again after 1 s, then after growing pauses of at most 5 minutes, and
    an event says when it works again. The same if closures run for more than ``save_timeout``.
    Nothing is saved while no call waits.

    Thread-safe. Several managers, of one notebook or of many, may share a directory. Saves are
    numbered in the order in which they end. Of those that one coordinator has for a directory,
    only the last that was made saves automatically, so a cell that makes one can be run again.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        The variables and embeddings of its strategy are saved, with their optimizer state.
    directory : str or os.PathLike
        A path on disks that the notebook and all servers share, or an address that fsspec
        understands, like ``s3://bucket/run-1``. Created if it does not exist, but for a bucket.
    max_to_keep : int
        How many checkpoints to keep. Each save removes older ones, also those of other managers;
        one that is being restored is removed by a later save.
    every : float or str, optional
        Save automatically every n seconds, or ``"90 s"``, ``"5 min"``, ``"6 h"``, ``"1 d"``.
    steps : int, optional
        Save automatically every n completed closures. With both, whichever comes first.
        It is looked at ten times a second, and steps of epochs are reported together, so a few
        more may have completed.
    keep_every : float or str, optional
        Of each such period one checkpoint stays for ever, beyond ``max_to_keep`` and whichever
        manager removes old ones: it has a file ``kept``, which you may remove.
    full_every : int
        With 10, one save of ten is whole; the nine between are deltas, for which servers write only
        what changed since the save before: the rows that were touched. All else they share with
        the checkpoints before: on disks by hard links, elsewhere by naming their files. So a delta
        is restored, copied and kept like any other, and nothing is lost when those before it are
        removed. A server that was lost or has moved since writes all of its part again, and so does
        one where most rows have changed. Servers then need two bytes more a row. A new manager
        begins with a whole one.
    state : callable, optional
        Returns metadata, a mapping that JSON can hold, to be kept with each checkpoint: for example
        ``lambda: {"epoch": iterator.state()}``. It is called at the moment that is saved, while no
        closure runs, in another thread, and must be quick and wait for no closure. What `save` is
        given, and what a `Trainer` keeps with its checkpoints, takes precedence.
    consistent : bool
        Whether closures are held when a save begins, so that it is consistent. If not, they go
        on; the manifest says which it was.
    save_timeout : float
        Seconds that closures get to end for an automatic save; meanwhile no
        other begins. `save` has a ``timeout`` of its own.

    Attributes
    ----------
    save_timeout : float
        As given.

    Raises
    ------
    CheckpointError
        If the directory cannot be written.
    ConfigurationError
        If an argument is of the wrong kind.
    """

    save_timeout: float

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        directory: str | os.PathLike[str],
        max_to_keep: int = 3,
        *,
        every: float | str | None = None,
        steps: int | None = None,
        keep_every: float | str | None = None,
        full_every: int = 1,
        state: Callable[[], Mapping[str, Any]] | None = None,
        consistent: bool = True,
        save_timeout: float = 300.0,
    ) -> None:
        check_instance("coordinator", coordinator, ClusterCoordinator)
        if state is not None and not callable(state):
            raise ConfigurationError(
                f"state must be a function that returns a mapping, found {shown(state)}"
            )
        self._coordinator = coordinator  # the servers live as long as its strategy does
        core = coordinator_core(coordinator)
        settings = SavingSettings(
            max_to_keep,
            every,  # type: ignore[arg-type]  # it makes seconds of text
            steps,
            keep_every,  # type: ignore[arg-type]
            full_every,
            consistent,
            save_timeout,
        )
        self.save_timeout = settings.save_timeout
        done = core.queue.statistics().completed
        schedule = SaveSchedule(settings.every, settings.steps, time.monotonic(), done)
        super().__init__(
            core.strategy,
            directory,
            settings.max_to_keep,
            settings.keep_every,
            settings.full_every,
            core.barrier if consistent else None,
            state,
            lambda: core.saved_run(settings).to_config(),
            core.strategy.models.compared,
        )
        core.saving.use(Saves(self, schedule, lambda: core.queue.completed, self.save_timeout))


@dataclass(frozen=True, repr=False)
class Resumed:
    """What `psnb.resume` has made of a checkpoint.

    Also a context manager that closes the strategy.

    Attributes
    ----------
    strategy : ParameterServerStrategy
        Has all variables and embeddings again: ``resumed.strategy.parameters["users"]``.
    coordinator : ClusterCoordinator
        The strategy's.
    manager : CheckpointManager
        Of the directory, with the settings of the one that saved it. It saves automatically
        if that one did, but without its ``state=``. For other settings make another one, which
        takes its place: ``psnb.CheckpointManager(resumed.coordinator, directory, every="5 min")``.
    path : pathlib.Path or RemotePath
        The checkpoint.
    metadata : mapping
        What it was saved with: of a `Trainer` its state, to be passed to
        ``train_from_dataset(..., resume=resumed.metadata)``.
    epochs : tuple of mapping
        The states of the epochs that were not over, in the order in which they were begun, to be
        passed to ``dataset.iterator``: `LeasedIterator.state`. In mode `Sync` `run_epoch` goes on
        bit for bit as without the interruption, if rounds are as large as before.
    closures : int
        How many closures had ended, with those of the runs before. The coordinator numbers its
        closures from there, so that steps with ``seed=`` go on with other random numbers. In mode
        `Sync` these were the first that were scheduled, if all have the same priority. In other
        modes a fast worker may have been ahead of the others: lease the data, or keep what is
        done in a variable.
    versions : mapping of str to str
        With which versions of psnb, Python and packages it was saved.
    """

    strategy: ParameterServerStrategy
    coordinator: ClusterCoordinator
    manager: CheckpointManager
    path: AnyPath
    metadata: Mapping[str, Any]
    epochs: tuple[Mapping[str, Any], ...]
    closures: int
    versions: Mapping[str, str]

    def __repr__(self) -> str:
        return (
            f"<psnb.Resumed {self.strategy.name!r} from {str(self.path)!r}: "
            f"{counted(len(self.strategy.parameters), 'parameter')}, "
            f"{counted(self.closures, 'closure')}, "
            f"{counted(len(self.epochs), 'epoch')} not over, "
            f"saved with psnb {self.versions.get('psnb')}>"
        )

    def __enter__(self) -> Resumed:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.strategy.close()


def resume(directory: str | os.PathLike[str], client: Client, **settings: Any) -> Resumed:
    """Make a strategy with all its parameters again, as the newest checkpoint has them.

    For a kernel that died, or another cluster: any number of servers and workers will do. Names,
    shapes, optimizers with the hyperparameters that they had last, initializers, admissions and
    accessors are those that were saved; the strategy's own name is not. A damaged checkpoint is
    reported in a warning, and the one before it is taken. All files are checked before anything is
    made.

    Parameters
    ----------
    directory : str or os.PathLike
        Of a `CheckpointManager`.
    client : distributed.Client
        The cluster.
    **settings
        Of the strategy: arguments of `ParameterServerStrategy`. By default ``mode`` and
        ``replicas`` are those that were saved, also the number of closures that a round had in mode
        `Sync`.

    Returns
    -------
    Resumed
        Strategy, coordinator, manager, and where training was.

    Raises
    ------
    CheckpointError
        If there is no checkpoint, or all are damaged, or the newest cannot be read now.
    ConfigurationError
        If a parameter was made with an initializer, a schedule or a function of your own, which
        a checkpoint cannot hold: make the parameters yourself then, and restore them with
        `CheckpointManager.restore`. Or if ``settings`` are wrong.
    ClusterError
        If the cluster has not enough workers or servers.
    """
    saved = latest_full(as_path(path_text("psnb.resume: directory", directory)))
    if saved is None:
        raise CheckpointError(
            f"there is no checkpoint in {str(directory)!r}: nothing was saved there yet, or it is "
            "another directory"
        )
    with _of_a_run(saved):
        run = SavedRun.read(saved.run, saved.descriptions)
        parameters = [
            described_parameter(name, each, saved.optimizers[name], run.recipes[name])
            for name, each in saved.descriptions.items()
        ]
    strategy = ParameterServerStrategy(
        client, **{"mode": run.mode, "replicas": run.replicas, **settings}
    )
    try:
        for make in parameters:
            make(strategy)
        for name, record in run.models.items():
            core_of(strategy).models.add(name, record)
        coordinator = ClusterCoordinator(strategy)
        manager = CheckpointManager(coordinator, directory, **vars(run.manager))
        restored = manager.restore(saved.path)
        coordinator_core(coordinator).go_on_from(run.closures, run.next_number, run.record)
    except BaseException:  # an interrupt, too: no handle of it is left
        strategy.close()
        raise
    return Resumed(
        strategy,
        coordinator,
        manager,
        saved.path,
        restored.metadata,
        run.epochs,
        run.closures,
        run.versions,
    )


def run_of(saved: SavedCheckpoint) -> SavedRun:
    """Return what a checkpoint has of the run that saved it.

    Raises
    ------
    CheckpointError
        If that is not all that one goes on with.
    """
    with _of_a_run(saved):
        return SavedRun.read(saved.run, saved.descriptions)


@contextmanager
def _of_a_run(saved: SavedCheckpoint) -> Iterator[None]:
    """Translate what is raised if a checkpoint has not all of its run."""
    try:
        yield
    except ConfigurationError:
        raise
    except ValueError as error:
        raise CheckpointError(
            f"checkpoint {str(saved.path)!r} was not saved by a psnb.CheckpointManager, or by one "
            f"of an earlier psnb: {error}. Nothing was made or restored of it. Its parameters can "
            "be: make them, restore it with CheckpointManager.restore, and train from the "
            "beginning of an epoch, without resume"
        ) from error
