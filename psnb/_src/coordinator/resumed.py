"""resume: strategy, parameters and coordinator again, of a checkpoint alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distributed import Client

from psnb._src.checkpoint import newest_whole
from psnb._src.checks import path_text
from psnb._src.coordinator.checkpoint_manager import CheckpointManager
from psnb._src.coordinator.coordinator import ClusterCoordinator, go_on_from
from psnb._src.coordinator.saved_run import SavedRun
from psnb._src.excerpt import counted
from psnb._src.remote_path import Place, as_place
from psnb._src.strategy import ParameterServerStrategy, core_of, described_parameter
from psnb.errors import CheckpointError, ConfigurationError


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
        Of the directory, with the settings of the one that saved the checkpoint: it saves by itself
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
        to the bit as without the interruption, if rounds are as large as before.
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
    path: Place
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
    accessors are those that were saved. A checkpoint that is damaged is told in a warning, and the
    one before it is taken. All files are checked before anything is made.

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
        If there is no checkpoint, or all are damaged.
    ConfigurationError
        If a parameter was made with an initializer, a schedule or a function of your own, which
        a checkpoint cannot hold: make the parameters yourself then, and restore them with
        `CheckpointManager.restore`. Or if ``settings`` are wrong.
    ClusterError
        If the cluster has not enough workers or servers.
    """
    saved = newest_whole(as_place(path_text("psnb.resume: directory", directory)))
    if saved is None:
        raise CheckpointError(
            f"there is no checkpoint in {str(directory)!r}: nothing was saved there yet, or it is "
            "another directory"
        )
    try:
        run = SavedRun.read(saved.run, saved.descriptions)
        parameters = [
            described_parameter(name, each, saved.optimizers[name], run.recipes[name])
            for name, each in saved.descriptions.items()
        ]
    except ConfigurationError:
        raise
    except ValueError as error:
        raise CheckpointError(
            f"checkpoint {str(saved.path)!r} was not saved by a psnb.CheckpointManager: {error}"
        ) from error
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
        go_on_from(coordinator, run.closures)
    except BaseException:
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
