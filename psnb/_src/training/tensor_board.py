"""TensorBoard: writes scalars for TensorBoard, through tensorboardX."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from psnb._src.training.callback import Callback
from psnb.errors import ConfigurationError

if TYPE_CHECKING:
    from psnb._src.training.callback import TrainingSnapshot
    from psnb._src.training.trainer import Trainer
    from psnb._src.training.training_history import EpochRow, TrainingHistory


class TensorBoard(Callback):
    """Writes metrics as scalars; ``tensorboard --logdir FOLDER`` shows them.

    Under ``epoch/`` and a metric's name those of whole epochs, by the epoch; under ``batch/`` those
    of the epoch so far, a few times a second, by the number of batches that this training has used.
    Needs ``pip install psnb[tensorboard]``.

    Parameters
    ----------
    folder : str or os.PathLike
        Where the event files go.

    Raises
    ------
    ConfigurationError
        If tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                "psnb.TensorBoard needs tensorboardX: pip install psnb[tensorboard]"
            ) from error
        self._folder = os.fspath(folder)
        self._writer: Any = None
        self._before = 0  # batches of earlier epochs

    def on_begin(self, trainer: Trainer) -> None:
        """Begin a file."""
        from tensorboardX import SummaryWriter

        self._writer, self._before = SummaryWriter(self._folder), 0

    def on_batch(self, trainer: Trainer, snapshot: TrainingSnapshot) -> None:
        """Write the metrics so far."""
        for name, value in snapshot.metrics.items():
            self._writer.add_scalar(f"batch/{name}", value, self._before + snapshot.batch)

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Write the epoch's metrics."""
        self._before += row.batches
        for name, value in row.metrics.items():
            self._writer.add_scalar(f"epoch/{name}", value, row.epoch)
        self._writer.flush()

    def on_end(self, trainer: Trainer, history: TrainingHistory) -> None:
        """End the file, and the writer's thread."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
