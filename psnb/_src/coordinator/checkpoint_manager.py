"""CheckpointManager: saves and restores all parameters of a coordinator's strategy."""

from __future__ import annotations

import os

from psnb._src.checkpoint import FolderManager
from psnb._src.coordinator.coordinator import ClusterCoordinator, view_of
from psnb._src.strategy import core_of
from psnb.errors import ConfigurationError


class CheckpointManager(FolderManager):
    """Numbered checkpoints in one directory.

    Thread-safe. Several managers, of one notebook or of many, may share a directory. Saves are
    numbered in the order in which they end.

    Parameters
    ----------
    coordinator : ClusterCoordinator
        The variables and embeddings of its strategy are saved, with their optimizer state.
    directory : str or os.PathLike
        Created if it does not exist.
    max_to_keep : int
        How many checkpoints to keep. Each save removes older ones, whoever saved them; one that is
        being restored is removed by a later save.

    Raises
    ------
    CheckpointError
        If the directory cannot be written.
    ConfigurationError
        If an argument is of the wrong kind.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        directory: str | os.PathLike[str],
        max_to_keep: int = 3,
    ) -> None:
        if not isinstance(coordinator, ClusterCoordinator):
            raise ConfigurationError(
                f"coordinator must be a psnb.ClusterCoordinator, found {coordinator!r}"
            )
        self._coordinator = coordinator  # the servers live as long as its strategy does
        super().__init__(core_of(coordinator.strategy), directory, max_to_keep)
        view_of(coordinator).saving.use(self)
