"""What `psnb demo` tells: a line for each part of a pass, and how it ended."""

from __future__ import annotations

from math import nan
from pathlib import Path
from statistics import median

import psnb
from psnb._src.demo.learning_curve import write_learning_curve
from psnb._src.demo.references import GRADIENT_BOOSTING_AUC, LOGISTIC_REGRESSION_AUC


class StepLines(psnb.Callback):
    """Tells how good the model is after each part of a pass.

    Parameters
    ----------
    steps : int
        How many there will have been in the end.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_epoch(self, trainer: psnb.Trainer, row: psnb.EpochRow) -> None:
        done, metrics = sum(trainer.history["batches"]), row.metrics
        print(
            f"step {done:5,} of {self._steps:,}   training loss {metrics.get('loss', nan):.4f}   "
            f"held-out AUC {metrics['val_auc']:.4f}"
        )


def show(history: psnb.TrainingHistory, batch_size: int, manager: psnb.CheckpointManager) -> None:
    """Print the result beside the references, and draw the learning curve beside the checkpoint."""
    curve = Path(manager.directory) / "learning-curve.png"
    write_learning_curve(curve, history, batch_size)
    # In the first part, workers read the flights and compile: the median leaves it out.
    rate = median(row.batches * batch_size / row.seconds for row in history.rows if row.batches)
    print(f"""
held-out AUC        {history["val_auc"][-1]:.4f}   wide & deep on parameter servers, this run
  for reference     {GRADIENT_BOOSTING_AUC:.3f}    histogram gradient boosting
                    {LOGISTIC_REGRESSION_AUC:.3f}    logistic regression, one-hot
                    (references, not run now: python -m psnb._src.demo.references)
training speed      {rate:,.0f} examples/s
checkpoint          {manager.latest_checkpoint}
learning curve      {curve}""")
