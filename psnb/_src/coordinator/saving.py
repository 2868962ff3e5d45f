"""Saving: the checkpoint manager in use, and the status of its last save. Thread-safe."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Protocol

from psnb._src.monitor import CheckpointStatistics
from psnb.errors import CheckpointError


class Saver(Protocol):
    """What saves checkpoints."""

    @property
    def status(self) -> CheckpointStatistics:
        """The status of the newest save."""

    def save(self) -> Path:
        """Save a checkpoint; return its path."""


class Saving:
    """The `CheckpointManager` that was made last for a coordinator."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the next
        self._saver: Saver | None = None

    def use(self, saver: Saver) -> None:
        """Use this manager from now on."""
        with self._lock:
            self._saver = saver

    @property
    def status(self) -> CheckpointStatistics:
        """The status of the newest save; cheap."""
        saver = self._current()
        return CheckpointStatistics() if saver is None else saver.status

    @property
    def cannot(self) -> str:
        """Why nothing can be saved; empty if it can."""
        if self._current() is not None:
            return ""
        return (
            "there is nothing to save with: make a psnb.CheckpointManager(coordinator, directory)"
        )

    def save(self) -> Path:
        """Save all parameters; return the path.

        Raises
        ------
        CheckpointError
            If there is no manager, or as for `CheckpointManager.save`.
        """
        saver = self._current()
        if saver is None:
            raise CheckpointError(self.cannot)
        return saver.save()

    def _current(self) -> Saver | None:
        with self._lock:
            return self._saver
