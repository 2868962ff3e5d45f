"""Saving: who saves the parameters of a strategy, and how the last save fared. Thread-safe."""

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
        """The newest one."""

    def save(self) -> Path:
        """Save one; return where."""


class Saving:
    """The `CheckpointManager` that was made last for a coordinator."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the next
        self._saver: Saver | None = None

    def use(self, saver: Saver) -> None:
        """Save with this one from now on."""
        with self._lock:
            self._saver = saver

    @property
    def status(self) -> CheckpointStatistics:
        """How the newest save fares; cheap."""
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
        """Save all parameters; return where.

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
